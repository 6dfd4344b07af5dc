"""Batches as a reader hands them out: clipped, joined when tiny, a TRUNCATE or SCHEMA alone; and joined further for stores that pay for each batch.
Pure, and without a copy but for joining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import ALONE

JOINED_ROWS: Final = 16_384
"""Batches of less than a quarter of this are joined with their neighbours: a sink pays per batch, and a busy log is full of tiny ones."""
MEASURED_ROWS: Final = 256
JOINED_BYTES: Final = 8 * 2**20
GATHERED_BYTES: Final = 32 * 2**20
HELD_BATCHES: Final = 1024
"""The number of tiny batches that wait before they become one: whatever its columns hold, each takes some kilobytes beside that."""


def clip(batch: pa.RecordBatch, after: int, upto: int) -> pa.RecordBatch:
    """The batch's rows with positions in (after, upto]."""
    positions = batch.column(0).to_numpy()
    if len(positions) and positions[0] > after and positions[-1] <= upto:
        return batch
    low, high = positions.searchsorted((after, upto), "right")
    return batch.slice(int(low), max(0, int(high - low)))


def picked(batch: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The batch's rows at these positions (rising)."""
    own = batch.column(0).to_numpy()
    if not len(own):
        return batch
    at = np.minimum(own.searchsorted(positions), len(own) - 1)
    return batch.take(pa.array(at[own[at] == positions]))


def alone(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits the batch so that a change of the table as a whole stands alone, as sinks are promised."""
    if batch.num_rows == 1:
        yield batch
        return
    ops = batch.column(1).to_numpy()
    among = ops.tobytes()
    if ALONE[0] not in among and ALONE[1] not in among:
        yield batch  # nearly always
        return
    found = ((ops == ALONE[0]) | (ops == ALONE[1])).nonzero()[0]
    start = 0
    for at in found.tolist():
        if at > start:
            yield batch.slice(start, at - start)
        yield batch.slice(at, 1)
        start = at + 1
    if start < batch.num_rows:
        yield batch.slice(start) if start else batch


def joined(
    batches: Iterable[pa.RecordBatch], large_bytes: int = JOINED_BYTES, *, upto_rows: int = JOINED_ROWS
) -> Iterator[pa.RecordBatch]:
    """The same changes in fewer batches: neighbours under one definition are joined while they are small.

    ``large_bytes``: a batch of at least ``MEASURED_ROWS`` rows and so many bytes is not small: joining it would only be a copy.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = measured = made = 0
    for batch in batches:
        small = 4 * batch.num_rows < upto_rows and (batch.num_rows < MEASURED_ROWS or batch.nbytes < large_bytes)
        if waiting and not (small and _same_version(waiting[0], batch)):
            yield _join(waiting)
            waiting, rows, size, measured, made = [], 0, 0, 0, 0
        if not small:
            yield batch
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if len(waiting) > 1:
            # What they hold in memory: what of it they show (``nbytes``) takes longer to find out than reading a tiny batch.
            size, measured = size + sum(one.get_total_buffer_size() for one in waiting[measured:]), len(waiting)
        if rows >= upto_rows or size >= JOINED_BYTES:
            yield _join(waiting)
            waiting, rows, size, measured, made = [], 0, 0, 0, 0
        elif len(waiting) - made >= HELD_BATCHES:
            waiting[made:] = [_join(waiting[made:])]
            measured = made = len(waiting)
    if waiting:
        yield _join(waiting)


def gathered(batches: Iterable[pa.RecordBatch], most_bytes: int = GATHERED_BYTES) -> Iterator[pa.RecordBatch]:
    """The same changes, as a reader has handed them out, in as few batches as ``most_bytes`` allows: neighbours under one definition are joined,
    whatever their size. A TRUNCATE or SCHEMA still stands alone."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        apart = batch.num_rows == 1 and batch.column(1)[0].as_py() in ALONE
        held = batch.nbytes
        if waiting and (apart or size + held > most_bytes or not _same_version(waiting[0], batch)):
            yield _join(waiting)
            waiting, size = [], 0
        if apart:
            yield batch
            continue
        waiting.append(batch)
        size += held
    if waiting:
        yield _join(waiting)


def _same_version(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return one.schema is other.schema or one.schema.equals(other.schema, check_metadata=True)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
