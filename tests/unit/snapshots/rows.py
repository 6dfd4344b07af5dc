"""Batches for the tests, written as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.model.batch import Op, batch_schema
from cdc.model.group import Group, Transactions, Watermark
from cdc.model.pgtypes import INT8, TEXT, TIMESTAMPTZ
from cdc.model.table import Column, Table

T = Table(7, "public", "t", (Column("a", INT8, key=True), Column("b", TEXT, key=True), Column("v", TEXT), Column("w", TEXT)))
TIMES = Table(8, "public", "times", (Column("at", TIMESTAMPTZ, key=True), Column("v", TEXT)))

Row = Mapping[str, Any]


def batch(table: Table, rows: Sequence[Row], *, op: Op = Op.UPDATE, first: int = 1) -> pa.RecordBatch:
    """``rows``: column → value; ``_op`` and ``_exact`` (column → text) where they differ from the ordinary. Dense positions."""
    meta = [
        {
            "_cdc_position": first + index,
            "_cdc_op": int(row.get("_op", op)),
            "_cdc_lsn": 0,
            "_cdc_ts": None,
            "_cdc_exact": list(row["_exact"].items()) if "_exact" in row else None,
            **{column.name: row.get(column.name) for column in table.columns},
        }
        for index, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(meta, schema=batch_schema(table))


def transactions(*each: tuple[int, int]) -> Transactions:
    """(xid, position of its last change) of each transaction."""
    xids, last = zip(*each, strict=True) if each else ((), ())
    zero = np.zeros(len(xids), np.int64)
    return Transactions(np.array(xids, np.uint32), zero + 1, zero, np.array(last, np.int64))


def group(batches: Sequence[pa.RecordBatch], *each: tuple[int, int], watermark: bytes | None = None, lsn: int = 0) -> Group:
    mark = None if watermark is None else Watermark(watermark, lsn)
    return Group(tuple(batches), transactions(*each), mark)
