"""A table's keys in equal parts, by their digests, so that a large table can be compared one part after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.digests import U64, digests


@dataclass(frozen=True, slots=True)
class KeyRange:
    """One of ``ranges`` parts."""

    number: int
    ranges: int

    def rows(self, batch: pa.RecordBatch, key: Sequence[int], seed: int) -> pa.RecordBatch:
        """Those of the rows (of text columns) whose keys are in it. ``key``: indices of the key's columns; ``seed``: of the digests."""
        if self.ranges == 1 or batch.num_rows == 0:
            return batch
        keys = pa.RecordBatch.from_arrays([batch.column(at) for at in key], names=[str(at) for at in key])
        return batch.filter(pa.array(self.holds(digests(keys, range(len(key)), seed).high)))

    def holds(self, high: U64) -> npt.NDArray[np.bool_]:
        """``high``: the digests' upper halves."""
        inside: npt.NDArray[np.bool_] = (high >> np.uint64(32)) * np.uint64(self.ranges) >> np.uint64(32) == np.uint64(self.number)
        return inside
