-- The role that Headwater connects as: it may replicate and read, nothing more.
--
--     psql -d DATABASE -v role=cdc -v schema=public -f deploy/roles.sql
--
-- With -v publication=NAME where the configuration's source.publication is not "cdc".
--
-- Run it as the owner of the tables or as an administrator, once for each schema; it may be run again. Then give the role a password
-- with \password (or let pg_hba.conf authenticate it otherwise), and a line such as
--
--     hostssl DATABASE cdc ADDRESS/32 scram-sha-256
--
-- What the role may do, if this file makes it (of one that is there already only the rights are widened, see docs/upgrade.md for the rest):
--   connect 30 times at once: about eight for capture and status, one for each of snapshot_workers and for each `cdc` command that runs;
--   write nothing: its transactions are read-only unless they say otherwise, as the ones do that change the publication;
--   read every table and view of the schema, those too that the role which runs this file makes later. To grant less, REVOKE the rest afterwards:
--   what capture needs is SELECT on the tables that source.tables selects. Row-level security hides no row from it silently: reading is then an error.
--
-- REPLICATION reads every table's changes in this cluster's databases that pg_hba.conf lets the role connect to, whatever its GRANTs say: give it no
-- line for the database "replication" and none for other databases.

\set ON_ERROR_STOP on
\if :{?publication}
\else
\set publication cdc
\endif

-- Every name below means the system's own object. A schema that others may create in could hold a function that fits a call better.
set search_path = pg_catalog, pg_temp;
set client_min_messages = warning;
set default_transaction_isolation = 'read committed';
select rolsuper as super from pg_roles where rolname = current_user \gset

-- A superuser's functions in schema headwater run in everybody's DDL (see "Definitions" below), so nobody else may ever decide what they are.
-- Looked at before the first DDL of this file, which would already run them.
\if :super
do $check$
declare
  theirs text;
  drop_it constant text := 'find out who made it and what for (docs/upgrade.md), then: drop event trigger if exists headwater_ddl_end; '
    'drop event trigger if exists headwater_ddl_drop; drop schema headwater cascade; and run this file again';
begin
  with owned(what, owner) as (
    select format('schema %I', n.nspname), n.nspowner from pg_namespace n where n.nspname = 'headwater'
    union all
    select pg_describe_object(d.classid, d.objid, 0), s.refobjid
    from pg_namespace n
    join pg_depend d on d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.oid
    join pg_shdepend s on s.classid = d.classid and s.objid = d.objid and s.deptype = 'o'
      and s.dbid = (select oid from pg_database where datname = current_database())
    where n.nspname = 'headwater'
    union all
    select format('event trigger %I', e.evtname), e.evtowner from pg_event_trigger e where e.evtname in ('headwater_ddl_end', 'headwater_ddl_drop'))
  select string_agg(owned.what || ' is owned by a role that is not a superuser: ' || r.rolname, '; ' order by owned.what) into theirs
  from owned join pg_roles r on r.oid = owned.owner where not r.rolsuper;
  if theirs is not null then
    raise exception 'headwater: %', theirs using hint = drop_it;
  end if;

  -- The tables may have been another's before, with something on them that runs when they are read or written.
  select string_agg(format('headwater.%I', c.relname), ', ') into theirs
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join (values
    ('ddl_password', 'password text'),
    ('publications', 'name name'),
    ('set_aside', 'publication name, relation oid, entry oid, again boolean'),
    ('set_aside', 'publication name, relation oid, entry oid, again boolean, place bigint')) made(name, columns) on made.name = c.relname
    -- the first as it was made before, and is changed below
    and (c.relname <> 'set_aside' or (made.columns like '%place%') = exists (
      select from pg_attribute a where a.attrelid = c.oid and a.attname = 'place'))
  where n.nspname = 'headwater' and not (
    c.relkind = 'r' and c.relpersistence = 'p' and not c.relispartition and not c.relrowsecurity and c.reloftype = 0 and c.relchecks = 0
    and made.columns = (
      select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
      from pg_attribute a where a.attrelid = c.oid and a.attnum > 0)
    and not exists (select from pg_attribute a where a.attrelid = c.oid and (a.atthasdef or a.attisdropped))
    and not exists (select from pg_trigger t where t.tgrelid = c.oid)
    and not exists (select from pg_rewrite w where w.ev_class = c.oid)
    and not exists (select from pg_policy p where p.polrelid = c.oid)
    and not exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent))
    and not exists (select from pg_index x where x.indrelid = c.oid and not x.indisprimary));
  if theirs is not null then
    raise exception 'headwater: not what this file makes: %', theirs using hint = drop_it;
  end if;
