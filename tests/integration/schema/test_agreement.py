"""Everybody who makes a ``Table`` makes the same one: the stream's RELATION message, the snapshot, the facts; on every version."""

from __future__ import annotations

from pathlib import Path

from cdc.model.batch import table_of
from cdc.source import connect, find_tables, load_published
from cdc.source.facts import read_facts
from snapshots.catalog import load_tables
from tests.conftest import Database
from tests.integration.capture.running import Capture

TABLES = """
create schema s;
create type s.mood as enum ('a', 'b');
create domain s.short as varchar(5);
create type s.pair as (x int, y s.mood);
create table s.odd (gone int, "Key B" int, a text, m s.mood, d s.short, p s.pair[], n numeric(10, 2), primary key (a, "Key B"));
alter table s.odd drop gone;
create table s.full_keyed (id int primary key, v text);
alter table s.full_keyed replica identity full;
create table s.full_bare (id int, v text);
alter table s.full_bare replica identity full;
create table s.by_index (id int primary key, code text not null unique);
alter table s.by_index replica identity using index by_index_code_key;
create table s.parted (id int primary key, v text) partition by range (id);
create table s.part (v text, id int not null);
alter table s.parted attach partition s.part default;
create table s.computed (id int primary key, twice int generated always as (id * 2) stored);
create table s.listed (id int primary key, hidden text, v text);
"""
ROWS = """
insert into s.odd values (1, 'x', 'a', 'd', array[row(1, 'b')::s.pair], 1.5);
insert into s.full_keyed values (1, 'x');
insert into s.full_bare values (1, 'x');
insert into s.by_index values (1, '1');
insert into s.parted values (1, 'x');
insert into s.computed values (1);
insert into s.listed values (1, 'secret', 'x');
"""


def test_everybody_has_the_same_definitions(pg_versions: Database, tmp_path: Path) -> None:
    sql = pg_versions.connect()
    sql.execute(TABLES)
    sql.execute(ROWS.replace("(1", "(0").replace("'1'", "'0'"))
    newest = pg_versions.server.version >= 18
    sql.execute(
        "create publication cdc for table s.odd, s.full_keyed, s.full_bare, s.by_index, s.parted, s.computed, s.listed (id, v) "
        f"with (publish_via_partition_root = true{', publish_generated_columns = stored' if newest else ''})"
    )
    capture = Capture(pg_versions.dsn, tmp_path, tables=("s.*",), slot=f"s_{pg_versions.name}")
    with capture.running():
        capture.until_snapshot_done()
        read = {name: [table_of(batch.schema) for batch in capture.batches(name)][-1] for name in capture.topics()}
        positions = {name: capture.changes(name)[-1][0] for name in capture.topics()}
        sql.execute(ROWS)
        capture.until(lambda: all(capture.changes(name, after) for name, after in positions.items()), "for the rows")
        streamed = {name: [table_of(batch.schema) for batch in capture.batches(name)][-1] for name in capture.topics()}
        assert not [change for name in capture.topics() for change in capture.changes(name) if change[1] == "s"]
    with connect(pg_versions.dsn) as connection:
        published = {table.qualified: table for table in load_published(connection, "cdc")}
        facts = {found.table().qualified: found.table() for found in read_facts(connection, "cdc", published=True)}
        loaded = {found.name: found.table for found in load_tables(connection, ("s.*",), "cdc")}
        found = {table.name: table.table for table in find_tables(connection) if table.name in facts}
    assert streamed == read == published == facts == loaded
    assert {name: table for name, table in found.items() if name not in ("s.listed", "s.computed")} == {
        name: table for name, table in facts.items() if name not in ("s.listed", "s.computed")
    }
    assert facts["s.computed"].names == (("id", "twice") if newest else ("id",))
    assert facts["s.listed"].names == ("id", "v")
    assert [column.attnum for column in facts["s.odd"].columns] == [2, 3, 4, 5, 6, 7]
