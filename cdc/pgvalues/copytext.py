"""Postgres's COPY text format as Arrow utf8 columns. Pure; deliberately shares nothing with the capture's decoder.

Source: PostgreSQL manual, COPY, "Text Format". ``COPY … TO STDOUT`` writes tab-separated fields, ``\\N`` for NULL, a line feed after
every row, and ``\\b \\f \\n \\r \\t \\v \\\\`` for those bytes inside a value; raw line feeds and tabs occur nowhere else.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.kernels.jit import kernel

Bytes = npt.NDArray[np.uint8]

_TAB: Final = 9
_LINE_FEED: Final = 10
_BACKSLASH: Final = 92
_NULL_LETTER: Final = 78

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
    valid = np.ones((columns, rows), np.uint8)
    found = _measure(data, skip, offsets, valid)
    if found != rows:
        raise HeadwaterError(f"the source's COPY gave a row that does not have {columns} fields")
    arrays = []
    starts = np.zeros(columns + 1, np.int64)
    starts[1:] = np.cumsum(offsets[:, -1], dtype=np.int64)
    values = np.empty(int(starts[-1]), np.uint8)
    _unescape(data, skip, values, starts[:-1].copy(), _UNESCAPED)
    for index in range(columns):
        nulls = rows - int(valid[index].sum())
        bitmap = pa.py_buffer(np.packbits(valid[index], bitorder="little").tobytes()) if nulls else None
        piece = pa.py_buffer(values[starts[index] : starts[index + 1]])
        arrays.append(pa.StringArray.from_buffers(rows, pa.py_buffer(offsets[index]), piece, bitmap, nulls))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@kernel
def _measure(data: Bytes, skip: int, offsets: npt.NDArray[np.int32], valid: Bytes) -> int:
    """Fills offsets (each column's own, from 0) and validity; returns how many rows there are, or -1 when one has another number of fields or there are
    more than room is for."""
    columns, rows = offsets.shape[0], offsets.shape[1] - 1
    row = 0
    column = 0
    length = 0
    at = skip
    while at < data.size:
        byte = data[at]
        if byte in (_TAB, _LINE_FEED):
            if row >= rows or column >= columns or (byte == _LINE_FEED) != (column == columns - 1):
                return -1
            offsets[column, row + 1] = offsets[column, row] + length
            length = 0
            column += 1
            if byte == _LINE_FEED:
                row += 1
                column = 0
                at += skip
        elif byte == _BACKSLASH:
            at += 1
            if data[at] == _NULL_LETTER:
                if column < columns:
                    valid[column, row] = 0
            else:
                length += 1
        else:
            length += 1
        at += 1
    return row


@kernel
def _unescape(data: Bytes, skip: int, values: Bytes, ends: npt.NDArray[np.int64], unescaped: Bytes) -> None:
    """Copies every field's bytes to its column's piece of ``values``; ``ends``: where each column's next byte goes."""
    columns = len(ends)
    column = 0
    end = ends[0]
    at = skip
    while at < data.size:
        byte = data[at]
        if byte in (_TAB, _LINE_FEED):
            ends[column] = end
            column = column + 1 if column < columns - 1 else 0
            at += skip if byte == _LINE_FEED else 0
            end = ends[column]
        elif byte == _BACKSLASH:
            at += 1
            if data[at] != _NULL_LETTER:
                values[end] = unescaped[data[at]]
                end += 1
        else:
            values[end] = byte
            end += 1
        at += 1
