"""Bodies as Debezium's JSON converter writes them, field by field.

``debezium.ndjson`` is what Debezium 3.6.3 itself wrote (topic, key, value; ``schemas.enable=false``, ``decimal.handling.mode=string``,
``interval.handling.mode=string``) of the statements that ``test_it_is_what_debezium_wrote`` makes changes of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc.model.batch import Op
from cdc.model.pgtypes import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    UUID,
)
from cdc.model.table import Column, Table
from sinks.events.eventcolumns import EventForm, events_of
from sinks.render.jsonrows import Style
from tests.contract.rows import ORDERS, batch, numeric, order

FORM = EventForm(Style(), "debezium", store="bus")
MANY = Table(
    900_002,
    "public",
    "many",
    (
        Column("a", INT4, -1, "int4", key=True),
        Column("day", DATE, -1, "date", key=True),
        Column("ok", BOOL, -1, "bool"),
        Column("f", FLOAT8, -1, "float8"),
        Column("n", NUMERIC, numeric(12, 2), "numeric"),
        Column("t", TEXT, -1, "text"),
        Column("b", BYTEA, -1, "bytea"),
        Column("at", TIMESTAMP, -1, "timestamp"),
        Column("tz", TIMESTAMPTZ, -1, "timestamptz"),
        Column("clock", TIME, -1, "time"),
        Column("doc", JSONB, -1, "jsonb"),
        Column("u", UUID, -1, "uuid"),
        Column("i2", INT2, -1, "int2"),
        Column("i8", INT8, -1, "int8"),
        Column("r4", FLOAT4, -1, "float4"),
        Column("j", JSON, -1, "json"),
        Column("iv", INTERVAL, -1, "interval"),
        Column("ia", 1007, -1, "int4[]"),
        Column("ta", 1009, -1, "text[]"),
        Column("ir", 3904, -1, "int4range"),
        Column("ttz", TIMETZ, -1, "timetz"),
        Column("c10", 1042, 14, "char(10)"),
        Column("x", 869, -1, "inet"),
        Column("free", NUMERIC, -1, "numeric"),
    ),
)
ROW = {
    "a": "7",
    "day": "2020-01-02",
    "ok": "t",
    "f": "1.5",
    "n": "12.50",
    "t": 'a "b"',
    "b": "\\x0102ff",
    "at": "2020-01-02 03:04:05.123456",
    "tz": "2020-01-02 03:04:05.5+00",
    "clock": "13:45:30.000001",
    "doc": '{"a": 1}',
    "u": "00000000-0000-7000-8000-000000000001",
    "i2": "3",
    "i8": "9007199254740993",
    "r4": "0.1",
    "j": '{"z":  1.0}',
    "iv": "1 mon 2 days 03:04:05",
    "ia": "{1,NULL,3}",
    "ta": "{a,NULL}",
    "ir": "[1,5)",
    "ttz": "10:00:00+02",
    "c10": "ab        ",
    "x": "10.0.0.1",
    "free": "10000000000",
}
WRITTEN = [json.loads(line) for line in (Path(__file__).parent / "debezium.ndjson").read_text(encoding="utf-8").splitlines()]
OURS = {"iv": "P1M2DT3H4M5S", "ttz": "10:00:00+02"}
"""Where we differ (docs/event-stores.md)."""
SHOWN = json.loads(WRITTEN[0][2])["after"] | OURS
NOTHING = dict.fromkeys(SHOWN)


def made(*changes: Any, table: Table = MANY) -> list[tuple[Any, dict[str, Any]]]:
    events = events_of(batch(table, list(changes)), FORM).rows.to_pylist()
    return [(one["key"] and json.loads(one["key"]), json.loads(one["body"])) for one in events]


def test_it_is_what_debezium_wrote() -> None:
    key = {"a": "7", "day": "2020-01-02"}
    gone = dict.fromkeys(ROW)
    new = gone | {"a": "1", "day": "1969-12-31"}
    updated = ROW | {"ok": "f"}
    found = made((Op.INSERT, 1, ROW), (Op.UPDATE, 2, updated), (Op.DELETE, 5, key), (Op.INSERT, 6, new))
    theirs = [(json.loads(key), json.loads(value)) for _, key, value in WRITTEN if value is not None]
    del theirs[2]  # under REPLICA IDENTITY FULL
    assert len(found) == len(theirs) == 4
    for (our_key, ours), (their_key, value) in zip(found, theirs, strict=True):
        assert our_key == their_key
        assert list(ours) == list(value)
        assert list(ours["source"]) == list(value["source"])
        for part in ("before", "after"):
            row = value[part]
            assert ours[part] == (row and row | {name: shown for name, shown in OURS.items() if row[name] is not None})
            assert row is None or list(ours[part]) == list(row)
        same = ("op", "transaction")
        assert {name: ours[name] for name in same} == {name: value[name] for name in same}
        same_source = ("connector", "snapshot", "schema", "table", "xmin", "origin", "origin_lsn")
        assert {name: ours["source"][name] for name in same_source} == {name: value["source"][name] for name in same_source}
        assert {name: type(ours["source"][name]) for name in ("ts_ms", "ts_us", "ts_ns", "lsn")} == dict.fromkeys(
            ("ts_ms", "ts_us", "ts_ns", "lsn"), int
        )


@pytest.mark.parametrize(
    ("column", "text", "shown"),
    [
        ("tz", "2020-01-02 03:04:05+00", "2020-01-02T03:04:05.000000Z"),
        ("tz", "infinity", "infinity"),
        ("at", "-infinity", "-infinity"),
        ("at", "1969-12-31 23:59:59.999999", -1),
        ("ok", "f", False),
        ("n", "-0.01", "-0.01"),
        ("n", "NaN", "NaN"),
    ],
)
def test_values(column: str, text: str, shown: Any) -> None:
    [(_, body)] = made((Op.INSERT, 7, ROW | {column: text}))
    assert body["after"][column] == shown


def test_null_is_null() -> None:
    [(_, body)] = made((Op.READ, 7, {**dict.fromkeys(ROW), "a": "7", "day": "2020-01-02"}))
    assert body["after"] == NOTHING | {"a": 7, "day": 18263}
    assert body["source"]["snapshot"] == "true"
    assert body["op"] == "r"


def test_the_row_before_a_delete_has_all_columns_and_there_is_none_after_it() -> None:
    (_, updated), (key, deleted) = made((Op.UPDATE, 7, ROW), (Op.DELETE, 8, {"a": "7", "day": "2020-01-02"}))
    assert (updated["op"], updated["before"], updated["after"]) == ("u", None, SHOWN)
    assert (deleted["op"], deleted["after"]) == ("d", None)
    assert deleted["before"] == NOTHING | {"a": 7, "day": 18263}
    assert key == {"a": 7, "day": 18263}


def test_the_envelope_has_debeziums_fields() -> None:
    [(_, body)] = made((Op.INSERT, 3, order(1)), table=ORDERS)
    assert list(body) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    source = body["source"]
    assert (source["connector"], source["name"], source["schema"], source["table"]) == ("postgresql", "bus", "public", "orders")
    assert source["snapshot"] == "false"
    assert source["lsn"] == 30
    assert source["ts_us"] == body["ts_us"] == body["ts_ms"] * 1000 == body["ts_ns"] // 1000


def test_a_truncate_has_neither_row_nor_key() -> None:
    [(key, body)] = made((Op.TRUNCATE, 3, {}))
    assert (key, body["before"], body["after"], body["op"]) == (None, None, None, "t")


def test_a_definition_with_the_same_key_follows() -> None:
    """Equal fields of two definitions are not the same objects."""
    id_, code = Column("id", INT4, -1, "int4", key=True), Column("code", TEXT, -1, "text", key=True)
    for more in ("a", "b"):
        table = Table(900_003, "public", "altered", (id_, code, Column(more, TEXT, -1, "text")))
        [(key, value)] = made((Op.INSERT, 1, {"id": "1", "code": "x", more: "y"}), table=table)
        assert key == {"id": 1, "code": "x"}
        assert value["after"] == {"id": 1, "code": "x", more: "y"}