end
$check$;
\endif

select not exists (select from pg_roles where rolname = :'role') as missing \gset
\if :missing
create role :"role" login replication nosuperuser nocreatedb nocreaterole noinherit connection limit 30;
alter role :"role" set default_transaction_read_only = on;
alter role :"role" set row_security = off;
\endif

-- On Amazon RDS and Aurora nobody is a superuser, and this right is membership in a role.
select format(case when not :'super' and to_regrole('rds_superuser') is not null and to_regrole('rds_replication') is not null
                   then 'grant rds_replication to %I' else 'alter role %I replication' end, :'role')
where not (select rolreplication from pg_roles where rolname = :'role') \gexec

select format('grant connect on database %I to %I', current_database(), :'role') \gexec
select format('grant usage on schema %I to %I', :'schema', :'role') \gexec
select format('grant select on all tables in schema %I to %I', :'schema', :'role') \gexec

-- Tables that the running role makes later in this schema.
select format('alter default privileges in schema %I grant select on tables to %I', :'schema', :'role') \gexec

-- A publication can be made only by the tables' owner. `cdc doctor` prints the exact statement for the tables of your cdc.toml;
-- this one takes every table of the schema that has a primary key (partitions come with their root, children by INHERITS for themselves). A key with a
-- generated column is none here: it cannot be published before version 18, and from then on only on request.
select format(
           'create publication %I for table %s with (publish_via_partition_root = true)', :'publication',
           string_agg(format('only %I.%I', n.nspname, c.relname), ', ' order by c.relname))
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_index i on i.indrelid = c.oid and i.indisprimary and i.indisvalid and i.indimmediate
where n.nspname = :'schema' and c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
  and not exists (select from pg_publication where pubname = :'publication')
  and not exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum = any (i.indkey::int2[]) and a.attgenerated <> '')
  and not exists (
    select from pg_partition_tree(c.oid) tree join pg_class l on l.oid = tree.relid and tree.isleaf
    where c.relkind = 'p' and (l.relreplident <> 'd' or l.relpersistence <> 'p' or l.relkind <> 'r'))
  and c.relreplident = 'd'
having count(*) > 0 \gexec

-- Definitions. Postgres streams rows, not DDL: this event trigger puts what the catalog says of a changed table into the stream, in the DDL's own
-- transaction, so that the change takes its place in the log before the first row under it. It needs a superuser; without it Headwater
-- looks at the catalog every few seconds, which is as sure but later. A failure in it is a warning and never fails the DDL.
--
-- It also takes a table out of the publication in the moment in which the table loses what identifies its rows (its key was dropped, it got
-- a partition without one, ...): Postgres refuses updates and deletes of a published table like that. And it puts the table back once it has an identity again.
-- It does so with the publications that this file was run for (headwater.publications), and with no other.
\if :super
-- DDL of others comes to wait for who waits here, if only a little.
set lock_timeout = '2s';
begin;
-- Not "if not exists": what others make between the look above and now ends this with an error.
select 'create schema headwater' where not exists (select from pg_namespace where nspname = 'headwater') \gexec
alter schema headwater owner to current_user;

-- Anybody may emit logical messages; only ours carry this.
select 'create table headwater.ddl_password (password text primary key)'
where not exists (select from pg_class c where c.relnamespace = 'headwater'::regnamespace and c.relname = 'ddl_password') \gexec
alter table headwater.ddl_password owner to current_user;

