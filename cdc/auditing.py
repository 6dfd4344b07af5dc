"""The audit: every row of a store against the database, at one position. The shell around ``sinks.audit`` and ``sinks.settling``.

Per store: one snapshot of the source with its LSN; wait until the store has applied that LSN; scan both sides whole, the source in
a second thread; then settle the keys that do not agree with fresh looks at both sides, so that rows in flight raise no alarm.

``StoreAudit.to_json()``:

==============  ==============================================================================================================
``store``       the store's name
``equal``       true when no table has an error or a difference
``lsn``         the source snapshot's LSN that the scan was compared at
``position``    what the store had applied when its scan began
``seconds``     how long the store's audit took
``tables``      [{``table``, ``equal``, ``error`` (null, or why it could not be compared), ``source_rows``, ``store_rows``, ``missing`` (rows
                that the store lacks), ``extra`` (rows that only the store has), ``different`` (keys whose rows have other values),
                ``unsettled`` (keys that changed in every look, so that nothing can be said of them), ``in_flight`` (keys that
                differed in the scan and agreed afterwards), ``columns`` ({name: in how many of ``differences``}),
                ``differences`` (the first few: [{``kind``: missing | extra | different, ``key``: {column: text}, ``columns``:
                [name]}]), ``lsn``, ``position`` (of the last look), ``seconds``, ``rows_per_s``}]
==============  ==============================================================================================================

Keys are shown, other values never.
"""

from __future__ import annotations

import difflib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError, SourceError, WaitTimeout
from cdc.log.contract import LogReader
from cdc.log.ended import ended_topics
from cdc.log.reader import open_reader
from cdc.model.evolution import Kind, differences
from cdc.model.position import Cut, Lsn, format_lsn
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.privacy import Protection, protection_of
from cdc.settings import Settings
from cdc.source.catalog import load_published
from cdc.source.connection import connect
from cdc.source.rows import SourceRows, snapshot
from cdc.waiting import nudge, wait
from sinks import make_sink
from sinks.audit import Side, key_indices, suspects
from sinks.contract import Sink, audit_schema
from sinks.settling import Differing, Look, Settling, joined, look

LISTED_KEYS: Final = 20
ROUNDS: Final = 8
FETCH_KEYS: Final = 5_000
"""Keys asked for at once while settling."""
ROUND_PAUSE_S: Final = 0.05
CATCH_UP_TIMEOUT_S: Final = 600.0
SPARK_KINDS: Final = frozenset({"iceberg"})
NUDGE_AFTER_S: Final = 1.0
"""An idle source may end just before the snapshot's LSN for good; a commit of our own carries the stream past it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the audit is doing now; rows so far of the table at hand."""

    store: str
    table: str
    phase: str
    """waiting | scanning | comparing | settling"""
    source_rows: int = 0
    store_rows: int = 0
    expected_rows: int = 0
    """How many rows the log says the table may have at most."""


@dataclass(frozen=True, slots=True)
class Difference:
    kind: str
    """missing (the store lacks it) | extra (only the store has it) | different"""
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()
    """The columns whose values differ; empty unless ``different``."""


