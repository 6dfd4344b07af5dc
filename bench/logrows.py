"""The rows that the log's benchmarks write, of about 100 bytes each, and the disk without its waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.embedded.disk import Disk
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import EXACT_TYPE, Op, batch_schema
from cdc.model.pgtypes import INT8, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.position import Lsn
from cdc.model.table import Column, Table

ORDERS: Final = Table(
    1,
    "public",
    "orders",
    (
        Column("id", INT8, key=True),
        Column("customer_id", INT8),
        Column("status", TEXT),
        Column("amount", NUMERIC, (12 << 16 | 2) + 4),
        Column("note", TEXT),
        Column("created_at", TIMESTAMPTZ),
    ),
)
TOPIC: Final = ORDERS.qualified
BATCH_ROWS: Final = 20_000
BEGAN_US: Final = 1_700_000_000_000_000
"""When the first change was committed; a change each millisecond."""


class NoWait(Disk):
    """The real files without the waits for the disk: what is left is our own cost."""

    def sync(self, fd: int) -> None:
        del fd

    def sync_folder(self, path: Path) -> None:
        del path


def orders(first: int, count: int, ids: npt.NDArray[np.int64] | None = None) -> pa.RecordBatch:
    """``count`` orders at the positions from ``first`` on, of about 100 bytes each: inserted ones, or those with these ``ids`` changed."""
    numbers = np.arange(first, first + count)
    keys = numbers if ids is None else ids
    stamps = pa.array(numbers * 1000 + BEGAN_US).cast(pa.timestamp("us", tz="UTC"))
    words = pa.array(["new", "paid", "packed", "shipped"]).take(pa.array(numbers % 4))
    notes = pc.binary_join_element_wise("order", pa.array(keys).cast(pa.utf8()), "leaves tomorrow", " ")
    amounts = pa.array(numbers % 100_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2))
    op = Op.INSERT if ids is None else Op.UPDATE
    columns = [
        pa.array(numbers), pa.array(np.full(count, op, np.int8)), pa.array(numbers // 100), stamps, pa.nulls(count, EXACT_TYPE),
        pa.array(keys), pa.array(keys % 1000), words, amounts, notes, stamps,
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=batch_schema(ORDERS))


def changes(first: int, ids: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Orders with these ids changed, in batches, at the positions from ``first`` on."""
    for start in range(0, len(ids), BATCH_ROWS):
        mine = ids[start : start + BATCH_ROWS]
        yield orders(first + start, len(mine), mine)


def commit(writer: EmbeddedLogWriter, batch: pa.RecordBatch) -> None:
    """One cut, whose time is that of its last change."""
    writer.append(batch)
    last = int(writer.next_position) - 1
    writer.commit(Lsn(last), BEGAN_US + last * 1000)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
