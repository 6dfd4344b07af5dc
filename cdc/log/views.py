"""Batches as a reader hands them out: clipped, joined when tiny, a TRUNCATE or SCHEMA alone. Pure, and without a copy but for joining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model.batch import ALONE

SMALL_ROWS: Final = 4096
"""Batches below this are joined with their neighbours: a sink pays per batch, and a busy log is full of tiny ones."""
JOINED_ROWS: Final = 16_384
JOINED_BYTES: Final = 8 * 2**20


def clip(batch: pa.RecordBatch, after: int, upto: int) -> pa.RecordBatch:
    """The batch's rows with positions in (after, upto]."""
    positions = batch.column(0).to_numpy()
    if len(positions) and positions[0] > after and positions[-1] <= upto:
        return batch
    low, high = np.searchsorted(positions, (after, upto), "right")
    return batch.slice(int(low), max(0, int(high - low)))


def alone(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits the batch so that a change of the table as a whole stands alone, as sinks are promised."""
    found = np.flatnonzero(np.isin(batch.column(1).to_numpy(), ALONE))
    start = 0
    for at in found:
        if at > start:
            yield batch.slice(start, int(at) - start)
        yield batch.slice(int(at), 1)
        start = int(at) + 1
    if start < batch.num_rows:
        yield batch.slice(start) if start else batch


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same changes in fewer batches: neighbours of one schema version are joined while they are small."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        small = batch.num_rows < SMALL_ROWS
        if waiting and not (small and waiting[0].schema.equals(batch.schema, check_metadata=True)):
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
        if not small:
            yield batch
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
