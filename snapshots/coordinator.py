"""The thread that reads the tables while the stream goes on: chunk by chunk, each in a transaction of its own.

Two connections: one reads, the other emits the watermarks. A second thread types the blocks and emits, so that the next chunk is
read while this one waits for its watermark to come back in the stream; at most ``IN_FLIGHT`` chunks are in memory.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, Protocol

import numpy as np
import psycopg
import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, SourceError
from cdc.model.batch import EXACT
from cdc.model.pgtypes import canonical_text
from cdc.source.connection import connect, reason
from snapshots.catalog import SourceTable, load_tables, reload_table, take_snapshot
from snapshots.copy import Abandoned, copy_blocks, read_rows
from snapshots.feed import PREFIX, Chunk, SnapshotFeed, State
from snapshots.fence import Barrier, Snapshot, Window
from snapshots.plan import Boundary, KeyList, KeyRange, Range, first_rows, fitting_rows, lock, page_ranges
from snapshots.progress import SnapshotProgress

IN_FLIGHT: Final = 2
HELD_KEYS: Final = 5_000
"""Held rows that are read back at once."""
MOST_REFUSALS: Final = 50
"""In a row, for one table: the stream and the catalog then disagree about it for good."""
_RETRY_S: Final = (0.01, 1.0)
_RECONNECT_S: Final = (0.1, 5.0)
_WAIT_S: Final = 0.5
_ARRIVED: Final = frozenset({State.ENTERED, State.DURABLE, State.REFUSED})
_SAFE: Final = frozenset({State.DURABLE, State.REFUSED})

_SESSION: Final = {
    "synchronous_commit": "local",
    "row_security": "off",
    "default_transaction_read_only": "off",
    "idle_session_timeout": "0",
    # The order of the key's index, whatever the planner thinks of it: a sort would read the whole table for every chunk.
    "enable_sort": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}

log = structlog.get_logger(__name__)


class Secret(Protocol):
    def get_secret_value(self) -> str: ...


class Selection(Protocol):
    """What of ``[source]`` the snapshot needs (``cdc.settings.Source`` is one)."""

    @property
    def dsn(self) -> Secret: ...
    @property
    def tables(self) -> Sequence[str]: ...
    @property
    def publication(self) -> str: ...
    @property
    def snapshot_chunk_rows(self) -> int: ...


class _ReadAgain(Exception):
    """A chunk was refused at its watermark, or its table has changed: back to the last durable chunk."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A chunk that has been received; the worker is typing its blocks."""

    chunk: Chunk
    typed: Sequence[Future[pa.RecordBatch]]
    rows: int
    bytes: int
    last: list[str | None] | None
    """The last row's fields."""


@dataclass(slots=True)
class _Pending:
    """A chunk that has been read, until it is durable."""

    chunk: Chunk
    after: Boundary | None
    emitted: Future[None]


