"""Compiled loops over JSON that stores hold: where each column's value stands in a document, and what it means as text.

They take what writers of documents give (strings without half characters, numbers of at most 15 digits behind a double, …) and leave
everything else, above all what is no JSON at all, to ``sinks.render.jsontext``, which is slow and knows all of it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc.kernels.jit import kernel
from cdc.kernels.memcpy import copied
from sinks.render.jsonkernels import HEX, SHORT
from sinks.render.tokenkernels import (
    BACKSLASH,
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    DOUBLE_DIGITS,
    EQUALS,
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
    NOT_A_NUMBER,
    NULL,
    OPEN,
    OPEN_LIST,
    PLUS,
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
    UPPER_T,
    UPPER_Z,
    ZERO,
    digit,
    is_word,
    number_end,
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
LEFT: Final = -1

_BASE64: Final = np.full(256, 255, np.uint8)
for _sextet, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _BASE64[_letter] = _sextet


@kernel
def _behind_space(data: Any, at: int, end: int) -> int:
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
            return LEFT
        code = code * 16 + value
    return int(code)


@kernel
def _string(data: Any, at: int, end: int) -> Any:
    """(behind the closing quote, whether there are escapes) of the string that begins here; LEFT where it is none, or names half a character."""
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
    return LEFT, escaped


@kernel
def _escaped(data: Any, at: int) -> Any:
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
    return LEFT


@kernel
def _nested(data: Any, at: int, end: int, strict: bool) -> int:
    """Behind the array or object that begins here, as its brackets say. ``strict``: LEFT, too, where a string inside of it is none, or names half a character."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == QUOTE:
            at = _string(data, at, end)[0] if strict else _behind_string(data, at, end)
            if at < 0:
                return LEFT
            continue
        if byte in (OPEN, OPEN_LIST):
            depth += 1
        elif byte in (CLOSE, CLOSE_LIST):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return LEFT


@kernel
def _number(data: Any, start: int, end: int) -> Any:
    """(behind the number that begins here, IS_WHOLE or IS_REAL). A whole -0 is left: as an integer it is 0."""
    at = number_end(data, start, end)
    if at == NOT_A_NUMBER or at - start > LONG_NUMBER:
        return LEFT, NO_MEMBER
    for k in range(start, at):
        if data[k] == POINT or data[k] == LOWER_E or data[k] == UPPER_E:
            return at, IS_REAL
    if at - start == 2 and data[start] == MINUS and data[start + 1] == ZERO:
        return LEFT, NO_MEMBER
    return at, IS_WHOLE


@kernel
def document_number(data: Any, start: int, end: int) -> int:
    """What a text is that is a number where it can be one: IS_WHOLE, IS_REAL or IS_STRING; NO_MEMBER where it is left."""
    if number_end(data, start, end) != end:
        return IS_STRING
    _, token = _number(data, start, end)
    return int(token)


@kernel
def _value(data: Any, at: int, end: int, strict: bool) -> Any:
    """(behind the value that begins here, what it is). ``strict``: see ``_nested``."""
    if at >= end:
        return LEFT, NO_MEMBER
    byte = data[at]
    if byte == QUOTE:
        at, escaped = _string(data, at, end)
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
    return LEFT, NO_MEMBER


@kernel
def _member_of(data: Any, at: int, end: int, labels: Any, ends: Any, likely: int) -> int:
    """Which label (its quotes with it) stands here; LEFT where it is none of them."""
    columns = len(ends) - 1
    for step in range(columns):
        column = likely + step
        if column >= columns:
            column -= columns
        if is_word(data, at, end, labels[ends[column] : ends[column + 1]]):
            return column
    return LEFT


