"""Where a column's value stands in a document, so that OpenSearch indexes what it can and never refuses the document. Pure.

JSON, hstore and composites are searched as ``flat_object``, which takes objects only, and of no leaf more than Lucene's longest term. So

- JSON that is not an object stands in one: ``["a"]`` is ``{"value": ["a"]}`` (and so does an object whose only name is ``value``);
- a value that its field would refuse (a leaf too long, or the exact text of an array with lower bounds where booleans or objects are
  indexed) stands in the object ``_unindexed`` under the same name, as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.display import As
from cdc.model.topic import TopicSchema
from sinks.render.documentkernels import kinds_in_lists, leaf_sizes
from sinks.render.jsonkernels import ABSENT, VALUE
from sinks.render.jsonrows import (
    QUOTE,
    Member,
    Piece,
    Style,
    first_bytes,
    head_pieces,
    join,
    label_of,
    members,
    object_pieces,
    place_of,
)
from sinks.render.jsontext import inside
from sinks.render.kinds import JSON_KINDS, POINTS, Kind, Leaf, List, Object, Pairs, Span, kind_of
from sinks.render.texts import Texts, readonly
from sinks.search import wishes
from sinks.search.names import field_names

UNINDEXED: Final = "_unindexed"
"""The object in which values stand that are kept and not searched."""
WRAPPED: Final = "value"
"""The only name in the object that holds JSON which is not an object."""
LEAF_BYTES_MAX: Final = 32_000
"""Lucene's longest term has 32,766 bytes; a flat_object's terms hold the whole path, and a few bytes more."""

_LONE: Final = readonly(np.frombuffer(f'"{WRAPPED}"'.encode(), np.uint8).copy())
_OPEN, _OPEN_LIST, _CLOSE_LIST = ord("{"), ord("["), ord("]")

Mask = npt.NDArray[np.bool_]


class Field(Enum):
    """How a kind of values is indexed."""

    ANY = "anything may stand in it"
    BOOLEAN = "true and false only"
    OBJECT = "objects with typed members"
    FLAT = "flat_object"
    FLAT_JSON = "flat_object of what may be no object"
    OBJECTS = "objects, and arrays of objects"
    VALUES = "single values, and arrays of them"


def field_of(kind: Kind, wished: str | None = None) -> Field:
    """Arrays are indexed as their elements: OpenSearch has no type of its own for them. ``wished``: the type that ``mapping`` says."""
    while isinstance(kind, List):
        kind = kind.element
    if wished not in (None, "flat_object") and (kind in JSON_KINDS or isinstance(kind, Pairs | Object)):
        return Field.OBJECTS if wished in wishes.HOLD_OBJECTS else Field.VALUES
    if kind in JSON_KINDS:
        return Field.FLAT_JSON
    if isinstance(kind, Pairs | Object):
        return Field.FLAT
    if isinstance(kind, Span) or kind in POINTS:
        return Field.OBJECT
    return Field.BOOLEAN if kind is Leaf.BOOL and wished in (None, "boolean") else Field.ANY


def own_kinds(schema: TopicSchema, style: Style) -> dict[str, Kind]:
    """The kind of each column's values without a wish: what a wish is compared with."""
    return {column.name: kind_of(column, style.as_.get(column.name)) for column in schema.fields}


def style_of(schema: TopicSchema, as_: Mapping[str, As]) -> Style:
    """How the table's documents are written. Numbers pass a double: with ``_source.excludes`` OpenSearch writes the source again."""
    names, said = field_names(schema), wishes.of(schema)
    vectors = (one for one in schema.fields if wishes.is_vector(one) and said.get(one.name, wishes.NONE).type == wishes.VECTOR)
    as_ = {**{one.name: "json" for one in vectors}, **as_}
    if UNINDEXED in schema.names:
        names[UNINDEXED] = "%5F" + UNINDEXED[1:]
    points = [one.name for one in schema.fields if kind_of(one, as_.get(one.name)) is Leaf.POINT]
    geo = [name for name in points if said.get(name, wishes.NONE).type == wishes.GEO_POINT]
    return Style(doubles=True, as_=as_, names=names, kinds=dict.fromkeys(geo, Leaf.GEO_POINT))


def document_pieces(batch: pa.RecordBatch, schema: TopicSchema, style: Style) -> list[Piece]:
    """As ``sinks.render.jsonrows.document_pieces``, every value in its place."""
    return object_pieces(_placed(batch, schema, style), head_pieces(batch), rows=len(batch))


def sources(batch: pa.RecordBatch, schema: TopicSchema, style: Style) -> list[str]:
    """Each row's document as readers find it, without the fields that are ours."""
    whole = join(object_pieces(_placed(batch, schema, style), rows=len(batch)))
    return [document.decode() for document in whole.to_array().to_pylist()]


