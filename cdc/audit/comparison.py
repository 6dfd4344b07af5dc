"""The whole of one table, on both sides: what the two scans do not agree on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa

from cdc.audit.deadletters import KnownLetters, without
from cdc.audit.engine import Side, key_indices, suspects
from cdc.audit.findings import Progress, Report, RowDifference, Scanned, TableAudit, Tally
from cdc.audit.suspects import Differing, Settling
from cdc.errors import SourceError
from cdc.model.evolution import differences
from cdc.model.position import Cut, Lsn, format_lsn
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.privacy.policies import Protection
from cdc.source.rows import SourceRows
from sinks.contract import Expiring, Sink, audit_schema
from sinks.deadletters import LetterState
from sinks.holding import ALL, Holding


@dataclass(frozen=True, slots=True)
class SourceSide:
    """The source's side. ``connection``: autocommit, under the pinned settings (``connect``)."""

    connection: psycopg.Connection
    publication: str
    protection: Protection = field(default_factory=lambda: Protection({}))

    def rows(self, table: Table) -> SourceRows:
        """The table's rows as the log may have them. Raises SourceError when the source no longer has the table."""
        return SourceRows(self.connection, table, self.publication, partial(self.protection.protect_text, table))


@dataclass(frozen=True, slots=True)
class Target:
    """A table to audit. ``expected_rows``: of the log's topic. ``captured``: whether the log has the table at all. ``holding``: what the store holds
    of it."""

    table: Table
    expected_rows: int = 0
    captured: bool = True
    holding: Holding = ALL

    @property
    def schema(self) -> TopicSchema:
        """The table's, as the store has it."""
        return self.holding.held(TopicSchema.of(self.table))

    def as_held(self, sink: Sink, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The table's rows of text as the store has them."""
        return sink.as_held(self.holding.rows(rows, TopicSchema.of(self.table)), self.schema)


@dataclass(slots=True)
class TableInWork:
    """One table's audit on its way."""

    target: Target
    settling: Settling
    found: int
    """Suspects after the scan."""
    scanned: Scanned
    seconds: float
    lsn: Lsn
    applied: Cut
    differences: list[RowDifference] = field(default_factory=list)
    """The first of them, in words."""
    drift: list[Differing] = field(default_factory=list)
    letters: Counter[LetterState] = field(default_factory=Counter)
    """Keys that differ as their dead letters say."""
    expired: int = 0
    """Rows that are missing because their time in the store has passed."""

    def set_apart(self, differing: Differing, known: KnownLetters) -> Differing:
        """Counts those that dead letters explain, which are no drift; returns the others."""
        states = known.among(differing, self.target.schema)
        for at, state in enumerate(states):
            if state is not None:
                self.letters[state] += 1
                if differing.kind(at) == "missing":
                    self.settling.missing -= int(differing.surplus[at])
                else:
                    self.settling.different -= 1
        return without(differing, states)

    def set_expired_apart(self, differing: Differing, sink: Sink) -> Differing:
        """Counts rows that have gone from the store by themselves, which are no drift; returns the others."""
        missing = np.array([at for at in range(differing.keys.num_rows) if differing.kind(at) == "missing"], np.int64)
        if not isinstance(sink, Expiring) or not len(missing):
            return differing
        gone = missing[sink.expired(differing.keys.take(missing), self.target.schema)]
        rows = int(differing.surplus[gone].sum())
        self.expired += rows
        self.settling.missing -= rows
        return differing.only(np.setdiff1d(np.arange(differing.keys.num_rows), gone))

    @property
    def differing(self) -> Differing:
        """All keys that differ."""
        return Differing.joined(self.drift, self.settling.keys.schema)

    def again(self, differing: Differing) -> TableInWork:
        """The audit of these keys alone, to be settled."""
        settling = Settling(differing.keys)
        return TableInWork(self.target, settling, settling.open, Scanned(), 0.0, self.lsn, self.applied)

    def result(self) -> TableAudit:
        settling, differ = self.settling, self.settling.differ
        error = None
        if not self.target.captured and self.scanned.source_rows:
            error = "the log has nothing of this table → restart cdc run: it loads what [source] tables selects; else leave the table out of the publication"
        return TableAudit(
            table=self.target.table.qualified,
            equal=differ == 0 and error is None,
            error=error,
            distinct_rows=self.target.table.whole_rows,
            scanned=self.scanned,
            tally=Tally(
                missing=settling.missing,
                extra=settling.extra,
                different=settling.different,
                unsettled=settling.open,
                in_flight=self.found - settling.open - settling.keys_differing,
                aside=self.letters[LetterState.ASIDE],
                edited=self.letters[LetterState.EDITED],
                accepted=self.letters[LetterState.ACCEPTED],
                expired=self.expired,
            ),
            columns=dict(Counter(name for difference in self.differences for name in difference.columns)),
            differences=tuple(self.differences),
            lsn=format_lsn(self.lsn),
            position=int(self.applied.position),
            seconds=self.seconds,
        )


def compare(
    database: SourceSide,
    sink: Sink,
    target: Target,
    lsn: Lsn,
    applied: Cut,
    seed: int,
    progress: Report,
) -> TableInWork:
    """Scans both sides whole: the source in a thread of its own, the store here (a Spark session wants its own thread)."""
    table, schema = target.table, target.schema
    started = time.monotonic()
    if target.captured:
        _refuse_former_shape(sink, schema)
    texts, key = audit_schema(schema), key_indices(schema)
    rows = database.rows(table)
    store_failed = threading.Event()
    with ExitStack() as stack:
        source, store = (Side(texts, key, seed, distinct=table.whole_rows) for _ in range(2))
        stack.callback(source.close)
        stack.callback(store.close)
        pool = stack.enter_context(ThreadPoolExecutor(1, "audit-source"))
        stack.callback(store_failed.set)

        def tell(phase: str) -> None:
            progress(Progress(sink.name, table.qualified, phase, source.rows, store.rows, target.expected_rows))

        reading = pool.submit(_fill, source, (target.as_held(sink, part) for part in rows.scan(lambda: not store_failed.is_set())))
        if target.captured:
            for batch in sink.scan(schema):
                store.add(batch)
                tell("scanning")
        _await(reading, lambda: tell("scanning"))
        tell("comparing")
        settling = Settling(suspects(source, store))
        scanned = Scanned(source.rows, store.rows, source.repeated)
        took_s = time.monotonic() - started
        return TableInWork(target, settling, settling.open, scanned, took_s, lsn, applied)


def _refuse_former_shape(sink: Sink, schema: TopicSchema) -> None:
    """A store whose policy is to ignore schema changes holds rows in a shape that the source no longer has."""
    shape = sink.shape(schema.topic)
    changes = () if shape is None else differences(shape.schema, schema)
    if any(change.old is None or change.new is None or change.renamed or change.retyped for change in changes):
        raise SourceError(
            f"store {sink.name} holds {schema.topic} in a former definition, which cannot be compared with the source's",
            hint=f'schema = "apply" in [stores.{sink.name}] lets it follow',
        )


def _fill(side: Side, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        side.add(batch)


def _await(future: Future[None], tell: Callable[[], None]) -> None:
    while True:
        try:
            return future.result(timeout=0.2)
        except TimeoutError:
            if future.done():
                raise
            tell()
