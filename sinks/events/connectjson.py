"""Debezium's envelope as Kafka Connect's JSON converter writes it with ``schemas.enable=true``: ``{"schema": …, "payload": …}``, column by column. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, EXACT_TYPE, META_FIELDS, OP, Op, topic_schema
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.condition import ReplacedRows
from sinks.events.debezium import envelopes, has_keys
from sinks.events.flatrows import FlatField, FlatForm, FlatRows, RowsTaken, flat_form, refuse_equal_names
from sinks.render.jsonkernels import base64_text
from sinks.render.jsonrows import Piece, Style, join, plain_documents, string_texts
from sinks.render.texts import Texts, binary_view

Described = dict[str, Any]
_SEMANTIC: Final = {
    "json": "io.debezium.data.Json",
    "uuid": "io.debezium.data.Uuid",
    "interval": "io.debezium.time.Interval",
    "zoned": "io.debezium.time.ZonedTimestamp",
}
_TYPES: Final[Mapping[int, tuple[str, str]]] = {
    pa.bool_().id: ("boolean", ""),
    pa.int16().id: ("int16", ""),
    pa.int32().id: ("int32", ""),
    pa.int64().id: ("int64", ""),
    pa.float32().id: ("float", ""),
    pa.float64().id: ("double", ""),
    pa.binary().id: ("bytes", ""),
    pa.date32().id: ("int32", "io.debezium.time.Date"),
    pa.time64("us").id: ("int64", "io.debezium.time.MicroTime"),
    pa.timestamp("us").id: ("int64", "io.debezium.time.MicroTimestamp"),
}
_SCALARS: Final = {
    "boolean": ScalarType.BOOL,
    "float": ScalarType.FLOAT4,
    "double": ScalarType.FLOAT8,
    "bytes": ScalarType.BYTEA,
    "string": ScalarType.TEXT,
}


class ConnectJson:
    """See ``sinks.events.bodyformat.Encoding``. ``name``: the topic's in Kafka."""

    def __init__(self, schema: TopicSchema, style: Style, store: str, name: str) -> None:
        """Raises ConfigError where two columns would have one name."""
        self._form = flat_form(schema, style, connect=True)
        refuse_equal_names(f"stores.{store}.tables: {schema.topic}", self._form.fields, "Connect's JSON")
        self._store, self._name = store, name

    def of_changes(self, changes: pa.RecordBatch, replaced: ReplacedRows) -> Mapping[str, pa.Array]:
        taken, form = RowsTaken(changes, replaced, self._form), self._form
        schema = topic_schema(changes.schema)
        row = _plain(schema, form.fields)
        values = envelopes(changes, self._store, replaced, lambda rows: _objects(rows, taken(rows), row, form.fields))
        keys = pa.nulls(len(changes), pa.large_binary())
        if has_keys(changes):
            objects = _objects(changes, taken(changes), _plain(schema, form.key), form.key)
            keys = _wrapped(objects, self._key_head).to_array()
        return {"body": _wrapped(values, self._value_head).to_array(), "wire_key": keys, "unfit": taken.unfit}

    def of_payloads(self, payloads: pa.Array, keys: pa.Array) -> Mapping[str, pa.Array]:
        return {"body": _text_values(payloads), "wire_key": _text_values(keys)}

    @cached_property
    def _value_head(self) -> bytes:
        return _head(envelope_schema(self._name, self._form))

    @cached_property
    def _key_head(self) -> bytes:
        return _head(_struct([_field(one) for one in self._form.key], f"{self._name}.Key"))


def envelope_schema(name: str, form: FlatForm) -> Described:
    """As Connect's JSON describes Debezium's envelope."""
    row = _struct([_field(one) for one in form.fields], f"{name}.Value", optional=True)
    moments = [_plain_field(one, "int64", optional=True) for one in ("ts_ms", "ts_us", "ts_ns")]
    fields = [
        row | {"field": "before"},
        row | {"field": "after"},
        _struct(_SOURCE, "io.debezium.connector.postgresql.Source") | {"field": "source"},
        _struct(_BLOCK, "event.block", optional=True) | {"version": 1, "field": "transaction"},
        _plain_field("op", "string"),
        *moments,
    ]
    return _struct(fields, f"{name}.Envelope") | {"version": 2}


def _plain_field(name: str, kind: str, *, optional: bool = False) -> Described:
    return {"type": kind, "optional": optional, "field": name}


_SOURCE: Final = [
    _plain_field("version", "string"),
    _plain_field("connector", "string"),
    _plain_field("name", "string"),
    _plain_field("ts_ms", "int64"),
    _plain_field("snapshot", "string", optional=True),
    _plain_field("db", "string"),
    _plain_field("sequence", "string", optional=True),
    _plain_field("ts_us", "int64", optional=True),
    _plain_field("ts_ns", "int64", optional=True),
    _plain_field("schema", "string"),
    _plain_field("table", "string"),
    _plain_field("txId", "int64", optional=True),
    _plain_field("lsn", "int64", optional=True),
    _plain_field("xmin", "int64", optional=True),
    _plain_field("origin", "string", optional=True),
    _plain_field("origin_lsn", "int64", optional=True),
]
_BLOCK: Final = [_plain_field("id", "string"), _plain_field("total_order", "int64"), _plain_field("data_collection_order", "int64")]


def _struct(fields: Sequence[Described], name: str, *, optional: bool = False) -> Described:
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name}


def _field(one: FlatField) -> Described:
    kind, semantic = _TYPES.get(one.type.id, ("string", _SEMANTIC.get(one.meaning, "")))
    named = {"name": semantic, "version": 1} if semantic else {}
    return {"type": kind, "optional": not one.required, **named, "field": one.name}


def _head(schema: Described) -> bytes:
    return b'{"schema":' + json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode() + b',"payload":'


def _wrapped(values: Texts, head: bytes) -> Texts:
    return join([Piece(values, head, b"}")])


@lru_cache(maxsize=512)
def _plain(schema: TopicSchema, given: tuple[FlatField, ...]) -> TopicSchema:
    """The schema of flat rows."""
    found = []
    for one in given:
        kind, _ = _TYPES.get(one.type.id, ("string", ""))
        held = {"int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}.get(kind, one.type)
        found.append(TopicField(one.name, held, Scalar(_SCALARS.get(kind, ScalarType.INT8))))
    return TopicSchema(schema.namespace, schema.name, tuple(found))


def _objects(rows: pa.RecordBatch, flat: FlatRows, plain: TopicSchema, given: Sequence[FlatField]) -> Texts:
    """Each row as an object of these fields."""
    count = len(rows)
    own = {OP: pa.array(np.full(count, int(Op.INSERT), np.int8)), EXACT: pa.nulls(count, EXACT_TYPE)}
    meta = [own.get(one.name, rows.column(one.name)) for one in META_FIELDS]
    columns = [flat.columns[one.column] for one in given]
    names = [*(one.name for one in META_FIELDS), *plain.names]
    return plain_documents(pa.RecordBatch.from_arrays([*meta, *columns], names=names), plain, PLAIN)


PLAIN: Final = Style()


def _text_values(values: pa.Array) -> pa.Array:
    """utf8 or large_binary values, each with its schema; NULL where it is NULL."""
    binary = pa.types.is_large_binary(values.type)
    texts = Texts(*base64_text(*binary_view(values.fill_null(b"")))) if binary else string_texts(values.fill_null(""))
    head = _head({"type": "bytes" if binary else "string", "optional": False})
    return pc.if_else(values.is_valid(), join([Piece(texts, head + b'"', b'"}')]).to_array(), None)
