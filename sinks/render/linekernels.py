"""Compiled loops from Postgres's text of scalars and arrays to JSON on one line. They agree with ``literals`` or leave a row to it.

Every kernel takes a text column (see ``sinks.render.jsonkernels``) and gives ``LiteralLines``. Doubts are looked for only where ``doubles`` says so.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import inlined, kernel
from sinks.render.jsonkernels import put_escape
from sinks.render.tokenkernels import (
    BACKSLASH,
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    DOUBLE_DIGITS,
    DOUBTFUL,
    FALSE,
    LEFT,
    LOWER_F,
    LOWER_T,
    MINUS,
    NULL,
    OPEN,
    OPEN_LIST,
    PLUS,
    POINT,
    QUOTE,
    SPACE,
    SURE,
    TRUE,
    UPPER_T,
    UPPER_Z,
    ZERO,
    LiteralLines,
    digit,
    is_word,
    judged,
    note_doubt,
    number_end,
)

ARRAY_NULL: Final = np.frombuffer(b"NULL", np.uint8)

AS_TEXT: Final = 0
AS_NUMBER: Final = 1
AS_BOOL: Final = 2
AS_MOMENT: Final = 3
"""How a scalar, or an array's element, is written."""


@kernel
def _put_quoted(source: Any, start: int, end: int, escaped: bool, out: Any, at: int) -> int:
    """The bytes as a JSON string; ``escaped``: a backslash among them is not one of the value, what follows it is."""
    out[at] = QUOTE
    at += 1
    k = start
    while k < end:
        byte = source[k]
        if escaped and byte == BACKSLASH:
            k += 1
            byte = source[k]
        k += 1
        if byte >= SPACE and byte != QUOTE and byte != BACKSLASH:
            out[at] = byte
            at += 1
        else:
            at = put_escape(out, at, byte)
    out[at] = QUOTE
    return at + 1


@inlined
def _put(word: Any, out: Any, at: int) -> Any:
    for k in range(len(word)):
        out[at + k] = word[k]
    return at + len(word)


@kernel
def _is_moment(source: Any, start: int, end: int) -> bool:
    """YYYY-MM-DD HH:MM:SS[.f][+00]"""
    if end - start < 19:
        return False
    for k in range(19):
        byte = source[start + k]
        if k == 4 or k == 7:
            if byte != MINUS:
                return False
        elif k == 10:
            if byte != SPACE:
                return False
        elif k == 13 or k == 16:
            if byte != COLON:
                return False
        elif not digit(byte):
            return False
    at = start + 19
    if at < end and source[at] == POINT:
        at += 1
        if at >= end or not digit(source[at]):
            return False
        while at < end and digit(source[at]):
            at += 1
    return at == end or (end - at == 3 and source[at] == PLUS and source[at + 1] == ZERO and source[at + 2] == ZERO)


@kernel
def _put_scalar(source: Any, start: int, end: int, how: int, escaped: bool, doubles: bool, out: Any, at: int) -> Any:
    """(where it ends, how sure it is); a value that is not of this kind is a string."""
    if how == AS_NUMBER and number_end(source, start, end) == end:
        sure = judged(source, start, end) if doubles else SURE
        for k in range(start, end):
            out[at + k - start] = source[k]
        at += end - start
        if end - start == 2 and source[start] == MINUS and source[start + 1] == ZERO:  # -0
            out[at] = POINT
            out[at + 1] = ZERO
            at += 2
        return at, sure
    if how == AS_BOOL and end - start == 1 and source[start] == LOWER_T:
        return _put(TRUE, out, at), SURE
    if how == AS_BOOL and end - start == 1 and source[start] == LOWER_F:
        return _put(FALSE, out, at), SURE
    if how == AS_MOMENT and _is_moment(source, start, end):
        zulu = source[end - 3] == PLUS
        out[at] = QUOTE
        stop = end - 3 if zulu else end
        for k in range(start, stop):
            out[at + 1 + k - start] = source[k]
        out[at + 11] = UPPER_T
        at += 1 + stop - start
        if zulu:
            out[at] = UPPER_Z
            at += 1
        out[at] = QUOTE
        return at + 1, SURE
    return _put_quoted(source, start, end, escaped, out, at), SURE


