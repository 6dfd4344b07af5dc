"""Decimal digits in words of eight bytes: parts of the kernels of ``values``. Pure.

Each function says whether it can tell. If it cannot, the way that looks at one byte after the other decides what the text is. A word's
lowest byte is the one that comes first, as x86 and ARM have it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from cdc.kernels.jit import inlined, instruction

NOT_DIGITS: Final = -1
TENS: Final = tuple(10**power for power in range(17))
_ZEROS: Final = np.uint64(0x3030303030303030)
_TO_TEN: Final = np.uint64(0x7676767676767676)
"""Added to a byte of at most 9 it leaves the highest bit alone."""
_HIGHS: Final = np.uint64(0x8080808080808080)
_NONE: Final = np.uint64(0xB0B0B0B0B0B0B0B0)
_BYTE: Final = np.uint64(0xFF)
_DATE: Final = np.uint64(0x2D30302D30303030)
_DASHES: Final = np.uint64(0xFF0000FF00000000)
_TIME: Final = np.uint64(0x30303A30303A3030)
_COLONS: Final = np.uint64(0x0000FF0000FF0000)


def _eight_bytes(_context: Any, data: Any, at: Any) -> Any:
    """The eight bytes from ``at`` on, wherever they lie in the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, at), generate


def _unseen(data: Any, at: Any) -> Any:  # noqa: ARG001
    """Interpreted there is no such arithmetic: eight bytes of which none is a digit, so that nobody can tell."""
    return _NONE


eight_bytes = instruction(_eight_bytes, _unseen)


@inlined
def _no_digits(word: Any) -> Any:
    """Not zero iff a byte of the word is more than 9."""
    return ((word + _TO_TEN) | word) & _HIGHS


@inlined
def _pairs(word: Any) -> Any:
    """In each byte: ten times itself plus the next one."""
    return word * np.uint64(10) + (word >> np.uint64(8))


@inlined
def few(data: Any, end: Any, count: Any) -> Any:
    """The number that the 1 to 8 digits before ``end`` mean (``end`` is at least 8), or NOT_DIGITS."""
    others = np.uint64(64 - 8 * count)
    word = ((eight_bytes(data, end - 8) ^ _ZEROS) >> others) << others
    found = np.int64(NOT_DIGITS)
    if _no_digits(word) == 0:
        word = (word * np.uint64(2561)) >> np.uint64(8)
        word = ((word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
        found = np.int64(((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32))
    return found


@inlined
def some(data: Any, end: Any, count: Any) -> Any:
    """The same for 1 to 16 digits (``end`` is at least 16 for more than 8)."""
    found = few(data, end, min(count, 8))
    if count > 8 and found >= 0:
        top = few(data, end - 8, count - 8)
        found = top * 100000000 + found if top >= 0 else np.int64(NOT_DIGITS)
    return found


@inlined
def month(word: Any) -> Any:
    """(year, month) of ``YYYY-MM-``; the month is 0 when it is not that, or does not exist."""
    word = word ^ _DATE
    year = np.int64(0)
    number = np.int64(0)
    if (word & _DASHES) == 0 and _no_digits(word) == 0:
        pairs = _pairs(word)
        year = np.int64(pairs & _BYTE) * 100 + np.int64((pairs >> np.uint64(16)) & _BYTE)
        number = np.int64((pairs >> np.uint64(40)) & _BYTE)
        if year < 1 or number > 12:
            number = np.int64(0)
    return year, number


@inlined
def seconds(word: Any) -> Any:
    """Seconds of ``HH:MM:SS``, or NOT_DIGITS when it is not a time of day."""
    word = word ^ _TIME
    found = np.int64(NOT_DIGITS)
    if (word & _COLONS) == 0 and _no_digits(word) == 0:
        pairs = _pairs(word)
        hour = np.int64(pairs & _BYTE)
        minute = np.int64((pairs >> np.uint64(24)) & _BYTE)
        second = np.int64((pairs >> np.uint64(48)) & _BYTE)
        if hour < 24 and minute < 60 and second < 60:
            found = (hour * 60 + minute) * 60 + second
    return found


@inlined
def fraction(data: Any, end: Any, count: Any) -> Any:
    """Microseconds of a fraction's 1 to 6 digits before ``end`` (which is at least 8), or NOT_DIGITS."""
    others = np.uint64(64 - 8 * count)
    word = (eight_bytes(data, end - 8) >> others) ^ (_ZEROS >> others)
    found = np.int64(NOT_DIGITS)
    if _no_digits(word) == 0:
        # As the last six of eight digits; what is missing at the end is zeros already.
        word = ((word << np.uint64(16)) * np.uint64(2561)) >> np.uint64(8)
        word = ((word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
        found = np.int64(((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32))
    return found
