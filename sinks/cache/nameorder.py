"""Names of keys put into the order in which their rows were probably written.

SCAN gives keys in the order of their hashes. A server that is asked for the values in that order reads its memory here and there, each value from another
page; rows that were written one after the other lie one behind the other, and are read in that order in about half of the time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.jit import kernel
from sinks.cache.answerkernels import gathered
from sinks.render.texts import Texts, binary_view
from sinks.render.tokenkernels import NINE, ZERO

_DIGITS_MAX: Final = 19
"""A number of so many digits has 64 bits."""
_WORD: Final = 8


def put_in_order(names: pa.Array, behind: int) -> pa.Array:
    """The same names (large_binary): by the number that stands ``behind`` so many bytes, or by the first bytes there."""
    data, offsets = binary_view(names)
    order = np.argsort(_codes(data, offsets, behind))
    return Texts(*gathered(data, offsets[order], offsets[order + 1])).to_array()


@kernel
def _codes(data: Any, offsets: Any, behind: int) -> npt.NDArray[np.uint64]:
    codes = np.empty(len(offsets) - 1, np.uint64)
    for row in range(len(codes)):
        start, end = min(offsets[row] + behind, offsets[row + 1]), offsets[row + 1]
        number = np.uint64(0)
        whole = end - start <= _DIGITS_MAX
        at = start
        while whole and at < end:
            whole = ZERO <= data[at] <= NINE
            number = number * np.uint64(10) + np.uint64(data[at] - ZERO)
            at += 1
        if not whole:
            number = np.uint64(0)
            for k in range(_WORD):
                byte = np.uint64(data[start + k]) if start + k < end else np.uint64(0)
                number = number << np.uint64(8) | byte
        codes[row] = number
    return codes
