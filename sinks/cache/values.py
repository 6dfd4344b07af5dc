"""What stands under a row's key, and the way back to the row: nothing but the table's columns.

``json``: the document of ``sinks.jsonrows`` without the fields that are ours. ``hash``: a field per column with Postgres's text; a NULL
column has none ('' is an empty field).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import redis

from cdc.model.batch import OP, Op
from cdc.model.table import Table
from sinks.cache.wire import bulk
from sinks.contract import audit_schema
from sinks.jsonkernels import ABSENT, VALUE, integer_text
from sinks.jsonrows import Piece, Texts, document_pieces, join, raw_texts
from sinks.jsontext import parse, row_texts
from sinks.rowtext import column_text, exact_values

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """One value per row as ``resp.Rows`` takes it. ``items``: None where a value is one text."""

    texts: Texts
    items: npt.NDArray[np.int64] | None = None


class Form(Protocol):
    """One of the two forms that a value may have."""

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        """Adds the question for this key's value, which ``read`` takes the answer to."""
        ...

    def write(self, batch: pa.RecordBatch, table: Table) -> Written: ...

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        """What the server holds under some keys as columns; None where it is nothing of ours."""
        ...

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        """Schema: ``audit_schema(table)``; a column that is missing is NULL."""
        ...


class Json:
    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.get(name)

    def write(self, batch: pa.RecordBatch, table: Table) -> Written:
        return Written(join(_clean(batch, table)))

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_document(value) for value in values]

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        return row_texts([dict(one) for one in found], table)


class Hash:
    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.hgetall(name)

    def write(self, batch: pa.RecordBatch, table: Table) -> Written:
        exact = exact_values(batch)
        pieces: list[Piece] = []
        items = np.zeros(len(batch), np.int64)
        for column in table.columns:
            texts = column_text(batch, column.name, exact)
            there = texts.is_valid().to_numpy(zero_copy_only=False)
            items += 2 * there
            states = None if texts.null_count == 0 else np.where(there, VALUE, ABSENT).astype(np.uint8)
            inside = raw_texts(texts)
            sizes = Texts(*integer_text(_readonly(np.diff(inside.offsets))))
            pieces.append(Piece(sizes, bulk(column.name.encode()) + b"$", b"\r\n", states=states))
            pieces.append(Piece(inside, b"", b"\r\n", states=states))
        return Written(join(pieces), items)

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_fields(value) for value in values]

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        columns = [pa.array([row.get(name) for row in found], pa.utf8()) for name in table.names]
        return pa.RecordBatch.from_arrays(columns, schema=audit_schema(table))


FORMS: Final[Mapping[str, Form]] = {"json": Json(), "hash": Hash()}


def _clean(batch: pa.RecordBatch, table: Table) -> list[Piece]:
    """The document's pieces without the position and the mark of a delete that it begins with elsewhere. A delete has no value here."""
    deletes = (batch.column(OP).to_numpy() == int(Op.DELETE)).any()
    first, *others = document_pieces(batch, table)[2 if deletes else 1 :]
    opened = dataclasses.replace(first, before=b"{" + first.before[1:], null=b"{" + first.null[1:])
    return [opened, *others]


def _document(value: Any) -> Fields | None:
    if not isinstance(value, bytes):
        return None
    try:
        found = parse(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _fields(value: Any) -> Fields | None:
    if not isinstance(value, dict) or not value:
        return None
    try:
        return {name.decode(): text.decode() for name, text in value.items()}
    except UnicodeDecodeError:
        return None


def _readonly(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    numbers.flags.writeable = False
    return numbers
