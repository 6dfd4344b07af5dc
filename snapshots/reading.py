"""One worker's connection: reads a job's tasks, each in a transaction of its own, and sends their rows into the stream in parts.

While the rows come in, other threads type them and emit the watermarks, so that the next part is read while the ones before wait for
theirs to come back; at most ``IN_FLIGHT`` parts of a worker are in memory.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Event
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import structlog
from psycopg import pq

from cdc.crashpoint import crashpoint
from cdc.model.batch import EXACT, Op
from cdc.model.pgtypes import canonical_text
from cdc.source.pins import read_pins
from snapshots.catalog import SourceTable, look
from snapshots.copy import Abandoned, Block, copy_blocks, read_rows
from snapshots.feed import PREFIX, Chunk, SnapshotFeed, State
from snapshots.fence import Snapshot, Window
from snapshots.jobs import Board, Job, Task
from snapshots.plan import Key, KeyList, lock
from snapshots.session import Unreachable
from snapshots.throttle import Throttle

IN_FLIGHT: Final = 3
PART_BYTES: Final = 8 * 2**20
"""A part is held in memory until its watermark has come back; wide rows make it shorter than the configured number of rows."""
HELD_KEYS: Final = 5_000
"""Held rows that are read back at once."""
LOCKED_S: Final = 5.0
"""So long a table stays locked (ACCESS SHARE: against DDL, behind which everybody would wait) while the log takes nothing."""
_RETRY_S: Final = (0.01, 1.0)
_WAIT_S: Final = 0.5
_ARRIVED: Final = frozenset({State.ENTERED, State.DURABLE, State.REFUSED})
_SAFE: Final = frozenset({State.DURABLE, State.REFUSED})

log = structlog.get_logger(__name__)


class Again(Exception):
    """A part was refused at its watermark, or its table has changed: the job has to be made anew from what is durable."""


class Emitter:
    """Writes watermarks. Thread-safe, as psycopg's connections are."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._run = secrets.token_hex(8)
        self._numbers = count(1)

    def content(self) -> bytes:
        """Of a watermark that nobody else has."""
        return f"chunk:{self._run}:{next(self._numbers)}".encode()

    def emit(self, content: bytes) -> None:
        self._connection.execute("select pg_logical_emit_message(true, %s, %b)", (PREFIX, content))


@dataclass(slots=True, eq=False)
class _Reading:
    """A task of which parts may still be on their way."""

    task: Task
    window: Window
    rows: int = 0
    left: int = 0
    """Parts that are not durable yet."""
    whole: bool = False
    """No more parts come."""


@dataclass(slots=True, eq=False)
class _Part:
    reading: _Reading
    chunk: Chunk
    emitted: Future[None]


