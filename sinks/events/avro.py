"""Debezium's envelope in Avro's binary form, behind the five bytes by which a schema registry's readers find the schema; column by column. Pure.

A record is its fields one after the other; so a row is made as a JSON document is, out of pieces. The five bytes: 0, then the schema's id, big-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import LSN, OP, TS, Op, op_letters, topic_schema
from cdc.model.topic import TopicSchema
from cdc.version import VERSION
from sinks.condition import ReplacedRows
from sinks.events.avroschema import envelope_schema, key_schema, plain_schema, valid_name
from sinks.events.debezium import has_keys
from sinks.events.flatrows import FlatField, FlatRows, RowsTaken, flat_form, refuse_equal_names
from sinks.events.rowpieces import RowMarks, before_and_after, nothing
from sinks.render.jsonkernels import NULL, VALUE
from sinks.render.jsonrows import Piece, Style, join
from sinks.render.texts import Texts, raw_texts, readonly, view

SchemaId = Callable[[str, str], int]
"""The id of a schema: subject and the schema's JSON → id. Raises StoreError."""
_THERE: Final = b"\x02"
"""The union's second branch, in front of a value; its first is null."""
_NULL: Final = b"\x00"
_ROWS: Final = RowMarks(b"", b"", _THERE, _NULL)


class Avro:
    """See ``sinks.events.bodyformat.Encoding``. ``name``: the topic's in Kafka. A schema is registered when it is needed first."""

    def __init__(self, schema: TopicSchema, style: Style, store: str, name: str, schema_id: SchemaId) -> None:
        """Raises ConfigError where two columns would have one name."""
        self._form = flat_form(schema, style, connect=False)
        refuse_equal_names(f"stores.{store}.tables: {schema.topic}", self._form.fields, "Avro", valid_name)
        self._store, self._name, self._schema_id = store, name, schema_id

    def of_changes(self, changes: pa.RecordBatch, replaced: ReplacedRows) -> Mapping[str, pa.Array]:
        taken, form = RowsTaken(changes, replaced, self._form), self._form
        head = self._head("value", envelope_schema(self._name, form.fields))
        keys = pa.nulls(len(changes), pa.large_binary())
        if has_keys(changes):
            key_head = self._head("key", key_schema(self._name, form.key))
            keys = join([Piece(_record(taken(changes), form.key, len(changes)), key_head)]).to_array()
        row = before_and_after(changes, replaced, lambda rows: _record(taken(rows), form.fields, len(rows)), _ROWS)
        body = join([Piece(nothing(len(changes)), head), *row, *_rest(changes, self._store)])
        return {"body": body.to_array(), "wire_key": keys, "unfit": taken.unfit}

    def of_payloads(self, payloads: pa.Array, keys: pa.Array) -> Mapping[str, pa.Array]:
        return {"body": self._values("value", payloads), "wire_key": self._values("key", keys)}

    def _values(self, part: str, values: pa.Array) -> pa.Array:
        """Each as a value of its own, NULL where it is NULL."""
        binary = pa.types.is_large_binary(values.type)
        head = self._head(part, plain_schema("bytes" if binary else "string"))
        return pc.if_else(values.is_valid(), join([Piece(counted(values), head)]).to_array(), None)

    def _head(self, part: str, schema: str) -> bytes:
        return b"\x00" + self._schema_id(f"{self._name}-{part}", schema).to_bytes(4, "big")


def varints(numbers: npt.NDArray[Any]) -> Texts:
    """Integers as Avro's ``int`` and ``long``: zigzag, seven bits a byte, the lowest first."""
    given = numbers.astype(np.int64, copy=False)
    zigzag = ((given << 1) ^ (given >> 63)).view(np.uint64)
    sizes = np.ones(len(given), np.int64)
    for bits in range(7, 64, 7):
        sizes += zigzag >= np.uint64(1 << bits)
    widest = int(sizes.max(initial=1))
    places = np.arange(widest)
    groups = (zigzag[:, None] >> (7 * places).astype(np.uint64)).astype(np.uint8) & np.uint8(0x7F)
    groups[places < sizes[:, None] - 1] |= np.uint8(0x80)
    return Texts(groups[places < sizes[:, None]], _offsets(sizes))


def counted(values: pa.Array) -> Texts:
    """utf8 or binary values as Avro's ``string`` and ``bytes``: the length, then the bytes."""
    filled = values.fill_null("" if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) else b"")
    return join([Piece(varints(pc.binary_length(filled).to_numpy(zero_copy_only=False))), Piece(raw_texts(filled))])


def _record(flat: FlatRows, fields: Sequence[FlatField], rows: int) -> Texts:
    """Each row as a record of these fields."""
    return join([Piece(nothing(rows)), *(_field(flat.columns[one.column], one) for one in fields)])


def _field(values: pa.Array, one: FlatField) -> Piece:
    texts = _texts(values)
    if one.required:
        return Piece(texts)
    states = values.is_null().to_numpy(zero_copy_only=False)
    return Piece(texts, _THERE, null=_NULL, states=np.where(states, NULL, VALUE).astype(np.uint8))


def _texts(values: pa.Array) -> Texts:
    """What stands at a NULL is anything."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return _decimals(values)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return counted(values)
    if pa.types.is_boolean(kind):
        return _wide(values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8))
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    return _wide(numbers) if pa.types.is_floating(kind) else varints(numbers)


def _wide(numbers: npt.NDArray[Any]) -> Texts:
    """Numbers as they lie in memory, little-endian."""
    own = np.ascontiguousarray(numbers)
    return Texts(own.view(np.uint8), np.arange(len(own) + 1, dtype=np.int64) * own.itemsize)


def _decimals(values: pa.Array) -> Texts:
    """Two's complement, big-endian, in as many bytes as the precision may need."""
    size = ((10**values.type.precision).bit_length() + 8) // 8
    words = view(values.buffers()[1], np.dtype(np.uint8), 16 * len(values), 16 * values.offset).reshape(-1, 16)
    data = np.empty((len(values), size + 1), np.uint8)
    data[:, 0] = 2 * size  # the length
    data[:, 1:] = words[:, :size][:, ::-1]
    return Texts(data.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * (size + 1))


def _rest(changes: pa.RecordBatch, store: str) -> list[Piece]:
    """The envelope behind the two rows."""
    rows, schema = len(changes), topic_schema(changes.schema)
    micros = changes.column(TS).view(pa.int64()).fill_null(0).to_numpy()
    ms, us, ns = (varints(numbers) for numbers in (micros // 1000, micros, micros * 1000))
    read = changes.column(OP).to_numpy() == int(Op.READ)
    head = _string(VERSION) + _string("postgresql") + _string(store)
    table = _string(schema.namespace) + _string(schema.name) + _NULL + _THERE
    return [
        Piece(ms, head),
        Piece(counted(pa.array(np.where(read, "true", "false"))), _THERE, _string("") + _NULL),
        Piece(us, _THERE),
        Piece(ns, _THERE),
        Piece(varints(changes.column(LSN).to_numpy()), table, 3 * _NULL),
        Piece(nothing(rows), _NULL),  # transaction
        Piece(counted(op_letters(changes).cast(pa.utf8()))),
        *(Piece(one, _THERE) for one in (ms, us, ns)),
    ]


def _string(text: str) -> bytes:
    raw = text.encode()
    return varints(np.array([len(raw)])).data.tobytes() + raw


def _offsets(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return readonly(found)