def _placed(batch: pa.RecordBatch, schema: TopicSchema, style: Style) -> Iterator[Member]:
    beside: list[Member] = []
    said = wishes.of_documents(schema, style)
    for member in members(batch, schema, style):
        field = field_of(member.kind, said.get(member.column.name, wishes.NONE).type)
        if field is Field.ANY:
            yield member
            continue
        indexed, kept = _divided(member, field)
        yield indexed
        beside += [] if kept is None else [kept]
    if beside:
        any_there = np.any([member.states == VALUE for member in beside], axis=0)
        states = np.where(any_there, VALUE, ABSENT).astype(np.uint8)
        objects = join(object_pieces(beside, rows=len(batch)))
        outermost = replace(beside[0].column, path=())
        yield beside[0]._replace(column=outermost, label=label_of(UNINDEXED), texts=objects, quote=b"", states=states)


def _divided(member: Member, field: Field) -> tuple[Member, Member | None]:
    """What is indexed of the member, and what is only kept."""
    texts = member.literals()
    first = first_bytes(texts)
    there = np.ones(len(texts), np.bool_) if member.states is None else member.states == VALUE
    wrapped = np.zeros(len(texts), np.bool_)
    refused = first == QUOTE if field is Field.BOOLEAN else (first != _OPEN) & (first != _OPEN_LIST)
    if field in (Field.VALUES, Field.OBJECTS):
        objects, values = kinds_in_lists(texts.data, texts.offsets)
        if field is Field.VALUES:
            refused = objects | (first == _OPEN) | (first == _OPEN_LIST) & (_second_bytes(texts) == _OPEN_LIST)
        else:
            refused |= values | (first == _OPEN_LIST) & ~np.isin(_second_bytes(texts), (_OPEN, _CLOSE_LIST))
    if field in (Field.FLAT, Field.FLAT_JSON):
        sizes, lone = leaf_sizes(texts.data, texts.offsets, _LONE)
        if field is Field.FLAT_JSON:
            wrapped, refused = there & ((first != _OPEN) | lone), np.zeros(len(texts), np.bool_)
        refused |= sizes + len(member.label) + len(WRAPPED) > LEAF_BYTES_MAX
    refused &= there
    if not refused.any() and not wrapped.any():
        return member, None
    states = np.zeros(len(texts), np.uint8) if member.states is None else member.states
    inside = member._replace(texts=_wrapped(texts, wrapped), quote=b"", states=np.where(refused, ABSENT, states).astype(np.uint8))
    if not refused.any():
        return inside, None
    return inside, member._replace(texts=texts, quote=b"", states=np.where(refused, VALUE, ABSENT).astype(np.uint8))


def _second_bytes(texts: Texts) -> npt.NDArray[np.uint8]:
    """The second byte of each text; anything for one that has none."""
    if len(texts.data) == 0:
        return np.zeros(len(texts), np.uint8)
    found: npt.NDArray[np.uint8] = texts.data[np.minimum(texts.offsets[:-1] + 1, len(texts.data) - 1)]
    return found


def _wrapped(texts: Texts, which: Mask) -> Texts:
    if not which.any():
        return texts
    states = np.where(which, VALUE, ABSENT).astype(np.uint8)
    nothing = Texts(np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64))
    before = Piece(nothing, before=f'{{"{WRAPPED}":'.encode(), states=states)
    return join([before, Piece(texts), Piece(nothing, before=b"}", states=states)])


def taken_out(source: Mapping[str, Any], schema: TopicSchema, style: Style) -> dict[str, Any]:
    """A document's ``_source`` with every value in its own place again, as ``sinks.render.jsontext.row_texts`` takes it."""
    document = dict(source)
    kept = document.pop(UNINDEXED, None)
    for *way, name in flat_json_places(schema, style):
        around = inside(document, way)
        value = around.get(name)
        if isinstance(around, dict) and isinstance(value, dict) and value.keys() == {WRAPPED}:
            around[name] = value[WRAPPED]
    return _together(document, kept, schema.holding != "") if isinstance(kept, dict) else document


def _together(document: dict[str, Any], kept: Mapping[str, Any], objects: bool) -> dict[str, Any]:
    """``objects``: a member of an object may be among what is kept, and others of it not."""
    for name, value in kept.items():
        there = document.get(name)
        if objects and isinstance(there, dict) and isinstance(value, dict):
            value = _together(dict(there), value, objects)
        document[name] = value
    return document


@lru_cache(maxsize=1024)
def flat_json_places(schema: TopicSchema, style: Style) -> tuple[tuple[str, ...], ...]:
    """The fields in which JSON may be wrapped."""
    said = wishes.of_documents(schema, style)
    return tuple(
        place_of(column, style)
        for column in schema.fields
        if column.shown and field_of(style.kind(column), said.get(column.name, wishes.NONE).type) is Field.FLAT_JSON
    )
