"""Rows that changes replaced, in every home of the log: whoever asks for them gets them, and for everybody else nothing is there."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.model.batch import BEFORE, Op, batch_schema
from cdc.model.evolution import Kind
from cdc.model.oldrows import logged_schema
from cdc.model.position import Position
from cdc.model.table import Table
from tests.contract.rows import TYPES, Row, batch, replacing, schema
from tests.contract.test_log import Home, log  # noqa: F401

FULL = replace(TYPES, identity="f")
TOPIC = FULL.qualified
OLD: Row = dict.fromkeys(FULL.names) | {"id": "a", "big": "7", "money": "NaN", "day": "infinity", 'we.ird "name"\n': "x"}
NEW: Row = dict.fromkeys(FULL.names) | {"id": "a", "big": "8"}


def changed(position: int, table: Table = FULL) -> pa.RecordBatch:
    changes = batch(table, [(Op.INSERT, position, OLD), (Op.UPDATE, position + 1, NEW), (Op.DELETE, position + 2, NEW)])
    return replacing(changes, table, [None, OLD, NEW]) if table.keeps_old_rows else changes


def read(home: Home, after: int = 0, *, old_rows: bool) -> list[pa.RecordBatch]:
    return list(home.reader.read(TOPIC, Position(after), home.reader.head().position, old_rows=old_rows))


def olds(batches: list[pa.RecordBatch]) -> list[tuple[int, list[tuple[str, int | None, dict[str, str]]]]]:
    """(position, its old rows) of each change."""
    return [
        (row["_cdc_position"], [(old["id"], old["big"], dict(old["_cdc_exact"] or ())) for old in row[BEFORE] or ()])
        for one in batches
        for row in one.to_pylist()
    ]


def test_who_asks_gets_them_and_nobody_else(log: Home) -> None:  # noqa: F811
    log.put(changed(1))
    log.put(batch(FULL, [(Op.READ, 4, NEW)]), batch(FULL, [(Op.TRUNCATE, 5, {})]), changed(6))
    log.settle()
    kept = ("a", 7, {"money": "NaN", "day": "infinity"})
    found = read(log, old_rows=True)
    assert olds(found) == [
        (1, []), (2, [kept]), (3, [("a", 8, {})]), (4, []), (5, []), (6, []), (7, [kept]), (8, [("a", 8, {})]),
    ]  # fmt: skip
    assert all(one.schema.equals(logged_schema(FULL), check_metadata=True) for one in found), "one schema, whatever a batch holds"
    assert olds(read(log, 1, old_rows=True))[:2] == [(2, [kept]), (3, [("a", 8, {})])]
    plain = read(log, old_rows=False)
    assert all(one.schema.equals(batch_schema(FULL), check_metadata=True) for one in plain)
    assert [row["_cdc_position"] for one in plain for row in one.to_pylist()] == list(range(1, 9))


def test_they_come_and_go_with_the_identity(log: Home) -> None:  # noqa: F811
    log.put(changed(1))
    log.put(schema(TYPES, 4, Kind.ALTERED), changed(5, TYPES))
    log.put(schema(FULL, 8, Kind.ALTERED), changed(9))
    log.settle()
    having = {one.column(0)[0].as_py(): BEFORE in one.schema.names for one in read(log, old_rows=True)}
    assert having == {1: True, 4: False, 5: False, 8: True, 9: True}
    (topic,) = log.reader.topics()
    assert topic.table == FULL


@pytest.mark.parametrize("table", [TYPES, replace(FULL, columns=tuple(replace(c, key=True) for c in FULL.columns))])
def test_a_table_whose_deletes_say_all_has_no_such_column(log: Home, table: Table) -> None:  # noqa: F811
    log.put(batch(table, [(Op.INSERT, 1, OLD)]))
    assert BEFORE not in next(iter(read(log, old_rows=True))).schema.names
