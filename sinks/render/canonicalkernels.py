"""Compiled loops that write JSON as canonical JSON, so that two texts are the same where they say the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from cdc.kernels.digits import HEX
from cdc.kernels.jit import kernel
from cdc.kernels.memcpy import copied
from sinks.render.jsonkernels import SHORT
from sinks.render.readkernels import DEPTH_MAX, IS_REAL, UNREAD, behind_space, escaped, string_end, value_end
from sinks.render.tokenkernels import (
    BACKSLASH,
    CLOSE,
    COLON,
    COMMA,
    DOUBLE_DIGITS,
    LONG_NUMBER,
    LOWER_U,
    MINUS,
    OPEN,
    OPEN_LIST,
    POINT,
    QUOTE,
    SPACE,
    TILDE,
    ZERO,
)
from sinks.render.valuekernels import put_decimal, significant_digits


@kernel
def canonical_lines(data: Any, offsets: Any, valid: Any) -> Any:
    """JSON texts as ``sinks.render.meaning.canonical_json`` has them: (data, int32 offsets, the mask of what is left, which is empty here)."""
    rows = len(offsets) - 1
    out = np.empty(6 * (offsets[rows] - offsets[0]) + 8 * rows + 8, np.uint8)
    ends = np.empty(rows + 1, np.int32)
    left = np.zeros(rows, np.bool_)
    digits = np.empty(DOUBLE_DIGITS, np.uint8)
    stack = np.empty((DEPTH_MAX, 3), np.int64)
    ends[0] = 0
    to = 0
    for row in range(rows):
        if valid[row]:
            stop = _put_canonical(out, to, data, offsets[row], offsets[row + 1], digits, stack)
            left[row] = stop < 0
            to = to if stop < 0 else stop
        ends[row + 1] = to
    return out[:to], ends, left


@kernel
def _put_canonical(out: Any, to: int, data: Any, at: int, end: int, digits: Any, stack: Any) -> int:
    depth = 0
    at = behind_space(data, at, end)
    while True:
        if at >= end:
            return UNREAD
        byte = data[at]
        if byte in (OPEN, OPEN_LIST):
            out[to] = byte
            to += 1
            at = behind_space(data, at + 1, end)
            if at < end and data[at] == byte + 2:  # its bracket's other half
                out[to] = data[at]
                to += 1
                at += 1
            else:
                if depth == DEPTH_MAX:
                    return UNREAD
                stack[depth, 0] = byte + 2
                stack[depth, 1] = UNREAD
                depth += 1
                if byte == OPEN:
                    at, to = _put_name(out, to, data, at, end, stack[depth - 1])
                    if at < 0:
                        return UNREAD
                continue
        elif byte == QUOTE:
            stop, _ = string_end(data, at, end)
            if stop < 0:
                return UNREAD
            to = _put_string(out, to, data, at + 1, stop - 1)
            if to < 0:
                return UNREAD
            at = stop
        else:
            stop, token = value_end(data, at, end, True)
            if stop < 0:
                return UNREAD
            if token == IS_REAL:
                to = _put_real(out, to, data, at, stop, digits)
                if to < 0:
                    return UNREAD
            elif stop - at > LONG_NUMBER:
                return UNREAD
            else:
                to = copied(out, to, data, at, stop - at)
            at = stop
        while True:
            at = behind_space(data, at, end)
            if depth == 0:
                return to if at == end else UNREAD
            if at >= end:
                return UNREAD
            byte = data[at]
            out[to] = byte
            to += 1
            at += 1
            if byte == COMMA:
                at = behind_space(data, at, end)
                if stack[depth - 1, 0] == CLOSE:
                    at, to = _put_name(out, to, data, at, end, stack[depth - 1])
                    if at < 0:
                        return UNREAD
                break
            if byte != stack[depth - 1, 0]:
                return UNREAD
            depth -= 1


@kernel
def _put_name(out: Any, to: int, data: Any, at: int, end: int, before: Any) -> Any:
    """(where the value begins, where to write on). ``before``: the name before it in this object, behind which this one has to come."""
    if at >= end or data[at] != QUOTE:
        return UNREAD, to
    stop, escaped = string_end(data, at, end)
    if stop < 0 or escaped or (before[1] >= 0 and not _comes_behind(data, at + 1, stop - 1, before[1], before[2])):
        return UNREAD, to
    before[1] = at + 1
    before[2] = stop - 1
    to = _put_string(out, to, data, at + 1, stop - 1)
    at = behind_space(data, stop, end)
    if to < 0 or at >= end or data[at] != COLON:
        return UNREAD, to
    out[to] = COLON
    return behind_space(data, at + 1, end), to + 1


@kernel
def _comes_behind(data: Any, start: int, end: int, other: int, other_end: int) -> bool:
    """Whether a name is longer than the other, or as long and greater."""
    if end - start != other_end - other:
        return bool(end - start > other_end - other)
    for k in range(end - start):
        if data[start + k] != data[other + k]:
            return bool(data[start + k] > data[other + k])
    return False


@kernel
def _put_string(out: Any, to: int, data: Any, at: int, end: int) -> int:
    """As json.dumps writes it: ASCII."""
    out[to] = QUOTE
    to += 1
    while at < end:
        byte = data[at]
        if byte == BACKSLASH:
            code, at = escaped(data, at)
        elif byte < 0x80:
            code = np.int64(byte)
            at += 1
        else:
            more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            if byte < 0xC2 or byte > 0xF4 or at + more >= end + 1:
                return UNREAD
            code = np.int64(byte) & (0x3F >> more)
            for k in range(1, more + 1):
                if at + k >= end or data[at + k] & 0xC0 != 0x80:
                    return UNREAD
                code = code << 6 | (np.int64(data[at + k]) & 0x3F)
            least = 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
            if code < least or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                return UNREAD
            at += more + 1
        to = _put_character(out, to, code)
    out[to] = QUOTE
    return to + 1


@kernel
def _put_character(out: Any, to: int, code: int) -> int:
    if code >= 0x10000:
        to = _put_code(out, to, 0xD800 | (code - 0x10000) >> 10)
        return _put_code(out, to, 0xDC00 | ((code - 0x10000) & 0x3FF))
    if code in (QUOTE, BACKSLASH) or (code < SPACE and SHORT[code]):
        out[to] = BACKSLASH
        out[to + 1] = code if code >= SPACE else SHORT[code]
        return to + 2
    if code < SPACE or code > TILDE:
        return _put_code(out, to, code)
    out[to] = code
    return to + 1


@kernel
def _put_code(out: Any, to: int, code: int) -> int:
    out[to] = BACKSLASH
    out[to + 1] = LOWER_U
    for k in range(4):
        out[to + 2 + k] = HEX[code >> (12 - 4 * k) & 15]
    return to + 6


@kernel
def _put_real(out: Any, to: int, data: Any, start: int, end: int, digits: Any) -> int:
    """As Python writes the whole number or the float that it is."""
    count, place = significant_digits(data, start, end, digits)
    # Beyond these it writes exponents.
    if count < 0 or (count and not -4 < place <= 16):
        return UNREAD
    if count == 0:
        if data[start] == MINUS:
            out[to] = MINUS
            out[to + 1] = ZERO
            out[to + 2] = POINT
            out[to + 3] = ZERO
            return to + 4
        out[to] = ZERO
        return to + 1
    if data[start] == MINUS:
        out[to] = MINUS
        to += 1
    return put_decimal(out, to, digits, count, place)
