"""Changes → events, column by column. Pure.

A topic of events (``cdc.outbox``) says by its own columns what its events are; of a table's change the topic and the row's key do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.moments import timestamp_text
from cdc.model.batch import LSN, POSITION, TS, is_truncate, topic_schema
from cdc.model.oldrows import taken_apart
from cdc.model.topic import TopicSchema
from sinks.condition import ReplacedRows, op_names
from sinks.events.bodyformat import Encoding
from sinks.events.cloudevents import cloudevent, of_change, of_payload
from sinks.events.debezium import envelopes, key_objects, row_objects
from sinks.events.event import EVENTS, EventBatch
from sinks.events.options import Body
from sinks.events.rowpieces import before_and_after, nothing
from sinks.render.jsonrows import Piece, Style, join, plain_documents
from sinks.render.rowtext import SEPARATOR, column_text, exact_values, join_key, keys
from sinks.render.texts import Texts, raw_texts, view
from sinks.render.tokenkernels import UPPER_T

EVENT_FIELDS: Final = ("id", "key", "type", "payload", "headers", "time")
"""The columns of a topic of events."""
_ZULU: Final = np.frombuffer(b"Z", np.uint8)


def holds_events(schema: TopicSchema) -> bool:
    """Whether the topic's rows are events that an application wrote."""
    return schema.names == EVENT_FIELDS


def body_of(schema: TopicSchema, asked: Body | None) -> Body:
    """The form of the topic's bodies."""
    if holds_events(schema):
        return "payload" if asked in (None, "debezium") else asked
    return asked or "change"


@dataclass(frozen=True, slots=True)
class EventForm:
    """The form that a store's events have. ``style``: of documents."""

    style: Style
    body: Body | None = None
    order: bool = True
    order_by: tuple[str, ...] = ()
    store: str = ""
    """The store's name, where a body has it."""
    encoding: Encoding | None = None
    """What writes keys and bodies, where they come with a schema."""


def events_of(given: pa.RecordBatch, form: EventForm) -> EventBatch:
    """The events of a batch of rows, or of one TRUNCATE, in its order; with the column of old rows or without (``cdc.model.oldrows``)."""
    changes, has, old = taken_apart(given)
    schema, rows = topic_schema(changes.schema), len(changes)
    columns: dict[str, pa.Array] = {
        "position": changes.column(POSITION),
        "topic": pa.repeat(schema.topic, rows),
        "op": op_names(changes),
        "time": changes.column(TS),
        "lsn": changes.column(LSN),
    }
    columns |= _written(changes) if holds_events(schema) else _of_rows(changes, schema, columns)
    columns["group"] = _groups(changes, form, columns["key"])
    columns["wire_key"], columns["unfit"] = pa.nulls(rows, pa.large_binary()), pa.nulls(rows, pa.utf8())
    match body_of(schema, form.body):
        case "payload":
            payload = _payload(changes)
            columns["body"] = payload
            if form.encoding is not None:
                columns |= form.encoding.of_payloads(payload, columns["key"])
        case "change":
            columns["body"] = join(_change(changes, form.style, columns, ReplacedRows(has, old))).to_array()
        case "debezium":
            replaced = ReplacedRows(has, old)
            if form.encoding is None:
                objects = partial(row_objects, schema=schema, style=form.style)
                columns["body"] = envelopes(changes, form.store, replaced, objects).to_array()
            else:
                columns |= form.encoding.of_changes(changes, replaced)
            columns["key"] = key_objects(changes, form.style)
        case "cloudevents":
            own = holds_events(schema)
            data = of_payload(changes) if own else of_change(_change(changes, form.style, columns, ReplacedRows(has, old)))
            columns["body"] = join(cloudevent(changes, columns, moments(columns["time"]), data)).to_array()
    return EventBatch(pa.RecordBatch.from_arrays([columns[one.name].cast(one.type) for one in EVENTS], schema=EVENTS))


def _written(changes: pa.RecordBatch) -> dict[str, pa.Array]:
    """What the application says of its events."""
    exact = exact_values(changes)
    found = {name: column_text(changes, name, exact) for name in ("type", "id", "key", "headers")}
    return found | {"type": found["type"].fill_null("")}


def _of_rows(changes: pa.RecordBatch, schema: TopicSchema, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    rows = len(changes)
    keyed = bool(schema.key) and not is_truncate(changes)
    return {
        "type": pc.binary_join_element_wise(columns["topic"], columns["op"], "."),
        "id": pc.binary_join_element_wise(columns["topic"], columns["position"].cast(pa.utf8()), ":"),
        "key": keys(changes, schema) if keyed else pa.nulls(rows, pa.utf8()),
        "headers": pa.nulls(rows, pa.utf8()),
    }


def _groups(changes: pa.RecordBatch, form: EventForm, key: pa.Array) -> pa.Array:
    """By ``order_by`` a DELETE counts by the row that it has removed, where that is known."""
    if not form.order:
        return pa.nulls(len(changes), pa.utf8())
    if not form.order_by:
        return key
    exact = exact_values(changes)
    parts = [column_text(changes, name, exact) for name in form.order_by]
    return join_key(parts, SEPARATOR if len(parts) > 1 else "")


def _payload(changes: pa.RecordBatch) -> pa.Array:
    """utf8, or large_binary."""
    payload = changes.column("payload")
    if pa.types.is_binary(payload.type):
        return payload.cast(pa.large_binary())
    return column_text(changes, "payload", exact_values(changes))


def _change(changes: pa.RecordBatch, style: Style, columns: Mapping[str, pa.Array], replaced: ReplacedRows) -> list[Piece]:
    """``before``: the whole row where it is known; of a DELETE else its key, of anything else null."""
    rows, schema = len(changes), topic_schema(changes.schema)
    return [
        Piece(raw_texts(columns["op"]), before=b'{"op":"', after=b'"'),
        Piece(nothing(rows), before=b',"topic":' + json.dumps(schema.topic, ensure_ascii=False).encode() + b","),
        *before_and_after(changes, replaced, lambda given: plain_documents(given, schema, style)),
        Piece(_numbers(columns["position"]), before=b',"position":'),
        Piece(_numbers(columns["lsn"]), before=b',"lsn":'),
        Piece(moments(columns["time"]), before=b',"time":"', after=b'"}'),
    ]


def moments(times: pa.Array) -> Texts:
    """As in every document: ``2013-01-31T10:00:00.5Z``."""
    micros = times.view(pa.int64()).fill_null(0)
    return Texts(*timestamp_text(view(micros.buffers()[1], np.dtype(np.int64), len(micros), micros.offset), UPPER_T, _ZULU))


def _numbers(numbers: pa.Array) -> Texts:
    return raw_texts(numbers.cast(pa.utf8()))