class Reader:
    """See the module's text. One thread uses it."""

    def __init__(
        self,
        opening: Callable[[], psycopg.Connection],
        emitter: Emitter,
        feed: SnapshotFeed,
        board: Board,
        pool: ThreadPoolExecutor,
        throttle: Throttle,
        chunk_rows: int,
        stop: Event,
    ) -> None:
        self._opening = opening
        self._connection = opening()
        self._copying = False
        """The connection is in the middle of a COPY's reply."""
        self._emitter = emitter
        self._feed = feed
        self._board = board
        self._pool = pool
        self._throttle = throttle
        self._chunk_rows = chunk_rows
        self._stop = stop
        self._pending: deque[_Part] = deque()

    def read(self, job: Job) -> None:
        """The job's tasks, as long as there are any. Everything is durable and told to the job's purpose when it returns. Raises Again."""
        self._read_all(job, iter(lambda: self._board.claim(job), None))

    def finish(self, job: Job) -> None:
        """Rows that are held and lie in no part that is still to come are read back by their keys; then the job ends. Raises Again."""
        oid = job.source.table.oid
        while True:
            self._read_all(job, self._held(job.source))
            if job.purpose.finish():
                return
            if not self._feed.held(oid):
                raise Again

    def _held(self, source: SourceTable) -> Iterator[Task]:
        """Their key was changed to one on a page that had been read already."""
        while (held := self._feed.held_keys(source.table.oid, HELD_KEYS)) is not None:
            yield Task(((KeyList(_key_texts(held, source)), Op.READ),))
            self._drain()

    def _read_all(self, job: Job, tasks: Iterator[Task]) -> None:
        self._job = job
        try:
            for task in tasks:
                self._throttle.wait(self._stop)
                self._read(task)
            self._drain()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise Again from None
        finally:
            for part in self._pending:
                self._feed.abandon(part.chunk)
            self._pending.clear()

    # --- visibility ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _window(self, source: SourceTable) -> Iterator[Window]:
        """A transaction whose snapshot sees everything that the stream had delivered, and the window that belongs to it.

        The window is left open for the parts in it; it is closed when this fails.
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
                    self._connection.execute("COMMIT")
                    return
                self._connection.execute("ROLLBACK")
                self._exclude_idle(snapshot)
            except BaseException as error:
                self._feed.close(window)
                self._leave(error)
                raise
            self._stop.wait(wait_s)
            if wait_s < _RETRY_S[1] <= wait_s * 2:
                oldest = read_pins(self._connection, least_s=0, most=1)
                log.info(
                    "a chunk waits until what the stream has delivered is visible",
                    table=source.name,
                    oldest=[str(p) for p in oldest],
                )
            wait_s = min(wait_s * 2, _RETRY_S[1])

    def _leave(self, error: BaseException) -> None:
        """Ends the transaction in which ``error`` came up."""
        if self._copying:
            self._copying = False
            self._connection.close()
            self._connection = self._opening()
        elif isinstance(error, Again | psycopg.Error) and not isinstance(error, psycopg.OperationalError):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def _begin(self, source: SourceTable) -> Snapshot:
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._connection.execute(lock(source))
        seen = look(self._connection, source.table.oid)
        if (seen.facts, seen.files) != (self._job.look.facts, self._job.look.files):
            raise Again
        return Snapshot.parse(seen.snapshot)

    def _exclude_idle(self, snapshot: Snapshot) -> None:
        """Who is idle inside a transaction now has not committed before we began, so no earlier process was delivered it."""
        if not len(self._feed.barrier_suspects()):
            return
        rows = self._connection.execute(
            "select backend_xid::text::int8 from pg_stat_activity where state like 'idle in transaction%' and backend_xid is not null"
        ).fetchall()
        self._feed.exclude(snapshot.widen(np.array([row[0] for row in rows], np.int64).astype(np.uint32)))

    # --- reading ---------------------------------------------------------------------------------------------------------------

    def _read(self, task: Task) -> None:
        source = self._job.source
        with self._window(source) as window:
            reading = _Reading(task, window)
            for part, op in task.reads:
                blocks = copy_blocks(self._connection, part.query(source), self._stop, self._chunk_rows)
                self._send(reading, blocks, partial(read_rows, table=source.table, kind=op))
            if task.pages is None and not reading.left:
                # Rows that are gone: their deletes are in the stream before the watermark.
                self._emit(reading, (), 0)
        crashpoint("snapshot.chunk.read")
        reading.whole = True
        if reading.left == 0:
            self._complete(reading)

    def _send(self, reading: _Reading, blocks: Iterator[Block], typing: Callable[[Block], pa.RecordBatch]) -> None:
        """The rows in parts, each as soon as it is whole."""
        typed: list[Future[pa.RecordBatch]] = []
        rows = size_bytes = 0
        for block in self._blocks(blocks):
            if typed and (rows + block.rows > self._chunk_rows or size_bytes >= PART_BYTES):
                self._emit(reading, typed, rows)
                typed, rows, size_bytes = [], 0, 0
            typed.append(self._pool.submit(typing, block))
            rows += block.rows
            size_bytes += len(block.data)
            owed_s = self._throttle.owed_s(block.rows)
            if owed_s and self._stop.wait(owed_s):
                raise Abandoned
        if typed:
            self._emit(reading, typed, rows)

    def _blocks(self, blocks: Iterator[Block]) -> Iterator[Block]:
        self._copying = True
        try:
            yield from blocks
            self._copying = False
        except psycopg.Error:
            # The server has answered to the end, or is gone.
            self._copying = False
            raise

    def _emit(self, reading: _Reading, typed: Sequence[Future[pa.RecordBatch]], rows: int) -> None:
        self._collect(IN_FLIGHT - 1)
        chunk = Chunk(self._emitter.content(), reading.window)
        self._pending.append(_Part(reading, chunk, self._pool.submit(self._ready, chunk, typed)))
        reading.left += 1
        reading.rows += rows

    def _ready(self, chunk: Chunk, typed: Sequence[Future[pa.RecordBatch]]) -> None:
        """In the pool, after the part's blocks."""
        self._feed.ready(chunk, [future.result() for future in typed])
        crashpoint("snapshot.chunk.ready")
        self._emitter.emit(chunk.content)
        crashpoint("snapshot.watermark.emitted")

    # --- what is on its way ----------------------------------------------------------------------------------------------------

    def _collect(self, most: int) -> None:
        """Until at most so many parts have not entered; tells of those that are durable."""
        while self._pending and self._pending[0].chunk.state in _SAFE:
            self._record(self._pending.popleft())
        waiting = [part for part in self._pending if part.chunk.state not in _ARRIVED]
        for part in waiting[: max(0, len(waiting) - most)]:
            self._await(part, _ARRIVED)
        if any(part.chunk.state is State.REFUSED for part in self._pending):
            raise Again
        if self._job.over or self._job.source.table.oid in self._feed.to_read_again():
            raise Again

    def _drain(self) -> None:
        """Until everything is durable."""
        self._collect(0)
        while self._pending:
            self._await(self._pending[0], _SAFE)
            self._record(self._pending.popleft())

    def _await(self, part: _Part, states: frozenset[State]) -> None:
        part.emitted.result()
        began = time.monotonic()
        while not self._feed.wait(part.chunk, states, _WAIT_S):
            self._go_on()
            locks = self._connection.info.transaction_status != pq.TransactionStatus.IDLE
            if locks and time.monotonic() - began > LOCKED_S:
                raise Unreachable(f"the log takes nothing, so table {self._job.source.name} is let go")

    def _record(self, part: _Part) -> None:
        if part.chunk.state is State.REFUSED:
            raise Again
        reading = part.reading
        reading.left -= 1
        self._job.purpose.show(part.chunk.rows)
        if reading.whole and reading.left == 0:
            self._complete(reading)

    def _complete(self, reading: _Reading) -> None:
        self._feed.close(reading.window)
        crashpoint("snapshot.chunk.before_record")
        self._job.purpose.advance(reading.task, reading.rows)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Abandoned


def _key_texts(held: pa.RecordBatch, source: SourceTable) -> list[Key]:
    """The held rows' keys as text, in the index's order."""
    columns = [canonical_text(held.column(name)).to_pylist() for name in source.index]
    exact = held.column(EXACT).to_pylist()
    keys = []
    for row, texts in enumerate(zip(*columns, strict=True)):
        instead = dict(exact[row] or ())
        keys.append(tuple(instead.get(name, text) for name, text in zip(source.index, texts, strict=True)))
    return keys
