"""What is rendered means what Postgres's text says: Postgres itself reads the JSON back, and prints the same text."""

from __future__ import annotations

import base64
import json
import random
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.topic import TopicField
from cdc.source.catalog import load_published
from sinks.render.kinds import Kind, kind_of
from sinks.render.literals import literal
from tests.conftest import Database
from tests.unit.render import nasty
from tests.unit.render.nasty import array_text, json_text

PAIR = "create type pair as (a int, t text, n numeric, ts text[], d date, at timestamptz, i interval, f float8, b bool, u uuid)"
SMALL = ("0", "-1", "2147483647")
DATES = ("2024-02-29", "infinity", "4714-11-24 BC", "5874897-12-31")
PLAIN_NUMBERS = tuple(number for number in nasty.NUMBERS if "Inf" not in number)


@pytest.fixture
def connection(postgres: Database) -> psycopg.Connection[Any]:
    connection = postgres.connect()
    connection.execute("create schema s; create type s.mood as enum ('sad', 'it''s, \"fine\"', '{a,b}', ' ')")
    connection.execute("set search_path = s; " + PAIR + "; create type nest as (p pair, ps pair[], m mood[])")
    connection.execute("create domain price as numeric(10,2); create domain ids as int[]")
    for name, value in PINNED_SETTINGS.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    connection.execute("set search_path = s")
    return connection


def kind(connection: psycopg.Connection[Any], name: str) -> Kind:
    """The kind of a column of this type, as the catalog tells it."""
    connection.execute(sql.SQL("create table k (id int primary key, v {}); create publication k for table k").format(sql.SQL(name)))
    [table] = load_published(connection, "k")
    connection.execute("drop publication k; drop table k")
    return kind_of(TopicField.of(table.columns[1]))


def printed(connection: psycopg.Connection[Any], name: str, given: str) -> str:
    """As Postgres prints what it has read."""
    row = connection.execute(sql.SQL("select format('%%s', %s::{})").format(sql.SQL(name)), (given,)).fetchone()
    assert row is not None
    return str(row[0])


def read_back(connection: psycopg.Connection[Any], name: str, written: str) -> str:
    """What Postgres makes of the JSON, which it takes attribute by attribute and element by element; printed."""
    holder = sql.Identifier(f"holder of {name}")
    if connection.execute("select to_regtype(%s) is null", (f's."holder of {name}"',)).fetchone() == (True,):
        connection.execute(sql.SQL("create type {} as (v {})").format(holder, sql.SQL(name)))
    query = sql.SQL("select format('%%s', (json_populate_record(null::{}, %s::json)).v)").format(holder)
    row = connection.execute(query, (f'{{"v":{written}}}',)).fetchone()
    assert row is not None
    return str(row[0])


ELEMENTS = {
    "int": SMALL,
    "numeric": nasty.NUMBERS,
    "float8": nasty.FLOATS,
    "text": nasty.TEXTS,
    "bool": ("t", "f"),
    "date": DATES,
    "timestamptz": nasty.MOMENTS,
    "interval": tuple(text for text in nasty.INTERVALS),
    "mood": ("sad", 'it\'s, "fine"', "{a,b}", " "),
    "inet": ("10.0.0.1/8", "::1"),
    "price": ("1.10", "-0.01"),
    "int4range": ("[1,5)", "empty", "(,3)"),
}


@pytest.mark.parametrize("name", [name for name in ELEMENTS if name != "int4range"])
def test_arrays_come_back(connection: psycopg.Connection[Any], name: str, seed: int) -> None:
    rng = random.Random(seed)
    found = kind(connection, f"{name}[]")
    for _ in range(60):
        text = printed(connection, f"{name}[]", array_text(rng, lambda: rng.choice(ELEMENTS[name])))
        written = literal(found, text)
        assert read_back(connection, f"{name}[]", written) == text
        assert written.startswith('"') == text.startswith("["), "only lower bounds make text of an array"


def test_composites_come_back_by_their_attributes_names(connection: psycopg.Connection[Any], seed: int) -> None:
    rng = random.Random(seed)
    found, nested = kind(connection, "pair"), kind(connection, "nest")

    def pair() -> str:
        values = [
            rng.choice(SMALL),
            rng.choice(nasty.TEXTS),
            rng.choice(nasty.NUMBERS),
            array_text(rng, lambda: rng.choice(nasty.TEXTS)),
        ]
        values += [rng.choice(DATES), rng.choice(nasty.MOMENTS), rng.choice(nasty.INTERVALS), rng.choice(nasty.FLOATS), "t"]
        values += ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]
        given = [None if rng.random() < 0.2 else value for value in values]
        row = connection.execute(
            "select row(%s::int, %s::text, %s::numeric, %s::text[], %s::date, %s::timestamptz, %s::interval, %s::float8, %s::bool, %s::uuid)"
            "::pair::text",
            given,
        ).fetchone()
        assert row is not None
        return str(row[0])

    for _ in range(60):
        text = pair()
        written = literal(found, text)
        assert read_back(connection, "pair", written) == text
        assert list(json.loads(written)) == ["a", "t", "n", "ts", "d", "at", "i", "f", "b", "u"]
        pairs = [pair() for _ in range(rng.randrange(3))]
        row = connection.execute("select row(%s::pair, %s::text[]::pair[], '{sad,NULL}')::nest::text", (pair(), pairs)).fetchone()
        assert row is not None
        assert read_back(connection, "nest", literal(nested, row[0])) == row[0]


