"""Fields of Postgres text, still lying in a block of bytes, as typed Arrow columns. Pure; shared by the stream and the snapshot.

A block is a uint8 array; a field is an offset and a length in it (length < 0: no value, i.e. NULL). The kernels are compiled
by numba and hold no GIL. A text that its Arrow type cannot hold exactly is left NULL in the column and goes to the ``_cdc_exact``
map (``cdc.model.batch``), so nothing is rounded, clamped or lost.

The text formats are those of the output functions under ``cdc.model.pgtypes.PINNED_SETTINGS`` (manual, chapter "Data Types").
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import ProtocolError
from cdc.model.batch import EXACT_TYPE
from cdc.model.kernel import inlined, kernel
from cdc.model.pgtypes import arrow_type
from cdc.model.table import Table

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

MAX_COLUMN_BYTES: Final = 2**31 - 1
"""Arrow's utf8 and binary columns have 32-bit offsets; blocks are cut long before."""


def columns(data: Bytes, offsets: Offsets, lengths: Lengths, table: Table) -> tuple[list[pa.Array], pa.Array]:
    """Typed columns of one table.

    data: the block. offsets, lengths: shape (columns, rows), C order. Returns (one array per column in the type that
    ``arrow_type`` gives, the ``_cdc_exact`` column). Raises ProtocolError when a text is not UTF-8 or a column is too large.
    """
    arrays: list[pa.Array] = []
    inexact: list[tuple[str, npt.NDArray[np.int64], pa.Array]] = []
    for index, column in enumerate(table.columns):
        array, misfit = _column(data, offsets[index], lengths[index], arrow_type(column))
        arrays.append(array)
        if misfit is not None:
            rows = np.flatnonzero(misfit)
            inexact.append((column.name, rows, text(data, offsets[index][rows], lengths[index][rows])))
    return arrays, _exact(inexact, lengths.shape[1])


def text(data: Bytes, offsets: Offsets, lengths: Lengths) -> pa.Array:
    """The fields as they are: utf8, NULL where the length is negative."""
    return _gathered(data, offsets, lengths, pa.utf8())


def _column(data: Bytes, offsets: Offsets, lengths: Lengths, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """One typed column and, where some fields do not fit their type, the flags of those rows."""
    rows = len(lengths)
    if pa.types.is_string(kind):
        return text(data, offsets, lengths), None
    valid = np.zeros((rows + 7) >> 3, np.uint8)
    misfit = np.zeros(rows, np.bool_)
    values: npt.NDArray[Any]
    if pa.types.is_integer(kind):
        values = np.empty(rows, np.int64)
        low, high = _INTEGER_RANGE[kind.bit_width]
        nulls, misfits = _integers(data, offsets, lengths, low, high, values, valid, misfit)
        values = values.astype(kind.to_pandas_dtype(), copy=False)
    elif pa.types.is_decimal(kind):
        values = np.empty((rows, 2), np.uint64)
        nulls, misfits = _decimals(data, offsets, lengths, kind.precision, kind.scale, values, valid, misfit)
    elif pa.types.is_timestamp(kind):
        values = np.empty(rows, np.int64)
        nulls, misfits = _timestamps(data, offsets, lengths, kind.tz is not None, values, valid, misfit)
    elif pa.types.is_date32(kind):
        values = np.empty(rows, np.int32)
        nulls, misfits = _dates(data, offsets, lengths, values, valid, misfit)
    elif pa.types.is_time64(kind):
        values = np.empty(rows, np.int64)
        nulls, misfits = _times(data, offsets, lengths, values, valid, misfit)
    elif pa.types.is_boolean(kind):
        values = np.zeros((rows + 7) >> 3, np.uint8)
        nulls, misfits = _booleans(data, offsets, lengths, values, valid, misfit)
    elif pa.types.is_floating(kind):
        return _floats(data, offsets, lengths, kind)
    else:
        assert pa.types.is_binary(kind), kind
        return _binary(data, offsets, lengths)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, rows, buffers, nulls), (misfit if misfits else None)


