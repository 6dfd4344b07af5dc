"""Fields of Postgres text, still lying in a block of bytes, as typed values: the kernels. Pure; shared by the stream and the snapshot.

A block is a uint8 array; a field is an offset and a length in it (length < 0: no value, i.e. NULL). The kernels are compiled
by numba and hold no GIL. A text that its type cannot hold exactly is flagged as a misfit and becomes NULL; what is made of those
is decided in ``cdc.pgvalues.columns``, as is everything about Arrow.

The text formats are those of the output functions under ``cdc.model.pgtypes.PINNED_SETTINGS`` (manual, chapter "Data Types").
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined, kernel
from cdc.pgvalues.arrays import Bytes as Bytes
from cdc.pgvalues.arrays import Flags as Flags
from cdc.pgvalues.arrays import Gaps
from cdc.pgvalues.arrays import Lengths as Lengths
from cdc.pgvalues.arrays import Offsets as Offsets
from cdc.pgvalues.characters import BACKSLASH, FALSE, LOWER_A, LOWER_F, LOWER_X, MINUS, NINE, POINT, TRUE, ZERO
from cdc.pgvalues.digits import TENS, few, some
from cdc.pgvalues.moments import dates, times, timestamps

Jobs = npt.NDArray[np.int64]
"""One column of one table per row; the names below say what its entries mean."""

TEXT, INT2, INT4, INT8, DECIMAL, TIMESTAMP, TIMESTAMPTZ, DATE, TIME, BOOL, BINARY = range(11)
"""The types that a column's fields become."""

KIND, FIRST, SECOND, AT, ROWS, VALID_AT, VALUES_AT, ENDS_AT, VALUES_BYTES, NULLS, MISFITS, BEYOND_ASCII = range(12)
"""A job's entries, given: KIND; a DECIMAL's precision and scale (FIRST, SECOND); the place of its first field (AT) and how many there are (ROWS).
By ``lay_out``: where in the output its validity bitmap, values and (TEXT, BINARY) ends lie. By ``convert``: how many NULLs there are, misfits
among them, and whether a text has bytes beyond ASCII."""
JOB: Final = 12

CHUNK: Final = 256
"""Rows whose columns are converted one after the other while their bytes are in the processor's cache; a multiple of 8, for bitmaps."""


def running(sizes: npt.NDArray[Any]) -> Offsets:
    """Where each begins of things that lie one behind the other, and where the last ends."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.add.accumulate(sizes, dtype=np.int64, out=ends[1:])
    return ends


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
) -> Gaps:
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        at = offsets[i]
        end = at + lengths[i]
        negative = at < end and data[at] == MINUS
        if negative:
            at += 1
        good = 0 < end - at <= 19
        value = np.int64(0)
        if good and end - at <= 16 <= end:
            found = some(data, end, end - at)
            if found >= 0:
                value = -found  # negative as below
                at = end
        while good and at < end:
            digit = np.int64(data[at]) - ZERO
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
    return Gaps(nulls + misfits, misfits)


@inlined
def _short_decimal(data: Bytes, at: Any, end: Any, scale: Any, power: Any, limit: Any) -> Any:
    """The digits of ``at`` to ``end`` as one number below ``limit``; -1 where it is not so short. power: 10 to the ``scale``, or 0."""
    point = end - scale - 1 if scale > 0 else end
    whole = np.int64(-1)
    if power > 0 and 0 < point - at <= 8 and point >= 8:
        whole = few(data, point, point - at)
        if scale > 0 and whole >= 0:
            fraction = few(data, end, scale)
            whole = whole * power + fraction if fraction >= 0 and data[point] == POINT else np.int64(-1)
        if whole >= limit:
            whole = np.int64(-1)
    return whole


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
) -> Gaps:
    """Two's complement 128-bit integers (low word, high word). The text carries exactly ``scale`` fraction digits."""
    nulls = 0
    misfits = 0
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    ten = np.uint64(10)
    power = np.int64(TENS[scale]) if 0 <= scale <= 8 else np.int64(0)
    limit = np.int64(TENS[min(precision, 16)])
    for i in range(lengths.shape[0]):
        out[i, 0] = 0
        out[i, 1] = 0
        if lengths[i] < 0:
            nulls += 1
            continue
        at = offsets[i]
        end = at + lengths[i]
        negative = at < end and data[at] == MINUS
        if negative:
            at += 1
        value = _short_decimal(data, at, end, scale, power, limit)
        if value >= 0:
            out[i, 0] = np.uint64(-value if negative else value)
            out[i, 1] = np.uint64(-1 if negative and value > 0 else 0)
            valid[i >> 3] |= np.uint8(1 << (i & 7))
            continue
        good = at < end
        low = np.uint64(0)
        high = np.uint64(0)
        digits = 0
        fraction = -1
        while good and at < end:
            byte = data[at]
            at += 1
            if byte == POINT and fraction < 0:
                fraction = 0
                continue
            if byte < ZERO or byte > NINE:
                good = False
                break
            if fraction >= 0:
                fraction += 1
            if digits > 0 or byte != ZERO:
                digits += 1
            if digits <= 18:
                low = low * ten + np.uint64(byte - ZERO)
            else:
                bottom = (low & mask) * ten + np.uint64(byte - ZERO)
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
    return Gaps(nulls + misfits, misfits)


