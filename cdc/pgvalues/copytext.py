"""Postgres's COPY text format as Arrow utf8 columns. Pure; deliberately shares nothing with the capture's decoder.

Source: PostgreSQL manual, COPY, "Text Format". ``COPY … TO STDOUT`` writes tab-separated fields, ``\\N`` for NULL, a line feed after
every row, and ``\\b \\f \\n \\r \\t \\v \\\\`` for those bytes inside a value; raw line feeds and tabs occur nowhere else.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.kernels.jit import inlined, kernel
from cdc.kernels.memcpy import copied
from cdc.kernels.windows import WINDOW, first_of, looked_for

Bytes = npt.NDArray[np.uint8]

_TAB: Final = 9
_LINE_FEED: Final = 10
_BACKSLASH: Final = 92
_NULL_LETTER: Final = 78
_NULL: Final = 1
_ESCAPED: Final = 2
"""Kinds of fields; 0: one that stands as it is."""
_special_at = looked_for((_TAB, _LINE_FEED, _BACKSLASH))

_UNESCAPED: Final = np.arange(256, dtype=np.uint8)
for _letter, _byte in {"b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}.items():
    _UNESCAPED[ord(_letter)] = _byte


def parse(data: Bytes, schema: pa.Schema, rows: int, skip: int = 0) -> pa.RecordBatch:
    """``rows`` whole rows of COPY text, in front of each of which stand ``skip`` bytes of framing, as a batch of ``schema`` (utf8 columns, one per field).
    Raises HeadwaterError on anything else."""
    columns = len(schema)
    if data.size and data[-1] != _LINE_FEED:
        raise HeadwaterError("the source's COPY ended in the middle of a row")
    offsets = np.zeros((columns, rows + 1), np.int32)
    starts = np.empty((columns, rows), np.int64)
    kinds = np.zeros((columns, rows), np.uint8)
    found = _find(data, skip, offsets, starts, kinds)
    if found != rows:
        raise HeadwaterError(f"the source's COPY gave a row that does not have {columns} fields")
    arrays = []
    for index in range(columns):
        values = _gathered(data, offsets[index], starts[index], kinds[index], _UNESCAPED)
        nulls = kinds[index] == _NULL
        count = int(np.count_nonzero(nulls))
        bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if count else None
        arrays.append(pa.StringArray.from_buffers(rows, pa.py_buffer(offsets[index]), pa.py_buffer(values), bitmap, count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@inlined
def _look(data: Any, at: Any) -> Any:
    """Which of the next 64 bytes end a field or escape something; what lies behind the end does not."""
    found = np.uint64(0)
    if at + WINDOW <= data.size:
        found = _special_at(data, at)
    else:
        for k in range(at, data.size):
            byte = data[k]
            if byte == _TAB or byte == _LINE_FEED or byte == _BACKSLASH:  # noqa: SIM109 (a tuple would cost a loop)
                found |= np.uint64(1) << np.uint64(k - at)
    return found


@kernel
def _find(data: Any, skip: int, offsets: Any, starts: Any, kinds: Any) -> int:
    """Where each field stands, and each column's offsets, from 0; returns how many rows there are, or -1 when one has another number of fields or there are
    more than room is for."""
    columns, rows = starts.shape
    row = 0
    column = 0
    start: Any = np.int64(skip)
    escapes: Any = np.int64(0)
    window = start
    marks = _look(data, window)
    while True:
        while marks == 0:
            window += WINDOW
            if window >= data.size:
                return row
            marks = _look(data, window)
        at = window + first_of(marks)
        marks &= marks - np.uint64(1)
        byte = data[at]
        if (
            row >= rows
            or column >= columns
            or (byte == _LINE_FEED and column < columns - 1)
            or (byte == _TAB and column == columns - 1)
        ):
            return -1
        if byte == _BACKSLASH:
            # The last byte is a line feed, so there is one behind this.
            if data[at + 1] == _NULL_LETTER:
                kinds[column, row] = _NULL
                escapes += 2
            else:
                kinds[column, row] = _ESCAPED
                escapes += 1
            window = at + 2
            marks = _look(data, window)
            continue
        starts[column, row] = start
        offsets[column, row + 1] = offsets[column, row] + np.int32(at - start - escapes)
        escapes = 0
        start = at + 1
        column += 1
        if byte == _LINE_FEED:
            column = 0
            row += 1
            start += skip
            window = start
            marks = _look(data, window)


@kernel
def _gathered(data: Any, offsets: Any, starts: Any, kinds: Any, unescaped: Any) -> Any:
    """The values of a column, one behind the other."""
    out = np.empty(offsets[len(starts)], np.uint8)
    for row in range(len(starts)):
        to: Any = np.int64(offsets[row])
        end: Any = np.int64(offsets[row + 1])
        if kinds[row] != _ESCAPED:
            copied(out, to, data, starts[row], end - to)
            continue
        at = starts[row]
        while to < end:
            byte = data[at]
            if byte == _BACKSLASH:
                at += 1
                byte = unescaped[data[at]]
            out[to] = byte
            to += 1
            at += 1
    return out