-- The publications whose tables are looked after; and the tables that have left one of them, with the catalog row by which they are back (null: they
-- are out), and whether they can come back as they were: without a column list and a row filter, which may have kept something from being published.
-- Rows are only added, without a unique index, and of those for one table the last counts: so nobody waits for another's transaction here.
select 'create table headwater.publications (name name primary key)'
where not exists (select from pg_class c where c.relnamespace = 'headwater'::regnamespace and c.relname = 'publications') \gexec
alter table headwater.publications owner to current_user;
insert into headwater.publications values (:'publication') on conflict do nothing;
select 'create table headwater.set_aside (publication name not null, relation oid not null, entry oid, again boolean not null)'
where not exists (select from pg_class c where c.relnamespace = 'headwater'::regnamespace and c.relname = 'set_aside') \gexec
alter table headwater.set_aside owner to current_user;
alter table headwater.set_aside drop constraint if exists set_aside_pkey;
select 'alter table headwater.set_aside add place bigint generated always as identity'
where not exists (select from pg_attribute a where a.attrelid = 'headwater.set_aside'::regclass and a.attname = 'place') \gexec
insert into headwater.ddl_password select gen_random_uuid()::text where not exists (select from headwater.ddl_password);
create or replace function headwater.ddl_facts(relation oid) returns json
language sql stable set search_path = pg_catalog, pg_temp as $facts$
select
json_build_object(
  'oid', c.oid::int8,
  'schema', (select n.nspname from pg_namespace n where n.oid = c.relnamespace),
  'name', c.relname,
  'partitioned', c.relkind = 'p',
  'attached', c.relispartition,
  'identity', c.relreplident,
  'columns', (
    select coalesce(json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
      case when a.atttypid < 10000 then '' else (
        with recursive base as (
          select t.oid, t.typbasetype, t.typname, t.typnamespace from pg_type t where t.oid = a.atttypid
          union all
          select t.oid, t.typbasetype, t.typname, t.typnamespace from pg_type t join base b on t.oid = b.typbasetype)
        select coalesce(max(bn.nspname || '.' || base.typname), '')
        from base join pg_namespace bn on bn.oid = base.typnamespace where base.typbasetype = 0) end,
      a.attgenerated, a.attnotnull or a.atthasdef or a.atthasmissing or a.attidentity <> '', a.xmin::text) order by a.attnum), '[]')
    from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'index', (
    select coalesce(json_agg(k.attnum order by k.place), '[]')
    from pg_index x cross join unnest(x.indkey::int2[]) with ordinality k(attnum, place)
    where k.place <= x.indnkeyatts and x.indrelid = c.oid and x.indisvalid
      and case c.relreplident when 'i' then x.indisreplident else x.indisprimary and x.indimmediate end),
  'leaves', (
    select coalesce(json_object_agg(l.oid, json_build_array(l.relfilenode::int8,
        (select count(distinct a.xmin::text || ' ' || a.cmin::text) = 1 from pg_attribute a
         where a.attrelid = l.oid and a.attnum in (-1, 1)),
        (select coalesce(string_agg(way.made, ' ' order by way.link), '') from unnest(b.links, b.made) way(link, made)))), '{}')
    from (
    with recursive tree(oid, links, made) as (
      select c.oid, '{}'::oid[], '{}'::text[]
      union all
      select i.inhrelid, t.links || i.inhrelid, t.made || i.xmin::text from tree t join pg_inherits i on i.inhparent = t.oid
      where not i.inhdetachpending and (select k.relkind from pg_class k where k.oid = t.oid) = 'p')
    select * from tree) b join pg_class l on l.oid = b.oid where l.relkind <> 'p'),
  'types', (
    with recursive reached(oid) as (
      select a.atttypid from pg_attribute a
      where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid >= 10000
      union
      select next.oid from reached r join pg_type t on t.oid = r.oid cross join lateral (
        select t.typelem union all select t.typbasetype
        union all select x.rngsubtype from pg_range x where t.oid in (x.rngtypid, x.rngmultitypid)
        union all select b.atttypid from pg_attribute b
          where b.attrelid = t.typrelid and t.typrelid <> 0 and b.attnum > 0 and not b.attisdropped) next(oid)
      where next.oid >= 10000)
    select coalesce(json_object_agg(piece.what, piece.text), '{}') from (
      select 'e' || e.oid as what, e.xmin || ' ' || e.enumlabel as text from reached r join pg_enum e on e.enumtypid = r.oid
      union all
      select 'a' || b.attrelid || '.' || b.attnum, b.atttypid || ' ' || b.atttypmod || ' ' || b.attisdropped
      from reached r join pg_type t on t.oid = r.oid join pg_attribute b on b.attrelid = t.typrelid and b.attnum > 0
      where t.typrelid <> 0
      union all
      select 'n' || b.attrelid || '.' || b.attnum, b.atttypid || ' ' || b.attname
      from reached r join pg_type t on t.oid = r.oid join pg_attribute b on b.attrelid = t.typrelid and b.attnum > 0
      where t.typrelid <> 0 and not b.attisdropped
      union all
      select 't' || t.oid, case when t.typtype = 'd' then 'd ' || t.typbasetype when t.typtype = 'c' then 'c ' || t.typrelid
        when t.typtype in ('r', 'm') then t.typtype::text || ' ' || (
          select x.rngsubtype from pg_range x where t.oid in (x.rngtypid, x.rngmultitypid))
        when t.typcategory = 'A' and t.typlen = -1 and t.typelem <> 0 then 'a ' || t.typelem || ' ' || t.typdelim::text
        else t.typtype::text || ' ' || t.typname end
      from reached r join pg_type t on t.oid = r.oid) piece))
