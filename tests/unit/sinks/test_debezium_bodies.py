"""Bodies as Debezium's JSON converter writes them, value by value."""

from __future__ import annotations

import base64
import json
from typing import Any

from cdc.model.batch import Op
from cdc.model.pgtypes import BOOL, BYTEA, DATE, FLOAT8, INT4, JSONB, NUMERIC, TEXT, TIME, TIMESTAMP, TIMESTAMPTZ, UUID
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
}
SHOWN = {
    "a": 7,
    "day": 18263,
    "ok": True,
    "f": 1.5,
    "n": "12.50",
    "t": 'a "b"',
    "b": base64.b64encode(b"\x01\x02\xff").decode(),
    "at": 1_577_934_245_123_456,
    "tz": "2020-01-02T03:04:05.5Z",
    "clock": 49_530_000_001,
    "doc": '{"a": 1}',
    "u": "00000000-0000-7000-8000-000000000001",
}
NOTHING = dict.fromkeys(SHOWN)


def made(*changes: Any, table: Table = MANY) -> list[tuple[Any, dict[str, Any]]]:
    events = events_of(batch(table, list(changes)), FORM).rows.to_pylist()
    return [(one["key"] and json.loads(one["key"]), json.loads(one["body"])) for one in events]


def test_each_type_stands_as_debezium_writes_it() -> None:
    [(key, body)] = made((Op.INSERT, 7, ROW))
    assert key == {"a": 7, "day": 18263}
    assert body["before"] is None
    assert body["after"] == SHOWN
    assert list(body["after"]) == list(SHOWN)


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
    assert list(source) == [
        "version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "schema", "table", "txId", "lsn", "xmin",
    ]  # fmt: skip
    assert (source["connector"], source["name"], source["schema"], source["table"]) == ("postgresql", "bus", "public", "orders")
    assert source["snapshot"] == "false"
    assert source["lsn"] == 30
    assert source["ts_us"] == body["ts_us"] == body["ts_ms"] * 1000 == body["ts_ns"] // 1000


def test_a_truncate_has_neither_row_nor_key() -> None:
    [(key, body)] = made((Op.TRUNCATE, 3, {}))
    assert (key, body["before"], body["after"], body["op"]) == (None, None, None, "t")
