"""Batches for the contract suite, written as what the audit expects back: rows of canonical text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.model.batch import EXACT, LSN, META_FIELDS, OP, POSITION, TS, Op, batch_schema
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.oldrows import completed, old_rows_column
from cdc.model.pgtypes import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    JSON,
    JSONB,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
)
from cdc.model.table import Column, Table

Row = Mapping[str, str | None]


def numeric(precision: int, scale: int) -> int:
    """The typmod of numeric(precision, scale)."""
    return (precision << 16 | scale) + 4


ORDERS = Table(
    16401,
    "public",
    "orders",
    (
        Column("id", INT8, -1, "int8", key=True),
        Column("customer_id", INT8, -1, "int8"),
        Column("status", TEXT, -1, "text"),
        Column("amount", NUMERIC, numeric(12, 2), "numeric"),
        Column("note", TEXT, -1, "text"),
        Column("created_at", TIMESTAMPTZ, -1, "timestamptz"),
    ),
)

PAIRS = Table(
    16402,
    "public",
    "pairs",
    (Column("a", TEXT, -1, "text", key=True), Column("b", TEXT, -1, "text", key=True), Column("v", TEXT, -1, "text")),
)

TYPES = Table(
    16403,
    "Odd Schema",
    'Every "type"',
    (
        Column("id", TEXT, -1, "text", key=True),
        Column("small", INT2, -1, "int2"),
        Column("int", INT4, -1, "int4"),
        Column("big", INT8, -1, "int8"),
        Column("flag", BOOL, -1, "bool"),
        Column("real", FLOAT4, -1, "float4"),
        Column("double", FLOAT8, -1, "float8"),
        Column("money", NUMERIC, numeric(12, 2), "numeric"),
        Column("wide", NUMERIC, numeric(38, 10), "numeric"),
        Column("free", NUMERIC, -1, "numeric"),
        Column("day", DATE, -1, "date"),
        Column("clock", TIME, -1, "time"),
        Column("at", TIMESTAMP, -1, "timestamp"),
        Column("at utc", TIMESTAMPTZ, -1, "timestamptz"),
        Column("bytes", BYTEA, -1, "bytea"),
        Column("doc", JSON, -1, "json"),
        Column("docb", JSONB, -1, "jsonb"),
        Column("uid", UUID, -1, "uuid"),
        Column("tags", 1009, -1, "_text"),
        Column('we.ird "name"\n', TEXT, -1, "text"),
        Column("_id", TEXT, -1, "text"),
    ),
)


def order(
    key: int, status: str | None = "new", *, amount: str = "1.10", note: str | None = "", **more: str | None
) -> dict[str, str | None]:
    row = {"id": str(key), "customer_id": "7", "status": status, "amount": amount, "note": note}
    return {**row, "created_at": "2013-01-01 10:00:00+00", **more}


def batch(table: Table, changes: Sequence[tuple[Op, int, Row]]) -> pa.RecordBatch:
    """(operation, position, row as canonical text) → a batch; what a type cannot hold goes into ``_cdc_exact``."""
    schema = batch_schema(table)
    exact: list[dict[str, str]] = [{} for _ in changes]
    columns: list[pa.Array] = []
    for column in table.columns:
        kind, values = schema.field(column.name).type, []
        for index, (op, _, row) in enumerate(changes):
            text = row.get(column.name) if op != Op.TRUNCATE and (op != Op.DELETE or column.key) else None
            value = None if text is None else _typed(text, kind)
            if text is not None and value is None:
                exact[index][column.name] = text
            values.append(value)
        columns.append(pa.array(values, kind))
    count = len(changes)
    meta = {
        POSITION: [position for _, position, _ in changes],
        OP: [int(op) for op, _, _ in changes],
        LSN: [position * 10 for _, position, _ in changes],
        TS: [1_700_000_000_000_000] * count,
        EXACT: [list(values.items()) or None for values in exact],
    }
    return pa.RecordBatch.from_arrays([*(pa.array(meta[f.name], f.type) for f in META_FIELDS), *columns], schema=schema)


def upserts(table: Table, first_position: int, rows: Sequence[Row]) -> pa.RecordBatch:
    return batch(table, [(Op.INSERT, first_position + i, row) for i, row in enumerate(rows)])


def _typed(text: str, kind: pa.DataType) -> Any:
    """The value in the column's Arrow type; None when that type cannot hold it."""
    try:
        if pa.types.is_boolean(kind):
            return {"t": True, "f": False}[text]
        if pa.types.is_integer(kind):
            return int(text)
        if pa.types.is_floating(kind):
            return float(text)
        if pa.types.is_decimal(kind):
            value = Decimal(text)
            return value if value.is_finite() else None
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(text)
        if pa.types.is_time(kind):
            return dt.time.fromisoformat(text)
        if pa.types.is_timestamp(kind):
            return dt.datetime.fromisoformat(text)
        if pa.types.is_binary(kind):
            return bytes.fromhex(text.removeprefix("\\x"))
    except (ValueError, InvalidOperation):
        return None
    return text


def schema(
    table: Table, position: int, kind: Kind = Kind.ALTERED, *, empties: bool = False, now: str | None = None
) -> pa.RecordBatch:
    """The SCHEMA record after which rows stand under ``table``."""
    return schema_record(SchemaChange(table, kind, empties, now), position, position * 10, 1_700_000_000_000_000)


NUMBERED = replace(ORDERS, columns=tuple(replace(column, attnum=number) for number, column in enumerate(ORDERS.columns, 1)))
"""``ORDERS`` with its columns' numbers known."""


def replacing(changes: pa.RecordBatch, table: Table, old: Sequence[Row | None]) -> pa.RecordBatch:
    """The changes with the rows that they replaced, as capture hands them to the log."""
    rows = batch(table, [(Op.READ, 1, row) for row in old if row is not None])
    has = np.array([row is not None for row in old], np.bool_)
    return completed(changes, table, old_rows_column(table, has, rows.column(EXACT), rows.columns[len(META_FIELDS) :]))