from pg_class c where c.oid = relation and c.relkind in ('r', 'p') and c.relpersistence <> 't'
$facts$;

-- Tables, and everything that is a partition of them. pg_partition_tree would lock all of that until the end of the transaction, which is the application's:
-- it would wait for whoever has locked one of them, and others would wait for it.
create or replace function headwater.ddl_with_partitions(tables oid[]) returns oid[]
language sql stable set search_path = pg_catalog, pg_temp as $with$
select coalesce(array_agg(tree.oid), '{}')
from (
    with recursive tree(oid) as (
      select unnest(tables)
      union
      select i.inhrelid from tree t join pg_inherits i on i.inhparent = t.oid
      where not i.inhdetachpending and (select k.relkind from pg_class k where k.oid = t.oid) = 'p')
    select * from tree) tree
$with$;

-- Whether the transaction sees what others have committed. Under REPEATABLE READ and SERIALIZABLE the catalog looks to queries as it did when the
-- transaction began; DDL itself goes by what is there now. And what a serializable transaction reads of a table may not be written by others: so
-- headwater.set_aside is never read there, and what takes reading it is left to Headwater's looks at the catalog.
create or replace function headwater.ddl_current() returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $current$
select current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
$current$;

-- Whether Postgres refuses updates or deletes of rows in the table, or in one of its partitions, with the publication having the table
-- (CheckCmdReplicaIdentity in execReplication.c, pub_contains_invalid_column in publicationcmds.c).
create or replace function headwater.ddl_breaks(relation oid, publication oid) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $breaks$
select exists (
  select
  from pg_publication p
  cross join pg_class c
  left join pg_publication_rel entry on entry.prpubid = p.oid and entry.prrelid = c.oid
  cross join unnest(headwater.ddl_with_partitions(array[c.oid])) leaf(oid)
  join pg_class l on l.oid = leaf.oid and l.relkind = 'r' and l.relpersistence = 'p'
    -- A partition, or an index, that was dropped since the transaction began is still seen, but has no file. (What looks this up takes no lock.)
    and (pg_relation_filenode(l.oid) is not null or headwater.ddl_current())
  left join pg_index x on x.indrelid = l.oid and x.indisvalid and x.indislive and x.indisunique and x.indimmediate and x.indpred is null
    and case l.relreplident when 'd' then x.indisprimary when 'i' then x.indisreplident else false end
    and (pg_relation_filenode(x.indexrelid) is not null or headwater.ddl_current())
  cross join lateral (
    -- What the identity has and the stream would not: a column list counts by names, as numbers differ from partition to partition.
    select exists (
      select from pg_attribute a
      where a.attrelid = l.oid and a.attnum > 0 and not a.attisdropped
        and (l.relreplident = 'f' or a.attnum = any ((x.indkey::int2[])[:x.indnkeyatts - 1]))
        and case when entry.prattrs is not null then l.relreplident = 'f' or not exists (
                   select from pg_attribute sent
                   where sent.attrelid = c.oid and sent.attname = a.attname and sent.attnum = any (entry.prattrs::int2[]))
                 else current_setting('server_version_num')::int >= 180000
                   and (a.attgenerated = 'v' or a.attgenerated = 's' and not coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false)) end) as unsent) identity
  where p.oid = publication and c.oid = relation and (p.pubupdate or p.pubdelete)
    -- An index that was made since the transaction began is not seen. (What looks this up asks for a lock on the table for a moment.)
    and (identity.unsent or l.relreplident <> 'f' and x.indexrelid is null
         and (headwater.ddl_current() or pg_get_replica_identity_index(l.oid) is null)))
$breaks$;

