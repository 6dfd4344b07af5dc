"""The audit's engine: two sides of rows in any order, which keys do not agree. Pure but for spilling to anonymous files.

Each side is scanned once. A row leaves a key digest (128 bit), a row digest (64 bit) and its ordinal behind; the key's own
text goes to an anonymous temporary file, to be read back for the few keys that differ. The sides are sorted by key digest and
merged. Per key the number of rows and the sum of their digests are compared. Where rows are identified by all of their columns, a store
holds equal rows once: then distinct rows are compared, and those that repeat another are counted.

Live traffic makes rows differ that are merely in flight: ``cdc.audit.suspects`` decides which of the suspects really differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.digests import U64, digests
from cdc.kernels.jit import kernel
from cdc.model.table import Table

I64 = npt.NDArray[np.int64]

SPILL_ROWS: Final = 8_000_000
"""A side with more rows than this (32 bytes each) goes to files, divided into ranges of the key digest."""
_RANGES: Final = 64
_RECORD: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8"), ("ordinal", "<i8")])


def key_indices(table: Table) -> tuple[int, ...]:
    """Indices of the key's columns; of all columns where the rows cannot be told apart."""
    return tuple(i for i, column in enumerate(table.columns) if column.key) or tuple(range(len(table.columns)))


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
        self._spill_rows = spill_rows
        self._kept: list[npt.NDArray[np.void]] = []
        self._kept_rows = 0
        self._files: list[IO[bytes]] = []
        self._key_file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._key_schema = pa.schema([schema.field(i) for i in self._key])
        self._key_writer = pa.ipc.new_file(pa.PythonFile(self._key_file, "w"), self._key_schema)
        self._starts = [0]

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises ValueError when the batch has other columns than the table."""
        if batch.schema.names != self._schema.names:
            raise ValueError(f"the audit expected the columns {self._schema.names}, the scan gave {batch.schema.names}")
        if batch.num_rows == 0:
            return
        found = digests(batch, self._key, self._seed)
        records = np.empty(batch.num_rows, _RECORD)
        records["high"], records["low"], records["row"] = found
        records["ordinal"] = np.arange(self.rows, self.rows + batch.num_rows)
        self._key_writer.write_batch(pa.RecordBatch.from_arrays([batch.column(i) for i in self._key], schema=self._key_schema))
        self.rows += batch.num_rows
        self._starts.append(self.rows)
        self._kept.append(records)
        self._kept_rows += batch.num_rows
        if self._kept_rows > self._spill_rows:
            self._spill()

    def _spill(self) -> None:
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(_RANGES)]  # noqa: SIM115 (closed by close())
        records = self._take_kept()
        wanted = (records["high"] >> np.uint64(58)).astype(np.int64)
        records = records[np.argsort(wanted, kind="stable")]
        ends = np.cumsum(np.bincount(wanted, minlength=_RANGES))
        for number, file in enumerate(self._files):
            file.write(records[(ends[number - 1] if number else 0) : ends[number]].tobytes())

    def _take_kept(self) -> npt.NDArray[np.void]:
        records = np.concatenate(self._kept) if self._kept else np.empty(0, _RECORD)
        self._kept, self._kept_rows = [], 0
        return records

    @property
    def spilled(self) -> bool:
        return bool(self._files)

    def ranges(self, divided: bool) -> Iterator[npt.NDArray[np.void]]:
        """The records, by range of the key digest when ``divided`` (then ``_RANGES`` of them), else all in one."""
        if not divided:
            yield self._take_kept()
            return
        self._spill()
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), _RECORD)

    def in_order(self, records: npt.NDArray[np.void]) -> tuple[U64, U64, U64, I64]:
        """The records' fields, by key digest."""
        high, low, row, ordinal = _sorted(records)
        if not self._distinct:
            return high, low, row, ordinal
        first = np.ones(high.size, np.bool_)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self.repeated += int(high.size - first.sum())
        return high[first], low[first], row[first], ordinal[first]

    def keys(self, ordinals: I64) -> pa.RecordBatch:
        """The keys' text of these rows, in this order. Call after every ``add``."""
        self._key_writer.close()
        if ordinals.size == 0:
            return pa.RecordBatch.from_pylist([], schema=self._key_schema)
        reader = pa.ipc.open_file(pa.PythonFile(self._key_file, "r"))
        order = np.argsort(ordinals, kind="stable")
        wanted = ordinals[order]
        starts = np.asarray(self._starts)
        batches = np.searchsorted(starts, wanted, side="right") - 1
        pieces = []
        for number in np.unique(batches):
            inside = wanted[batches == number] - starts[number]
            pieces.append(reader.get_batch(int(number)).take(pa.array(inside)))
        back = np.empty(order.size, np.int64)
        back[order] = np.arange(order.size)
        return pa.Table.from_batches(pieces).take(pa.array(back)).combine_chunks().to_batches()[0]

    def close(self) -> None:
        for file in (*self._files, self._key_file):
            file.close()


def suspects(source: Side, store: Side) -> pa.RecordBatch:
    """The keys (their text, one row per key) whose rows do not agree. Consumes both sides' digests."""
    divided = source.spilled or store.spilled
    of_source: list[I64] = []
    of_store: list[I64] = []
    for ours, theirs in zip(source.ranges(divided), store.ranges(divided), strict=True):
        found = _merge(*source.in_order(ours), *store.in_order(theirs))
        of_source.append(found[found >= 0])
        of_store.append(~found[found < 0])
    batches = [source.keys(np.concatenate(of_source)), store.keys(np.concatenate(of_store))]
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
