"""Compiled loops over JSON that stores hold: where each column's value stands in a document, and what it means as text.

They take what writers of documents give (strings without half characters, numbers of at most 15 digits behind a double, …) and leave
everything else, above all what is not JSON at all, to ``sinks.render.jsontext``, which is slow and knows all of it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import kernel
from cdc.kernels.windows import WINDOW, first_of, looked_for
from sinks.render.tokenkernels import (
    BACKSLASH,
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    FALSE,
    LONG_NUMBER,
    LOWER_A,
    LOWER_B,
    LOWER_E,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    LOWER_U,
    MINUS,
    NEWLINE,
    NINE,
    NOT_A_NUMBER,
    NULL,
    OPEN,
    OPEN_LIST,
    POINT,
    QUOTE,
    RETURN,
    SLASH,
    SPACE,
    TAB,
    TRUE,
    UPPER_A,
    UPPER_E,
    UPPER_F,
    ZERO,
    digit,
    is_word,
    number_end,
    same_bytes,
)

NO_MEMBER: Final = 0
IS_NULL: Final = 1
IS_STRING: Final = 2
IS_ESCAPED: Final = 3
"""A string with a backslash in it."""
IS_WHOLE: Final = 4
IS_REAL: Final = 5
"""A number with a fraction or an exponent."""
IS_TRUE: Final = 6
IS_FALSE: Final = 7
IS_NESTED: Final = 8
"""What a column's value is in one document."""

TEXT: Final = 0
NUMBER: Final = 1
DOUBLE: Final = 2
"""A numeric that has been a double."""
BOOL: Final = 3
MOMENT: Final = 4
BYTES: Final = 5
AS_IT_IS: Final = 6
"""What a column's value is to be."""

DEPTH_MAX: Final = 32
PLACES_MAX: Final = 300
"""A number that a double holds has fewer decimal places."""
UNREAD: Final = -1
_SHORT_NUMBER: Final = 40
_ends_plain = looked_for((QUOTE, BACKSLASH), SPACE)


@kernel
def behind_space(data: Any, at: int, end: int) -> int:
    while at < end and (data[at] == SPACE or data[at] == TAB or data[at] == NEWLINE or data[at] == RETURN):
        at += 1
    return at


@kernel
def _hex4(data: Any, at: int) -> int:
    code: Any = 0
    for k in range(at, at + 4):
        byte = np.int64(data[k])
        if digit(byte):
            value = byte - ZERO
        elif LOWER_A <= byte <= LOWER_F:
            value = byte - LOWER_A + 10
        elif UPPER_A <= byte <= UPPER_F:
            value = byte - UPPER_A + 10
        else:
            return UNREAD
        code = code * 16 + value
    return int(code)


@kernel
def string_end(data: Any, at: int, end: int) -> Any:
    """(behind the closing quote, whether there are escapes) of the string that begins here; UNREAD where it is none, or names half a character."""
    at += 1
    escaped = False
    while at < end:
        byte = data[at]
        if byte == QUOTE:
            return at + 1, escaped
        if byte < SPACE:
            break
        if byte == BACKSLASH:
            escaped = True
            at += 1
            if at >= end:
                break
            byte = data[at]
            if byte == LOWER_U:
                if at + 4 >= end:
                    break
                code = _hex4(data, at + 1)
                if code < 0 or 0xD800 <= code < 0xE000:
                    break
                at += 4
            elif byte not in (QUOTE, BACKSLASH, SLASH, LOWER_B, LOWER_F, LOWER_N, LOWER_R, LOWER_T):
                break
        at += 1
    return UNREAD, escaped


@kernel
def escaped(data: Any, at: int) -> Any:
    """(the character, behind it) of the escape whose backslash stands here."""
    byte = data[at + 1]
    if byte == LOWER_U:
        return _hex4(data, at + 2), at + 6
    if byte == LOWER_B:
        return 8, at + 2
    if byte == LOWER_F:
        return 12, at + 2
    if byte == LOWER_N:
        return 10, at + 2
    if byte == LOWER_R:
        return 13, at + 2
    if byte == LOWER_T:
        return 9, at + 2
    return np.int64(byte), at + 2


