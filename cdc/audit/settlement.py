"""Fresh looks at the keys that did not agree, until each of them does or surely differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.audit.comparison import SourceSide, TableInWork
from cdc.audit.deadletters import KnownLetters
from cdc.audit.engine import key_indices
from cdc.audit.findings import Progress, Report, RowDifference
from cdc.audit.suspects import Differing, KeyLook, joined, look
from cdc.model.position import Cut, Lsn
from cdc.model.topic import TopicSchema
from cdc.source.rows import snapshot
from sinks.contract import Sink
from sinks.render.meaning import plain_key

LISTED_KEYS: Final = 20
ROUNDS: Final = 8
FETCH_KEYS: Final = 5_000
"""Keys asked for at once while settling."""
ROUND_PAUSE_S: Final = 0.05

CaughtUp = Callable[[Lsn], Cut]
"""Blocks until the store has applied everything up to the LSN; returns what it has applied. Raises WaitTimeout."""


def settle(
    database: SourceSide,
    sink: Sink,
    tables: Sequence[TableInWork],
    caught_up: CaughtUp,
    seed: int,
    progress: Report,
) -> None:
    for number in range(ROUNDS):
        left = [audited for audited in tables if audited.settling.open]
        if not left:
            return
        if number:
            time.sleep(ROUND_PAUSE_S * number)
        with snapshot(database.connection) as lsn:
            before = [_source_look(database, sink, audited, seed) for audited in left]
        applied = caught_up(lsn)
        letters = KnownLetters.of(sink)
        sink.make_visible()
        stored = []
        for audited in left:
            rows = audited.scanned
            progress(Progress(sink.name, audited.target.table.qualified, "settling", rows.source_rows, rows.store_rows))
            stored.append(_store_look(sink, audited, seed))
        with snapshot(database.connection):
            after = [_source_look(database, sink, audited, seed) for audited in left]
        for audited, source, store, again in zip(left, before, stored, after, strict=True):
            audited.lsn, audited.applied = lsn, applied
            differing = audited.settling.round(source.seen, store.seen, again.seen)
            drift = audited.set_apart(differing, letters.also(sink) if differing.keys.num_rows else letters)
            drift = audited.set_expired_apart(drift, sink)
            audited.drift.append(drift)
            audited.differences += _explain(audited, drift, source.rows, store.rows)


@dataclass(frozen=True, slots=True)
class _Seen:
    seen: KeyLook
    rows: Sequence[pa.RecordBatch]


def _source_look(database: SourceSide, sink: Sink, audited: TableInWork, seed: int) -> _Seen:
    table, schema = audited.target.table, audited.target.schema
    rows, held = database.rows(table), partial(audited.target.as_held, sink)
    asked = plain_key(schema) and not any(one.computed for one in schema.key)
    by_key = asked and (bool(schema.key) or audited.target.holding.everything)

    def fetch(keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [held(part) for part in rows.fetch(keys)] if by_key else rows.fetch_meant(keys, held)

    return _look(audited, fetch, seed)


def _store_look(sink: Sink, audited: TableInWork, seed: int) -> _Seen:
    if not audited.target.captured:
        return _look(audited, lambda keys: [], seed)  # noqa: ARG005
    return _look(audited, lambda keys: [sink.fetch(audited.target.schema, keys)], seed)


def _look(audited: TableInWork, fetch: Callable[[pa.RecordBatch], list[pa.RecordBatch]], seed: int) -> _Seen:
    table, schema = audited.target.table, audited.target.schema
    looks, rows = [], []
    for start in range(0, audited.settling.open, FETCH_KEYS):
        keys = audited.settling.keys.slice(start, FETCH_KEYS)
        found = fetch(keys)
        looks.append(look(keys, found, key_indices(schema), len(schema.fields), seed))
        rows += found
    seen = joined(looks)
    return _Seen(seen.distinct() if table.whole_rows else seen, rows)


def _explain(
    audited: TableInWork, differing: Differing, source: Sequence[pa.RecordBatch], store: Sequence[pa.RecordBatch]
) -> Iterator[RowDifference]:
    """The first differing keys in words, up to ``LISTED_KEYS`` of the table."""
    schema = audited.target.schema
    room = LISTED_KEYS - len(audited.differences)
    for index, key in enumerate(differing.keys.slice(0, max(room, 0)).to_pylist()):
        kind = differing.kind(index)
        columns: tuple[str, ...] = ()
        if kind == "different":
            ours, theirs = _row(schema, source, key), _row(schema, store, key)
            columns = tuple(name for name in schema.names if ours.get(name) != theirs.get(name))
        yield RowDifference(kind, key, columns)


def _row(schema: TopicSchema, batches: Sequence[pa.RecordBatch], key: Mapping[str, str | None]) -> dict[str, str | None]:
    names = [schema.names[i] for i in key_indices(schema)]
    for batch in batches:
        mask = np.ones(batch.num_rows, np.bool_)
        for name in names:
            column = batch.column(schema.names.index(name))
            value = key[name]
            same = column.is_null() if value is None else pc.equal(column, value).fill_null(False)
            mask &= same.to_numpy(zero_copy_only=False)
        at = np.flatnonzero(mask)
        if at.size:
            row: dict[str, str | None] = batch.slice(int(at[0]), 1).to_pylist()[0]
            return row
    return {}