@pytest.mark.parametrize(
    ("name", "bound", "values"), [("numrange", "numeric", PLAIN_NUMBERS[:9]), ("tstzrange", "timestamptz", nasty.MOMENTS)]
)
def test_ranges_are_their_bounds(
    connection: psycopg.Connection[Any], name: str, bound: str, values: tuple[str, ...], seed: int
) -> None:
    rng = random.Random(seed)
    one, many = kind(connection, name), kind(connection, name.replace("range", "multirange"))

    def rebuilt(parsed: Any) -> str:
        if parsed == {"empty": True}:
            return "empty"
        made = connection.execute(
            sql.SQL("select {}(%s::{t}, %s::{t}, %s)::text").format(sql.SQL(name), t=sql.SQL(bound)),
            (parsed["lower"], parsed["upper"], parsed["bounds"]),
        ).fetchone()
        assert made is not None
        return str(made[0])

    for _ in range(80):
        low, high = (None if rng.random() < 0.2 else rng.choice(values) for _ in range(2))
        row = connection.execute(
            sql.SQL("select {r}(least(%(a)s::{t}, %(b)s), greatest(%(a)s::{t}, %(b)s), %(c)s)::text").format(
                r=sql.SQL(name), t=sql.SQL(bound)
            ),
            {"a": low, "b": high, "c": rng.choice(["[)", "[]", "()", "(]"])},
        ).fetchone()
        assert row is not None
        text = row[0]
        parsed = json.loads(literal(one, text), parse_float=str, parse_int=str)
        assert rebuilt(parsed) == text
        several = "{" + (text if text != "empty" else "") + "}"
        found = json.loads(literal(many, several), parse_float=str, parse_int=str)
        assert [rebuilt(inner) for inner in found] == ([] if text == "empty" else [text])


def test_intervals_are_what_postgres_writes_in_iso(connection: psycopg.Connection[Any], seed: int) -> None:
    rng = random.Random(seed)
    found = kind(connection, "interval")
    for _ in range(300):
        parts = [rng.choice([0, 0, 1, -1, rng.randrange(-9999, 9999)]) for _ in range(6)]
        row = connection.execute(
            "select make_interval(years => %s, months => %s, days => %s, hours => %s, mins => %s, secs => %s)::text",
            (*parts[:5], parts[5] + rng.choice([0, 0.5, -0.000001])),
        ).fetchone()
        assert row is not None
        connection.execute("set intervalstyle = iso_8601")
        iso = printed(connection, "interval", row[0])
        connection.execute("set intervalstyle = postgres")
        assert json.loads(literal(found, row[0])) == iso


def test_documents_are_the_same_to_postgres(connection: psycopg.Connection[Any], seed: int) -> None:
    rng = random.Random(seed)
    json_kind, jsonb_kind = kind(connection, "json"), kind(connection, "jsonb")
    for text in [*nasty.DOCUMENTS, *(json_text(rng) for _ in range(200))]:
        written = literal(json_kind, text)
        assert "\n" not in written
        try:
            row = connection.execute("select %s::jsonb::text, %s::jsonb = %s::jsonb", (text, text, written)).fetchone()
        except psycopg.DataError:  # \u0000, half a character: json's only
            continue
        assert row is not None
        assert row[1] or json.loads(written) == text, "itself, or the string of its text"
        again = connection.execute("select %s::jsonb = %s::jsonb", (literal(jsonb_kind, row[0]), row[0])).fetchone()
        assert again == (True,) or json.loads(literal(jsonb_kind, row[0])) == row[0]


def test_bytes_are_base64(connection: psycopg.Connection[Any]) -> None:
    found = kind(connection, "bytea[]")
    text = printed(connection, "bytea[]", '{"\\\\x00ff","\\\\x",NULL}')
    assert [None if one is None else base64.b64decode(one) for one in json.loads(literal(found, text))] == [b"\x00\xff", b"", None]


def test_numbers_are_the_same_behind_a_double_where_one_is_between(connection: psycopg.Connection[Any], seed: int) -> None:
    rng = random.Random(seed)
    found = kind(connection, "numeric[]")
    for _ in range(200):
        number = (
            f"{rng.choice(['', '-'])}{rng.randrange(10 ** rng.randrange(1, 25))}.{rng.randrange(10 ** rng.randrange(1, 25)):024d}"
        )
        text = printed(connection, "numeric[]", "{" + rng.choice([number, *PLAIN_NUMBERS]) + "}")
        [value] = json.loads(literal(found, text, doubles=True))
        exact = text[1:-1]
        assert value == exact or Decimal(repr(value) if isinstance(value, float) else value) == Decimal(exact)


def test_hstore_is_an_object(connection: psycopg.Connection[Any], seed: int) -> None:
    if not connection.execute("select from pg_available_extensions where name = 'hstore'").fetchall():
        pytest.skip("this server has no hstore")
    connection.execute("create extension hstore schema s")
    rng = random.Random(seed)
    found = kind(connection, "hstore")
    for _ in range(100):
        keys = [rng.choice(nasty.TEXTS) for _ in range(rng.randrange(5))]
        values = [rng.choice([*nasty.TEXTS, None]) for _ in keys]
        row = connection.execute(
            "select hstore(%s::text[], %s::text[])::text, hstore_to_json(hstore(%s::text[], %s::text[]))", (keys, values) * 2
        )
        text, wanted = row.fetchone() or ("", None)
        assert json.loads(literal(found, text)) == wanted
