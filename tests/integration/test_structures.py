"""What the catalog says of types that are not the server's own, and that stream, snapshot and facts say the same of it."""

from __future__ import annotations

import psycopg
import pytest

from cdc.model.structure import (
    ArrayOf,
    Composite,
    Hstore,
    MultirangeOf,
    RangeOf,
    Scalar,
    ScalarType,
    Structure,
    of_oid,
    structure_of,
)
from cdc.model.table import Column
from cdc.source.catalog import load_published
from snapshots.catalog import load_tables, look
from tests.conftest import Database

INT, TEXT, NUMERIC, FLOAT, JSONB = map(
    Scalar, (ScalarType.INT4, ScalarType.TEXT, ScalarType.NUMERIC, ScalarType.FLOAT8, ScalarType.JSONB)
)
PAIR = Composite((("a", INT), ('b "c", d', TEXT), ("n", NUMERIC)))

SETUP = """
create type pair as (a int, "b ""c"", d" text, gone int, n numeric);
alter type pair drop attribute gone;
create type outerone as (p pair, ps pair[], j jsonb);
create type mood as enum ('sad');
create type floatrange as range (subtype = float8, multirange_type_name = floatranges);
create domain ids as int[];
create domain price as numeric(10,2);
create domain dearer as price;
create domain dpair as pair;
create table rowlike (x int primary key, y mood);
create table t (
  id int primary key, c_pair pair, c_pairs pair[], c_outer outerone, c_mood mood, c_moods mood[], c_range floatrange, c_ranges floatrange[],
  c_many floatranges, c_ids ids, c_price price, c_prices dearer[], c_dpair dpair, c_row rowlike, c_boxes box[], c_jsons jsonb[]);
create publication cdc for table t;
"""
WANTED: dict[str, Structure] = {
    "id": INT,
    "c_pair": PAIR,
    "c_pairs": ArrayOf(PAIR),
    "c_outer": Composite((("p", PAIR), ("ps", ArrayOf(PAIR)), ("j", JSONB))),
    "c_mood": TEXT,
    "c_moods": ArrayOf(TEXT),
    "c_range": RangeOf(FLOAT),
    "c_ranges": ArrayOf(RangeOf(FLOAT)),
    "c_many": MultirangeOf(FLOAT),
    "c_ids": ArrayOf(INT),
    "c_price": NUMERIC,
    "c_prices": ArrayOf(NUMERIC),
    "c_dpair": PAIR,
    "c_row": Composite((("x", INT), ("y", TEXT))),
    "c_boxes": ArrayOf(Scalar(ScalarType.OTHER, 603), ";"),
    "c_jsons": ArrayOf(JSONB),
}


@pytest.fixture
def connection(pg_versions: Database) -> psycopg.Connection:
    connection = pg_versions.connect()
    connection.execute(SETUP)
    return connection


def test_the_catalog_tells_what_types_are_made_of(connection: psycopg.Connection) -> None:
    [facts] = [table for table in load_published(connection, "cdc") if table.name == "t"]
    assert {column.name: structure_of(column) for column in facts.columns} == WANTED
    [source] = load_tables(connection, ("public.t",), "cdc")
    assert source.table == facts


def test_an_attribute_that_is_renamed_is_noticed_between_two_chunks(connection: psycopg.Connection) -> None:
    [source] = load_tables(connection, ("public.t",), "cdc")
    before = look(connection, source.table.oid).facts
    assert look(connection, source.table.oid).facts == before
    connection.execute("alter type pair rename attribute a to aa")
    assert look(connection, source.table.oid).facts != before


def test_every_array_and_range_type_of_the_server_is_known(connection: psycopg.Connection) -> None:
    arrays = connection.execute(
        "select t.oid::int8, e.oid::int8, e.typdelim::text from pg_type t join pg_type e on e.oid = t.typelem and e.typarray = t.oid "
        "where t.oid < 10000 and e.typtype not in ('c', 'p') and e.typname not in ('gtsvector', 'cstring')"
    ).fetchall()
    for array, element, delimiter in arrays:
        assert structure_of(Column("", array)) == ArrayOf(structure_of(Column("", element)), delimiter)
    for kind, many, bound in connection.execute(
        "select rngtypid::int8, rngmultitypid::int8, rngsubtype::int8 from pg_range where rngtypid < 10000"
    ):
        assert structure_of(Column("", kind)) == RangeOf(of_oid(bound))
        assert structure_of(Column("", many)) == MultirangeOf(of_oid(bound))


def test_hstore_goes_by_its_name(postgres: Database) -> None:
    connection = postgres.connect()
    if not connection.execute("select from pg_available_extensions where name = 'hstore'").fetchall():
        pytest.skip("this server has no hstore")
    connection.execute(
        "create schema extras; create extension hstore schema extras; create table h (id int primary key, a extras.hstore)"
    )
    connection.execute("create publication cdc for table h")
    [table] = load_published(connection, "cdc")
    assert structure_of(table.columns[1]) == Hstore()
