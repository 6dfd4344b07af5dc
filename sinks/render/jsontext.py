"""JSON read so that no number passes a double, and documents of ``sinks.render.jsonrows`` as what they mean, for the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema
from sinks.render.jsonrows import EXACT, Style, place_of
from sinks.render.kinds import JSON_KINDS, POINTS, Kind, Leaf
from sinks.render.literals import is_number, literal
from sinks.render.meaning import held_column, meant
from sinks.render.meaning import parse as parse


def row_texts(documents: Sequence[Mapping[str, Any]], schema: TopicSchema, style: Style = EXACT) -> pa.RecordBatch:
    """Documents (as ``parse`` gives them) as rows of what they mean (``sinks.render.meaning``); a column that a document lacks, or is not to
    show, is NULL.

    Schema: ``sinks.contract.audit_schema(schema)``.
    """
    columns = []
    for column in schema.fields:
        if not column.shown:
            columns.append(pa.nulls(len(documents), pa.utf8()))
            continue
        (*way, label), kind = place_of(column, style), style.kind(column)
        around = [inside(document, way) for document in documents] if way else documents
        there = [label in document if kind in JSON_KINDS else document.get(label) is not None for document in around]
        values = [document[label] for document, has in zip(around, there, strict=True) if has]
        held = held_column(values, column, kind, doubles=style.doubles)
        columns.append(held if all(there) else _spread(held, there))
    return pa.RecordBatch.from_arrays(columns, schema=audit_schema(schema))


def inside(document: Mapping[str, Any], way: Sequence[str]) -> Mapping[str, Any]:
    """The object at the end of this way into the document; an empty one where there is none."""
    for name in way:
        found = document.get(name)
        if not isinstance(found, Mapping):
            return {}
        document = found
    return document


def may_be_row(document: Mapping[str, Any], schema: TopicSchema, style: Style = EXACT) -> bool:
    """Whether the document has a field of the table's rows, and no other. It may lack some: those of columns that came after it, and NULL in JSON."""
    shown = [column for column in schema.fields if column.shown]
    may = {place_of(column, style) for column in shown}
    ways = {place[:depth] for place in may for depth in range(1, len(place))}

    def places(inner: Mapping[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, value in inner.items():
            at = (*way, name)
            if at in ways and isinstance(value, Mapping):
                yield from places(value, at)
            else:
                yield at

    found = set(places(document))
    only_json = all(style.kind(column) in JSON_KINDS for column in shown)
    return found <= may and (bool(found) or only_json)


def _spread(held: pa.Array, there: Sequence[bool]) -> pa.Array:
    """``held`` at the places that have a value, NULL elsewhere."""
    places, number = [], 0
    for has in there:
        places.append(number if has else None)
        number += has
    return held.take(pa.array(places, pa.int64()))


def meant_rows(rows: pa.RecordBatch, schema: TopicSchema, style: Style = EXACT) -> pa.RecordBatch:
    """Rows of Postgres's text as what ``row_texts`` gives for the documents that hold them; columns that are not the table's as they are."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for column in schema.fields:
        kind = style.kind(column)
        columns[column.name] = meant(columns[column.name], column, kind, doubles=style.doubles)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)) if columns else rows


def from_fields(fields: Mapping[str, str], schema: TopicSchema, style: Style = EXACT) -> dict[str, Any]:
    """A row of text fields (``jsonrows.field_pieces``) as the document that has the same values, as ``parse`` would give it."""
    document: dict[str, Any] = {}
    for column in schema.fields:
        label = place_of(column, style)[0]
        if column.path and label in fields:
            document[label] = parse(fields[label])
        elif label in fields:
            document[label] = _from_field(fields[label], style.kind(column))
    return document


def _from_field(text: str, kind: Kind) -> Any:
    if kind in JSON_KINDS:
        return parse(literal(kind, text))
    if kind is Leaf.NUMBER:
        return parse(text) if is_number(text) else text
    if kind is Leaf.BOOL:
        return {"true": True, "false": False}.get(text, text)
    return text if (isinstance(kind, Leaf) and kind not in POINTS) or text[:1] not in ("{", "[") else _parsed_or_text(text)


def _parsed_or_text(text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text  # an array with lower bounds: [2:3]={1,2}
