"""Fields of Postgres text, still lying in a block of bytes, as typed values: the kernels. Pure; shared by the stream and the snapshot.

A block is a uint8 array; a field is an offset and a length in it (length < 0: no value, i.e. NULL). The kernels are compiled
by numba and hold no GIL. A text that its type cannot hold exactly is flagged as a misfit and becomes NULL; what is made of those
is told by ``cdc.capture.columns``, as is everything about Arrow.

The text formats are those of the output functions under ``cdc.model.pgtypes.PINNED_SETTINGS`` (manual, chapter "Data Types").
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.model.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Jobs = npt.NDArray[np.int64]
"""One column of one table per row; what its entries say is told by the names below."""

TEXT, INT2, INT4, INT8, DECIMAL, TIMESTAMP, TIMESTAMPTZ, DATE, TIME, BOOL, BINARY = range(11)
"""What becomes of a column's fields."""

KIND, FIRST, SECOND, AT, ROWS, VALID_AT, VALUES_AT, ENDS_AT, VALUES_BYTES, NULLS, MISFITS, BEYOND_ASCII = range(12)
"""Of a job, given: KIND; a DECIMAL's precision and scale (FIRST, SECOND); the place of its first field (AT) and how many there are (ROWS).
By ``lay_out``: where in the output its validity bitmap, values and (TEXT, BINARY) ends lie. By ``convert``: how many NULLs there are, misfits
among them, and whether a text has bytes beyond ASCII."""
JOB: Final = 12

CHUNK: Final = 256
"""Rows whose columns are converted one after the other while their bytes are in the processor's cache; a multiple of 8, for bitmaps."""


def running(sizes: npt.ArrayLike) -> Offsets:
    """Where each begins of things that lie one behind the other, and where the last ends."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])


@kernel
def _measure(lengths: Lengths, ends: npt.NDArray[np.int32], valid: Bytes) -> Any:
    """Running ends of the values' bytes, which go on from ``ends[0]``, and the validity bitmap; returns the number of NULLs."""
    total = np.int64(ends[0])
    nulls = 0
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            nulls += 1
        else:
            total += lengths[i]
            valid[i >> 3] |= np.uint8(1 << (i & 7))
        ends[i + 1] = np.int32(total)
    return nulls


@kernel
def _gather(data: Bytes, offsets: Offsets, lengths: Lengths, ends: npt.NDArray[np.int32], out: Bytes) -> None:
    for i in range(lengths.shape[0]):
        if lengths[i] > 0:
            # Unsigned, and the length in a variable of its own: an index that may count from the end, or a bound that ``out`` may lie over,
            # forbids the compiler to copy more than a byte at a time.
            start = np.uint64(offsets[i])
            to = np.uint64(ends[i])
            for k in range(np.uint64(lengths[i])):
                out[to + k] = data[start + k]


