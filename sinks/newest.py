"""The last change of each key among any number of them, exactly, in bounded memory; and the set of positions that this leaves.

Texts of keys are compared, not digests of them. Keys that do not fit into memory are divided among files by a hash.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.digests import digests
from cdc.model.batch import POSITION

_FILES: Final = 16
_LEVELS: Final = 15
"""How often keys can be divided by ``_FILES``, four bits of their hash at a time."""

_PAIR: Final = pa.schema([("key", pa.utf8()), ("number", pa.int64())])


class Newest:
    """The highest number that was added with each key. Divides what does not fit into memory among files by a hash of the key."""

    def __init__(self, memory_bytes: int, level: int = 0) -> None:
        self._memory_bytes = memory_bytes
        self._level = level
        self._seed = secrets.randbits(63)  # nobody can choose keys that all come into one file
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._parts: dict[int, _Part] = {}

    def add(self, keys: pa.Array, numbers: pa.Array) -> None:
        """keys: utf8 without NULL; numbers: int64, one for each."""
        self._keep(pa.RecordBatch.from_arrays([keys, numbers], schema=_PAIR))

    def highest(self) -> Iterator[npt.NDArray[np.int64]]:
        """The numbers, in pieces; to be asked once."""
        if not self._parts:
            yield from (batch.column(1).to_numpy() for batch in _highest(self._kept))
            return
        self._divide()
        for part in self._parts.values():
            with closing(Newest(self._memory_bytes, self._level + 1)) as finer:
                for batch in part.batches():
                    finer._keep(batch)
                yield from finer.highest()

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts, self._kept, self._kept_bytes = {}, [], 0

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self._kept_bytes += batch.nbytes
        if self._kept_bytes * 4 <= self._memory_bytes:  # grouping takes some three times what it groups
            return
        self._kept = _highest(self._kept)
        self._kept_bytes = sum(one.nbytes for one in self._kept)
        if self._kept_bytes * 8 > self._memory_bytes and self._level < _LEVELS:
            self._divide()

    def _divide(self) -> None:
        for batch in self._kept:
            digest = digests(batch.select([0]), (0,), self._seed).high & np.uint64(_FILES - 1)
            for number in np.unique(digest).tolist():
                if number not in self._parts:
                    self._parts[number] = _Part()
                self._parts[number].write(batch.filter(pa.array(digest == number)))
        self._kept, self._kept_bytes = [], 0


class _Part:
    """One file of pairs, without a name, so that nothing is left behind."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._writer: Any = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), _PAIR)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))

    def close(self) -> None:
        self._file.close()


class PositionSet:
    """A set of positions in (after, upto], one bit each; in a file where that is much."""

    def __init__(self, after: int, upto: int, memory_bytes: int) -> None:
        self._after = after
        size = max(0, upto - after) // 8 + 1
        self._bits: npt.NDArray[np.uint8]
        if size * 4 <= memory_bytes:
            self._bits = np.zeros(size, np.uint8)
        else:
            with tempfile.TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a page without space behind it would end the process
                self._bits = np.memmap(file, np.uint8, "w+", shape=(size,))

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        at = positions - self._after - 1
        np.bitwise_or.at(self._bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))

    def holds(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these positions are in it."""
        at = positions - self._after - 1
        found: npt.NDArray[np.bool_] = (self._bits[at >> 3] >> (at & 7).astype(np.uint8)) & 1 == 1
        return found

    def count(self, first: int, last: int) -> int:
        """The number of positions from ``first`` to ``last`` that are in it."""
        low, high = first - self._after - 1, last - self._after
        if low >> 3 == high >> 3:
            return int(np.unpackbits(self._bits[low >> 3 : (low >> 3) + 1], bitorder="little")[low & 7 : high & 7].sum())
        begins = np.unpackbits(self._bits[low >> 3 : (low >> 3) + 1], bitorder="little")[low & 7 :].sum()
        ends = np.unpackbits(self._bits[high >> 3 : (high >> 3) + 1], bitorder="little")[: high & 7].sum()
        return int(begins) + int(ends) + int(np.bitwise_count(self._bits[(low >> 3) + 1 : high >> 3]).sum(dtype=np.int64))

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches' rows at these positions."""
        for batch in batches:
            mine = self.holds(batch.column(POSITION).to_numpy())
            if mine.all():
                yield batch
            elif mine.any():
                yield batch.filter(pa.array(mine))


def _highest(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    grouped = pa.Table.from_batches(batches, _PAIR).group_by("key", use_threads=False).aggregate([("number", "max")])
    return list(grouped.select(["key", "number_max"]).rename_columns(["key", "number"]).to_batches())