@kernel
def _room(source: Any, offsets: Any) -> Any:
    """Enough bytes for every scalar or element: at most six for one, and three for each with its separator."""
    controls = 0
    first, last = offsets[0], offsets[len(offsets) - 1]
    for k in range(first, last):
        controls += source[k] < SPACE
    return 3 * (last - first) + 5 * controls + 8 * len(offsets)


@kernel
def scalar_lines(source: Any, offsets: Any, how: int, doubles: bool) -> Any:
    """Numbers, booleans or moments (``how``), one for each row."""
    count = len(offsets) - 1
    data = np.empty(_room(source, offsets), np.uint8)
    ends = np.empty(count + 1, np.int64)
    left = np.zeros(count, np.bool_)
    doubts = np.empty((count if doubles and how == AS_NUMBER else 0, 3), np.int64)
    found, at = 0, 0
    ends[0] = 0
    for i in range(count):
        start = at
        at, sure = _put_scalar(source, offsets[i], offsets[i + 1], how, False, doubles, data, at)
        if sure == LEFT:
            left[i] = True
            at = start
        elif sure == DOUBTFUL:
            found = note_doubt(doubts, found, i, start, at)
        ends[i + 1] = at
    return LiteralLines(data[:at], ends, left, doubts[:found])


@kernel
def array_lines(source: Any, offsets: Any, how: int, doubles: bool) -> Any:
    """Arrays of scalars of any number of dimensions, with commas between them."""
    count = len(offsets) - 1
    data = np.empty(_room(source, offsets), np.uint8)
    ends = np.empty(count + 1, np.int64)
    left = np.zeros(count, np.bool_)
    doubts = np.empty(((offsets[count] - offsets[0]) // DOUBLE_DIGITS + 1 if doubles else 0, 3), np.int64)
    found, at = 0, 0
    ends[0] = 0
    for i in range(count):
        k, end = offsets[i], offsets[i + 1]
        begun, kept = at, found
        depth = 0
        value_next = True  # an element or an inner array may come here
        empty = False  # the innermost array has nothing in it yet
        good = k < end and source[k] == OPEN
        while good and k < end:
            byte = source[k]
            if byte == OPEN:
                good = value_next
                data[at] = OPEN_LIST
                at += 1
                k += 1
                depth += 1
                empty = True
            elif byte == CLOSE:
                good = depth > 0 and (empty or not value_next)
                data[at] = CLOSE_LIST
                at += 1
                k += 1
                depth -= 1
                value_next, empty = False, False
                if depth == 0:
                    break
            elif byte == COMMA:
                good = not value_next
                data[at] = COMMA
                at += 1
                k += 1
                value_next = True
            else:
                good = value_next
                start = at
                sure = SURE
                if byte == QUOTE:
                    stop = k + 1
                    while stop < end and source[stop] != QUOTE:
                        stop += 2 if source[stop] == BACKSLASH else 1
                    good = good and stop < end and (how in (AS_TEXT, AS_MOMENT))
                    if good:
                        at, sure = _put_scalar(source, k + 1, stop, how, True, doubles, data, at)
                    k = stop + 1
                else:
                    stop = k
                    while (
                        stop < end
                        and source[stop] != COMMA
                        and source[stop] != CLOSE
                        and source[stop] != OPEN
                        and source[stop] != QUOTE
                        and source[stop] != BACKSLASH
                    ):
                        stop += 1
                    good = good and stop > k
                    if stop - k == len(ARRAY_NULL) and is_word(source, k, stop, ARRAY_NULL):
                        at = _put(NULL, data, at)
                    elif good:
                        at, sure = _put_scalar(source, k, stop, how, False, doubles, data, at)
                    k = stop
                if sure == LEFT:
                    good = False
                elif sure == DOUBTFUL:
                    found = note_doubt(doubts, found, i, start, at)
                value_next, empty = False, False
        if not good or depth != 0 or k != end:
            left[i] = True
            at, found = begun, kept
        ends[i + 1] = at
    return LiteralLines(data[:at], ends, left, doubts[:found])
