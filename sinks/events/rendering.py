"""Changes → events, column by column. Pure.

A topic of events (``cdc.outbox``) says by its own columns what its events are; of a table's change the topic and the row's key do.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.moments import timestamp_text
from cdc.model.batch import LSN, OP, POSITION, TS, Op, is_truncate, topic_schema
from cdc.model.topic import TopicSchema
from sinks.events.event import EVENTS, Events
from sinks.events.options import Body
from sinks.render.jsonkernels import ABSENT, NULL, VALUE
from sinks.render.jsonrows import Piece, Style, join, plain_documents
from sinks.render.rowtext import column_text, exact_values, keys
from sinks.render.texts import NOTHING, Texts, raw_texts, view
from sinks.render.tokenkernels import UPPER_T

EVENT_FIELDS: Final = ("id", "key", "type", "payload", "headers", "time")
"""The columns of a topic of events."""
_NAMES: Final = {
    Op.INSERT: "insert",
    Op.UPDATE: "update",
    Op.DELETE: "delete",
    Op.READ: "read",
    Op.TRUNCATE: "truncate",
}
_ZULU: Final = np.frombuffer(b"Z", np.uint8)


def holds_events(schema: TopicSchema) -> bool:
    """Whether the topic's rows are events that an application wrote."""
    return schema.names == EVENT_FIELDS


def body_of(schema: TopicSchema, asked: Body | None) -> Body:
    """The form of the topic's bodies."""
    return asked or ("payload" if holds_events(schema) else "change")


def events_of(changes: pa.RecordBatch, asked: Body | None, style: Style) -> Events:
    """The events of a batch that is no SCHEMA record, in its order."""
    schema, rows = topic_schema(changes.schema), len(changes)
    body, own = body_of(schema, asked), holds_events(schema)
    exact = exact_values(changes)
    op = _ops(changes)
    topic = pa.repeat(schema.topic, rows)
    if own:
        kind, identity, key, headers = (column_text(changes, name, exact) for name in ("type", "id", "key", "headers"))
    else:
        kind = pc.binary_join_element_wise(topic, op, ".")
        identity = pc.binary_join_element_wise(topic, changes.column(POSITION).cast(pa.utf8()), ":")
        keyed = bool(schema.key) and not is_truncate(changes)
        key = keys(changes, schema) if keyed else pa.nulls(rows, pa.utf8())
        headers = pa.nulls(rows, pa.utf8())
    columns = {
        "position": changes.column(POSITION),
        "topic": topic,
        "op": op,
        "type": kind.fill_null(""),
        "id": identity,
        "key": key,
        "headers": headers,
        "time": changes.column(TS),
        "lsn": changes.column(LSN),
    }
    columns["body"] = _bodies(changes, schema, body, style, columns)
    return Events(pa.RecordBatch.from_arrays([columns[one.name].cast(one.type) for one in EVENTS], schema=EVENTS))


def _bodies(changes: pa.RecordBatch, schema: TopicSchema, body: Body, style: Style, columns: dict[str, pa.Array]) -> pa.Array:
    if body == "payload":
        return _payload(changes)
    if body == "change":
        return join(_change(changes, schema, style, columns)).to_array()
    raise NotImplementedError(body)


def _payload(changes: pa.RecordBatch) -> pa.Array:
    payload = changes.column("payload")
    if pa.types.is_binary(payload.type):
        return payload.cast(pa.large_binary())
    return column_text(changes, "payload", exact_values(changes)).cast(pa.large_binary())


def _change(changes: pa.RecordBatch, schema: TopicSchema, style: Style, columns: dict[str, pa.Array]) -> list[Piece]:
    rows = len(changes)
    ops = changes.column(OP).to_numpy()
    deleted, nothing = ops == int(Op.DELETE), ops == int(Op.TRUNCATE)
    row = _nothing(rows) if nothing.any() else plain_documents(changes, schema, style)
    return [
        Piece(raw_texts(columns["op"]), before=b'{"op":"', after=b'"'),
        Piece(_nothing(rows), before=b',"topic":' + json.dumps(schema.topic, ensure_ascii=False).encode()),
        Piece(row, before=b',"before":', null=b',"before":null', states=_states(deleted, ~deleted)),
        Piece(row, before=b',"after":', null=b',"after":null', states=_states(~deleted & ~nothing, deleted | nothing)),
        Piece(_numbers(columns["position"]), before=b',"position":'),
        Piece(_numbers(columns["lsn"]), before=b',"lsn":'),
        Piece(moments(columns["time"]), before=b',"time":"', after=b'"}'),
    ]


def moments(times: pa.Array) -> Texts:
    """As in every document: ``2013-01-31T10:00:00.5Z``."""
    micros = times.view(pa.int64()).fill_null(0)
    return Texts(*timestamp_text(view(micros.buffers()[1], np.dtype(np.int64), len(micros), micros.offset), UPPER_T, _ZULU))


def _ops(changes: pa.RecordBatch) -> pa.Array:
    codes = pa.array([int(op) for op in _NAMES], pa.int8())
    return pa.array(list(_NAMES.values()), pa.utf8()).take(pc.index_in(changes.column(OP), value_set=codes))


def _states(value: npt.NDArray[np.bool_], null: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.where(value, VALUE, np.where(null, NULL, ABSENT)).astype(np.uint8)


def _numbers(numbers: pa.Array) -> Texts:
    return raw_texts(numbers.cast(pa.utf8()))


def _nothing(rows: int) -> Texts:
    return Texts(NOTHING, np.zeros(rows + 1, np.int64))
