"""The value under a row's key, and the way back to the row: nothing but the table's columns (``sinks.render`` says how).

``json``: a document. ``hash``: a field per column, a scalar's text, the JSON of everything else; a NULL column has none ('' is an empty
field). ``invalidate``: there is no value, and the key of a changed row is deleted.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import redis

from cdc.model.batch import TS
from cdc.model.display import AsRules
from cdc.model.topic import TopicSchema
from sinks.cache.answerkernels import NOTHING, field_label, hash_members, line_at, texts_at
from sinks.cache.ledger import INVALIDATE, Projection
from sinks.cache.resp import hashes_of, items_of, lists_of
from sinks.cache.wire import bulk, refuse_error
from sinks.render.choices import Choices
from sinks.render.documentcolumns import Labels, Members, Read, document_members, labels_of, nothing_read, rows_of_members
from sinks.render.documentcolumns import Mask as Mask
from sinks.render.jsonkernels import VALUE, Bytes
from sinks.render.jsonrows import Member, Texts, fields, plain_documents, raw_texts
from sinks.render.jsontext import from_fields, may_be_row, meant_rows, parse, row_texts

Fields = Mapping[str, Any]

RULES: Final = 1
"""Another number writes every value again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """One value per row as ``resp.Rows`` takes it. ``items``: None where a value is one text."""

    texts: Texts
    items: npt.NDArray[np.int64] | None = None
    expire_at: npt.NDArray[np.int64] | None = None
    """When each row's key expires (ms since 1970); None: never."""
    packed: npt.NDArray[np.uint8] | None = None


class Columns(NamedTuple):
    """``there``: which keys hold anything of ours. ``end``: what is behind the answers."""

    there: Mask
    read: Read
    end: int