class SnapshotCoordinator:
    """Brings every selected table that is not finished into the stream; ``start`` once the slot and the publication exist.

    Errors that waiting cannot mend reach ingest through the feed. A lost connection is made anew.
    """

    def __init__(
        self, source: Selection, feed: SnapshotFeed, progress: SnapshotProgress, stop: Event, *, log_has_begun: bool = True
    ) -> None:
        """``log_has_begun``: an earlier process may have been delivered transactions that are not visible yet."""
        self._source = source
        self._feed = feed
        self._progress = progress
        self._stop = stop
        self._log_has_begun = log_has_begun
        self._needs_barrier = log_has_begun
        self._run = secrets.token_hex(8)
        self._chunks = 0
        self._done = False
        self._thread = Thread(target=self._live, name="snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """After ``stop`` was set."""
        self._thread.join(timeout_s)

    @property
    def finished(self) -> bool:
        """Every selected table is in the log."""
        return self._done and not self._feed.to_read_again()

    # --- life ----------------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        pause = _RECONNECT_S[0]
        while not self._stop.is_set():
            try:
                self._session()
            except Abandoned:
                return
            except ConfigError as error:
                self._feed.fail(error)
                return
            except (psycopg.OperationalError, _Unreachable) as error:
                text = str(error) if isinstance(error, _Unreachable) else reason(error)
                log.warning("snapshot waits for the source", reason=text, again_in_s=pause)
                self._stop.wait(pause)
                pause = min(pause * 2, _RECONNECT_S[1])
            except psycopg.Error as error:
                self._feed.fail(SourceError(f"the snapshot cannot go on: {reason(error)}", hint="cdc doctor"))
                return
            except Exception as error:
                self._feed.fail(error)
                return

    def _session(self) -> None:
        with self._connections() as (reading, emitting), ThreadPoolExecutor(1, thread_name_prefix="snapshot-parse") as worker:
            _Session(self, reading, emitting, worker).run()

    @contextmanager
    def _connections(self) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
        reading = self._connect()
        try:
            emitting = self._connect()
            try:
                yield reading, emitting
            finally:
                emitting.close()
        finally:
            reading.close()

    def _connect(self) -> psycopg.Connection:
        try:
            connection = connect(self._source.dsn.get_secret_value(), application="headwater snapshot")
        except ConfigError:
            raise
        except SourceError as error:
            raise _Unreachable(str(error)) from None
        newest = {"transaction_timeout": "0"} if connection.info.server_version >= 170_000 else {}
        for name, value in {**_SESSION, **newest}.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        return connection


class _Unreachable(Exception):
    """No connection now; maybe later."""


class _Session:
    """One life of the two connections."""

    def __init__(
        self,
        owner: SnapshotCoordinator,
        reading: psycopg.Connection,
        emitting: psycopg.Connection,
        worker: ThreadPoolExecutor,
    ) -> None:
        self._owner = owner
        self._source = owner._source
        self._feed = owner._feed
        self._progress = owner._progress
        self._stop = owner._stop
        self._reading = reading
        self._emitting = emitting
        self._worker = worker
        self._refusals = 0
        self._fingerprint = ""

    def run(self) -> None:
        tables = load_tables(self._reading, self._source.tables, self._source.publication)
        self._feed.track()
        if self._owner._needs_barrier:
            self._feed.set_barrier(self._barrier())
            crashpoint("snapshot.barrier_set")
            self._owner._needs_barrier = False
        for source in tables:
            if self._owner._log_has_begun and not self._progress.known(source.table.oid):
                self._progress.restart(source.table.oid)
            self._progress.begin(source)
            crashpoint("snapshot.table.begun")
        for source in tables:
            if not self._progress.finished(source.table.oid):
                self._complete(source.table.oid)
        self._idle()

    def _idle(self) -> None:
        """Everything is in the log. Rows that capture has to hold back even now are read back."""
        while True:
            if not self._feed.held_tables() and not self._feed.to_read_again():
                self._feed.untrack()
                self._owner._done = True
                # What was delivered from here on is not remembered.
                self._owner._needs_barrier = True
                self._feed.wait_for_holds(_WAIT_S)
            self._go_on()
            again = {*self._feed.held_tables(), *self._feed.to_read_again()}
            if again:
                self._owner._done = False
                self._feed.track()
                if self._owner._needs_barrier:
                    self._feed.set_barrier(self._barrier())
                    self._owner._needs_barrier = False
            for oid in again:
                self._complete(oid)

    def _complete(self, oid: int) -> None:
        """Returns when the table's snapshot is finished, or the table is gone."""
        while True:
            source = reload_table(self._reading, oid, self._source.publication)
            if source is None:
                log.warning("a table went away before its snapshot was finished", table_oid=oid)
                self._feed.drop_holds(oid)
                self._progress.forget(oid)
                return
            try:
                if oid in self._feed.to_read_again():
                    self._feed.reading_again(oid)
                if self._progress.joining(oid):
                    self._await_open_transactions(source)
                    self._progress.joined(oid)
                if self._progress.empties(oid):
                    self._empty(source)
                if not self._progress.finished(oid):
                    self._read_table(source)
                while self._feed.held(oid):
                    self._read_back(source)
            except _ReadAgain:
                self._count_refusal(source)
                continue
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                continue
            if self._feed.finish(oid):
                return

    def _count_refusal(self, source: SourceTable) -> None:
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            raise SourceError(
                f"table {source.name} keeps changing its shape while it is read",
                hint="stop its schema changes until the snapshot is done",
            )
        self._stop.wait(min(0.01 * self._refusals, 1.0))

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Abandoned

    # --- visibility ------------------------------------------------------------------------------------------------------------

    def _barrier(self) -> Barrier:
        snapshot = self._snapshot()
        row = self._emitting.execute("select pg_current_xact_id()::text").fetchone()
        assert row is not None
        return Barrier(snapshot, int(row[0]))

    def _snapshot(self) -> Snapshot:
        row = self._reading.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        return Snapshot.parse(row[0])

    def _await_open_transactions(self, source: SourceTable) -> None:
        """A table that has just joined the publication: what was changed in transactions open at that moment is not streamed."""
        barrier = self._barrier()
        told = False
        while not barrier.passed_by(self._snapshot()):
            if not told:
                log.info("waits for transactions that were open when the table was published", table=source.name)
                told = True
            self._go_on()
            self._stop.wait(_WAIT_S / 5)

    def _exclude_idle(self, snapshot: Snapshot) -> None:
        """Who is idle inside a transaction now has not committed before we began, so no earlier process was delivered it."""
        if not len(self._feed.barrier_suspects()):
            return
        rows = self._reading.execute(
            "select backend_xid::text::int8 from pg_stat_activity where state like 'idle in transaction%' and backend_xid is not null"
        ).fetchall()
        self._feed.exclude(snapshot.widen(np.array([row[0] for row in rows], np.int64).astype(np.uint32)))

    @contextmanager
    def _window(self, source: SourceTable) -> Iterator[Window]:
        """A transaction whose snapshot sees everything that the stream had delivered, and the window that belongs to it.

        The window is left open for the chunks in it; it is closed when this fails.
        """
        wait_s = _RETRY_S[0]
        while True:
            self._go_on()
            window = self._feed.open(source.table)
            try:
                snapshot = self._begin(source)
                crashpoint("snapshot.window.opened")
                if self._feed.admit(window, snapshot):
                    yield window
                    self._reading.execute("COMMIT")
                    return
                self._reading.execute("ROLLBACK")
                self._exclude_idle(snapshot)
            except BaseException as error:
                self._feed.close(window)
                if isinstance(error, _ReadAgain | psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
                    self._reading.execute("ROLLBACK")
                raise
            self._stop.wait(wait_s)
            if wait_s < _RETRY_S[1] <= wait_s * 2:
                log.info("a chunk waits until what the stream has delivered is visible", table=source.name)
            wait_s = min(wait_s * 2, _RETRY_S[1])

    def _begin(self, source: SourceTable) -> Snapshot:
        self._reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._reading.execute(lock(source))
        text, fingerprint = take_snapshot(self._reading, source.table.oid)
        if fingerprint != self._fingerprint:
            current = reload_table(self._reading, source.table.oid, self._source.publication)
            if current is None or current.shape != source.shape:
                raise _ReadAgain
            self._fingerprint = fingerprint
        return Snapshot.parse(text)

    # --- reading ---------------------------------------------------------------------------------------------------------------

    def _empty(self, source: SourceTable) -> None:
        """Every chunk's window opens after the log says that the table is empty: what moves among its pages meanwhile comes in neither."""
        self._owner._chunks += 1
        content = f"chunk:{self._owner._run}:{self._owner._chunks}".encode()
        chunk = Chunk(content, self._feed.open(source.table), shared=False, empties=True)
        with self._pipeline(source) as pending:
            pending.append(_Pending(chunk, None, self._worker.submit(self._ready, chunk, ())))
        self._progress.emptied(source.table.oid)

    def _read_table(self, source: SourceTable) -> None:
        self._fingerprint = ""
        record = self._progress.begin(source)
        if source.index:
            self._read_by_key(source, record.after)
        else:
            self._progress.restart(source.table.oid)
            self._read_by_page(source)

    def _read_by_key(self, source: SourceTable, after: Boundary | None) -> None:
        rows = first_rows(source, self._source.snapshot_chunk_rows)
        with self._pipeline(source) as pending:
            more = True
            while more:
                with self._window(source) as window:
                    read = self._read(source, window, KeyRange(after, rows), shared=False)
                more = read.rows == rows
                after = after if read.last is None else _boundary(source, read.last)
                pending.append(self._emit(read, after))
                rows = fitting_rows(read.bytes, read.rows, self._source.snapshot_chunk_rows)
                self._catch_up(source, pending, IN_FLIGHT)

    def _read_by_page(self, source: SourceTable) -> None:
        with self._pipeline(source) as pending, self._window(source) as window:
            for pages in page_ranges(source, self._source.snapshot_chunk_rows):
                pending.append(self._emit(self._read(source, window, pages, shared=True), None))
                self._catch_up(source, pending, IN_FLIGHT)
            self._catch_up(source, pending, 0)
            self._feed.close(window)

    def _read_back(self, source: SourceTable) -> None:
        """Rows that are held and lie in no chunk that is still to come: their key was changed to one that had been read already."""
        self._fingerprint = ""
        held = self._feed.held_keys(source.table.oid, HELD_KEYS)
        if held is None:
            return
        with self._pipeline(source) as pending:
            with self._window(source) as window:
                read = self._read(source, window, KeyList(_key_texts(held, source)), shared=False)
            pending.append(self._emit(read, None))

    def _read(self, source: SourceTable, window: Window, part: Range, *, shared: bool) -> _Reading:
        self._owner._chunks += 1
        chunk = Chunk(f"chunk:{self._owner._run}:{self._owner._chunks}".encode(), window, shared)
        typed: list[Future[pa.RecordBatch]] = []
        size_bytes, rows, last = 0, 0, None
        for block in copy_blocks(self._reading, part.query(source), self._stop):
            size_bytes += len(block.data)
            rows += block.rows
            last = block.last_row()
            typed.append(self._worker.submit(read_rows, block, source.table))
        crashpoint("snapshot.chunk.read")
        return _Reading(chunk, typed, rows, size_bytes, last)

    def _emit(self, read: _Reading, after: Boundary | None) -> _Pending:
        return _Pending(read.chunk, after, self._worker.submit(self._ready, read.chunk, read.typed))

    def _ready(self, chunk: Chunk, typed: Sequence[Future[pa.RecordBatch]]) -> None:
        """On the worker, after the chunk's blocks."""
        self._feed.ready(chunk, [future.result() for future in typed])
        crashpoint("snapshot.chunk.ready")
        self._emitting.execute("select pg_logical_emit_message(true, %s, %b)", (PREFIX, chunk.content))
        crashpoint("snapshot.watermark.emitted")

    # --- pipeline --------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _pipeline(self, source: SourceTable) -> Iterator[deque[_Pending]]:
        """Chunks in order; at the end all of them are durable and recorded, or, when something fails, given up."""
        pending: deque[_Pending] = deque()
        try:
            yield pending
            self._catch_up(source, pending, 0)
            while pending:
                self._await(pending[0], _SAFE)
                self._record(source, pending.popleft())
        finally:
            for left in pending:
                self._feed.abandon(left.chunk)

    def _catch_up(self, source: SourceTable, pending: deque[_Pending], most: int) -> None:
        """Until at most so many chunks have not entered; records the durable ones."""
        while pending and pending[0].chunk.state is State.DURABLE:
            self._record(source, pending.popleft())
        waiting = [one for one in pending if one.chunk.state not in _ARRIVED]
        for one in waiting[: len(waiting) - most + 1 if most else len(waiting)]:
            self._await(one, _ARRIVED)
        if any(one.chunk.state is State.REFUSED for one in pending):
            raise _ReadAgain
        if source.table.oid in self._feed.to_read_again():
            raise _ReadAgain

    def _await(self, one: _Pending, states: frozenset[State]) -> None:
        one.emitted.result()
        while not self._feed.wait(one.chunk, states, _WAIT_S):
            self._go_on()

    def _record(self, source: SourceTable, one: _Pending) -> None:
        if one.chunk.state is State.REFUSED:
            raise _ReadAgain
        self._refusals = 0
        oid = source.table.oid
        crashpoint("snapshot.chunk.before_record")
        self._progress.advance(oid, one.chunk.rows, one.after, waiting=self._feed.held(oid))


def _boundary(source: SourceTable, last: list[str | None]) -> Boundary:
    texts = dict(zip(source.table.names, last, strict=True))
    return tuple(texts[name] or "" for name in source.index)


def _key_texts(held: pa.RecordBatch, source: SourceTable) -> list[Boundary]:
    """The held rows' keys as text, in the index's order."""
    columns = [canonical_text(held.column(name)).to_pylist() for name in source.index]
    exact = held.column(EXACT).to_pylist()
    keys = []
    for row, texts in enumerate(zip(*columns, strict=True)):
        instead = dict(exact[row] or ())
        keys.append(tuple(instead.get(name, text) for name, text in zip(source.index, texts, strict=True)))
    return keys
