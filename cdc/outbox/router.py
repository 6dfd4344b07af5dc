"""Rows of the outbox table as events of topics. Pure.

A batch of an event topic has one row for each event, with these columns behind our own (``cdc.model.batch``); ``id`` is the key:

===========  ====================  =====================================================
``id``       the table's own type  the event's id
``key``      utf8                  what the event is about: events of one key keep their order
``type``     utf8                  the kind of event
``payload``  the table's own type  as it was written
``headers``  utf8 (jsonb)          NULL where the table has no such column
``time``     timestamp[us, UTC]    NULL where the table has no such column
===========  ====================  =====================================================

The first version of a row that reaches the log is the event: as a rule its INSERT, and for a row that was there before the log began, what the snapshot read.
Whether the log has an event already is known to whoever asks ``routed`` (``known``), which asks only about rows that may not be new: an INSERT always is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model import pgtypes
from cdc.model.batch import EXACT, EXACT_TYPE, META_FIELDS, OP, Op, batch_schema, table_of
from cdc.model.pgtypes import arrow_type, canonical_text
from cdc.model.table import Column, Table, derived_number
from cdc.settings.outbox import Outbox

PRODUCER: Final = "~outbox"
"""Who brings the event topics to the log. No producer of the inbox can have the name."""
MAX_NAME_BYTES: Final = 63
"""Of the second part of a topic's name, as of a table's."""

Flags = npt.NDArray[np.bool_]
_JSON: Final = (pgtypes.JSONB, pgtypes.JSON)
_PAYLOADS: Final = (*_JSON, pgtypes.TEXT, pgtypes.VARCHAR, pgtypes.BYTEA)
IDS: Final = (pgtypes.UUID, pgtypes.TEXT, pgtypes.VARCHAR)
"""The types that hold the ids of messages."""


class NoEvents(NamedTuple):
    """Rows that are no event, although somebody meant them to be: why, and how many."""

    why: str
    rows: int


@dataclass(frozen=True, slots=True)
class Routed:
    """``batches``: the events, without positions yet, in the order of their rows; one for each topic. ``places``: for each batch, which of all these events
    its rows are, counted from 0."""

    batches: tuple[pa.RecordBatch, ...] = ()
    places: tuple[npt.NDArray[np.int64], ...] = ()
    refused: tuple[NoEvents, ...] = ()
    updated: int = 0
    """How many rows were changes of events that the log has already."""

    @property
    def events(self) -> int:
        return sum(map(len, self.places))


class UnfitTable(Exception):
    """The table lacks a column, or has one of a type that cannot be what it is meant to be."""


def routed(batch: pa.RecordBatch, outbox: Outbox, known: Callable[[pa.Array], Flags], topics: Collection[str]) -> Routed:
    """The events of a batch of the outbox table, as capture has it. ``known``: which of these ids (utf8) the log has already; ``topics``: the names of
    the event topics that there are.

    Raises UnfitTable.
    """
    ops = batch.column(OP).to_numpy()
    rows = (ops == Op.INSERT) | (ops == Op.UPDATE) | (ops == Op.READ)
    if not rows.any():
        return Routed()
    table = table_of(batch.schema)
    check(table, outbox)
    columns = outbox.columns
    updated = 0
    doubtful = np.flatnonzero(rows & (ops != Op.INSERT))
    if len(doubtful):
        # One version after another of a row that the log has not: the first of them is the event.
        at = np.flatnonzero(rows)
        ids = _texts(batch.take(pa.array(at)), columns.id)
        own = np.searchsorted(at, doubtful)
        again = known(ids.take(pa.array(own))) | _repeated(ids)[own]
        rows[doubtful[again]] = False
        updated = int((ops[doubtful[again]] == Op.UPDATE).sum())
    at = np.flatnonzero(rows)
    asked = batch.take(pa.array(at))
    routes, keys = (_texts(asked, name) for name in (columns.route, columns.key))
    codes = routes.dictionary_encode()
    names = [None if route is None else topic_name(outbox, route) for route in codes.dictionary.to_pylist()]
    indices = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    nameless = (indices < 0) | _chosen(indices, [name is None for name in names])
    too_many = _chosen(indices, _beyond(names, outbox, topics))
    keyed = keys.is_valid().to_numpy(zero_copy_only=False)
    closed = ~nameless & ~too_many & keyed & _take_no_more(asked, outbox)
    refused = [
        NoEvents("its headers are not an object, beside which a column could be one", int(closed.sum())),
        NoEvents("no topic can have the name that its route makes", int(nameless.sum())),
        NoEvents(f"there would be more than {outbox.topics_max} topics of events (topics_max)", int(too_many.sum())),
        NoEvents("it has no key", int((~nameless & ~too_many & ~keyed).sum())),
    ]
    good = ~nameless & ~too_many & keyed & ~closed
    order = np.cumsum(good) - 1
    batches, places = [], []
    for code, name in enumerate(names):
        mine = np.flatnonzero(good & (indices == code))
        if name is not None and len(mine):
            batches.append(_events(asked.take(pa.array(mine)), event_table(table, outbox, name), outbox))
            places.append(order[mine].astype(np.int64))
    return Routed(tuple(batches), tuple(places), tuple(one for one in refused if one.rows), updated)


def _chosen(indices: npt.NDArray[np.int64], which: Sequence[bool]) -> Flags:
    """The rows whose index is among these; -1 never is."""
    return np.array([*which, False], np.bool_)[indices]


def _beyond(names: Sequence[str | None], outbox: Outbox, topics: Collection[str]) -> list[bool]:
    """For each name whether its topic would be one too many; the first that come have room."""
    there, beyond = set(topics), list[bool]()
    for name in names:
        topic = f"{outbox.topic_schema}.{name}"
        beyond.append(name is not None and topic not in there and len(there) >= outbox.topics_max)
        if name is not None and not beyond[-1]:
            there.add(topic)
    return beyond


def topic_name(outbox: Outbox, route: str) -> str | None:
    """The second part of the name of this route's topic; None where no topic can be called so."""
    name = outbox.topic_name(route)
    return name if route and route.isprintable() and len(name.encode()) <= MAX_NAME_BYTES else None


