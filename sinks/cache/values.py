"""What stands under a row's key, and the way back to the row: nothing but the table's columns (``sinks.render`` says how).

``json``: a document. ``hash``: a field per column, a scalar's text, the JSON of everything else; a NULL column has none ('' is an empty
field).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import redis

from cdc.model.pgtypes import canonical_text
from cdc.model.table import Table
from sinks.cache.wire import bulk
from sinks.jsonkernels import ABSENT, VALUE, integer_text
from sinks.jsonrows import QUOTE, Member, Piece, Texts, first_bytes, join, members, plain_documents, raw_texts
from sinks.jsontext import from_fields, parse, row_texts
from sinks.render.kinds import JSON_KINDS, Leaf
from sinks.render.texts import readonly

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """One value per row as ``resp.Rows`` takes it. ``items``: None where a value is one text; ``partial``: 1 where a column has no field."""

    texts: Texts
    items: npt.NDArray[np.int64] | None = None
    partial: npt.NDArray[np.uint8] | None = None


class Form(Protocol):
    """One of the two forms that a value may have."""

    may_fail: bool
    """Whether a write fails where there is a key of another type."""

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        """Adds the question for this key's value, which ``read`` takes the answer to."""
        ...

    def write(self, batch: pa.RecordBatch, table: Table) -> Written:
        """A deleted row's value may be anything."""
        ...

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        """What the server holds under some keys as columns; None where it is nothing of ours."""
        ...

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        """Rows as the audit compares them. Schema: ``audit_schema(table)``; a column that is missing is NULL."""
        ...


class Json:
    may_fail = False

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.get(name)

    def write(self, batch: pa.RecordBatch, table: Table) -> Written:
        return Written(plain_documents(batch, table))

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_document(value) for value in values]

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        return row_texts(found, table)


class Hash:
    may_fail = True

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.hgetall(name)

    def write(self, batch: pa.RecordBatch, table: Table) -> Written:
        pieces: list[Piece] = []
        items = np.zeros(len(batch), np.int64)
        for member in members(batch, table):
            texts = _bare(member, batch.column(member.column.name))
            there = None if member.states is None else member.states == VALUE
            states = None if there is None else np.where(there, VALUE, ABSENT).astype(np.uint8)
            items += 2 if there is None else 2 * there
            sizes = Texts(*integer_text(readonly(np.diff(texts.offsets))))
            pieces.append(Piece(sizes, bulk(member.column.name.encode()) + b"$", b"\r\n", states=states))
            pieces.append(Piece(texts, b"", b"\r\n", states=states))
        return Written(join(pieces), items, (items < 2 * len(table.columns)).astype(np.uint8))

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_fields(value) for value in values]

    def rows(self, found: Sequence[Fields], table: Table) -> pa.RecordBatch:
        return row_texts([from_fields(fields, table) for fields in found], table)


FORMS: Final[Mapping[str, Form]] = {"json": Json(), "hash": Hash()}


def _bare(member: Member, values: pa.Array) -> Texts:
    """A column's literals without what only JSON needs: a string's quotes and escapes. A string in a JSON column keeps them, as it is JSON."""
    if member.quote:
        # Where a text could need escapes, it is taken from the column itself.
        return raw_texts(canonical_text(values)) if member.kind is Leaf.TEXT else member.texts
    strings = first_bytes(member.texts) == QUOTE
    if member.kind in JSON_KINDS:
        strings = np.zeros(len(strings), np.bool_) if member.told is None else member.told
    if member.states is not None:
        strings &= member.states == VALUE
    if not strings.any():
        return member.texts
    literals = member.texts.to_array()
    bare = [json.loads(literal).encode() for literal in literals.filter(pa.array(strings)).to_pylist()]
    return raw_texts(pc.replace_with_mask(literals, pa.array(strings), pa.array(bare, pa.large_binary())))


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