@kernel
def object_members(data: Any, starts: Any, stops: Any, labels: Any, ends: Any, others: bool, spans: Any, tokens: Any) -> Any:
    """Where the members of these names stand in each object ``data[start:stop]``.

    ``labels`` and ``ends``: the names as they stand in JSON, with their quotes. ``others``: there may be members of other names. Fills ``spans`` (row, label,
    from and to; a string without its quotes) and ``tokens`` (row, label), all NO_MEMBER before. Returns the mask of objects that are left.
    """
    left = np.zeros(len(starts), np.bool_)
    columns = len(ends) - 1
    for row in range(len(starts)):
        end = stops[row]
        at = _behind_space(data, starts[row], end)
        left[row] = True
        if at >= end or data[at] != OPEN:
            continue
        likely = 0
        whole = False
        at = _behind_space(data, at + 1, end)
        while at < end and data[at] == QUOTE:
            column = _member_of(data, at, end, labels, ends, likely)
            if column >= 0:
                at += ends[column + 1] - ends[column]
                likely = column + 1 if column + 1 < columns else 0
            elif others:
                at, _ = _string(data, at, end)
                if at < 0:
                    break
            else:
                break
            at = _behind_space(data, at, end)
            if at >= end or data[at] != COLON:
                break
            start = _behind_space(data, at + 1, end)
            at, token = _value(data, start, end, not others)
            if at < 0:
                break
            if column >= 0:
                if tokens[row, column] != NO_MEMBER:
                    break
                quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
                spans[row, column, 0] = start + quotes
                spans[row, column, 1] = at - quotes
                tokens[row, column] = token
            at = _behind_space(data, at, end)
            if at >= end:
                break
            if data[at] == CLOSE:
                whole = _behind_space(data, at + 1, end) == end
                break
            if data[at] != COMMA:
                break
            at = _behind_space(data, at + 1, end)
        left[row] = not whole
    return left


@kernel
def unwrap(data: Any, spans: Any, tokens: Any, label: Any, left: Any) -> None:
    """Of objects that have one member of this name (its quotes with it) and no other, the member takes the place."""
    for row in range(len(tokens)):
        if tokens[row] != IS_NESTED or left[row]:
            continue
        end = spans[row, 1]
        at = _behind_space(data, spans[row, 0] + 1, end)
        if data[spans[row, 0]] != OPEN or not is_word(data, at, end, label):
            continue
        at = _behind_space(data, at + len(label), end)
        left[row] = True
        if at >= end or data[at] != COLON:
            continue
        start = _behind_space(data, at + 1, end)
        at, token = _value(data, start, end, True)
        if at < 0:
            continue
        behind = _behind_space(data, at, end)
        left[row] = behind >= end
        if behind < end and data[behind] == CLOSE:
            quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
            spans[row, 0] = start + quotes
            spans[row, 1] = at - quotes
            tokens[row] = token


@kernel
def array_elements(data: Any, start: int, end: int) -> Any:
    """(start, end) of each element of the array ``data[start:end]``; one element of (LEFT, LEFT) where it is none."""
    found = np.empty((16, 2), np.int64)
    count = 0
    at = _behind_space(data, start, end)
    if at < end and data[at] == OPEN_LIST:
        at = _behind_space(data, at + 1, end)
        if at < end and data[at] == CLOSE_LIST:
            return found[:0]
        while at < end:
            begun = at
            at, _ = _value(data, begun, end, False)
            if at < 0:
                break
            if count == len(found):
                more = np.empty((2 * count, 2), np.int64)
                more[:count] = found
                found = more
            found[count, 0] = begun
            found[count, 1] = at
            count += 1
            at = _behind_space(data, at, end)
            if at < end and data[at] == CLOSE_LIST:
                return found[:count]
            if at >= end or data[at] != COMMA:
                break
            at = _behind_space(data, at + 1, end)
    found[0] = LEFT
    return found[:1]


# --- values as texts ---------------------------------------------------------------------------------------------------------------


