"""Dates and times of day as numbers: kernels of ``values``, which tells how they are called. Pure.

Texts are those of DateStyle ISO. The long way looks at every byte; the timestamps that tables are full of take a shorter one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.civil import days_of
from cdc.kernels.jit import inlined, kernel
from cdc.pgvalues.arrays import Bytes, Flags, Gaps, Lengths, Offsets
from cdc.pgvalues.characters import COLON, MINUS, PLUS, POINT, SPACE, ZERO
from cdc.pgvalues.digits import eight_bytes, few, fraction, month, seconds

_NO_DAY: Final = -(2**63)
_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US


@inlined
def _two(data: Bytes, at: int) -> Any:
    """Two digits as a number, or -1000 when they are not digits."""
    tens = np.int64(data[at]) - ZERO
    ones = np.int64(data[at + 1]) - ZERO
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-1000)
    return tens * 10 + ones


@kernel
def _day(data: Bytes, at: int) -> Any:
    """Days since 1970-01-01 of ``YYYY-MM-DD`` (years 0001 to 9999), or the int64 minimum when it is none."""
    century = _two(data, at)
    rest = _two(data, at + 2)
    year = century * 100 + rest
    number = _two(data, at + 5)
    day = _two(data, at + 8)
    if data[at + 4] != MINUS or data[at + 7] != MINUS or century < 0 or rest < 0 or year < 1:
        return np.int64(_NO_DAY)
    if number < 1 or number > 12 or day < 1 or day > 31:
        return np.int64(_NO_DAY)
    return days_of(year, number, day)


@kernel
def _clock(data: Bytes, at: int, end: int) -> Any:
    """Microseconds of ``HH:MM:SS[.ffffff]`` up to ``end``, or -1 when it is not a time of day (24:00:00 is none)."""
    if end - at < 8 or data[at + 2] != COLON or data[at + 5] != COLON:
        return np.int64(-1)
    hour = _two(data, at)
    minute = _two(data, at + 3)
    second = _two(data, at + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(-1)
    micros = np.int64(0)
    at += 8
    if at < end:
        if data[at] != POINT or end - at < 2 or end - at > 7:
            return np.int64(-1)
        weight = np.int64(100000)
        for k in range(at + 1, end):
            digit = np.int64(data[k]) - ZERO
            if digit < 0 or digit > 9:
                return np.int64(-1)
            micros += digit * weight
            weight //= 10
    return ((hour * 60 + minute) * 60 + second) * _SECOND_US + micros


@kernel
def timestamps(data: Bytes, offsets: Offsets, lengths: Lengths, zoned: bool, out: Offsets, valid: Bytes, misfit: Flags) -> Gaps:
    """Microseconds since 1970-01-01. Zoned text ends in ``+00`` because the connection's TimeZone is UTC.

    Text in, per row: ``lengths[i]`` bytes at ``offsets[i]``, NULL where the length is negative. Out: ``out``, its validity bits in Arrow's order
    (``valid``), and ``misfit`` for what is left to others.
    """
    nulls = 0
    misfits = 0
    known = np.uint64(0)
    begin = np.int64(0)
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        at = offsets[i]
        end = at + lengths[i]
        good = end - at >= (22 if zoned else 19)
        if good and zoned:
            end -= 3
            good = data[end] == PLUS and data[end + 1] == ZERO and data[end + 2] == ZERO
        if good and data[at + 10] == SPACE:
            word = eight_bytes(data, at)
            if word != known:
                # The month before, which is most often this one too, need not be looked up.
                year, number = month(word)
                known = word if number > 0 else np.uint64(0)
                begin = days_of(year, number, np.int64(1))
            date = few(data, at + 10, 2) if known != 0 else np.int64(0)
            second = seconds(eight_bytes(data, at + 11))
            long = end - at - 20
            micros = np.int64(0)
            if long >= 0:
                micros = fraction(data, end, long) if 0 < long <= 6 and data[at + 19] == POINT else np.int64(-1)
            if 1 <= date <= 31 and second >= 0 and micros >= 0:
                out[i] = (begin + date - 1) * _DAY_US + second * _SECOND_US + micros
                valid[i >> 3] |= np.uint8(1 << (i & 7))
                continue
            day = _day(data, at)
            micros = _clock(data, at + 11, end)
            if day != _NO_DAY and micros >= 0:
                out[i] = day * _DAY_US + micros
                valid[i >> 3] |= np.uint8(1 << (i & 7))
                continue
        misfit[i] = True
        misfits += 1
    return Gaps(nulls + misfits, misfits)


@kernel
def dates(data: Bytes, offsets: Offsets, lengths: Lengths, out: npt.NDArray[np.int32], valid: Bytes, misfit: Flags) -> Gaps:
    """Days since 1970-01-01; otherwise as ``timestamps``."""
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        if lengths[i] == 10:
            day = _day(data, offsets[i])
            if day != _NO_DAY:
                out[i] = np.int32(day)
                valid[i >> 3] |= np.uint8(1 << (i & 7))
                continue
        misfit[i] = True
        misfits += 1
    return Gaps(nulls + misfits, misfits)


@kernel
def times(data: Bytes, offsets: Offsets, lengths: Lengths, out: Offsets, valid: Bytes, misfit: Flags) -> Gaps:
    """Microseconds of the day; otherwise as ``timestamps``."""
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        micros = _clock(data, offsets[i], offsets[i] + lengths[i])
        if micros >= 0:
            out[i] = micros
            valid[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            misfit[i] = True
            misfits += 1
    return Gaps(nulls + misfits, misfits)
