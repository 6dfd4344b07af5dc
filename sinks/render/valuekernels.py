"""Compiled loops that make text of what stands in documents: one column at a time, as Postgres writes its values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.digits import HEX
from cdc.kernels.jit import inlined, kernel
from cdc.kernels.memcpy import BLOCK, copied, short_copied
from cdc.kernels.windows import eight_bytes
from sinks.render.readkernels import (
    AS_IT_IS,
    BOOL,
    BYTES,
    DOUBLE,
    IS_ESCAPED,
    IS_FALSE,
    IS_NULL,
    IS_REAL,
    IS_STRING,
    IS_TRUE,
    IS_WHOLE,
    MOMENT,
    NO_MEMBER,
    NUMBER,
    PLACES_MAX,
    TEXT,
    UNREAD,
    escaped,
)
from sinks.render.tokenkernels import (
    BACKSLASH,
    DOUBLE_DIGITS,
    EQUALS,
    LOWER_E,
    LOWER_F,
    LOWER_T,
    MINUS,
    PLUS,
    POINT,
    SPACE,
    UPPER_E,
    UPPER_T,
    UPPER_Z,
    ZERO,
    number_end,
)

_ONES: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_ALL_T: Final = np.uint64(ord("T") * 0x0101010101010101)
_BASE64: Final = np.full(256, 255, np.uint8)
for _sextet, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _BASE64[_letter] = _sextet


@inlined
def _is_iso(data: Any, start: Any, end: Any) -> Any:
    """Whether a date of ten characters stands here, and a T behind it."""
    iso = end - start > 10 and data[start + 10] == UPPER_T
    if iso:
        # The ten characters as two words that overlap: no byte of them has its highest bit, and none is a T.
        for at in (start, start + 2):
            word = eight_bytes(data, at)
            other = word ^ _ALL_T
            iso &= ((word | ((other - _ONES) & ~other)) & _HIGH_BITS) == 0
    return iso


@inlined
def _iso_put(out: Any, to: Any, data: Any, start: Any, end: Any) -> Any:
    """As Postgres writes it."""
    stop = short_copied(out, to, data, start, end - start)
    out[to + 10] = SPACE
    if data[end - 1] == UPPER_Z:
        out[stop - 1] = PLUS
        out[stop] = ZERO
        out[stop + 1] = ZERO
        stop += 2
    return stop


@kernel
def column_texts(data: Any, spans: Any, tokens: Any, kind: int, scale: int, left: Any) -> Any:
    """One column's values as text: (data, int32 offsets, uint8 valid). ``spans`` (row, from and to) and ``tokens``: as ``object_members`` has them. ``scale``: of a
    DOUBLE. Marks in ``left`` the rows whose value is of another kind, which are NULL here."""
    rows = len(tokens)
    room = 0
    for row in range(rows):
        room += spans[row, 1] - spans[row, 0]
    out = np.empty(BLOCK + 2 * room + rows * (8 + (scale + 2 * DOUBLE_DIGITS + PLACES_MAX if kind == DOUBLE else 0)), np.uint8)
    offsets = np.empty(rows + 1, np.int32)
    valid = np.zeros(rows, np.uint8)
    digits = np.empty(DOUBLE_DIGITS, np.uint8)
    offsets[0] = 0
    to = 0
    for row in range(rows):
        token = tokens[row]
        if not left[row] and (
            (kind == TEXT and token == IS_STRING) or (kind == NUMBER and (token == IS_WHOLE or token == IS_REAL))  # noqa: SIM109 (a tuple would cost a loop)
        ):
            # As nearly all values are: without a call, which would cost more than this does.
            to = short_copied(out, to, data, spans[row, 0], spans[row, 1] - spans[row, 0])
            valid[row] = 1
        elif kind == MOMENT and token == IS_STRING and not left[row] and _is_iso(data, spans[row, 0], spans[row, 1]):
            to = _iso_put(out, to, data, spans[row, 0], spans[row, 1])
            valid[row] = 1
        elif not (token == NO_MEMBER or (token == IS_NULL and kind != AS_IT_IS) or left[row]):
            stop = _put_value(out, to, data, spans[row, 0], spans[row, 1], token, kind, (scale, digits))
            if stop < 0:
                left[row] = True
            else:
                valid[row] = 1
                to = stop
        offsets[row + 1] = to
    return out[:to], offsets, valid


@kernel
def _put_value(out: Any, to: int, data: Any, start: Any, end: Any, token: int, kind: int, double: Any) -> int:
    scale, digits = double
    if kind == AS_IT_IS:
        quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
        return copied(out, to, data, start - quotes, end - start + 2 * quotes)
    if kind == TEXT:
        if token == IS_STRING:
            return copied(out, to, data, start, end - start)
        return _put_unescaped(out, to, data, start, end) if token == IS_ESCAPED else UNREAD
    if kind == BOOL:
        if token not in (IS_TRUE, IS_FALSE):
            return UNREAD
        out[to] = LOWER_T if token == IS_TRUE else LOWER_F
        return to + 1
    if token == IS_STRING:
        if kind == MOMENT:
            return _put_moment(out, to, data, start, end)
        if kind == BYTES:
            return _put_bytes(out, to, data, start, end)
        # The text of a number is another value than the number.
        return UNREAD if number_end(data, start, end) == end else copied(out, to, data, start, end - start)
    if kind == NUMBER and token in (IS_WHOLE, IS_REAL):
        return copied(out, to, data, start, end - start)
    if kind == DOUBLE and token == IS_WHOLE:
        return _put_zeros(out, copied(out, to, data, start, end - start), scale, True)
    if kind == DOUBLE and token == IS_REAL:
        return _put_double(out, to, data, start, end, scale, digits)
    return UNREAD


@kernel
def _put_zeros(out: Any, to: int, count: int, point: bool) -> int:
    if count > 0 and point:
        out[to] = POINT
        to += 1
    for _ in range(count):
        out[to] = ZERO
        to += 1
    return to


@kernel
def _put_unescaped(out: Any, to: int, data: Any, at: int, end: int) -> int:
    while at < end:
        byte = data[at]
        if byte != BACKSLASH:
            out[to] = byte
            to += 1
            at += 1
            continue
        code, at = escaped(data, at)
        if code < 0x80:
            out[to] = code
            to += 1
        elif code < 0x800:
            out[to] = 0xC0 | code >> 6
            out[to + 1] = 0x80 | (code & 0x3F)
            to += 2
        else:
            out[to] = 0xE0 | code >> 12
            out[to + 1] = 0x80 | (code >> 6 & 0x3F)
            out[to + 2] = 0x80 | (code & 0x3F)
            to += 3
    return to


@kernel
def _put_moment(out: Any, to: int, data: Any, start: int, end: int) -> int:
    """ISO 8601 as Postgres writes it; what is kept as Postgres's text has no T behind ten characters."""
    for k in range(start, end):
        if data[k] >= 0x80 or (data[k] == UPPER_T and k < start + 10):
            return UNREAD
    if end - start <= 10 or data[start + 10] != UPPER_T:
        return copied(out, to, data, start, end - start)
    to = copied(out, to, data, start, 10)
    out[to] = SPACE
    zone = data[end - 1] == UPPER_Z
    to = copied(out, to + 1, data, start + 11, end - start - 11 - (1 if zone else 0))
    if zone:
        out[to] = PLUS
        out[to + 1] = ZERO
        out[to + 2] = ZERO
        to += 3
    return to