@kernel
def _integers(
    data: Bytes, offsets: Offsets, lengths: Lengths, low: int, high: int, out: npt.NDArray[Any], valid: Bytes, misfit: Flags
) -> tuple[int, int]:
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        at = offsets[i]
        end = at + lengths[i]
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        good = 0 < end - at <= 19
        value = np.int64(0)
        while good and at < end:
            digit = np.int64(data[at]) - 48
            good = 0 <= digit <= 9
            # Accumulating downwards reaches the most negative int8 without overflow.
            if value < -922337203685477580 or (value == -922337203685477580 and digit > (8 if negative else 7)):
                good = False
            value = value * 10 - digit
            at += 1
        if good and not negative:
            value = -value
        if good and low <= value <= high:
            out[i] = value
            valid[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            misfit[i] = True
            misfits += 1
    return nulls + misfits, misfits


@kernel
def _decimals(
    data: Bytes,
    offsets: Offsets,
    lengths: Lengths,
    precision: int,
    scale: int,
    out: npt.NDArray[np.uint64],
    valid: Bytes,
    misfit: Flags,
) -> tuple[int, int]:
    """Two's complement 128-bit integers (low word, high word). The text carries exactly ``scale`` fraction digits."""
    nulls = 0
    misfits = 0
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    ten = np.uint64(10)
    for i in range(lengths.shape[0]):
        out[i, 0] = 0
        out[i, 1] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        at = offsets[i]
        end = at + lengths[i]
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        good = at < end
        low = np.uint64(0)
        high = np.uint64(0)
        digits = 0
        fraction = -1
        while good and at < end:
            byte = data[at]
            at += 1
            if byte == 46 and fraction < 0:
                fraction = 0
                continue
            if byte < 48 or byte > 57:
                good = False
                break
            if fraction >= 0:
                fraction += 1
            if digits > 0 or byte != 48:
                digits += 1
            if digits <= 18:
                low = low * ten + np.uint64(byte - 48)
            else:
                bottom = (low & mask) * ten + np.uint64(byte - 48)
                top = (low >> shift) * ten + (bottom >> shift)
                low = (top << shift) | (bottom & mask)
                high = high * ten + (top >> shift)
            if digits > 38:
                good = False
        if good and digits <= precision and max(fraction, 0) == scale:
            if negative:
                low = ~low + np.uint64(1)
                high = ~high
                if low == 0:
                    high += np.uint64(1)
            out[i, 0] = low
            out[i, 1] = high
            valid[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            misfit[i] = True
            misfits += 1
    return nulls + misfits, misfits


@inlined
def _two(data: Bytes, at: int) -> Any:
    """Two digits as a number, or -1000 when they are not digits."""
    tens = np.int64(data[at]) - 48
    ones = np.int64(data[at + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-1000)
    return tens * 10 + ones


@kernel
def _day(data: Bytes, at: int) -> Any:
    """Days since 1970-01-01 of ``YYYY-MM-DD`` (years 0001 to 9999), or the int64 minimum when it is none.

    Howard Hinnant's days_from_civil: years begin in March so that the leap day is a year's last.
    """
    none = np.int64(-9223372036854775808)
    century = _two(data, at)
    year = century * 100 + _two(data, at + 2)
    month = _two(data, at + 5)
    day = _two(data, at + 8)
    if data[at + 4] != 45 or data[at + 7] != 45 or century < 0 or year < 1 or month < 1 or month > 12 or day < 1 or day > 31:
        return none
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@kernel
def _clock(data: Bytes, at: int, end: int) -> Any:
    """Microseconds of ``HH:MM:SS[.ffffff]`` up to ``end``, or -1 when it is no time of day (24:00:00 is none)."""
    if end - at < 8 or data[at + 2] != 58 or data[at + 5] != 58:
        return np.int64(-1)
    hour = _two(data, at)
    minute = _two(data, at + 3)
    second = _two(data, at + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(-1)
    micros = np.int64(0)
    at += 8
    if at < end:
        if data[at] != 46 or end - at < 2 or end - at > 7:
            return np.int64(-1)
        weight = np.int64(100000)
        for k in range(at + 1, end):
            digit = np.int64(data[k]) - 48
            if digit < 0 or digit > 9:
                return np.int64(-1)
            micros += digit * weight
            weight //= 10
    return ((hour * 60 + minute) * 60 + second) * 1000000 + micros


@kernel
def _timestamps(
    data: Bytes, offsets: Offsets, lengths: Lengths, zoned: bool, out: Offsets, valid: Bytes, misfit: Flags
) -> tuple[int, int]:
    """Microseconds since 1970-01-01. Zoned text ends in ``+00`` because the connection's TimeZone is UTC."""
    none = np.int64(-9223372036854775808)
    nulls = 0
    misfits = 0
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
            good = data[end] == 43 and data[end + 1] == 48 and data[end + 2] == 48
        if good and data[at + 10] == 32:
            day = _day(data, at)
            micros = _clock(data, at + 11, end)
            if day != none and micros >= 0:
                out[i] = day * 86400000000 + micros
                valid[i >> 3] |= np.uint8(1 << (i & 7))
                continue
        misfit[i] = True
        misfits += 1
    return nulls + misfits, misfits


@kernel
def _dates(
    data: Bytes, offsets: Offsets, lengths: Lengths, out: npt.NDArray[np.int32], valid: Bytes, misfit: Flags
) -> tuple[int, int]:
    none = np.int64(-9223372036854775808)
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        if lengths[i] == 10:
            day = _day(data, offsets[i])
            if day != none:
                out[i] = np.int32(day)
                valid[i >> 3] |= np.uint8(1 << (i & 7))
                continue
        misfit[i] = True
        misfits += 1
    return nulls + misfits, misfits


@kernel
def _times(data: Bytes, offsets: Offsets, lengths: Lengths, out: Offsets, valid: Bytes, misfit: Flags) -> tuple[int, int]:
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
    return nulls + misfits, misfits


@kernel
def _booleans(data: Bytes, offsets: Offsets, lengths: Lengths, out: Bytes, valid: Bytes, misfit: Flags) -> tuple[int, int]:
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            nulls += 1
            continue
        byte = data[offsets[i]] if lengths[i] == 1 else np.uint8(0)
        if byte == 116 or byte == 102:
            bit = np.uint8(1 << (i & 7))
            valid[i >> 3] |= bit
            if byte == 116:
                out[i >> 3] |= bit
        else:
            misfit[i] = True
            misfits += 1
    return nulls + misfits, misfits


@inlined
def _nibble(byte: Any) -> Any:
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return -1


@kernel
def _hexadecimals(
    data: Bytes,
    offsets: Offsets,
    lengths: Lengths,
    ends: npt.NDArray[np.int32],
    out: Bytes,
    valid: Bytes,
    misfit: Flags,
) -> tuple[int, int]:
    r"""``\x`` and two lower-case digits a byte (bytea_output = hex). The ends go on from ``ends[0]``."""
    nulls = 0
    misfits = 0
    to = np.int64(ends[0])
    for i in range(lengths.shape[0]):
        length = lengths[i]
        if length < 0:
            nulls += 1
        else:
            at = offsets[i]
            good = length >= 2 and length % 2 == 0 and data[at] == 92 and data[at + 1] == 120
            start = to
            if good:
                for k in range(at + 2, at + length, 2):
                    high = _nibble(np.int64(data[k]))
                    low = _nibble(np.int64(data[k + 1]))
                    if high < 0 or low < 0:
                        good = False
                        break
                    out[to] = np.uint8(high * 16 + low)
                    to += 1
            if good:
                valid[i >> 3] |= np.uint8(1 << (i & 7))
            else:
                to = start
                misfit[i] = True
                misfits += 1
        ends[i + 1] = np.int32(to)
    return nulls + misfits, misfits


@inlined
def _aligned(size: Any) -> Any:
    return (size + 63) & ~63


@kernel
def lay_out(lengths: Lengths, jobs: Jobs) -> Any:
    """Gives each job its places in the output; returns how long that has to be."""
    end = np.int64(0)
    for j in range(jobs.shape[0]):
        kind = jobs[j, KIND]
        rows = jobs[j, ROWS]
        jobs[j, VALID_AT] = end
        end += _aligned((rows + 7) >> 3)
        if kind in (TEXT, BINARY):
            jobs[j, ENDS_AT] = end
            end += _aligned((rows + 1) * 4)
            size = np.int64(0)
            for i in range(jobs[j, AT], jobs[j, AT] + rows):
                size += max(lengths[i], 0)
            if kind == BINARY:
                size >>= 1
        elif kind == BOOL:
            size = (rows + 7) >> 3
        elif kind == DECIMAL:
            size = rows * 16
        elif kind == INT2:
            size = rows * 2
        elif kind in (INT4, DATE):
            size = rows * 4
        else:
            size = rows * 8
        jobs[j, VALUES_AT] = end
        jobs[j, VALUES_BYTES] = size
        end += _aligned(size)
    return end


@kernel
def convert(data: Bytes, offsets: Offsets, lengths: Lengths, jobs: Jobs, tables: Offsets, out: Bytes, misfit: Flags) -> None:
    """Does the jobs. tables: the number of each table's first job, and of all; a table's jobs have equally many rows."""
    for t in range(tables.shape[0] - 1):
        first = tables[t]
        last = tables[t + 1]
        if first == last:
            continue
        rows = jobs[first, ROWS]
        for j in range(first, last):
            out[jobs[j, VALID_AT] : jobs[j, VALID_AT] + ((rows + 7) >> 3)] = 0
            if jobs[j, KIND] in (TEXT, BINARY):
                out[jobs[j, ENDS_AT] : jobs[j, ENDS_AT] + 4] = 0
            elif jobs[j, KIND] == BOOL:
                out[jobs[j, VALUES_AT] : jobs[j, VALUES_AT] + jobs[j, VALUES_BYTES]] = 0
        for low in range(0, rows, CHUNK):
            for j in range(first, last):
                _convert_some(data, offsets, lengths, jobs[j], low, min(low + CHUNK, rows), out, misfit)


@kernel
def _convert_some(
    data: Bytes, offsets: Offsets, lengths: Lengths, job: Jobs, low: int, high: int, out: Bytes, misfit: Flags
) -> None:
    """Rows [low, high) of one column."""
    kind = job[KIND]
    at = offsets[job[AT] + low : job[AT] + high]
    long = lengths[job[AT] + low : job[AT] + high]
    unfit = misfit[job[AT] + low : job[AT] + high]
    valid = out[job[VALID_AT] + (low >> 3) : job[VALID_AT] + ((high + 7) >> 3)]
    values = out[job[VALUES_AT] : job[VALUES_AT] + job[VALUES_BYTES]]
    nulls = 0
    misfits = 0
    if kind == TEXT:
        ends = out[job[ENDS_AT] + low * 4 : job[ENDS_AT] + (high + 1) * 4].view(np.int32)
        nulls = _measure(long, ends, valid)
        _gather(data, at, long, ends, values)
        seen = np.uint8(0)
        for k in range(np.uint64(ends[0]), np.uint64(ends[high - low])):
            seen |= values[k]
        if seen >= 128:
            job[BEYOND_ASCII] = 1
    elif kind == BINARY:
        ends = out[job[ENDS_AT] + low * 4 : job[ENDS_AT] + (high + 1) * 4].view(np.int32)
        nulls, misfits = _hexadecimals(data, at, long, ends, values, valid, unfit)
    elif kind == INT8:
        nulls, misfits = _integers(
            data, at, long, -9223372036854775808, 9223372036854775807, values.view(np.int64)[low:high], valid, unfit
        )
    elif kind == INT4:
        nulls, misfits = _integers(data, at, long, -2147483648, 2147483647, values.view(np.int32)[low:high], valid, unfit)
    elif kind == INT2:
        nulls, misfits = _integers(data, at, long, -32768, 32767, values.view(np.int16)[low:high], valid, unfit)
    elif kind == DECIMAL:
        words = values.view(np.uint64)[low * 2 : high * 2].reshape((high - low, 2))
        nulls, misfits = _decimals(data, at, long, job[FIRST], job[SECOND], words, valid, unfit)
    elif kind in (TIMESTAMP, TIMESTAMPTZ):
        nulls, misfits = _timestamps(data, at, long, kind == TIMESTAMPTZ, values.view(np.int64)[low:high], valid, unfit)
    elif kind == DATE:
        nulls, misfits = _dates(data, at, long, values.view(np.int32)[low:high], valid, unfit)
    elif kind == TIME:
        nulls, misfits = _times(data, at, long, values.view(np.int64)[low:high], valid, unfit)
    else:
        nulls, misfits = _booleans(data, at, long, values[low >> 3 : (high + 7) >> 3], valid, unfit)
    job[NULLS] += nulls
    job[MISFITS] += misfits
