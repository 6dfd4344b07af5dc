"""What the catalog's tables say is published is what ``pg_publication_tables`` says, on every version, and is read without opening a table."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from cdc.source.facts import read_facts
from cdc.source.membership import read_membership
from cdc.source.publication import read_publication
from snapshots.catalog import reload_tables
from tests.conftest import Database

SCHEMA = (
    'create schema a; create schema b; create schema empty; create schema "odd.name\'s"',
    "create table a.plain (id int primary key, v text, gone int, g int generated always as (id + 1) stored)",
    "alter table a.plain drop column gone",
    "create table b.plain (id int primary key, v text)",
    'create table "odd.name\'s"."t.1" (id int primary key, "v w" text)',
    "create table a.parent (id int primary key); create table a.child (x int) inherits (a.parent)",
    "create table a.parted (id int, at int, v text, primary key (id, at)) partition by range (at)",
    "create table a.parted_1 partition of a.parted for values from (0) to (1)",
    "create table b.parted_2 partition of a.parted for values from (1) to (2)",
    "create table b.deep partition of a.parted for values from (2) to (9) partition by range (id)",
    "create table a.deep_leaf partition of b.deep for values from (0) to (9)",
    "create unlogged table b.deep_unlogged partition of b.deep for values from (9) to (99)",
    "create table b.no_partitions (id int primary key) partition by list (id)",
    "create foreign data wrapper far; create server far foreign data wrapper far",
    "create table b.foreigns (id int) partition by list (id)",
    "create foreign table a.far_leaf partition of b.foreigns for values in (1) server far",
    "create foreign table a.far (id int) server far",
    "create unlogged table a.unlogged (id int primary key)",
    "create temp table temporary (id int primary key)",
    "create view a.view as select * from a.plain; create materialized view b.stored as select * from b.plain; create sequence a.counter",
)
TABLES = (
    "a.plain",
    "a.plain (id)",
    "a.plain (v, id)",
    "a.plain where (id > 5 and v <> 'x''y%s')",
    "b.plain",
    "b.plain (id) where (id is not null)",
    '"odd.name\'s"."t.1"',
    "only a.parent",
    "a.parent",
    "only a.child",
    "a.parted",
    "a.parted (id, at)",
    "a.parted where (at > 1)",
    "a.parted_1",
    "b.parted_2 where (id > 7)",
    "b.deep",
    "a.deep_leaf",
    "b.no_partitions",
    "b.foreigns",
)
SCHEMAS = ("a", "b", "empty", '"odd.name\'s"', "public")
# Before 18 no generated column is sent, and the view of 15 names them all the same.
THEIRS = """
select c.oid::int8, array(
         select a.attname::text from pg_attribute a
         where a.attrelid = c.oid and a.attname = any (p.attnames) and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000)
         order by a.attnum), p.rowfilter
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = 'p'
"""


@pytest.fixture
def sql(pg_versions: Database) -> psycopg.Connection[Any]:
    connection = pg_versions.connect()
    for statement in SCHEMA:
        connection.execute(statement.encode())
    return connection


def made(sql: psycopg.Connection[Any], statement: str) -> bool:
    """False where the server refuses it: a list twice, a list with a schema, a filter on a root that is not published as one."""
    sql.execute("drop publication if exists p")
    try:
        sql.execute(statement.encode())
    except psycopg.Error:
        return False
    return True


def agrees(sql: psycopg.Connection[Any], statement: str) -> None:
    theirs = {oid: (columns, row_filter) for oid, columns, row_filter in sql.execute(THEIRS.encode())}
    found = sql.execute(
        "select c.oid::int8, n.nspname || '.' || c.relname, c.relkind = 'f' from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    )
    every = {oid: (name, foreign) for oid, name, foreign in found}
    facts = {one.oid: [column.name for column in one.published] for one in read_facts(sql, "p", published=True)}
    # A partition that is a foreign table is in the view, and has no changes.
    assert facts == {oid: columns for oid, (columns, _) in theirs.items() if not every[oid][1]}, statement
    publication = read_publication(sql, "p")
    assert publication is not None
    assert publication.tables == {every[oid][0] for oid in theirs}, statement
    assert publication.filtered == {every[oid][0] for oid, (_, row_filter) in theirs.items() if row_filter}, statement
    assert set(read_membership(sql, "p").tables) == set(theirs), statement
    read = {
        oid: (list(source.table.names), source.row_filter)
        for oid, (source, _) in reload_tables(sql, list(every), ["*"], "p").items()
    }
    assert read == theirs, statement


def test_the_same_as_the_servers_own_view(sql: psycopg.Connection[Any]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    options = [f"with (publish_via_partition_root = {root})" for root in ("true", "false")]
    if sql.info.server_version >= 180000:
        options.append("with (publish_via_partition_root = true, publish_generated_columns = stored)")
    wanted = [
        "for all tables",
        "",
        *(f"for table {table}" for table in TABLES),
        *(f"for tables in schema {one}" for one in SCHEMAS),
    ]
    for _ in range(40):
        tables = chance.sample(TABLES, chance.randint(1, 4))
        schemas = chance.sample(SCHEMAS, chance.randint(0, 2))
        wanted.append(f"for table {', '.join(tables)}" + (f", tables in schema {', '.join(schemas)}" if schemas else ""))
    count = 0
    for covered in wanted:
        for option in options:
            statement = f"create publication p {covered} {option}"
            if made(sql, statement):
                count += 1
                agrees(sql, statement)
    assert count > len(wanted)


def test_a_list_with_a_stored_generated_column(sql: psycopg.Connection[Any]) -> None:
    if sql.info.server_version < 180000:
        pytest.skip("lists take generated columns from 18 on")
    assert made(sql, "create publication p for table a.plain (id, g)")
    agrees(sql, "(id, g)")


def test_a_partition_that_is_being_detached(sql: psycopg.Connection[Any], pg_versions: Database) -> None:
    """One that was left half detached, as by a cancelled DETACH … CONCURRENTLY, is no partition any more."""
    with pg_versions.connect(autocommit=False) as holding, pg_versions.connect() as detaching:
        holding.execute("select from a.parted")
        detaching.execute("set statement_timeout = '1s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            detaching.execute("alter table a.parted detach partition b.deep concurrently")
        holding.rollback()
    for covered in (
        "for table a.parted",
        "for table a.parted, b.deep",
        "for tables in schema a",
        "for tables in schema b",
        "for all tables",
    ):
        for root in ("true", "false"):
            statement = f"create publication p {covered} with (publish_via_partition_root = {root})"
            assert made(sql, statement)
            agrees(sql, statement)
