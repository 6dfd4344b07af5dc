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
from cdc.kernels.memcpy import BLOCK, short_copied
from sinks.render.texts import Texts, binary_view
from sinks.render.tokenkernels import NINE, ZERO

_DIGITS_MAX: Final = 19
"""A number of so many digits has 64 bits."""
_WORD: Final = 8


def put_in_order(names: pa.Array, behind: int) -> pa.Array:
    """The same names (large_binary): by the number that stands ``behind`` so many bytes, or by the first bytes there."""
    data, offsets = binary_view(names)
    return Texts(*_gathered(data, offsets, _order(_codes(data, offsets, behind)))).to_array()


def _order(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """As a stable argsort has it. Where a code and a row's number fit into one word together, those words are sorted, which takes a fraction of the time."""
    bits = np.uint64(len(codes).bit_length())
    if len(codes) == 0 or int(codes.max()).bit_length() + int(bits) > 64:
        return np.argsort(codes, kind="stable")
    numbered = np.sort(codes << bits | np.arange(len(codes), dtype=np.uint64))
    return (numbered & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)


@kernel
def _gathered(data: Any, offsets: Any, order: Any) -> Any:
    """The texts in this order, as a text column."""
    ends = np.zeros(len(order) + 1, np.int64)
    out = np.empty(offsets[len(order)] - offsets[0] + BLOCK, np.uint8)
    at = 0
    for place in range(len(order)):
        row = order[place]
        at = short_copied(out, at, data, offsets[row], offsets[row + 1] - offsets[row])
        ends[place + 1] = at
    return out[:at], ends


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