@kernel
def column_texts(data: Any, spans: Any, tokens: Any, kind: int, scale: int, left: Any) -> Any:
    """One column's values as text: (data, int32 offsets, uint8 valid). ``spans`` (row, from and to) and ``tokens``: as ``object_members`` has them. ``scale``: of a
    DOUBLE. Marks in ``left`` the rows whose value is of another kind, which are NULL here."""
    rows = len(tokens)
    room = 0
    for row in range(rows):
        room += spans[row, 1] - spans[row, 0]
    out = np.empty(2 * room + rows * (8 + (scale + 2 * DOUBLE_DIGITS + PLACES_MAX if kind == DOUBLE else 0)), np.uint8)
    offsets = np.empty(rows + 1, np.int32)
    valid = np.zeros(rows, np.uint8)
    digits = np.empty(DOUBLE_DIGITS, np.uint8)
    offsets[0] = 0
    to = 0
    for row in range(rows):
        token = tokens[row]
        if not (token == NO_MEMBER or (token == IS_NULL and kind != AS_IT_IS) or left[row]):
            stop = _put_value(out, to, data, spans[row, 0], spans[row, 1], token, kind, scale, digits)
            if stop < 0:
                left[row] = True
            else:
                valid[row] = 1
                to = stop
        offsets[row + 1] = to
    return out[:to], offsets, valid


@kernel
def _put_value(out: Any, to: int, data: Any, start: int, end: int, token: int, kind: int, scale: int, digits: Any) -> int:
    if kind == AS_IT_IS:
        quotes = 1 if token in (IS_STRING, IS_ESCAPED) else 0
        return copied(out, to, data, start - quotes, end - start + 2 * quotes)
    if kind == TEXT:
        if token == IS_STRING:
            return copied(out, to, data, start, end - start)
        return _put_unescaped(out, to, data, start, end) if token == IS_ESCAPED else LEFT
    if kind == BOOL:
        if token not in (IS_TRUE, IS_FALSE):
            return LEFT
        out[to] = LOWER_T if token == IS_TRUE else LOWER_F
        return to + 1
    if token == IS_STRING:
        if kind == MOMENT:
            return _put_moment(out, to, data, start, end)
        if kind == BYTES:
            return _put_bytes(out, to, data, start, end)
        # The text of a number is another value than the number.
        return LEFT if number_end(data, start, end) == end else copied(out, to, data, start, end - start)
    if kind == NUMBER and token in (IS_WHOLE, IS_REAL):
        return copied(out, to, data, start, end - start)
    if kind == DOUBLE and token == IS_WHOLE:
        return _put_zeros(out, copied(out, to, data, start, end - start), scale, True)
    if kind == DOUBLE and token == IS_REAL:
        return _put_double(out, to, data, start, end, scale, digits)
    return LEFT


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
        code, at = _escaped(data, at)
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
            return LEFT
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
        return LEFT
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
                return LEFT
            word = word << np.uint32(6) | np.uint32(value)
        for k in range(count):
            byte = word >> np.uint32(16 - 8 * k) & np.uint32(0xFF)
            out[to] = HEX[byte >> np.uint32(4)]
            out[to + 1] = HEX[byte & np.uint32(15)]
            to += 2
    return to


