"""COPY's binary format: which tables are read in it, and its rows as typed columns. Pure.

The server neither writes numbers and times as digits nor looks at each byte of a text for what has to be escaped, and nobody has to look
for the end of anything, so a table whose types all have a form that is the same everywhere is read for less on both sides. A value that its
Arrow type cannot hold (NaN, infinity, 24:00:00, years BC) gets the text that the server would have given.
Formats: manual, COPY, "Binary Format"; each type's by its function ``…_send`` (times and days count from 2000-01-01).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba import types

from cdc.errors import ProtocolError
from cdc.kernels.civil import date_of
from cdc.kernels.jit import instruction, kernel
from cdc.kernels.memory import Take, fresh
from cdc.model import pgtypes
from cdc.model.pgtypes import arrow_type
from cdc.model.table import Column, Table
from cdc.pgvalues import values
from cdc.pgvalues.arrays import WholeRows
from cdc.pgvalues.columns import Columns, array_of, exact_of
from cdc.pgvalues.digits import TENS
from cdc.pgvalues.integers import COPY_DATA
from cdc.pgvalues.values import (
    AT,
    ENDS_AT,
    FIRST,
    INT2,
    INT4,
    INT8,
    JOB,
    KIND,
    MISFITS,
    NULLS,
    ROWS,
    SECOND,
    VALID_AT,
    VALUES_AT,
    VALUES_BYTES,
    Bytes,
    Flags,
    Jobs,
    Lengths,
    Offsets,
)

HEADER: Final = 19
"""Bytes before the first row: signature, flags and the length of an extension that nobody uses."""
_SIGNATURE: Final = 0x5047
"""How it begins; a row begins with its number of columns, of which no table has so many."""
FLOAT4: Final = 20
FLOAT8: Final = 21
"""Kinds that ``values`` does not have."""
_LAID_OUT: Final = {FLOAT4: INT4, FLOAT8: INT8}

_KINDS: Final = {
    pgtypes.BOOL: values.BOOL,
    pgtypes.INT2: INT2,
    pgtypes.INT4: INT4,
    pgtypes.INT8: INT8,
    pgtypes.FLOAT4: FLOAT4,
    pgtypes.FLOAT8: FLOAT8,
    pgtypes.DATE: values.DATE,
    pgtypes.TIME: values.TIME,
    pgtypes.TIMESTAMP: values.TIMESTAMP,
    pgtypes.TIMESTAMPTZ: values.TIMESTAMPTZ,
    # Their bytes as they are.
    pgtypes.BYTEA: values.TEXT,
    pgtypes.TEXT: values.TEXT,
    pgtypes.VARCHAR: values.TEXT,
    pgtypes.BPCHAR: values.TEXT,
}
_MOST_DIGITS: Final = 18
"""The most digits of a numeric that fits one machine word."""
_DAY: Final = 86_400_000_000
"""Microseconds."""
_DAYS_TO_2000: Final = 10_957
_MICROS_TO_2000: Final = _DAYS_TO_2000 * _DAY
_NAN: Final = b"\xc0\x00"
"""A numeric's sign when it is not a number."""
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""0001-01-01 and 9999-12-31: the days that the text formats of ``values`` know."""
_FIRST_MICRO: Final = _FIRST_DAY * _DAY - _MICROS_TO_2000
_LAST_MICRO: Final = (_LAST_DAY + 1) * _DAY - 1 - _MICROS_TO_2000
"""The same, from 2000 on."""


def is_trailer(length: int, start: bytes) -> bool:
    """Whether a message with so many bytes that begins so is the end of the rows: two bytes, behind the header where no row came."""
    return length == 2 or (length == HEADER + 2 and start == b"PG")


def readable(table: Table) -> bool:
    """Whether each column has one binary form, of which the same value is made as of its text."""
    return bool(table.columns) and all(_kind(column) is not None for column in table.columns)


def binary_columns(data: Bytes, skip: int, rows: int, table: Table, take: Take = fresh) -> Columns:
    """The columns of so many rows in the binary format, each preceded by ``skip`` bytes of framing, typed as ``columns`` types their text.
    The file's header, if there is one, belongs to the first row. Raises ProtocolError."""
    width = len(table.columns)
    offsets = take(width * rows * 8).view(np.int64)
    lengths = take(width * rows * 4).view(np.int32)
    if split(data, skip, offsets.reshape(width, rows), lengths.reshape(width, rows)) != rows:
        raise ProtocolError(f"COPY of table {table.qualified} gave rows of another shape than the catalog says")
    kinds, laid_out, arrow = _plan(table)
    jobs = np.zeros((width, JOB), np.int64)
    jobs[:, AT] = np.arange(width) * rows
    jobs[:, ROWS] = rows
    jobs[:, KIND] = laid_out
    out = take(int(values.lay_out(lengths, jobs)))
    jobs[:, KIND : SECOND + 1] = kinds
    misfit = take(len(lengths)).view(np.bool_)
    misfit[:] = False
    convert(data, offsets, lengths, jobs, out, misfit)
    memory = pa.py_buffer(out)
    found: list[pa.Array] = []
    inexact: list[tuple[str, npt.NDArray[np.int64], pa.Array]] = []
    for number, (job, kind) in enumerate(zip(jobs.tolist(), arrow, strict=True)):
        found.append(array_of(job, kind, memory))
        if job[MISFITS]:
            unfit = np.flatnonzero(misfit[number * rows : (number + 1) * rows])
            places = zip(offsets[number * rows + unfit].tolist(), lengths[number * rows + unfit].tolist(), strict=True)
            texts = [text_of(job[KIND], data[at : at + length].tobytes()) for at, length in places]
            inexact.append((table.columns[number].name, unfit, pa.array(texts, pa.utf8())))
    return found, exact_of(inexact, rows)