@kernel
def _put_bytes(out: Any, to: int, data: Any, start: int, end: int) -> int:
    """base64 as \\x and hexadecimal digits."""
    out[to] = BACKSLASH
    out[to + 1] = ord("x")
    to += 2
    if (end - start) % 4:
        return UNREAD
    for at in range(start, end, 4):
        word = np.uint32(0)
        count = 3
        for k in range(4):
            byte = data[at + k]
            if byte == EQUALS and at + 4 == end and (k == 3 or (k == 2 and data[at + 3] == EQUALS)):
                count = min(count, k - 1)
                value = np.uint8(0)
            else:
                value = _BASE64[byte]
            if value == 255:
                return UNREAD
            word = word << np.uint32(6) | np.uint32(value)
        for k in range(count):
            byte = word >> np.uint32(16 - 8 * k) & np.uint32(0xFF)
            out[to] = HEX[byte >> np.uint32(4)]
            out[to + 1] = HEX[byte & np.uint32(15)]
            to += 2
    return to


@kernel
def significant_digits(data: Any, start: int, end: int, digits: Any) -> Any:
    """(how many digits, the place of the point before or behind them) of the number that stands here: 0.digits times ten to the place. (UNREAD, 0) for more
    digits than every double gives back."""
    count = 0
    zeros = 0
    place = 0
    exponent: Any = 0
    behind = False
    at = start + (1 if data[start] == MINUS else 0)
    while at < end:
        byte = data[at]
        at += 1
        if byte == POINT:
            behind = True
        elif byte in (LOWER_E, UPPER_E):
            sign = -1 if data[at] == MINUS else 1
            at += 1 if data[at] == MINUS or data[at] == PLUS else 0
            while at < end:
                exponent = min(exponent * 10 + (np.int64(data[at]) - ZERO), 10_000)
                at += 1
            exponent *= sign
        else:
            if byte == ZERO and count == 0:
                place -= 1 if behind else 0
                continue
            place += 0 if behind else 1
            if byte == ZERO:
                zeros += 1
                continue
            if count + zeros + 1 > DOUBLE_DIGITS:
                return UNREAD, 0
            for _ in range(zeros):
                digits[count] = ZERO
                count += 1
            zeros = 0
            digits[count] = byte
            count += 1
    return count, (place + exponent if count else 0)


@kernel
def put_decimal(out: Any, to: int, digits: Any, count: int, place: int) -> int:
    """Writes the number without an exponent and without zeros that say nothing."""
    if place <= 0:
        out[to] = ZERO
        to += 1
    for k in range(place):
        out[to] = digits[k] if k < count else ZERO
        to += 1
    if count > place:
        out[to] = POINT
        to = _put_zeros(out, to + 1, -place, False)
        for k in range(max(place, 0), count):
            out[to] = digits[k]
            to += 1
    return to


@kernel
def _put_double(out: Any, to: int, data: Any, start: int, end: int, scale: int, digits: Any) -> int:
    count, place = significant_digits(data, start, end, digits)
    if count < 0 or abs(place) > PLACES_MAX - DOUBLE_DIGITS:
        return UNREAD
    if data[start] == MINUS:
        out[to] = MINUS
        to += 1
    to = put_decimal(out, to, digits, count, place)
    places = max(count - place, 0)
    return _put_zeros(out, to, scale - places, places == 0)