@kernel
def _significant(data: Any, start: int, end: int, digits: Any) -> Any:
    """(how many digits, the place of the point before or behind them) of the number that stands here: 0.digits times ten to the place. (LEFT, 0) for more
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
                return LEFT, 0
            for _ in range(zeros):
                digits[count] = ZERO
                count += 1
            zeros = 0
            digits[count] = byte
            count += 1
    return count, (place + exponent if count else 0)


@kernel
def _put_decimal(out: Any, to: int, digits: Any, count: int, place: int) -> int:
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
    count, place = _significant(data, start, end, digits)
    if count < 0 or abs(place) > PLACES_MAX - DOUBLE_DIGITS:
        return LEFT
    if data[start] == MINUS:
        out[to] = MINUS
        to += 1
    to = _put_decimal(out, to, digits, count, place)
    places = max(count - place, 0)
    return _put_zeros(out, to, scale - places, places == 0)


# --- JSON as canonical JSON --------------------------------------------------------------------------------------------------------


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
    at = _behind_space(data, at, end)
    while True:
        if at >= end:
            return LEFT
        byte = data[at]
        if byte in (OPEN, OPEN_LIST):
            out[to] = byte
            to += 1
            at = _behind_space(data, at + 1, end)
            if at < end and data[at] == byte + 2:  # its bracket's other half
                out[to] = data[at]
                to += 1
                at += 1
            else:
                if depth == DEPTH_MAX:
                    return LEFT
                stack[depth, 0] = byte + 2
                stack[depth, 1] = LEFT
                depth += 1
                if byte == OPEN:
                    at, to = _put_name(out, to, data, at, end, stack[depth - 1])
                    if at < 0:
                        return LEFT
                continue
        elif byte == QUOTE:
            stop, _ = _string(data, at, end)
            if stop < 0:
                return LEFT
            to = _put_string(out, to, data, at + 1, stop - 1)
            if to < 0:
                return LEFT
            at = stop
        else:
            stop, token = _value(data, at, end, True)
            if stop < 0:
                return LEFT
            if token == IS_REAL:
                to = _put_real(out, to, data, at, stop, digits)
                if to < 0:
                    return LEFT
            elif stop - at > LONG_NUMBER:
                return LEFT
            else:
                to = copied(out, to, data, at, stop - at)
            at = stop
        while True:
            at = _behind_space(data, at, end)
            if depth == 0:
                return to if at == end else LEFT
            if at >= end:
                return LEFT
            byte = data[at]
            out[to] = byte
            to += 1
            at += 1
            if byte == COMMA:
                at = _behind_space(data, at, end)
                if stack[depth - 1, 0] == CLOSE:
                    at, to = _put_name(out, to, data, at, end, stack[depth - 1])
                    if at < 0:
                        return LEFT
                break
            if byte != stack[depth - 1, 0]:
                return LEFT
            depth -= 1


@kernel
def _put_name(out: Any, to: int, data: Any, at: int, end: int, before: Any) -> Any:
    """(where the value begins, where to write on). ``before``: the name before it in this object, behind which this one has to come."""
    if at >= end or data[at] != QUOTE:
        return LEFT, to
    stop, escaped = _string(data, at, end)
    if stop < 0 or escaped or (before[1] >= 0 and not _comes_behind(data, at + 1, stop - 1, before[1], before[2])):
        return LEFT, to
    before[1] = at + 1
    before[2] = stop - 1
    to = _put_string(out, to, data, at + 1, stop - 1)
    at = _behind_space(data, stop, end)
    if to < 0 or at >= end or data[at] != COLON:
        return LEFT, to
    out[to] = COLON
    return _behind_space(data, at + 1, end), to + 1


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
            code, at = _escaped(data, at)
        elif byte < 0x80:
            code = np.int64(byte)
            at += 1
        else:
            more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            if byte < 0xC2 or byte > 0xF4 or at + more >= end + 1:
                return LEFT
            code = np.int64(byte) & (0x3F >> more)
            for k in range(1, more + 1):
                if at + k >= end or data[at + k] & 0xC0 != 0x80:
                    return LEFT
                code = code << 6 | (np.int64(data[at + k]) & 0x3F)
            least = 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
            if code < least or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                return LEFT
            at += more + 1
        to = _put_character(out, to, code)
    out[to] = QUOTE
    return to + 1


@kernel
def _put_character(out: Any, to: int, code: int) -> int:
    if code >= 0x10000:
        to = _put_code(out, to, 0xD800 | (code - 0x10000) >> 10)
        return _put_code(out, to, 0xDC00 | ((code - 0x10000) & 0x3FF))
    if code in (QUOTE, BACKSLASH) or (code < 32 and SHORT[code]):
        out[to] = BACKSLASH
        out[to + 1] = code if code >= 32 else SHORT[code]
        return to + 2
    if code < 32 or code > 126:
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
    count, place = _significant(data, start, end, digits)
    # Beyond these it writes exponents.
    if count < 0 or (count and not -4 < place <= 16):
        return LEFT
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
    return _put_decimal(out, to, digits, count, place)