def text_of(kind: int, raw: bytes) -> str:
    """The server's text for a value that has no place in the Arrow type of its column. Raises ProtocolError for what is not a value at all."""
    number = int.from_bytes(raw, "big", signed=True)
    if kind == values.DECIMAL and len(raw) == 8 and raw[4:6] == _NAN:
        return "NaN"
    if kind == values.TIME and number == _DAY:
        return "24:00:00"
    size = {values.DATE: 4, values.TIMESTAMP: 8, values.TIMESTAMPTZ: 8}.get(kind)
    if len(raw) != size:
        raise ProtocolError("COPY gave a value of another form than its type has")
    most = 2 ** (8 * size - 1)
    if number in (most - 1, -most):
        return "infinity" if number > 0 else "-infinity"
    days, micros = (number, 0) if kind == values.DATE else divmod(number, _DAY)
    year, month, day = date_of(days + _DAYS_TO_2000)
    text = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}"
    if kind != values.DATE:
        seconds, micros = divmod(micros, 1_000_000)
        text += f" {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + f".{micros:06}".rstrip("0").rstrip(".")
    return text + ("+00" if kind == values.TIMESTAMPTZ else "") + ("" if year > 0 else " BC")


def _kind(column: Column) -> tuple[int, int, int] | None:
    kind = arrow_type(column)
    if pa.types.is_decimal(kind):
        return (values.DECIMAL, kind.precision, kind.scale) if kind.precision <= _MOST_DIGITS else None
    found = _KINDS.get(column.type_oid)
    return None if found is None else (found, 0, 0)


@lru_cache(maxsize=4096)
def _plan(table: Table) -> tuple[Jobs, list[int], list[pa.DataType]]:
    kinds = [kind for column in table.columns if (kind := _kind(column)) is not None]
    return (
        np.array(kinds, np.int64),
        [_LAID_OUT.get(kind, kind) for kind, _, _ in kinds],
        [arrow_type(column) for column in table.columns],
    )


# --- kernels ---------------------------------------------------------------------------------------------------------------


