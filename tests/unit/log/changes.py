"""Batches of changes for the log's tests: small tables, every value derived from its position, so that content can be checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import EXACT_TYPE, Op, batch_schema
from cdc.model.pgtypes import INT8, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.table import Column, Table

ORDERS = Table(
    101,
    "public",
    "orders",
    (
        Column("id", INT8, key=True),
        Column("status", TEXT),
        Column("amount", NUMERIC, (12 << 16 | 2) + 4),
        Column("created_at", TIMESTAMPTZ),
    ),
)
ORDERS_WIDER = Table(101, "public", "orders", (*ORDERS.columns, Column("note", TEXT)))
USERS = Table(102, "public", "users", (Column("id", INT8, key=True), Column("name", TEXT)))
NOTES = Table(103, "app", "Notes & ½", (Column("id", INT8, key=True), Column("text", TEXT)))


def changes(table: Table, positions: Iterable[int], *, lsn: int = 7, op: Op = Op.INSERT, width: int = 8) -> pa.RecordBatch:
    """One batch with these positions; texts are about ``width`` characters long; every fifth row carries an exact value."""
    numbers = np.fromiter(positions, np.int64)
    schema = batch_schema(table)
    stamps = pa.array(numbers * 1_000_003).cast(pa.timestamp("us", tz="UTC"))
    exact = pa.array([[("status", f"exact {n}")] if n % 5 == 0 else None for n in numbers.tolist()], EXACT_TYPE)
    arrays: list[pa.Array] = [
        pa.array(numbers), pa.array(np.full(len(numbers), op, np.int8)), pa.array(np.full(len(numbers), lsn)), stamps, exact,
    ]  # fmt: skip
    for column in table.columns:
        kind = schema.field(column.name).type
        if pa.types.is_string(kind):
            arrays.append(pa.array([None if n % 7 == 0 else f"{column.name} {n}".ljust(width, "·") for n in numbers.tolist()]))
        elif pa.types.is_timestamp(kind):
            arrays.append(stamps)
        else:
            arrays.append(
                pa.array(numbers).cast(kind) if pa.types.is_integer(kind) else pa.array([n % 1000 for n in numbers.tolist()], kind)
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def positions_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [position for batch in batches for position in batch.column(0).to_pylist()]


def everything(reader: LogReader, after: int = 0, upto: int | None = None) -> dict[int, dict[str, object]]:
    """Every change that the reader shows, by position; fails when one shows twice."""
    head = reader.head().position if upto is None else upto
    found: dict[int, dict[str, object]] = {}
    for topic in reader.topics():
        for row in rows_of(reader.read(topic.name, after, head)):  # type: ignore[arg-type]
            position = row["_cdc_position"]
            assert isinstance(position, int)
            assert position not in found
            found[position] = {"topic": topic.name, **row}
    return found


def expected(batches: Sequence[pa.RecordBatch], tables: Sequence[Table]) -> dict[int, dict[str, object]]:
    return {
        row["_cdc_position"]: {"topic": table.qualified, **row}
        for batch, table in zip(batches, tables, strict=True)
        for row in batch.to_pylist()
    }
