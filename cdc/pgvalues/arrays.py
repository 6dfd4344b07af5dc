"""The arrays that the kernels of this room work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class Gaps(NamedTuple):
    """How many rows of a column have no value in the output."""

    nulls: int
    """Misfits among them."""
    misfits: int


class WholeRows(NamedTuple):
    """Frames that are there to their ends, each with a row of COPY."""

    rows: int
    end: int
    """Offset after the last one."""