def _floats(data: Bytes, offsets: Offsets, lengths: Lengths, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Arrow's own parser rounds correctly, which the shortest digits need to read back bit-equal."""
    fields = text(data, offsets, lengths)
    try:
        return fields.cast(kind), None
    except pa.ArrowInvalid:
        return pa.nulls(len(fields), kind), np.asarray(lengths >= 0)


def _binary(data: Bytes, offsets: Offsets, lengths: Lengths) -> tuple[pa.Array, Flags | None]:
    rows = len(lengths)
    ends = np.empty(rows + 1, np.int32)
    valid = np.zeros((rows + 7) >> 3, np.uint8)
    misfit = np.zeros(rows, np.bool_)
    total = int(lengths[lengths > 0].sum(dtype=np.int64))
    _bounded(total)
    out = np.empty(total // 2, np.uint8)
    nulls, misfits = _hexadecimals(data, offsets, lengths, ends, out, valid, misfit)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls), (misfit if misfits else None)


def _gathered(data: Bytes, offsets: Offsets, lengths: Lengths, kind: pa.DataType) -> pa.Array:
    rows = len(lengths)
    ends = np.empty(rows + 1, np.int32)
    valid = np.zeros((rows + 7) >> 3, np.uint8)
    total, nulls = _measure(lengths, ends, valid)
    _bounded(total)
    out = np.empty(total, np.uint8)
    _gather(data, offsets, lengths, ends, out)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(ends), pa.py_buffer(out)]
    array = pa.Array.from_buffers(kind, rows, buffers, nulls)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError("a value is not valid UTF-8", hint="check the database's encoding (SQL_ASCII is refused)") from error
    return array


def _bounded(total: int) -> None:
    if total > MAX_COLUMN_BYTES:
        raise ProtocolError(f"one block holds {total} bytes of one column, more than {MAX_COLUMN_BYTES}")


def _exact(inexact: list[tuple[str, npt.NDArray[np.int64], pa.Array]], rows: int) -> pa.Array:
    """The ``_cdc_exact`` column: a map per row that has such values, NULL elsewhere."""
    if not inexact:
        return pa.nulls(rows, EXACT_TYPE)
    at = np.concatenate([where for _, where, _ in inexact])
    order = pa.array(np.argsort(at, kind="stable"))
    names = pa.concat_arrays([pa.repeat(name, len(where)) for name, where, _ in inexact]).take(order)
    texts = pa.concat_arrays([values for _, _, values in inexact]).take(order)
    counts = np.bincount(at, minlength=rows)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.MapArray.from_arrays(pa.array(ends), names, texts, type=EXACT_TYPE, mask=pa.array(counts == 0))


_INTEGER_RANGE: Final = {width: (-(2 ** (width - 1)), 2 ** (width - 1) - 1) for width in (16, 32, 64)}

# --- kernels: loops over fields, compiled, without the GIL ---------------------------------------------------------------


@kernel
def _measure(lengths: Lengths, ends: npt.NDArray[np.int32], valid: Bytes) -> tuple[int, int]:
    """Running ends of the values' bytes, the validity bitmap; returns (bytes in all, NULLs)."""
    total = 0
    nulls = 0
    ends[0] = 0
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            nulls += 1
        else:
            total += lengths[i]
            valid[i >> 3] |= np.uint8(1 << (i & 7))
        ends[i + 1] = np.int32(total)
    return total, nulls


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
    data: Bytes, offsets: Offsets, lengths: Lengths, low: int, high: int, out: Offsets, valid: Bytes, misfit: Flags
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
    r"""``\x`` and two lower-case digits a byte (bytea_output = hex)."""
    nulls = 0
    misfits = 0
    to = 0
    ends[0] = 0
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
