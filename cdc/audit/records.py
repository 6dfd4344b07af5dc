"""The audit's records of the rows of one side: digests in memory or, of large tables, in anonymous files; the keys' text always in one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.digests import U64, mixed
from cdc.kernels.jit import kernel

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BUCKET_BITS: Final = 14
_RANGES: Final = 64
RECORD: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8"), ("ordinal", "<i8")])
"""A row: its key's digest in two halves, its own digest, and its number."""


class BucketSums:
    """The records of one side summed up, by the first bits of their keys' digests: buckets with the same sums hold the same rows, whatever their order. A sum
    has 128 bits, of digests whose seed nobody knows.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((1 << _BUCKET_BITS, 2), np.uint64)

    def add(self, high: U64, low: U64, row: U64) -> None:
        _sum_up(high, low, row, self._sums)

    def differ(self, other: BucketSums) -> Mask:
        """For each bucket whether it holds other rows than the other side's."""
        return np.asarray((self._sums != other._sums).any(axis=1))


def in_buckets(records: npt.NDArray[np.void], which: Mask) -> npt.NDArray[np.void]:
    """The records in these buckets."""
    return np.asarray(records[which[records["high"] >> np.uint64(64 - _BUCKET_BITS)]])


@kernel
def _sum_up(high: Any, low: Any, row: Any, sums: Any) -> None:
    for i in range(high.size):
        bucket = high[i] >> np.uint64(64 - _BUCKET_BITS)
        sums[bucket, 0] += mixed(low[i] ^ mixed(row[i]))
        sums[bucket, 1] += mixed(high[i] + row[i] * low[i])


class KeptDigests:
    """Records of rows. ``spill_rows``: more of them than this go to files, divided into ranges of the key digest."""

    def __init__(self, spill_rows: int) -> None:
        self._spill_rows = spill_rows
        self._pieces: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._files: list[IO[bytes]] = []

    def add(self, records: npt.NDArray[np.void]) -> None:
        self._pieces.append(records)
        self._rows += records.size
        if self._rows > self._spill_rows:
            self._spill()

    @property
    def spilled(self) -> bool:
        return bool(self._files)

    def ranges(self, divided: bool) -> Iterator[npt.NDArray[np.void]]:
        """The records, by range of the key digest when ``divided`` (then ``_RANGES`` of them), else all in one."""
        if not divided:
            yield self._take()
            return
        self._spill()
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), RECORD)

    def _spill(self) -> None:
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(_RANGES)]  # noqa: SIM115 (closed by close())
        records = self._take()
        wanted = (records["high"] >> np.uint64(58)).astype(np.int64)
        records = records[np.argsort(wanted, kind="stable")]
        ends = np.cumsum(np.bincount(wanted, minlength=_RANGES))
        for number, file in enumerate(self._files):
            file.write(records[(ends[number - 1] if number else 0) : ends[number]].tobytes())

    def _take(self) -> npt.NDArray[np.void]:
        records = np.concatenate(self._pieces) if self._pieces else np.empty(0, RECORD)
        self._pieces, self._rows = [], 0
        return records

    def close(self) -> None:
        for file in self._files:
            file.close()


class KeptKeys:
    """The text of every row's key, to be read back for the few rows that differ. ``schema``: the key's columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), schema)
        self._starts = [0]

    def add(self, rows: int, columns: Sequence[pa.Array]) -> None:
        self._writer.write_batch(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))
        self._starts.append(self._starts[-1] + rows)

    def take(self, ordinals: I64) -> pa.RecordBatch:
        """The keys of the rows with these numbers, in this order. Call after every ``add``."""
        self._writer.close()
        if ordinals.size == 0:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
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
        self._file.close()