class Form(Protocol):
    """One of the forms that a value may have."""

    command: str
    """The server's command that sets it."""
    keeps: bool
    """Whether anything is written; else the keys of changed rows are deleted."""

    def shown(self, batch: pa.RecordBatch, schema: TopicSchema) -> list[str]:
        """Each row's value for people: JSON, of a hash an object of its fields."""
        ...

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        """Adds the question for this key's value, which ``read`` takes the answer to."""
        ...

    def questions(self, names: pa.Array, at_once: int) -> bytes:
        """The commands that ask for all of these keys' values; one of them asks for so many at most."""
        ...

    def counts(self, names: int, at_once: int) -> Sequence[int]:
        """For how many keys each of the commands is that ``questions`` has for so many."""
        ...

    def columns(self, data: Bytes, counts: Sequence[int], schema: TopicSchema) -> Columns:
        """The answers to ``questions``, with which the data begins, as rows. ``counts``: for how many keys each of them was. Raises Refused where the
        server does not answer one of them at all."""
        ...

    def write(self, batch: pa.RecordBatch, schema: TopicSchema, *, packed: bool = False) -> Written:
        """A deleted row's value may be anything. packed: the server takes hashes by RESTORE (``sinks.cache.listpack``)."""
        ...

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        """Reads what the server holds under some keys, as columns; None where it is nothing of ours."""
        ...

    def may_be_row(self, found: Fields, schema: TopicSchema) -> bool:
        """Whether there is a field of the table's rows among these, and no other."""
        ...

    def rows(self, found: Sequence[Fields], schema: TopicSchema) -> pa.RecordBatch:
        """Reads the fields as rows. Schema: ``audit_schema(schema)``; a column that is missing is NULL."""
        ...

    def meant(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """Rows of Postgres's text as ``rows`` has them."""
        ...


class _Lasting:
    """``ttl_ms``: how long a row lives from the commit of its last change; 0: until it is deleted."""

    keeps = True

    def __init__(self, choices: Choices, ttl_ms: int = 0) -> None:
        self._choices = choices
        self._ttl_ms = ttl_ms

    def _expire_at(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """By the commit and not by the write: written again, from the log or for another form, a row expires when it would have."""
        if not self._ttl_ms:
            return None
        commits = batch.column(TS).cast(pa.int64()).fill_null(time.time_ns() // 1000)
        found: npt.NDArray[np.int64] = commits.to_numpy() // 1000 + self._ttl_ms
        return found


class Json(_Lasting):
    command = "SET"

    def shown(self, batch: pa.RecordBatch, schema: TopicSchema) -> list[str]:
        return [value.decode() for value in self.write(batch, schema).texts.to_array().to_pylist()]

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.get(name)

    def questions(self, names: pa.Array, at_once: int) -> bytes:
        return lists_of(raw_texts(names), bulk(b"MGET"), at_once)

    def counts(self, names: int, at_once: int) -> Sequence[int]:
        return [min(at_once, names - start) for start in range(0, names, at_once)]

    def columns(self, data: Bytes, counts: Sequence[int], schema: TopicSchema) -> Columns:
        count, row, at = sum(counts), 0, 0
        starts, stops = np.empty(count, np.int64), np.empty(count, np.int64)
        for some in counts:
            refuse_error(data, at)
            at = texts_at(data, line_at(data, at)[2], starts[row : row + some], stops[row : row + some])
            row += some
        style = self._choices.style(schema)
        labels = labels_of(schema, style)
        there = starts != NOTHING
        if labels is None:
            return Columns(there, nothing_read(count, schema), at)
        return Columns(there, rows_of_members(document_members(data, starts, stops, labels), schema, labels, style), at)

    def write(self, batch: pa.RecordBatch, schema: TopicSchema, *, packed: bool = False) -> Written:  # noqa: ARG002
        return Written(plain_documents(batch, schema, self._choices.style(schema)), expire_at=self._expire_at(batch))

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_document(value) for value in values]

    def may_be_row(self, found: Fields, schema: TopicSchema) -> bool:
        return may_be_row(found, schema, self._choices.style(schema))

    def rows(self, found: Sequence[Fields], schema: TopicSchema) -> pa.RecordBatch:
        return row_texts([dict(one) for one in found], schema, self._choices.style(schema))

    def meant(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        return meant_rows(rows, schema, self._choices.style(schema))


class Nothing(Json):
    """Nothing is written. What stands under the keys is the application's."""

    command = "DEL"
    keeps = False

    def shown(self, batch: pa.RecordBatch, schema: TopicSchema) -> list[str]:  # noqa: ARG002
        return [""] * len(batch)

    def write(self, batch: pa.RecordBatch, schema: TopicSchema, *, packed: bool = False) -> Written:  # noqa: ARG002
        return Written(Texts(np.empty(0, np.uint8), np.zeros(len(batch) + 1, np.int64)))


class Hash(_Lasting):
    command = "HSET"

    def shown(self, batch: pa.RecordBatch, schema: TopicSchema) -> list[str]:
        found: list[dict[str, str]] = [{} for _ in range(len(batch))]
        for member, texts in fields(batch, schema, self._choices.style(schema)):
            there = np.ones(len(batch), np.bool_) if member.states is None else member.states == VALUE
            for row, text in enumerate(texts.to_array().to_pylist()):
                if there[row]:
                    found[row][_name_of(member)] = text.decode()
        return [json.dumps(row, ensure_ascii=False) for row in found]

    def ask(self, questions: redis.client.Pipeline, name: bytes) -> None:
        questions.hgetall(name)

    def questions(self, names: pa.Array, at_once: int) -> bytes:  # noqa: ARG002
        return items_of(raw_texts(names), b"*2\r\n" + bulk(b"HGETALL"))

    def counts(self, names: int, at_once: int) -> Sequence[int]:  # noqa: ARG002
        return [1] * names

    def columns(self, data: Bytes, counts: Sequence[int], schema: TopicSchema) -> Columns:
        count = len(counts)
        style = self._choices.style(schema)
        labels = labels_of(schema, style, quoted=False)
        names = Labels.of([], [], []) if labels is None else _field_labels(labels)
        columns = len(names.kinds)
        spans, tokens = np.zeros((count, columns, 2), np.int64), np.zeros((count, columns), np.uint8)
        left, there = np.empty(count, np.bool_), np.empty(count, np.bool_)
        end, refused = hash_members(data, 0, (names.data, names.ends, names.kinds), spans, tokens, left, there)
        if refused != NOTHING:
            refuse_error(data, refused)
        if labels is None:
            return Columns(there, nothing_read(count, schema), end)
        return Columns(there, rows_of_members(Members(data, spans, tokens, left), schema, labels, style, parsed=False), end)

    def write(self, batch: pa.RecordBatch, schema: TopicSchema, *, packed: bool = False) -> Written:
        named = [
            (
                _name_of(member).encode(),
                texts,
                None if member.states is None else np.where(member.states == VALUE, 0, 1).astype(np.uint8),
            )
            for member, texts in fields(batch, schema, self._choices.style(schema))
        ]
        made = hashes_of(named, len(batch), packed=packed)
        return Written(made.texts, made.items, self._expire_at(batch), made.packed)

    def read(self, values: Sequence[Any]) -> list[Fields | None]:
        return [_fields(value) for value in values]

    def may_be_row(self, found: Fields, schema: TopicSchema) -> bool:
        style = self._choices.style(schema)
        try:
            return may_be_row(from_fields(found, schema, style), schema, style)
        except ValueError:
            return False

    def rows(self, found: Sequence[Fields], schema: TopicSchema) -> pa.RecordBatch:
        style = self._choices.style(schema)
        return row_texts([from_fields(one, schema, style) for one in found], schema, style)

    def meant(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        return meant_rows(rows, schema, self._choices.style(schema))


@lru_cache(maxsize=256)
def _field_labels(names: Labels) -> Labels:
    """As ``answerkernels.hash_members`` looks for them."""
    ends = names.ends.tolist()
    labels = [field_label(names.data[start:end].tobytes()) for start, end in pairwise(ends)]
    return Labels.of(labels, list(names.columns), names.kinds.tolist())


def _name_of(member: Member) -> str:
    return (member.column.path or (member.column.name,))[0]


def shown(rules: AsRules) -> str:
    """How values look, as a projection keeps it: another text is another look, so that every value is written again."""
    return json.dumps({"rules": RULES, "as": [[pattern, dict(columns)] for pattern, columns in rules]}, ensure_ascii=False)


def form_of(projection: Projection, schema: TopicSchema) -> Form:
    """The form of a table's values."""
    own = projection.of(schema)
    return _form(own.value, projection.shown, own.ttl_ms)


@lru_cache(maxsize=64)
def _form(value: str, looks: str, ttl_ms: int) -> Form:
    """``looks``: a projection's ``shown``."""
    rules = json.loads(looks)["as"] if looks else []
    choices = Choices("", tuple((pattern, columns) for pattern, columns in rules))
    if value == INVALIDATE:
        return Nothing(choices)
    return Hash(choices, ttl_ms) if value == "hash" else Json(choices, ttl_ms)


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