@dataclass(frozen=True, slots=True)
class TableAudit:
    """See the module's text. ``columns`` counts among the listed differences only."""

    table: str
    equal: bool
    error: str | None = None
    source_rows: int = 0
    store_rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    unsettled: int = 0
    in_flight: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    lsn: str | None = None
    position: int = 0
    seconds: float = 0.0
    rows_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreAudit:
    store: str
    equal: bool
    lsn: str
    position: int
    seconds: float
    tables: tuple[TableAudit, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Database:
    """The source's side. ``connection``: autocommit, under the pinned settings (``connect``)."""

    connection: psycopg.Connection
    publication: str
    protection: Protection = field(default_factory=lambda: Protection({}))

    def rows(self, table: Table) -> SourceRows:
        """The table's rows as the log may have them. Raises SourceError when the source no longer has the table."""
        return SourceRows(self.connection, table, self.publication, partial(self.protection.protect_text, table))


Report = Callable[[Progress], None]
CaughtUp = Callable[[Lsn], Cut]
"""Blocks until the store has applied everything up to the LSN; returns what it has applied. Raises WaitTimeout."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table to audit. ``expected_rows``: of the log's topic. ``captured``: whether the log has the table at all."""

    table: Table
    expected_rows: int = 0
    captured: bool = True


def audit(
    settings: Settings,
    store: str | None = None,
    table: str | None = None,
    *,
    progress: Report = lambda _: None,
    timeout_s: float = CATCH_UP_TIMEOUT_S,
) -> list[StoreAudit]:
    """Audits one store, or all of them. ``table``: shell patterns of ``schema.name``, default every table of the store.

    ``progress`` is called from this thread, often. Raises ConfigError (no such store or table), SourceError, StoreError, and
    WaitTimeout when a store does not get as far as the source within ``timeout_s``.
    """
    if store is not None and store not in settings.stores:
        close = difflib.get_close_matches(store, settings.stores, 1)
        known = ", ".join(settings.stores) or "none"
        raise ConfigError(f"there is no store {store!r}", hint=f"did you mean {close[0]}?" if close else f"stores: {known}")
    audits = []
    with ExitStack() as stack:
        reader = stack.enter_context(closing(open_reader(settings.log.dir)))
        connection = stack.enter_context(connect(settings.source.dsn.get_secret_value(), application="headwater-audit"))
        database = Database(connection, settings.source.publication, protection_of(settings, reader))
        for name in settings.stores if store is None else (store,):
            tables = partial(targets, settings, reader, database, name, table)
            with _opened(settings, name) as sink:
                caught_up = _caught_up(settings, reader, sink, timeout_s)
                audits.append(audit_store(database, sink, tables, caught_up, progress))
    return audits


def targets(settings: Settings, reader: LogReader, database: Database, store: str, table: str | None) -> list[Target]:
    """The store's tables, as the log knows them; published tables that the log has nothing of are among them.

    Raises ConfigError when ``table`` selects none.
    """
    patterns = settings.stores[store].tables
    # Of a table that was dropped or renamed there is nothing to compare: its rows went from the stores with it.
    gone = {name for name, kind in ended_topics(reader).items() if kind in (Kind.DROPPED, Kind.RENAMED)}
    found = {topic.name: Target(topic.table, topic.rows) for topic in reader.topics() if topic.name not in gone}
    for published in load_published(database.connection, settings.source.publication, settings.source.tables):
        if published.qualified not in found:
            found[published.qualified] = Target(database.protection.logged(published), captured=False)
    wanted = [found[name] for name in sorted(found) if matches(patterns, name) and (table is None or matches((table,), name))]
    if table is not None and not wanted:
        raise ConfigError(f"store {store!r} has no table {table!r}", hint="cdc log ls")
    return wanted


@contextmanager
def _opened(settings: Settings, name: str) -> Iterator[Sink]:
    options = settings.stores[name]
    with ExitStack() as stack:
        if options.kind in SPARK_KINDS:
            stack.enter_context(_spark(settings))
        sink = make_sink(name, options)
        stack.callback(sink.close)
        sink.open()
        yield sink


@contextmanager
def _spark(settings: Settings) -> Iterator[None]:
    """A session for stores that are read through Spark; ended here when it was made here."""
    from pyspark.sql import SparkSession

    import sinks.warehouse
    from cdc.spark import session

    ours = SparkSession.getActiveSession() is None
    scratch = settings.run_dir / "spark" / "audit"
    sinks.warehouse.use_session(lambda: session.session(app="headwater-audit", scratch=scratch))
    try:
        yield
    finally:
        if ours:
            session.stop()


def _caught_up(settings: Settings, reader: LogReader, sink: Sink, timeout_s: float) -> CaughtUp:
    def caught_up(lsn: Lsn) -> Cut:
        try:
            wait(settings, reader, sink.name, lsn=lsn, timeout_s=min(NUDGE_AFTER_S, timeout_s))
        except WaitTimeout:
            nudge(settings.source.dsn.get_secret_value())
            wait(settings, reader, sink.name, lsn=lsn, timeout_s=timeout_s)
        return sink.applied()

    return caught_up


def audit_store(
    database: Database,
    sink: Sink,
    tables: Callable[[], Sequence[Target]],
    caught_up: CaughtUp,
    progress: Report = lambda _: None,
) -> StoreAudit:
    """Audits these tables of one opened sink.

    ``tables`` is asked once the store has caught up: only then is the log sure to know every table.
    """
    started = time.monotonic()
    seed = secrets.randbits(63)
    open_tables: list[_Open] = []
    finished: dict[str, TableAudit] = {}
    with snapshot(database.connection) as lsn:
        progress(Progress(sink.name, "", "waiting"))
        applied = caught_up(lsn)
        sink.make_visible()
        wanted = tables()
        for target in wanted:
            try:
                # A savepoint: one table that cannot be read must not end the snapshot for the others.
                with database.connection.transaction():
                    open_tables.append(_compare(database, sink, target, lsn, applied, seed, progress))
            except SourceError as error:
                finished[target.table.qualified] = TableAudit(target.table.qualified, False, error.line())
    _settle(database, sink, open_tables, caught_up, seed, progress)
    finished |= {audited.target.table.qualified: audited.result() for audited in open_tables}
    results = tuple(finished[target.table.qualified] for target in wanted)
    return StoreAudit(
        store=sink.name,
        equal=all(result.equal for result in results),
        lsn=format_lsn(lsn),
        position=int(applied.position),
        seconds=time.monotonic() - started,
        tables=results,
    )


@dataclass(slots=True)
class _Open:
    """One table's audit on its way."""

    target: Target
    settling: Settling
    found: int
    """Suspects after the scan."""
    source_rows: int
    store_rows: int
    seconds: float
    lsn: Lsn
    applied: Cut
    differences: list[Difference] = field(default_factory=list)

    def result(self) -> TableAudit:
        settling = self.settling
        differ = settling.missing + settling.extra + settling.different
        error = None
        if not self.target.captured and self.source_rows:
            error = "the log has nothing of this table → restart cdc run: it loads what [source] tables selects; else leave the table out of the publication"
        return TableAudit(
            table=self.target.table.qualified,
            equal=differ == 0 and error is None,
            error=error,
            source_rows=self.source_rows,
            store_rows=self.store_rows,
            missing=settling.missing,
            extra=settling.extra,
            different=settling.different,
            unsettled=settling.open,
            in_flight=self.found - settling.open - settling.keys_differing,
            columns=dict(Counter(name for difference in self.differences for name in difference.columns)),
            differences=tuple(self.differences),
            lsn=format_lsn(self.lsn),
            position=int(self.applied.position),
            seconds=self.seconds,
            rows_per_s=max(self.source_rows, self.store_rows) / self.seconds if self.seconds else 0.0,
        )


def _compare(
    database: Database,
    sink: Sink,
    target: Target,
    lsn: Lsn,
    applied: Cut,
    seed: int,
    progress: Report,
) -> _Open:
    """Scans both sides whole: the source in a thread of its own, the store here (a Spark session wants its own thread)."""
    table = target.table
    started = time.monotonic()
    if target.captured:
        _refuse_former_shape(sink, table)
    schema, key = audit_schema(table), key_indices(table)
    rows = database.rows(table)
    store_failed = threading.Event()
    with ExitStack() as stack:
        source, store = Side(schema, key, seed), Side(schema, key, seed)
        stack.callback(source.close)
        stack.callback(store.close)
        pool = stack.enter_context(ThreadPoolExecutor(1, "audit-source"))
        stack.callback(store_failed.set)

        def tell(phase: str) -> None:
            progress(Progress(sink.name, table.qualified, phase, source.rows, store.rows, target.expected_rows))

        reading = pool.submit(_fill, source, rows.scan(lambda: not store_failed.is_set()))
        if target.captured:
            for batch in sink.scan(table):
                store.add(batch)
                tell("scanning")
        _await(reading, lambda: tell("scanning"))
        tell("comparing")
        settling = Settling(suspects(source, store))
        return _Open(target, settling, settling.open, source.rows, store.rows, time.monotonic() - started, lsn, applied)


def _refuse_former_shape(sink: Sink, table: Table) -> None:
    """A store whose policy is to ignore schema changes holds rows in a shape that the source no longer has."""
    shape = sink.shape(table.qualified)
    changes = () if shape is None else differences(shape.table, table)
    if any(change.old is None or change.new is None or change.renamed or change.retyped for change in changes):
        raise SourceError(
            f"store {sink.name} holds {table.qualified} in a former definition, which cannot be compared with the source's",
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


def _settle(
    database: Database,
    sink: Sink,
    tables: Sequence[_Open],
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
            before = [_source_look(database, audited, seed) for audited in left]
        applied = caught_up(lsn)
        sink.make_visible()
        stored = []
        for audited in left:
            progress(Progress(sink.name, audited.target.table.qualified, "settling", audited.source_rows, audited.store_rows))
            stored.append(_store_look(sink, audited, seed))
        with snapshot(database.connection):
            after = [_source_look(database, audited, seed) for audited in left]
        for audited, source, store, again in zip(left, before, stored, after, strict=True):
            audited.lsn, audited.applied = lsn, applied
            differing = audited.settling.round(source.seen, store.seen, again.seen)
            audited.differences += _explain(audited, differing, source.rows, store.rows)


@dataclass(frozen=True, slots=True)
class _Seen:
    seen: Look
    rows: Sequence[pa.RecordBatch]


def _source_look(database: Database, audited: _Open, seed: int) -> _Seen:
    return _look(audited, database.rows(audited.target.table).fetch, seed)


def _store_look(sink: Sink, audited: _Open, seed: int) -> _Seen:
    if not audited.target.captured:
        return _look(audited, lambda keys: [], seed)  # noqa: ARG005
    return _look(audited, lambda keys: [sink.fetch(audited.target.table, keys)], seed)


def _look(audited: _Open, fetch: Callable[[pa.RecordBatch], list[pa.RecordBatch]], seed: int) -> _Seen:
    table = audited.target.table
    looks, rows = [], []
    for start in range(0, audited.settling.open, FETCH_KEYS):
        keys = audited.settling.keys.slice(start, FETCH_KEYS)
        found = fetch(keys)
        looks.append(look(keys, found, key_indices(table), len(table.columns), seed))
        rows += found
    return _Seen(joined(looks), rows)


def _explain(
    audited: _Open, differing: Differing, source: Sequence[pa.RecordBatch], store: Sequence[pa.RecordBatch]
) -> Iterator[Difference]:
    """The first differing keys in words, up to ``LISTED_KEYS`` of the table."""
    table = audited.target.table
    room = LISTED_KEYS - len(audited.differences)
    for index, key in enumerate(differing.keys.slice(0, max(room, 0)).to_pylist()):
        kind = differing.kind(index)
        columns: tuple[str, ...] = ()
        if kind == "different":
            ours, theirs = _row(table, source, key), _row(table, store, key)
            columns = tuple(name for name in table.names if ours.get(name) != theirs.get(name))
        yield Difference(kind, key, columns)


def _row(table: Table, batches: Sequence[pa.RecordBatch], key: Mapping[str, str | None]) -> dict[str, str | None]:
    names = [table.names[i] for i in key_indices(table)]
    for batch in batches:
        mask = np.ones(batch.num_rows, np.bool_)
        for name in names:
            column = batch.column(table.names.index(name))
            value = key[name]
            same = column.is_null() if value is None else pc.equal(column, value).fill_null(False)
            mask &= same.to_numpy(zero_copy_only=False)
        at = np.flatnonzero(mask)
        if at.size:
            row: dict[str, str | None] = batch.slice(int(at[0]), 1).to_pylist()[0]
            return row
    return {}