def check(table: Table, outbox: Outbox) -> None:
    """Raises UnfitTable, with what is wrong, when rows of this table cannot be events."""
    found = {column.name: column for column in table.columns}
    columns = outbox.columns
    for name in (columns.id, columns.route, columns.key, columns.type, columns.payload):
        if name not in found:
            raise UnfitTable(f"it has no column {name}")
    for name in outbox.headers.values():
        if name not in found:
            raise UnfitTable(f"it has no column {name}")
    if [column.name for column in table.key] != [columns.id]:
        raise UnfitTable(f"column {columns.id} is not what tells its rows apart")
    if outbox.prefix and found[columns.id].type_oid not in IDS:
        raise UnfitTable(f"column {columns.id} is not uuid or text, as the ids of messages under {outbox.prefix} are")
    if found[columns.payload].type_oid not in _PAYLOADS:
        raise UnfitTable(f"column {columns.payload} is not jsonb, json, text or bytea")
    for field, name, types in (("headers", columns.headers, _JSON), ("time", columns.time, (pgtypes.TIMESTAMPTZ,))):
        if name in found and found[name].type_oid not in types:
            raise UnfitTable(f"column {name} is not {'timestamptz' if field == 'time' else 'jsonb or json'}")
        if name and name not in found and field in columns.model_fields_set:
            raise UnfitTable(f"it has no column {name}")


