-- The role that Headwater connects as: it may replicate and read, nothing more.
--
--     psql -d DATABASE -v role=cdc -v schema=public -f deploy/roles.sql
--
-- Run it as the owner of the tables or as an administrator, once for each schema; it may be run again. Then give the role a password
-- with \password (or let pg_hba.conf authenticate it otherwise), and a line such as
--
--     hostssl DATABASE cdc ADDRESS/32 scram-sha-256
--
-- REPLICATION reads every table's changes in this cluster's databases that pg_hba.conf lets the role connect to, whatever its GRANTs say: give it no
-- line for the database "replication" and none for other databases.

\set ON_ERROR_STOP on

select format('create role %I login replication nosuperuser nocreatedb nocreaterole noinherit', :'role')
where not exists (select from pg_roles where rolname = :'role') \gexec

select format('alter role %I replication', :'role')
where not (select rolreplication from pg_roles where rolname = :'role') \gexec

select format('grant connect on database %I to %I', current_database(), :'role') \gexec
select format('grant usage on schema %I to %I', :'schema', :'role') \gexec
select format('grant select on all tables in schema %I to %I', :'schema', :'role') \gexec

-- Tables that the running role makes later in this schema.
select format('alter default privileges in schema %I grant select on tables to %I', :'schema', :'role') \gexec

-- A publication can be made only by the tables' owner. `cdc doctor` prints the exact statement for the tables of your cdc.toml;
-- this one takes every table of the schema that has a primary key (partitions come with their root).
select format(
           'create publication cdc for table %s with (publish_via_partition_root = true)',
           string_agg(format('%I.%I', n.nspname, c.relname), ', ' order by c.relname))
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_index i on i.indrelid = c.oid and i.indisprimary and i.indisvalid and i.indimmediate
where n.nspname = :'schema' and c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
  and c.relreplident in ('d', 'f', 'i') and not exists (select from pg_publication where pubname = 'cdc')
having count(*) > 0 \gexec