@kernel
def _booleans(data: Bytes, offsets: Offsets, lengths: Lengths, out: Bytes, valid: Bytes, misfit: Flags) -> Gaps:
    nulls = 0
    misfits = 0
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            nulls += 1
            continue
        byte = data[offsets[i]] if lengths[i] == 1 else np.uint8(0)
        if byte == TRUE or byte == FALSE:  # noqa: SIM109 - a tuple would cost a loop
            bit = np.uint8(1 << (i & 7))
            valid[i >> 3] |= bit
            if byte == TRUE:
                out[i >> 3] |= bit
        else:
            misfit[i] = True
            misfits += 1
    return Gaps(nulls + misfits, misfits)


@inlined
def _nibble(byte: Any) -> Any:
    if ZERO <= byte <= NINE:
        return byte - ZERO
    if LOWER_A <= byte <= LOWER_F:
        return byte - LOWER_A + 10
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
) -> Gaps:
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
            good = length >= 2 and length % 2 == 0 and data[at] == BACKSLASH and data[at + 1] == LOWER_X
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
    return Gaps(nulls + misfits, misfits)


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
                if jobs[j, KIND] == TEXT:
                    convert_texts(data, offsets, lengths, jobs[j], low, min(low + CHUNK, rows), out)
                else:
                    _convert_some(data, offsets, lengths, jobs[j], low, min(low + CHUNK, rows), out, misfit)


@kernel
def convert_texts(data: Bytes, offsets: Offsets, lengths: Lengths, job: Jobs, low: int, high: int, out: Bytes) -> None:
    """Rows [low, high) of one TEXT column."""
    long = lengths[job[AT] + low : job[AT] + high]
    valid = out[job[VALID_AT] + (low >> 3) : job[VALID_AT] + ((high + 7) >> 3)]
    values = out[job[VALUES_AT] : job[VALUES_AT] + job[VALUES_BYTES]]
    ends = out[job[ENDS_AT] + low * 4 : job[ENDS_AT] + (high + 1) * 4].view(np.int32)
    job[NULLS] += _measure(long, ends, valid)
    _gather(data, offsets[job[AT] + low : job[AT] + high], long, ends, values)
    seen = np.uint8(0)
    for k in range(np.uint64(ends[0]), np.uint64(ends[high - low])):
        seen |= values[k]
    if seen >= 128:
        job[BEYOND_ASCII] = 1


@kernel
def _convert_some(
    data: Bytes, offsets: Offsets, lengths: Lengths, job: Jobs, low: int, high: int, out: Bytes, misfit: Flags
) -> None:
    """Rows [low, high) of one column that is not TEXT."""
    kind = job[KIND]
    at = offsets[job[AT] + low : job[AT] + high]
    long = lengths[job[AT] + low : job[AT] + high]
    unfit = misfit[job[AT] + low : job[AT] + high]
    valid = out[job[VALID_AT] + (low >> 3) : job[VALID_AT] + ((high + 7) >> 3)]
    values = out[job[VALUES_AT] : job[VALUES_AT] + job[VALUES_BYTES]]
    if kind == BINARY:
        ends = out[job[ENDS_AT] + low * 4 : job[ENDS_AT] + (high + 1) * 4].view(np.int32)
        gaps = _hexadecimals(data, at, long, ends, values, valid, unfit)
    elif kind == INT8:
        gaps = _integers(data, at, long, -9223372036854775808, 9223372036854775807, values.view(np.int64)[low:high], valid, unfit)
    elif kind == INT4:
        gaps = _integers(data, at, long, -2147483648, 2147483647, values.view(np.int32)[low:high], valid, unfit)
    elif kind == INT2:
        gaps = _integers(data, at, long, -32768, 32767, values.view(np.int16)[low:high], valid, unfit)
    elif kind == DECIMAL:
        words = values.view(np.uint64)[low * 2 : high * 2].reshape((high - low, 2))
        gaps = _decimals(data, at, long, job[FIRST], job[SECOND], words, valid, unfit)
    elif kind in (TIMESTAMP, TIMESTAMPTZ):
        gaps = timestamps(data, at, long, kind == TIMESTAMPTZ, values.view(np.int64)[low:high], valid, unfit)
    elif kind == DATE:
        gaps = dates(data, at, long, values.view(np.int32)[low:high], valid, unfit)
    elif kind == TIME:
        gaps = times(data, at, long, values.view(np.int64)[low:high], valid, unfit)
    else:
        gaps = _booleans(data, at, long, values[low >> 3 : (high + 7) >> 3], valid, unfit)
    job[NULLS] += gaps.nulls
    job[MISFITS] += gaps.misfits
