"""Logical messages as rows of an outbox table that there is not, so that they become events in the way in which rows do (``cdc.outbox.router``). Pure.

Their ids are ``uuid``, their payloads ``json``, which keeps every character; where their topic has been defined otherwise by rows of a table, they are
logged under its definition, so that no topic changes to and fro. An event's time is its transaction's commit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model import pgtypes
from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema, table_of
from cdc.model.group import EmittedMessages
from cdc.model.table import Column, Table
from cdc.outbox.message import BadMessage, parsed
from cdc.outbox.router import IDS, NoEvents, Routed
from cdc.settings.outbox import OutboxColumns

COLUMNS: Final = OutboxColumns()
_TABLE: Final = Table(
    0,
    "",
    "",
    (
        Column(COLUMNS.id, pgtypes.UUID, key=True),
        Column(COLUMNS.route, pgtypes.TEXT),
        Column(COLUMNS.key, pgtypes.TEXT),
        Column(COLUMNS.type, pgtypes.TEXT),
        Column(COLUMNS.payload, pgtypes.JSON),
        Column(COLUMNS.headers, pgtypes.JSONB),
        Column(COLUMNS.time, pgtypes.TIMESTAMPTZ),
    ),
)


def rows_of(messages: EmittedMessages) -> tuple[pa.RecordBatch, list[NoEvents]]:
    """The rows that these would be, without positions yet, and why others would be none. The rows' columns are named as in ``COLUMNS``."""
    refused: Counter[str] = Counter()
    at, values = [], []
    for number, body in enumerate(messages.bodies.to_pylist()):
        try:
            event = parsed(body)
        except BadMessage as bad:
            refused[str(bad)] += 1
            continue
        at.append(number)
        values.append((str(event.id), event.route, event.key, event.type, event.payload, event.headers))
    times = pa.array(messages.commit_ts_us[at], pa.int64()).view(META_FIELDS[3].type)
    texts = [pa.array(column, pa.utf8()) for column in zip(*values, strict=True)] or [pa.nulls(0, pa.utf8())] * 6
    meta = [
        pa.array(np.zeros(len(at), np.int64)),
        pa.array(np.full(len(at), int(Op.INSERT), np.int8)),
        pa.array(messages.commit_lsn[at]),
        times,
        pa.nulls(len(at), EXACT_TYPE),
    ]
    rows = pa.RecordBatch.from_arrays([*meta, *texts, times], schema=batch_schema(_TABLE))
    return rows, [NoEvents(why, count) for why, count in refused.items()]


def under(known: dict[str, Table], routed: Routed) -> Routed:
    """The same events under the definitions that their topics (by name) have, wherever these can hold them."""
    return replace(routed, batches=tuple(_under(known.get(table_of(one.schema).qualified), one) for one in routed.batches))


def _under(known: Table | None, events: pa.RecordBatch) -> pa.RecordBatch:
    table = table_of(events.schema)
    if known is None or [one.name for one in known.columns] != [one.name for one in table.columns]:
        return events
    if next(one for one in known.columns if one.name == "id").type_oid not in IDS:
        return events
    schema = batch_schema(known)
    arrays = [one if one.type == field.type else one.cast(field.type) for one, field in zip(events.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
