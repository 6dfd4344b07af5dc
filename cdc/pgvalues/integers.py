"""The protocol's integers, which come with their highest byte first, read inside kernels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import inlined
from cdc.pgvalues.arrays import Bytes

COPY_DATA: Final = ord("d")
"""The letter of the frames in which COPY's rows come."""


@inlined
def read_u16(block: Bytes, at: int) -> Any:
    return np.int64(block[at]) << 8 | np.int64(block[at + 1])


@inlined
def read_u32(block: Bytes, at: int) -> Any:
    return np.int64(block[at]) << 24 | np.int64(block[at + 1]) << 16 | np.int64(block[at + 2]) << 8 | np.int64(block[at + 3])


@inlined
def read_i64(block: Bytes, at: int) -> Any:
    return read_u32(block, at) << 32 | read_u32(block, at + 4)
