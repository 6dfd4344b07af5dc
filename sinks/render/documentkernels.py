"""Compiled loops over JSON: on one line (results as in ``linekernels``), and what an index makes of it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import kernel
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
    LOWER_A,
    LOWER_B,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    LOWER_U,
    MINUS,
    NEWLINE,
    NULL,
    OPEN,
    OPEN_LIST,
    QUOTE,
    RETURN,
    SLASH,
    SPACE,
    TAB,
    TRUE,
    UPPER_A,
    UPPER_F,
    LiteralLines,
    digit,
    is_word,
    judged,
    note_doubt,
    number_end,
)

DEPTH_MAX: Final = 100
NAMES_MAX: Final = 32
"""Of a json object with more names than this, whether one comes twice is left to ``literals``."""
NAME_BYTES_MAX: Final = 32_766


@kernel
def _string_end(source: Any, at: int, end: int) -> int:
    """Behind the JSON string that begins here; -1 when it is none. Negative of where it ends when it has a backslash in it."""
    escaped = False
    at += 1
    while at < end:
        byte = source[at]
        if byte == QUOTE:
            return -(at + 1) if escaped else at + 1
        if byte < SPACE:
            return -1
        if byte == BACKSLASH:
            escaped = True
            at += 1
            if at >= end:
                return -1
            byte = source[at]
            if byte == LOWER_U:
                if at + 4 >= end:
                    return -1
                for k in range(1, 5):
                    code = source[at + k]
                    if not (digit(code) or LOWER_A <= code <= LOWER_F or UPPER_A <= code <= UPPER_F):
                        return -1
                at += 4
            elif not (byte in (QUOTE, BACKSLASH, SLASH) or byte in (LOWER_B, LOWER_F, LOWER_N, LOWER_R, LOWER_T)):
                return -1
        at += 1
    return -1


@kernel
def _hashed(source: Any, start: int, end: int) -> np.uint64:
    value = np.uint64(0xCBF29CE484222325)
    for k in range(start, end):
        value = (value ^ np.uint64(source[k])) * np.uint64(0x100000001B3)
    return value


_VALUE, _FIRST_NAME, _NAME, _AFTER_NAME, _AFTER_VALUE, _FIRST_VALUE = 0, 1, 2, 3, 4, 5


@kernel
def document_lines(source: Any, offsets: Any, unique: bool, doubles: bool) -> Any:
    """JSON without the white space between its tokens. ``unique``: no name comes twice in an object (jsonb)."""
    count = len(offsets) - 1
    data = np.empty(offsets[count] - offsets[0], np.uint8)
    ends = np.empty(count + 1, np.int64)
    left = np.zeros(count, np.bool_)
    doubts = np.empty((len(data) // DOUBLE_DIGITS + 1 if doubles else 0, 3), np.int64)
    in_object = np.zeros(DEPTH_MAX + 1, np.bool_)
    names = np.empty((DEPTH_MAX + 1, NAMES_MAX), np.uint64)
    named = np.zeros(DEPTH_MAX + 1, np.int64)
    found, at = 0, 0
    ends[0] = 0
    for i in range(count):
        k, end = offsets[i], offsets[i + 1]
        begun, kept, depth, state = at, found, 0, _VALUE
        good, done = True, False
        while good and k < end:
            byte = source[k]
            if byte in (SPACE, NEWLINE, RETURN, TAB):
                k += 1
                continue
            if done:
                good = False
                break
            stop = k + 1
            if state == _AFTER_VALUE:
                if byte == COMMA:
                    state = _NAME if in_object[depth] else _VALUE
                elif byte == (CLOSE if in_object[depth] else CLOSE_LIST):
                    depth -= 1
                    done = depth == 0
                else:
                    good = False
            elif state == _AFTER_NAME:
                good = byte == COLON
                state = _VALUE
            elif state == _FIRST_NAME and byte == CLOSE:
                depth -= 1
                done = depth == 0
                state = _AFTER_VALUE
            elif state in (_FIRST_NAME, _NAME):
                stop = _string_end(source, k, end) if byte == QUOTE else -1
                if stop < -1 and unique:
                    stop = -stop
                good = 0 < stop <= k + NAME_BYTES_MAX
                if good and not unique:
                    seen = named[depth]
                    mine = _hashed(source, k, stop)
                    good = seen < NAMES_MAX
                    for j in range(seen):
                        good = good and names[depth, j] != mine
                    if good:
                        names[depth, seen] = mine
                        named[depth] = seen + 1
                state = _AFTER_NAME
            elif state == _FIRST_VALUE and byte == CLOSE_LIST:
                depth -= 1
                done = depth == 0
                state = _AFTER_VALUE
            elif byte in (OPEN, OPEN_LIST):
                good = depth < DEPTH_MAX
                if good:
                    depth += 1
                    in_object[depth] = byte == OPEN
                    named[depth] = 0
                    state = _FIRST_NAME if byte == OPEN else _FIRST_VALUE
            else:
                state = _AFTER_VALUE
                if byte == QUOTE:
                    stop = abs(_string_end(source, k, end))
                    good = stop > 1
                elif byte == MINUS or digit(byte):
                    stop = number_end(source, k, end)
                    good = stop > 0
                    if good and doubles:
                        sure = judged(source, k, stop)
                        good = sure != LEFT
                        if sure == DOUBTFUL:
                            found = note_doubt(doubts, found, i, at, at + stop - k)
                elif is_word(source, k, end, TRUE) or is_word(source, k, end, NULL):
                    stop = k + 4
                elif is_word(source, k, end, FALSE):
                    stop = k + 5
                else:
                    good = False
                done = depth == 0
            if good:
                for j in range(k, stop):
                    data[at + j - k] = source[j]
                at += stop - k
                k = stop
        if not good or not done:
            left[i] = True
            at, found = begun, kept
        ends[i + 1] = at
    return LiteralLines(data[:at], ends, left, doubts[:found])


@kernel
def leaf_sizes(data: Any, offsets: Any, lone: Any) -> Any:
    """Measures JSON on one line: the most bytes that a leaf takes with the names above it and a byte between each, and whether the whole is an
    object with the one name ``lone`` (with its quotes)."""
    count = len(offsets) - 1
    sizes = np.zeros(count, np.int64)
    alone = np.zeros(count, np.bool_)
    paths = np.zeros(DEPTH_MAX + 2, np.int64)
    for i in range(count):
        k, end = offsets[i], offsets[i + 1]
        depth, names, most = 0, 0, 0
        is_lone = False
        paths[0] = 0
        here = 0  # bytes of the names down to what comes next
        while k < end:
            byte = data[k]
            if byte == QUOTE:
                stop = k + 1
                while data[stop] != QUOTE:
                    stop += 2 if data[stop] == BACKSLASH else 1
                stop += 1
                if stop < end and data[stop] == COLON:
                    if depth == 1:
                        names += 1
                        is_lone = stop - k == len(lone) and is_word(data, k, end, lone)
                    here = paths[depth] + stop - k - 1
                else:
                    most = max(most, here + stop - k - 2)
                k = stop
            elif byte in (OPEN, OPEN_LIST):
                depth += 1
                paths[depth] = here
                k += 1
            elif byte in (CLOSE, CLOSE_LIST):
                depth -= 1
                here = paths[depth]
                k += 1
            elif byte == COMMA:
                here = paths[depth]
                k += 1
            elif byte == COLON:
                k += 1
            else:
                stop = k
                while stop < end and data[stop] != COMMA and data[stop] != CLOSE and data[stop] != CLOSE_LIST:
                    stop += 1
                most = max(most, here + stop - k)
                k = stop
        sizes[i] = most
        alone[i] = is_lone and names == 1 and data[offsets[i]] == OPEN
    return sizes, alone


@kernel
def kinds_in_lists(data: Any, offsets: Any) -> Any:
    """Looks into JSON on one line that is a list: whether it has an object in it, and whether a single value that is not null. Lists within it count as what they have."""
    count = len(offsets) - 1
    objects = np.zeros(count, np.bool_)
    values = np.zeros(count, np.bool_)
    for i in range(count):
        k, end = offsets[i], offsets[i + 1]
        if k == end or data[k] != OPEN_LIST:
            continue
        depth = 0  # of objects
        while k < end:
            byte = data[k]
            if byte == QUOTE:
                values[i] |= depth == 0
                k += 1
                while data[k] != QUOTE:
                    k += 2 if data[k] == BACKSLASH else 1
                k += 1
            elif byte == OPEN:
                objects[i] = True
                depth += 1
                k += 1
            elif byte == CLOSE:
                depth -= 1
                k += 1
            elif byte in (OPEN_LIST, CLOSE_LIST, COMMA, COLON):
                k += 1
            else:
                values[i] |= depth == 0 and byte != LOWER_N
                while k < end and data[k] != COMMA and data[k] != CLOSE and data[k] != CLOSE_LIST:
                    k += 1
    return objects, values
