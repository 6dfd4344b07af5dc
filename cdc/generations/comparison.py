"""A generation's own rows against the log's fold at the same cut. Nothing is in flight there: whatever differs does differ."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.audit.deadletters import KnownLetters, without
from cdc.audit.engine import Side, key_indices, suspects
from cdc.audit.suspects import Differing, look
from cdc.model.topic import TopicSchema
from sinks.contract import Expiring, Sink, TopicAsOf, audit_schema
from sinks.deadletters import LetterState
from sinks.render.rowtext import row_text

LISTED_KEYS: Final = 20


@dataclass(frozen=True, slots=True)
class TableComparison:
    """``differ``: how many keys, ``keys``: the first of them. ``aside``: keys of dead letters, which the store cannot hold. Holds no other values of rows."""

    table: str
    rows: int
    differ: int
    aside: int
    keys: tuple[Mapping[str, str | None], ...] = ()


def compare(sink: Sink, topic: TopicAsOf, scanned: Callable[[int], None]) -> TableComparison:
    """``sink``: opened, at the cut that ``topic`` is as of, with everything visible. ``scanned``: called with the number of rows of the store, often."""
    schema = topic.shape.schema
    texts, key, seed = audit_schema(schema), key_indices(schema), secrets.randbits(63)
    with ExitStack() as stack:
        log, store = (Side(texts, key, seed, distinct=not schema.key) for _ in range(2))
        stack.callback(log.close)
        stack.callback(store.close)
        if not topic.dropped:
            for came in topic.rows():
                log.add(sink.as_held(row_text(came.rows, schema), schema))
        for batch in sink.scan(schema):
            store.add(batch)
            scanned(store.rows)
        found = suspects(log, store)
        drift = _unexplained(sink, schema, found, seed)
        listed = tuple(drift.slice(0, LISTED_KEYS).to_pylist())
        return TableComparison(schema.topic, store.rows, drift.num_rows, found.num_rows - drift.num_rows, listed)


def _unexplained(sink: Sink, schema: TopicSchema, found: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """The keys without those of dead letters. A letter explains that a row is missing, or that there is a corrected one in its place."""
    letters, ones = KnownLetters.of(sink), np.ones(found.num_rows, np.int64)
    missing, corrected = (letters.among(Differing(found, surplus), schema) for surplus in (ones, 0 * ones))
    named = np.flatnonzero([one is not None or other is not None for one, other in zip(missing, corrected, strict=True)])
    explained: list[LetterState | None] = [None] * found.num_rows
    if len(named):
        keys = found.take(named)
        held = look(keys, [sink.fetch(schema, keys)], key_indices(schema), len(schema.fields), seed).rows > 0
        for at, is_held in zip(named.tolist(), held.tolist(), strict=True):
            explained[at] = corrected[at] if is_held else missing[at]
    return _still_due(sink, schema, without(Differing(found, ones), explained).keys, seed)


def _still_due(sink: Sink, schema: TopicSchema, keys: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """Without the keys of rows that are not there because their time has passed."""
    if not isinstance(sink, Expiring) or not keys.num_rows:
        return keys
    held = look(keys, [sink.fetch(schema, keys)], key_indices(schema), len(schema.fields), seed).rows > 0
    return keys.filter(pa.array(held | ~sink.expired(keys, schema)))