-- An ALTER PUBLICATION that does not wait long: it needs a lock on the publication, which another transaction keeps to its end, and that one may
-- come to wait for ours. seen: whether the table was seen in the publication, or may merely be there; what an old snapshot has seen may be gone.
create or replace function headwater.ddl_try(statement text, seen boolean) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms' as $try$
begin
  for attempt in 1 .. case when seen then 50 else 2 end loop
    begin
      execute statement;
      return true;
    exception
      when lock_not_available then
        perform pg_sleep(0.02);
      when undefined_object then
        if seen and headwater.ddl_current() then
          raise;
        end if;
        return false;
    end;
  end loop;
  if seen then
    raise warning 'headwater: % could not be done, another transaction has just changed the publication: do it by hand', statement;
  end if;
  return false;
end
$try$;

-- The last word on each table that has left a publication. Not for a transaction that is not current.
create or replace function headwater.ddl_out() returns setof headwater.set_aside
language sql stable set search_path = pg_catalog, pg_temp as $out$
select distinct on (s.publication, s.relation) s.* from headwater.set_aside s order by s.publication, s.relation, s.place desc
$out$;

-- Takes out of the publications what cannot stay there, and puts back what can come back. touched: the tables that may have changed, with
-- all that they are partitions of.
create or replace function headwater.ddl_settle(touched oid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $settle$
declare
  current constant boolean := headwater.ddl_current();
  one record;
begin
  -- A table may have been published since the transaction began: then ALTER PUBLICATION knows.
  for one in
    select p.pubname, c.oid as relation, entry.oid is not null as seen, entry.prattrs is null and entry.prqual is null as again
    from headwater.publications ours
    join pg_publication p on p.pubname = ours.name
    join pg_class c on c.oid = any (touched)
    left join pg_publication_rel entry on entry.prpubid = p.oid and entry.prrelid = c.oid
    where (entry.oid is not null or not current and not p.puballtables and c.relkind in ('r', 'p') and c.relpersistence = 'p')
      and headwater.ddl_breaks(c.oid, p.oid)
  loop
    if headwater.ddl_try(format('alter publication %I drop table only %s', one.pubname, one.relation::regclass), one.seen) then
      insert into headwater.set_aside (publication, relation, entry, again) values (one.pubname, one.relation, null, one.seen and one.again);
    end if;
  end loop;
  if not current then
    return;
  end if;
  for one in
    select p.pubname, c.oid as relation
    from headwater.ddl_out() aside
    join pg_publication p on p.pubname = aside.publication
    join headwater.publications ours on ours.name = p.pubname
    join pg_class c on c.oid = aside.relation
    where aside.entry is null and aside.again and c.oid = any (touched)
      and c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
      and not exists (select from pg_publication_rel entry where entry.prpubid = p.oid and entry.prrelid = c.oid)
      and not headwater.ddl_breaks(c.oid, p.oid)
  loop
    perform headwater.ddl_try(format('alter publication %I add table only %s', one.pubname, one.relation::regclass), true);
  end loop;
end
$settle$;

-- Which tables are back, by our doing or by somebody else's. And what is not worth knowing any more is forgotten, unless somebody else is about to.
create or replace function headwater.ddl_back() returns void
language sql set search_path = pg_catalog, pg_temp as $back$
insert into headwater.set_aside (publication, relation, entry, again)
select aside.publication, aside.relation, entry.oid, aside.again
from headwater.ddl_out() aside
join pg_publication p on p.pubname = aside.publication
join pg_publication_rel entry on entry.prpubid = p.oid and entry.prrelid = aside.relation
where aside.entry is null;

delete from headwater.set_aside using (
  select old.place from headwater.set_aside old
  where exists (
      select from headwater.set_aside newer
      where newer.publication = old.publication and newer.relation = old.relation and newer.place > old.place)
    or not exists (select from pg_publication p where p.pubname = old.publication)
    or not exists (select from pg_class c where c.oid = old.relation)
  for update of old skip locked) past
where set_aside.place = past.place
$back$;

-- By publication: the tables among these that are out of it. The stream does not tell that they have left.
create or replace function headwater.ddl_aside(relations oid[]) returns json
language sql stable set search_path = pg_catalog, pg_temp as $aside$
select coalesce(json_object_agg(out.publication, out.tables), '{}')
from (
  select aside.publication, json_agg(aside.relation::int8) as tables from headwater.ddl_out() aside
  where aside.entry is null and aside.relation = any (relations) group by aside.publication) out
$aside$;

create or replace function headwater.ddl_end() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set lock_timeout = '100ms' as $end$
declare
  current constant boolean := headwater.ddl_current();
  changed oid[];
  retyped oid[];
  schemas oid[];
  roots oid[];
  look boolean;
begin
  -- Most DDL concerns none of these, such as that of functions and of temporary tables: nothing is looked up for it. And where something is, then by an
  -- index: a catalog of many thousand tables takes long to be read, and DDL like this comes in the middle of everybody's work.
  select coalesce(array_agg(c.objid) filter (where c.classid = 'pg_class'::regclass and c.schema_name is distinct from 'pg_temp'), '{}'),
         coalesce(array_agg(c.objid) filter (where c.classid = 'pg_type'::regclass and c.schema_name is distinct from 'pg_temp'), '{}'),
         coalesce(array_agg(c.objid) filter (where c.classid = 'pg_namespace'::regclass and c.command_tag = 'ALTER SCHEMA'), '{}'),
         coalesce(bool_or(c.command_tag like '%PUBLICATION'), false)
  into changed, retyped, schemas, look
  from pg_event_trigger_ddl_commands() c;
  if schemas <> '{}' then
    changed := changed || array(select k.oid from pg_class k where k.relnamespace = any (schemas));
  end if;
  if changed = '{}' and retyped = '{}' and not look then
    return;
  end if;
  retyped := retyped || array(select k.reltype from pg_class k where k.oid = any (changed) and k.reltype <> 0);
  select changed || coalesce(array_agg(d.objid), '{}') into changed
  from (
    with recursive made(oid) as (
      select unnest(retyped)
      union
      select next.oid from made m cross join lateral (
        -- arrays, domains, ranges and multiranges of it; then composites and tables that have a column of it
        select d.objid from pg_depend d
        where d.refclassid = 'pg_type'::regclass and d.refobjid = m.oid and d.classid = 'pg_type'::regclass
        union all
        select k.reltype from pg_depend d join pg_class k on k.oid = d.objid
        where d.refclassid = 'pg_type'::regclass and d.refobjid = m.oid and d.classid = 'pg_class'::regclass and d.objsubid > 0
          and k.reltype <> 0) next(oid))
    select oid from made) y join pg_depend d
    on d.refclassid = 'pg_type'::regclass and d.refobjid = y.oid and d.classid = 'pg_class'::regclass and d.objsubid > 0;
  changed := changed || array(select x.indrelid from pg_index x where x.indexrelid = any (changed));
  roots := array(
    select distinct coalesce(pg_partition_root(k.oid)::oid, k.oid) from pg_class k
    where k.oid = any (changed) and k.relkind in ('r', 'p') and k.relpersistence <> 't');
  -- A table that was made since the transaction began is not seen.
  look := look or not current;
  if roots = '{}' and not look then
    return;
  end if;
  begin
    if look and current then
      perform headwater.ddl_back();
    end if;
    perform headwater.ddl_settle(headwater.ddl_with_partitions(roots));
  exception when others then
    raise warning 'headwater: a table without identity may still be in the publication: %', sqlerrm;
  end;
  perform pg_logical_emit_message(true, 'headwater.ddl', json_build_object(
    'password', (select password from headwater.ddl_password),
    'look', look,
    'aside', case when current then headwater.ddl_aside(roots) else '{}' end,
    'tables', coalesce((select json_agg(headwater.ddl_facts(r.oid)) from unnest(roots) r(oid) where current), '[]'))::text);
exception when others then
  raise warning 'headwater: this change was not reported to the stream: %', sqlerrm;
end
$end$;

create or replace function headwater.ddl_drop() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set lock_timeout = '100ms' as $drop$
declare
  current constant boolean := headwater.ddl_current();
  altered oid[];
  bare oid[];
  gone oid[];
  look boolean;
  unindexed boolean;
begin
  with dropped as materialized (
    select d.* from pg_event_trigger_dropped_objects() d where not d.is_temporary)
  select coalesce(array_agg(d.objid) filter (where d.object_type = 'table column'), '{}')
           || coalesce(array_agg(to_regclass(format('%I.%I', d.address_names[1], d.address_names[2]))::oid)
                       filter (where d.object_type = 'table constraint'), '{}'),
         coalesce(array_agg(d.objid) filter (where d.object_type = 'table' and d.objsubid = 0), '{}'),
         coalesce(bool_or(d.object_type like 'publication%'), false),
         coalesce(bool_or(d.object_type = 'index'), false)
  into altered, gone, look, unindexed from dropped d;
  altered := array(
    select distinct coalesce(pg_partition_root(k.oid)::oid, k.oid) from pg_class k
    where k.oid = any (altered) and k.relkind in ('r', 'p') and k.relpersistence <> 't');
  -- Whose an index was is not known any more.
  bare := '{}';
  if unindexed then
    bare := array(select distinct coalesce(pg_partition_root(k.oid)::oid, k.oid) from pg_class k
                  where k.relreplident = 'i' and k.relkind in ('r', 'p')
                    and not exists (select from pg_index x where x.indrelid = k.oid and x.indisreplident and x.indisvalid));
  end if;
  begin
    if current and (look or gone <> '{}') then
      perform headwater.ddl_back();
    end if;
    altered := array(select unnest(altered) union select unnest(bare));
    perform headwater.ddl_settle(headwater.ddl_with_partitions(altered));
  exception when others then
    raise warning 'headwater: a table without identity may still be in the publication: %', sqlerrm;
  end;
  look := look or not current and altered <> '{}';
  if altered = '{}' and gone = '{}' and not look then
    return;
  end if;
  perform pg_logical_emit_message(true, 'headwater.ddl', json_build_object(
    'password', (select password from headwater.ddl_password),
    'look', look,
    'dropped', coalesce((select json_agg(g.oid::int8) from unnest(gone) g(oid)), '[]'),
    'aside', case when current then headwater.ddl_aside(altered) else '{}' end,
    'tables', coalesce((select json_agg(headwater.ddl_facts(r.oid)) from unnest(altered) r(oid) where current), '[]'))::text);
exception when others then
  raise warning 'headwater: this change was not reported to the stream: %', sqlerrm;
end
$drop$;

alter function headwater.ddl_facts(oid) owner to current_user;
alter function headwater.ddl_breaks(oid, oid) owner to current_user;
alter function headwater.ddl_current() owner to current_user;
alter function headwater.ddl_out() owner to current_user;
drop function if exists headwater.ddl_try(text);
alter function headwater.ddl_try(text, boolean) owner to current_user;
alter function headwater.ddl_with_partitions(oid[]) owner to current_user;
alter function headwater.ddl_settle(oid[]) owner to current_user;
alter function headwater.ddl_back() owner to current_user;
alter function headwater.ddl_aside(oid[]) owner to current_user;
alter function headwater.ddl_end() owner to current_user;
alter function headwater.ddl_drop() owner to current_user;

-- The only rights that others have here are to read these tables, given by name. What was granted otherwise, or came from default privileges, goes.
do $rights$
declare
  holder record;
begin
  for holder in
    with held as (
      select n.nspowner as owner, a.* from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'headwater'
      union all
      -- Who may read a sequence may not read the password.
      select c.relowner, a.grantor, a.grantee, case c.relkind when 'S' then 'USAGE' else a.privilege_type end, a.is_grantable
      from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'headwater'::regnamespace
      union all
      select c.relowner, a.* from pg_class c join pg_attribute b on b.attrelid = c.oid, aclexplode(b.attacl) a
      where c.relnamespace = 'headwater'::regnamespace
      union all
      select p.proowner, a.* from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      where p.pronamespace = 'headwater'::regnamespace)
    select held.grantee, case held.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(held.grantee)) end as name,
           held.grantee <> 0 and bool_or(held.privilege_type = 'SELECT' and held.grantor = held.owner) as reads
    from held where held.grantee <> held.owner group by held.grantee
  loop
    execute format('revoke all on schema headwater from %s cascade', holder.name);
    execute format('revoke all on all tables in schema headwater from %s cascade', holder.name);
    execute format('revoke all on all sequences in schema headwater from %s cascade', holder.name);
    execute format('revoke all on all functions in schema headwater from %s cascade', holder.name);
    if holder.reads then
      execute format('grant usage on schema headwater to %s', holder.name);
      execute format('grant select on all tables in schema headwater to %s', holder.name);
    end if;
  end loop;
end
$rights$;
select format('grant usage on schema headwater to %I', :'role') \gexec
select format('grant select on all tables in schema headwater to %I', :'role') \gexec

drop event trigger if exists headwater_ddl_end;
create event trigger headwater_ddl_end on ddl_command_end execute function headwater.ddl_end();
drop event trigger if exists headwater_ddl_drop;
create event trigger headwater_ddl_drop on sql_drop execute function headwater.ddl_drop();
commit;
\endif
