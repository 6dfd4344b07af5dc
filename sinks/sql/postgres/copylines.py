"""Columns of text as the lines of Postgres's COPY text format, and back. Pure.

Source: PostgreSQL manual, COPY, "Text Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.pgvalues.copytext import parse
from sinks.render.rowtext import rows_of_nothing

_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""The backslash first: the others bring one."""
_PIECE_BYTES: Final = 4 * 2**20
_LINE_FEED: Final = 10


def copy_lines(rows: pa.RecordBatch) -> Iterator[memoryview]:
    """rows: utf8 columns, at least one. Gives whole lines, some 4 MB at a time."""
    at_once = max(1, int(len(rows) * _PIECE_BYTES / max(1, rows.nbytes)))
    for first in range(0, len(rows), at_once):
        yield _lines(rows.slice(first, at_once))


def _lines(rows: pa.RecordBatch) -> memoryview:
    fields = [_escaped(column).fill_null("\\N") for column in rows.columns]
    lines = pc.binary_join_element_wise(*fields, "\t") if len(fields) > 1 else fields[0]
    ended = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(ended.buffers()[1], np.int32)[ended.offset : ended.offset + len(ended) + 1]
    return memoryview(ended.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def _escaped(texts: pa.Array) -> pa.Array:
    for raw, escaped in _ESCAPES:
        if pc.any(pc.match_substring(texts, raw)).as_py():
            texts = pc.replace_substring(texts, raw, escaped)
    return texts


def rows_of(blocks: Iterable[bytes | memoryview], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """COPY's answer as batches of ``schema`` (utf8 columns). ``blocks``: of any sizes."""
    waiting: list[bytes | memoryview] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= _PIECE_BYTES and bytes(block[-1:]) == b"\n":
            yield _parsed(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield _parsed(waiting, schema)


def _parsed(blocks: list[bytes | memoryview], schema: pa.Schema) -> pa.RecordBatch:
    data = np.frombuffer(b"".join(blocks), np.uint8)
    count = int(np.count_nonzero(data == _LINE_FEED))
    return parse(data, schema, count) if len(schema) else rows_of_nothing(count)