def _swapped(bits: int) -> Any:
    """Reads a number of so many bits whose highest byte comes first."""

    def typed(_context: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(bits).as_pointer())
            found = builder.bswap(builder.load(place, align=1))
            return builder.sext(found, ir.IntType(64)) if bits < 64 else found

        return types.int64(data, at), generate

    def interpreted(data: Any, at: Any) -> Any:
        return int.from_bytes(data[at : at + bits // 8].tobytes(), "big", signed=True)

    return instruction(typed, interpreted)


_int16 = _swapped(16)
_int32 = _swapped(32)
_int64 = _swapped(64)


@kernel
def whole_binary_rows(data: Bytes, at: int, end: int, most: int) -> WholeRows:
    """As ``fields.whole_rows``; stops before the trailer, which is not a row."""
    rows = 0
    while rows < most and end - at >= 7 and data[at] == COPY_DATA:
        length = _int32(data, at + 1)
        trailer = length == 6 or (length == HEADER + 6 and _int16(data, at + 5) == _SIGNATURE)
        if length < 4 or end - at < 1 + length or trailer:
            break
        at += 1 + length
        rows += 1
    return WholeRows(rows, at)


@kernel
def split(data: Bytes, skip: int, offsets: Offsets, lengths: Lengths) -> int:
    """Where each field lies; NULL has the length -1. offsets, lengths: shape (columns, rows), filled. Returns the number of rows, or -1 when
    a row has another number of fields or the block ends inside one."""
    width = offsets.shape[0]
    room = offsets.shape[1]
    size = np.int64(data.shape[0])
    at = np.int64(0)
    row = 0
    while at < size:
        at += skip
        if row == 0 and size - at > HEADER and _int16(data, at) == _SIGNATURE:
            at += HEADER
        if row == room or at + 2 > size or _int16(data, at) != width:
            return -1
        at += 2
        for c in range(width):
            if at + 4 > size:
                return -1
            length = _int32(data, at)
            at += 4
            if length < -1 or at + length > size:
                return -1
            offsets[c, row] = at
            lengths[c, row] = np.int32(length)
            at += max(length, 0)
        row += 1
    return row


@kernel
def convert(data: Bytes, offsets: Offsets, lengths: Lengths, jobs: Jobs, out: Bytes, misfit: Flags) -> None:
    """Does the jobs, all of one table, as ``values.convert`` does those of texts."""
    rows = jobs[0, ROWS]
    for j in range(jobs.shape[0]):
        out[jobs[j, VALID_AT] : jobs[j, VALID_AT] + ((rows + 7) >> 3)] = 0
        if jobs[j, KIND] == values.TEXT:
            out[jobs[j, ENDS_AT] : jobs[j, ENDS_AT] + 4] = 0
        elif jobs[j, KIND] == values.BOOL:
            out[jobs[j, VALUES_AT] : jobs[j, VALUES_AT] + jobs[j, VALUES_BYTES]] = 0
    for low in range(0, rows, values.CHUNK):
        high = min(low + values.CHUNK, rows)
        for j in range(jobs.shape[0]):
            if jobs[j, KIND] == values.TEXT:
                values.convert_texts(data, offsets, lengths, jobs[j], low, high, out)
            else:
                _numbers(data, offsets, lengths, jobs[j], low, high, out, misfit)


@kernel
def _numbers(data: Bytes, offsets: Offsets, lengths: Lengths, job: Jobs, low: int, high: int, out: Bytes, misfit: Flags) -> None:
    """Rows [low, high) of one column."""
    kind = job[KIND]
    at = offsets[job[AT] + low : job[AT] + high]
    long = lengths[job[AT] + low : job[AT] + high]
    unfit = misfit[job[AT] + low : job[AT] + high]
    valid = out[job[VALID_AT] + (low >> 3) : job[VALID_AT] + ((high + 7) >> 3)]
    place = out[job[VALUES_AT] : job[VALUES_AT] + job[VALUES_BYTES]]
    if kind == values.DECIMAL:
        words = place.view(np.uint64)[low * 2 : high * 2].reshape((high - low, 2))
        _numerics(data, at, long, job[FIRST], job[SECOND], words, unfit)
    elif kind == INT2:
        _two_bytes(data, at, long, place.view(np.int16)[low:high], unfit)
    elif kind in (INT4, values.DATE, FLOAT4):
        _four_bytes(data, at, long, kind, place.view(np.int32)[low:high], unfit)
    elif kind == values.BOOL:
        _bits(data, at, long, place[low >> 3 : (high + 7) >> 3], unfit)
    else:
        _eight_bytes(data, at, long, kind, place.view(np.int64)[low:high], unfit)
    nulls = 0
    misfits = 0
    for i in range(high - low):
        if unfit[i]:
            misfits += 1
        elif long[i] < 0:
            nulls += 1
        else:
            valid[i >> 3] |= np.uint8(1 << (i & 7))
    job[NULLS] += nulls + misfits
    job[MISFITS] += misfits


@kernel
def _bits(data: Bytes, offsets: Offsets, lengths: Lengths, out: Bytes, misfit: Flags) -> None:
    for i in range(lengths.shape[0]):
        if lengths[i] == 1 and data[offsets[i]] <= 1:
            out[i >> 3] |= np.uint8(data[offsets[i]] << (i & 7))
        else:
            misfit[i] = lengths[i] >= 0


@kernel
def _two_bytes(data: Bytes, offsets: Offsets, lengths: Lengths, out: npt.NDArray[np.int16], misfit: Flags) -> None:
    for i in range(lengths.shape[0]):
        out[i] = 0
        if lengths[i] == 2:
            out[i] = np.int16(_int16(data, offsets[i]))
        else:
            misfit[i] = lengths[i] >= 0


@kernel
def _four_bytes(data: Bytes, offsets: Offsets, lengths: Lengths, kind: int, out: npt.NDArray[np.int32], misfit: Flags) -> None:
    for i in range(lengths.shape[0]):
        out[i] = 0
        value = _int32(data, offsets[i]) if lengths[i] == 4 else np.int64(0)
        good = lengths[i] == 4
        if kind == values.DATE:
            value += _DAYS_TO_2000
            good = good and _FIRST_DAY <= value <= _LAST_DAY
        elif kind == FLOAT4 and (value & 0x7FFFFFFF) > 0x7F800000:
            value = np.int64(0x7FC00000)  # a NaN's text does not tell it from another
        if good:
            out[i] = np.int32(value)
        else:
            misfit[i] = lengths[i] >= 0


@kernel
def _eight_bytes(data: Bytes, offsets: Offsets, lengths: Lengths, kind: int, out: Offsets, misfit: Flags) -> None:
    for i in range(lengths.shape[0]):
        out[i] = 0
        value = _int64(data, offsets[i]) if lengths[i] == 8 else np.int64(0)
        good = lengths[i] == 8
        if kind in (values.TIMESTAMP, values.TIMESTAMPTZ):
            # Compared before it is moved: infinity is the greatest number that there is.
            good = good and _FIRST_MICRO <= value <= _LAST_MICRO
            value += _MICROS_TO_2000
        elif kind == values.TIME:
            good = good and 0 <= value < _DAY
        elif kind == FLOAT8 and (value & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000:
            value = np.int64(0x7FF8000000000000)
        if good:
            out[i] = value
        else:
            misfit[i] = lengths[i] >= 0


@kernel
def _numerics(
    data: Bytes, offsets: Offsets, lengths: Lengths, precision: int, scale: int, out: npt.NDArray[np.uint64], misfit: Flags
) -> None:
    """Digits in groups of four, of which zeros at the end are left out, as whole numbers with ``scale`` digits behind the point: two's
    complement 128-bit integers (low word, high word)."""
    last = -((scale + 3) >> 2)  # the number of the group behind the point that ends the number
    unused = TENS[-4 * last - scale]  # of whose digits the number has no use
    limit = np.int64(TENS[min(precision, 16)]) * (100 if precision == 18 else 10 if precision == 17 else 1)
    for i in range(lengths.shape[0]):
        out[i, 0] = 0
        out[i, 1] = 0
        if lengths[i] < 0:
            continue
        at = offsets[i]
        value = np.int64(0)
        negative = False
        good = lengths[i] >= 8
        if good:
            count = _int16(data, at)
            group = _int16(data, at + 2)
            sign = _int16(data, at + 4)
            negative = sign == 0x4000
            good = (sign == 0 or negative) and count >= 0 and lengths[i] == 8 + 2 * count and group < 5
            at += 8
            end = at + 2 * count
            while good and count > 0 and group >= last:
                digits = _int16(data, at) if at < end else np.int64(0)
                at += 2
                times = np.int64(10000)
                if group == last:
                    good = digits % unused == 0
                    digits //= unused
                    times //= unused
                good = good and 0 <= digits < times and value <= 999999999999999999 // times
                value = value * times + digits
                group -= 1
            # What is left has nothing before the number's end.
            good = good and value < limit and (count == 0 or at >= end)
        if good:
            out[i, 0] = np.uint64(-value if negative else value)
            out[i, 1] = np.uint64(-1 if negative and value > 0 else 0)
        else:
            misfit[i] = True
