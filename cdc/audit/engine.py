"""The audit's engine: two sides of rows in any order, which keys do not agree. Pure but for spilling to anonymous files.

Each side is scanned once. A row leaves a key digest (128 bit), a row digest (64 bit) and its ordinal behind; the key's own
text goes to an anonymous temporary file, to be read back for the few keys that differ. The sides are summed up in buckets of key digests on the way. Those
buckets whose sums are not the same are sorted by key digest and merged: per key the number of rows and the sum of their digests are compared. Where rows are identified by all of their columns, a store
holds equal rows once: then distinct rows are compared, and those that repeat another are counted.

Both sides have to be read: neither Redis nor OpenSearch can make a digest of what many rows hold, and a warehouse's and Postgres's own digests
are of their own texts of a value. So no range of keys is settled without its rows, and an audit costs what the slower of the two reads costs.

Live traffic makes rows differ that are merely in flight: ``cdc.audit.suspects`` decides which of the suspects really differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.audit.records import I64, RECORD, BucketSums, KeptDigests, KeptKeys, in_buckets
from cdc.kernels.digests import U64, digests
from cdc.kernels.jit import kernel
from cdc.model.topic import TopicSchema

SPILL_ROWS: Final = 8_000_000
"""A side with more rows than this (32 bytes each) goes to files, divided into ranges of the key digest."""


def key_indices(schema: TopicSchema) -> tuple[int, ...]:
    """Indices of the key's columns; of all columns where the rows cannot be told apart."""
    return tuple(i for i, column in enumerate(schema.fields) if column.key) or tuple(range(len(schema.fields)))


class Side:
    """Everything that the comparison keeps of one side. ``add`` batches (schema: ``audit_schema``), then compare.

    ``key``: indices of the key's columns. ``seed``: the same for both sides, any 64-bit number. ``distinct``: equal rows count once.
    """

    def __init__(
        self, schema: pa.Schema, key: Sequence[int], seed: int, *, distinct: bool = False, spill_rows: int = SPILL_ROWS
    ) -> None:
        self.rows = 0
        self.repeated = 0
        """Rows that were left out as equal to another, once the sides have been compared."""
        self._distinct = distinct
        self._schema = schema
        self._key = list(key)
        self._seed = seed
        self.digests = KeptDigests(spill_rows)
        self.sums = None if distinct else BucketSums()
        """None where equal rows count once, which no sum shows."""
        self.keys = KeptKeys(pa.schema([schema.field(i) for i in self._key]))

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises ValueError when the batch has other columns than the table."""
        if batch.schema.names != self._schema.names:
            raise ValueError(f"the audit expected the columns {self._schema.names}, the scan gave {batch.schema.names}")
        if batch.num_rows == 0:
            return
        found = digests(batch, self._key, self._seed)
        if self.sums is not None:
            self.sums.add(*found)
        records = np.empty(batch.num_rows, RECORD)
        records["high"], records["low"], records["row"] = found
        records["ordinal"] = np.arange(self.rows, self.rows + batch.num_rows)
        self.keys.add(batch.num_rows, [batch.column(i) for i in self._key])
        self.digests.add(records)
        self.rows += batch.num_rows

    def in_order(self, records: npt.NDArray[np.void]) -> tuple[U64, U64, U64, I64]:
        """The records' fields, by key digest."""
        high, low, row, ordinal = _sorted(records)
        if not self._distinct:
            return high, low, row, ordinal
        first = np.ones(high.size, np.bool_)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self.repeated += int(high.size - first.sum())
        return high[first], low[first], row[first], ordinal[first]

    def close(self) -> None:
        self.digests.close()
        self.keys.close()


def suspects(source: Side, store: Side) -> pa.RecordBatch:
    """The keys (their text, one row per key) whose rows do not agree. Consumes both sides' digests."""
    differ = None if source.sums is None or store.sums is None else source.sums.differ(store.sums)
    if differ is not None and not differ.any():
        return source.keys.take(np.empty(0, np.int64))
    divided = source.digests.spilled or store.digests.spilled
    of_source: list[I64] = []
    of_store: list[I64] = []
    for ours, theirs in zip(source.digests.ranges(divided), store.digests.ranges(divided), strict=True):
        if differ is not None:
            ours, theirs = in_buckets(ours, differ), in_buckets(theirs, differ)
        found = _merge(*source.in_order(ours), *store.in_order(theirs))
        of_source.append(found[found >= 0])
        of_store.append(~found[found < 0])
    batches = [source.keys.take(np.concatenate(of_source)), store.keys.take(np.concatenate(of_store))]
    whole = pa.Table.from_batches(batches).combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else batches[0]


def _sorted(records: npt.NDArray[np.void]) -> tuple[U64, U64, U64, I64]:
    order = np.argsort(records["high"])
    high, low = records["high"][order], records["low"][order]
    row, ordinal = records["row"][order], records["ordinal"][order]
    _sort_ties(high, low, row, ordinal)
    return high, low, row, ordinal


@kernel
def _sort_ties(high: U64, low: U64, row: U64, ordinal: I64) -> None:
    """Orders rows of equal ``high`` by ``low``; such runs are one row long but for rows that cannot be told apart."""
    start = 0
    for end in range(1, high.size + 1):
        if end < high.size and high[end] == high[start]:
            continue
        if end - start > 1:
            differ = False
            for i in range(start + 1, end):
                differ |= low[i] != low[start]
            if differ:
                order = np.argsort(low[start:end])
                low[start:end] = low[start:end][order]
                row[start:end] = row[start:end][order]
                ordinal[start:end] = ordinal[start:end][order]
        start = end


@kernel
def _merge(high_a: U64, low_a: U64, row_a: U64, ordinal_a: I64, high_b: U64, low_b: U64, row_b: U64, ordinal_b: I64) -> I64:
    """Per key that does not agree: an ordinal of side a where the key has a row there, else ``~ordinal`` of side b."""
    found = np.empty(high_a.size + high_b.size, np.int64)
    n = 0
    i = 0
    j = 0
    while i < high_a.size or j < high_b.size:
        take_b = i >= high_a.size or (
            j < high_b.size and (high_b[j] < high_a[i] or (high_b[j] == high_a[i] and low_b[j] < low_a[i]))
        )
        high = high_b[j] if take_b else high_a[i]
        low = low_b[j] if take_b else low_a[i]
        first_a, first_b = i, j
        sum_a = np.uint64(0)
        sum_b = np.uint64(0)
        while i < high_a.size and high_a[i] == high and low_a[i] == low:
            sum_a += row_a[i]
            i += 1
        while j < high_b.size and high_b[j] == high and low_b[j] == low:
            sum_b += row_b[j]
            j += 1
        if i - first_a != j - first_b or sum_a != sum_b:
            found[n] = ordinal_a[first_a] if i > first_a else ~ordinal_b[first_b]
            n += 1
    return found[:n]
