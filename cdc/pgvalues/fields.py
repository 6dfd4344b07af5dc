"""Where the fields of COPY's text lie: kernels that look at 64 bytes at once. Pure.

Text format: manual, COPY, "File Formats". A tab ends a field, a line feed a row; both, and the backslash, are escaped inside a value.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from cdc.kernels.jit import inlined, kernel
from cdc.kernels.windows import WINDOW, first_of, looked_for
from cdc.pgvalues.arrays import WholeRows
from cdc.pgvalues.characters import BACKSLASH, LINE_FEED, NULL, TAB
from cdc.pgvalues.integers import COPY_DATA, read_u32
from cdc.pgvalues.values import Bytes, Lengths, Offsets

_MARKS: Final = (TAB, LINE_FEED, BACKSLASH)
_MEANT: Final = np.arange(256, dtype=np.uint8)
"""The byte that a byte behind a backslash stands for."""
_MEANT[list(b"btnvfr")] = list(b"\b\t\n\v\f\r")


_marked_at = looked_for(_MARKS)
"""Which of the next 64 bytes are a tab, a line feed or a backslash."""


@inlined
def _look(data: Bytes, at: Any, size: Any) -> Any:
    """Which of the next 64 bytes are marks; what lies behind the end is none."""
    found = np.uint64(0)
    if at + WINDOW <= size:
        found = _marked_at(data, at)
    else:
        for k in range(at, size):
            byte = data[np.uint64(k)]  # unsigned: it does not count from the end
            if byte == TAB or byte == LINE_FEED or byte == BACKSLASH:  # noqa: SIM109 - a tuple would cost a loop
                found |= np.uint64(1) << np.uint64(k - at)
    return found


@kernel
def whole_rows(data: Bytes, at: int, end: int, most: int) -> WholeRows:
    """Hops over at most so many CopyData messages."""
    rows = 0
    while rows < most and end - at >= 5 and data[at] == COPY_DATA:
        length = read_u32(data, at + 1)
        if length < 4 or end - at < 1 + length:
            break
        at += 1 + length
        rows += 1
    return WholeRows(rows, at)


@kernel
def split(data: Bytes, skip: int, offsets: Offsets, lengths: Lengths) -> int:
    """Where each field lies, escapes resolved in place (a value is never longer than its escaped form), ``\\N`` as length -1.

    data: rows, each preceded by ``skip`` bytes of framing. offsets, lengths: shape (columns, rows), filled. Returns the number of rows, or
    -1 when a row has another number of fields or the block ends inside one.
    """
    width = offsets.shape[0]
    room = offsets.shape[1]
    size = np.int64(data.shape[0])
    at = np.int64(0)
    row = 0
    while at < size:
        if row == room:
            return -1
        at += skip
        window = at
        marks = _look(data, window, size)
        for c in range(width):
            start = at
            while marks == 0:
                window += WINDOW
                if window >= size:
                    return -1
                marks = _look(data, window, size)
            at = window + first_of(marks)
            marks &= marks - np.uint64(1)
            length = at - start
            if data[at] == BACKSLASH:
                if length == 0 and at + 2 < size and data[at + 1] == NULL and (data[at + 2] == TAB or data[at + 2] == LINE_FEED):
                    length = np.int64(-1)
                    at += 2
                else:
                    resolved = _resolve(data, at, size)
                    at = resolved.field_end
                    if at == size:
                        return -1
                    length = resolved.value_end - start
                window = at + 1
                marks = _look(data, window, size)
            offsets[c, row] = start
            lengths[c, row] = np.int32(length)
            if data[at] != (LINE_FEED if c == width - 1 else TAB):
                return -1
            at += 1
        row += 1
    return row


class _Resolved(NamedTuple):
    value_end: Any
    field_end: Any


@kernel
def _resolve(data: Bytes, at: Any, size: Any) -> _Resolved:
    """Resolves a value's escapes in place, from its first backslash on: the value ends before its field does then."""
    to = at
    while at < size and data[at] != TAB and data[at] != LINE_FEED:
        byte = data[at]
        at += 1
        if byte == BACKSLASH and at < size:
            byte = data[at]
            at += 1
            byte = _MEANT[byte]
        data[to] = byte
        to += 1
    return _Resolved(to, at)
