"""Changes as Debezium's JSON converter writes them without a schema: ``{"before": …, "after": …, "source": …, "op": "u", "ts_ms": …}``, and the key as an object. Pure.

Values stand as Debezium's connector for Postgres writes them with ``decimal.handling.mode=string`` and ``interval.handling.mode=string``, and else as it does by default:
dates are days and times and timestamps without a zone microseconds since 1970-01-01, as numbers; numeric, json, ranges are text; bytea is base64.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import LSN, OP, TS, Op, op_letters, topic_schema
from cdc.model.display import As
from cdc.model.structure import MultirangeOf, RangeOf, Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from cdc.version import VERSION
from sinks.condition import ReplacedRows
from sinks.events.rowpieces import before_and_after, nothing
from sinks.render.jsonrows import Piece, Style, join, plain_documents
from sinks.render.texts import Texts, raw_texts

_AS_TEXT: Final = (ScalarType.NUMERIC, ScalarType.JSON, ScalarType.JSONB)
_NUMBER: Final = Scalar(ScalarType.INT8)
_TEXT: Final = Scalar(ScalarType.TEXT)


Documents = Callable[[pa.RecordBatch], Texts]
"""Makes the object of each row."""


def envelopes(changes: pa.RecordBatch, store: str, replaced: ReplacedRows, documents: Documents) -> Texts:
    """The value of each change's message."""
    schema = topic_schema(changes.schema)
    micros = changes.column(TS).view(pa.int64())
    return join(
        [
            Piece(nothing(len(changes)), before=b"{"),
            *before_and_after(changes, replaced, documents),
            *_source(changes, schema, store, micros),
            Piece(raw_texts(op_letters(changes)), before=b',"transaction":null,"op":"', after=b'"'),
            *_moments(micros),
            Piece(nothing(len(changes)), before=b"}"),
        ]
    )


def key_objects(changes: pa.RecordBatch, style: Style) -> pa.Array:
    """The key of each change's message, utf8; NULL where ``has_keys`` says no."""
    if not has_keys(changes):
        return pa.nulls(len(changes), pa.utf8())
    schema = topic_schema(changes.schema)
    return row_objects(changes, replace(schema, fields=schema.key), style).to_array().cast(pa.utf8())


def has_keys(changes: pa.RecordBatch) -> bool:
    """Whether the messages have keys: not where the table has none, and that of a TRUNCATE has none."""
    return bool(topic_schema(changes.schema).key) and not (changes.column(OP).to_numpy() == int(Op.TRUNCATE)).any()


def row_objects(rows: pa.RecordBatch, schema: TopicSchema, style: Style) -> Texts:
    """Each row as an object with all of its columns, those that a DELETE does not have as null."""
    meant = _meant(schema)
    shown = shown_whole(rows)
    for before, now in zip(schema.fields, meant.fields, strict=True):
        if before.type != now.type:  # equal fields need not be the same objects
            at = rows.schema.get_field_index(before.name)
            shown = shown.set_column(at, pa.field(before.name, now.type), _written(rows.column(at)))
    return plain_documents(shown, meant, _style(meant, style))


def shown_whole(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as if none were a DELETE, which has its key's columns only."""
    op = rows.schema.get_field_index(OP)
    return rows.set_column(op, rows.schema.field(op), pa.array(np.full(len(rows), int(Op.INSERT), np.int8)))


@lru_cache(maxsize=256)
def _meant(schema: TopicSchema) -> TopicSchema:
    """The schema of rows whose values are ``_written``."""
    return replace(schema, fields=tuple(map(_meant_field, schema.fields)))


def _meant_field(column: TopicField) -> TopicField:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return replace(column, type=pa.utf8(), structure=_TEXT)
    if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type) or pa.types.is_time64(column.type):
        return replace(column, type=pa.int64(), structure=_NUMBER)
    return column


def _written(values: pa.Array) -> pa.Array:
    """A moment as text with all six digits; anything else that has to do with time as a number."""
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        return pc.strftime(values, format="%Y-%m-%dT%H:%M:%SZ")
    return values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64()).cast(pa.int64())


@lru_cache(maxsize=256)
def text_fields(schema: TopicSchema) -> Mapping[str, As]:
    """The columns whose values are Postgres's text."""
    found: dict[str, As] = {}
    for column in schema.fields:
        kind = column.structure
        if isinstance(kind, RangeOf | MultirangeOf) or (isinstance(kind, Scalar) and kind.type in _AS_TEXT):
            found[column.name] = "text"
    return found


_STYLES: Final[dict[tuple[TopicSchema, Style], Style]] = {}
"""Plans of documents are kept by their style, so that it has to be the same object each time."""


def _style(schema: TopicSchema, style: Style) -> Style:
    found = _STYLES.get((schema, style))
    if found is None:
        if len(_STYLES) >= 256:
            _STYLES.clear()
        found = _STYLES[schema, style] = replace(style, as_={**text_fields(schema), **style.as_})
    return found


def _source(changes: pa.RecordBatch, schema: TopicSchema, store: str, micros: pa.Array) -> list[Piece]:
    rows = len(changes)
    head = {"version": VERSION, "connector": "postgresql", "name": store}
    place = {"schema": schema.namespace, "table": schema.name, "txId": None}
    read = changes.column(OP).to_numpy() == int(Op.READ)
    ms, us, ns = _moments(micros)
    return [
        Piece(nothing(rows), before=b',"source":' + _json(head)[:-1]),
        ms,
        Piece(raw_texts(pa.array(np.where(read, "true", "false"))), before=b',"snapshot":"', after=b'","db":"","sequence":null'),
        us,
        ns,
        Piece(nothing(rows), before=b"," + _json(place)[1:-1]),
        Piece(
            raw_texts(changes.column(LSN).cast(pa.utf8())),
            before=b',"lsn":',
            after=b',"xmin":null,"origin":null,"origin_lsn":null}',
        ),
    ]


def _moments(micros: pa.Array) -> list[Piece]:
    numbers = micros.fill_null(0).to_numpy()
    parts = ((b',"ts_ms":', numbers // 1000), (b',"ts_us":', numbers), (b',"ts_ns":', numbers * 1000))
    return [Piece(raw_texts(pa.array(part).cast(pa.utf8())), before=label) for label, part in parts]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