@kernel
def _behind_string(data: Any, at: int, end: int) -> int:
    """Behind the closing quote of the string that begins here, whatever is in it."""
    at += 1
    while at < end:
        if data[at] == QUOTE:
            return at + 1
        at += 2 if data[at] == BACKSLASH else 1
    return UNREAD


@kernel
def _nested(data: Any, at: int, end: int, strict: bool) -> int:
    """Behind the array or object that begins here, as its brackets say. ``strict``: UNREAD, too, where a string inside of it is none, or names half a character."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == QUOTE:
            at = string_end(data, at, end)[0] if strict else _behind_string(data, at, end)
            if at < 0:
                return UNREAD
            continue
        if byte in (OPEN, OPEN_LIST):
            depth += 1
        elif byte in (CLOSE, CLOSE_LIST):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return UNREAD


@kernel
def _number(data: Any, start: int, end: int) -> Any:
    """(behind the number that begins here, IS_WHOLE or IS_REAL). A whole -0 is left: as an integer it is 0."""
    at = number_end(data, start, end)
    if at == NOT_A_NUMBER or at - start > LONG_NUMBER:
        return UNREAD, NO_MEMBER
    for k in range(start, at):
        if data[k] == POINT or data[k] == LOWER_E or data[k] == UPPER_E:
            return at, IS_REAL
    if at - start == 2 and data[start] == MINUS and data[start + 1] == ZERO:
        return UNREAD, NO_MEMBER
    return at, IS_WHOLE


@kernel
def document_number(data: Any, start: int, end: int) -> int:
    """Says what a text is that is a number where it can be one: IS_WHOLE, IS_REAL or IS_STRING; NO_MEMBER where it is left."""
    if start < end <= start + _SHORT_NUMBER and ZERO < data[start] <= NINE:  # as most are
        at = start + 1
        while at < end and ZERO <= data[at] <= NINE:
            at += 1
        if at == end:
            return IS_WHOLE
        if data[at] == POINT and at + 1 < end:
            at += 1
            while at < end and ZERO <= data[at] <= NINE:
                at += 1
            if at == end:
                return IS_REAL
    if number_end(data, start, end) != end:
        return IS_STRING
    _, token = _number(data, start, end)
    return int(token)


@kernel
def value_end(data: Any, at: int, end: int, strict: bool) -> Any:
    """(behind the value that begins here, what it is). ``strict``: see ``_nested``."""
    if at >= end:
        return UNREAD, NO_MEMBER
    byte = data[at]
    if byte == QUOTE:
        at, escaped = string_end(data, at, end)
        return at, IS_ESCAPED if escaped else IS_STRING
    if byte in (OPEN, OPEN_LIST):
        return _nested(data, at, end, strict), IS_NESTED
    if byte == MINUS or digit(byte):
        return _number(data, at, end)
    if is_word(data, at, end, NULL):
        return at + 4, IS_NULL
    if is_word(data, at, end, TRUE):
        return at + 4, IS_TRUE
    if is_word(data, at, end, FALSE):
        return at + 5, IS_FALSE
    return UNREAD, NO_MEMBER


@kernel
def _member_of(data: Any, at: int, end: int, labels: Any, ends: Any, likely: int) -> int:
    """Which label (its quotes with it) stands here; UNREAD where it is none of them."""
    columns = len(ends) - 1
    for step in range(columns):
        column = likely + step
        if column >= columns:
            column -= columns
        if same_bytes(data, at, end, labels, ends[column], ends[column + 1] - ends[column]):
            return column
    return UNREAD


@kernel
def object_members(data: Any, starts: Any, stops: Any, labels: Any, ends: Any, spans: Any, tokens: Any) -> Any:
    """Where the members of these names stand in each object ``data[start:stop]``.

    ``labels`` and ``ends``: the names as they stand in JSON, with their quotes. Fills ``spans`` (row, label,
    from and to; a string without its quotes) and ``tokens`` (row, label), all NO_MEMBER before. Returns the mask of objects that are left.
    """
    left = np.zeros(len(starts), np.bool_)
    columns = len(ends) - 1
    for row in range(len(starts)):
        end = stops[row]
        at = behind_space(data, starts[row], end)
        left[row] = True
        if at >= end or data[at] != OPEN:
            continue
        likely = 0
        whole = False
        at += 1
        if at < end and data[at] <= SPACE:
            at = behind_space(data, at, end)
        while at < end and data[at] == QUOTE:
            column = _member_of(data, at, end, labels, ends, likely)
            if column < 0:
                break
            at += ends[column + 1] - ends[column]
            likely = column + 1 if column + 1 < columns else 0
            if at < end and data[at] <= SPACE:
                at = behind_space(data, at, end)
            if at >= end or data[at] != COLON:
                break
            start = at + 1
            if start < end and data[start] <= SPACE:
                start = behind_space(data, start, end)
            at = UNREAD
            token = NO_MEMBER
            if start < end and data[start] == QUOTE:
                if start + 1 + WINDOW <= len(data):
                    found = _ends_plain(data, start + 1)
                    stop = start + 1 + first_of(found | np.uint64(1 << 63))
                    if stop < end and data[stop] == QUOTE:
                        at = stop + 1
                        token = IS_STRING
            elif start < end and ZERO < data[start] <= NINE:
                stop = start + 1
                while stop < end and ZERO <= data[stop] <= NINE:
                    stop += 1
                whole_end = stop
                if stop + 1 < end and data[stop] == POINT and ZERO <= data[stop + 1] <= NINE:
                    stop += 2
                    while stop < end and ZERO <= data[stop] <= NINE:
                        stop += 1
                # What follows it says that there is no more of it, such as an exponent.
                if stop < end and stop - start <= _SHORT_NUMBER and (data[stop] == COMMA or data[stop] == CLOSE):
                    at = stop
                    token = IS_WHOLE if stop == whole_end else IS_REAL
            if at < 0:
                at, token = value_end(data, start, end, True)
            if at < 0:
                break
            if tokens[row, column] != NO_MEMBER:
                break
            quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
            spans[row, column, 0] = start + quotes
            spans[row, column, 1] = at - quotes
            tokens[row, column] = token
            if at < end and data[at] <= SPACE:
                at = behind_space(data, at, end)
            if at >= end:
                break
            if data[at] == CLOSE:
                whole = behind_space(data, at + 1, end) == end
                break
            if data[at] != COMMA:
                break
            at += 1
            if at < end and data[at] <= SPACE:
                at = behind_space(data, at, end)
        left[row] = not whole
    return left


@kernel
def leave_without_members(tokens: Any, left: Any) -> None:
    """Marks in ``left`` the rows that have none of the members that were looked for."""
    for row in range(len(left)):
        for column in range(tokens.shape[1]):
            if tokens[row, column] != NO_MEMBER:
                break
        else:
            left[row] = True


@kernel
def unwrap(data: Any, spans: Any, tokens: Any, label: Any, left: Any) -> None:
    """Puts in the place of objects that have one member of this name (its quotes with it) and no other that member."""
    for row in range(len(tokens)):
        if tokens[row] != IS_NESTED or left[row]:
            continue
        end = spans[row, 1]
        at = behind_space(data, spans[row, 0] + 1, end)
        if data[spans[row, 0]] != OPEN or not is_word(data, at, end, label):
            continue
        at = behind_space(data, at + len(label), end)
        left[row] = True
        if at >= end or data[at] != COLON:
            continue
        start = behind_space(data, at + 1, end)
        at, token = value_end(data, start, end, True)
        if at < 0:
            continue
        behind = behind_space(data, at, end)
        left[row] = behind >= end
        if behind < end and data[behind] == CLOSE:
            quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
            spans[row, 0] = start + quotes
            spans[row, 1] = at - quotes
            tokens[row] = token