def event_table(table: Table, outbox: Outbox, name: str) -> Table:
    """The definition of the topic of this name, where the outbox table is defined like this."""
    found = {column.name: column for column in table.columns}
    columns = outbox.columns
    own = (
        Column("id", found[columns.id].type_oid, found[columns.id].typmod, key=True, attnum=1),
        Column("key", pgtypes.TEXT, attnum=2),
        Column("type", pgtypes.TEXT, attnum=3),
        Column("payload", found[columns.payload].type_oid, attnum=4),
        Column("headers", pgtypes.JSONB, attnum=5),
        Column("time", pgtypes.TIMESTAMPTZ, attnum=6),
    )
    return Table(derived_number(f"{outbox.topic_schema}.{name}"), outbox.topic_schema, name, own)


def numbered(routed: Routed, first: int) -> list[pa.RecordBatch]:
    """The events with their positions, from ``first`` on."""
    return [
        batch.set_column(0, META_FIELDS[0], pa.array(places + first))
        for batch, places in zip(routed.batches, routed.places, strict=True)
    ]


def ids_of(events: pa.RecordBatch) -> pa.Array:
    """The ids (utf8) of a batch of an event topic."""
    return _texts(events, "id")


def _events(rows: pa.RecordBatch, table: Table, outbox: Outbox) -> pa.RecordBatch:
    """These rows as events. Of our own columns only LSN and time stay as they are."""
    columns, names = outbox.columns, rows.schema.names
    position, _, lsn, ts, exact = rows.columns[: len(META_FIELDS)]
    values = [rows.column(columns.id), _texts(rows, columns.key), _texts(rows, columns.type), rows.column(columns.payload)]
    for column, name in zip(table.columns[len(values) :], (columns.headers, columns.time), strict=True):
        values.append(rows.column(name) if name in names else pa.nulls(len(rows), arrow_type(column)))
    if outbox.headers:
        values[-2] = _with_columns(values[-2], {header: _texts(rows, name) for header, name in outbox.headers.items()})
    ops = pa.array(np.full(len(rows), int(Op.INSERT), np.int8))
    renamed = _exact(exact, {columns.id: "id", columns.payload: "payload", columns.time: "time"})
    return pa.RecordBatch.from_arrays([position, ops, lsn, ts, renamed, *values], schema=batch_schema(table))


def _take_no_more(rows: pa.RecordBatch, outbox: Outbox) -> Flags:
    """Which rows' headers can take no column beside them."""
    found = np.zeros(len(rows), np.bool_)
    if outbox.headers and outbox.columns.headers in rows.schema.names:
        for row, text in enumerate(rows.column(outbox.columns.headers).to_pylist()):
            found[row] = text is not None and not text.lstrip().startswith("{")
    return found


def _with_columns(headers: pa.Array, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Headers (the text of objects) with these columns' values among them."""
    texts = {name: column.to_pylist() for name, column in columns.items()}
    made = []
    for row, text in enumerate(headers.to_pylist()):
        found = {} if text is None else json.loads(text)
        more = {name: values[row] for name, values in texts.items() if values[row] is not None}
        made.append(text if not more else json.dumps({**found, **more}, ensure_ascii=False))
    return pa.array(made, pa.utf8())


def _texts(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column's values as Postgres prints them."""
    texts, exact = canonical_text(rows.column(name)), rows.column(EXACT)
    if exact.null_count == len(exact) or not texts.null_count:
        return texts
    entries = exact.to_pylist()
    return pa.array(
        [dict(entries[row] or ()).get(name) if text is None else text for row, text in enumerate(texts.to_pylist())], pa.utf8()
    )


def _exact(exact: pa.Array, names: Mapping[str, str]) -> pa.Array:
    """The exact texts of the columns that an event has, under the names that it has for them."""
    if exact.null_count == len(exact):
        return exact
    rows: Sequence[Sequence[tuple[str, str]] | None] = exact.to_pylist()
    return pa.array([[(names[name], text) for name, text in row or () if name in names] or None for row in rows], EXACT_TYPE)


def _repeated(ids: pa.Array) -> Flags:
    """Which of the ids stands further ahead, too."""
    seen: set[str] = set()
    found = np.zeros(len(ids), np.bool_)
    for row, one in enumerate(ids.to_pylist()):
        found[row] = one in seen
        seen.add(one)
    return found
