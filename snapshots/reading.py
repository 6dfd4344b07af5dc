"""One worker's connection: reads a job's tasks, each in a transaction of its own, and sends their rows into the stream in parts.

While the rows come in, other threads type them and emit the watermarks, so that the next part is read while the ones before wait for
theirs to come back; at most ``IN_FLIGHT`` parts of a worker are in memory.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
from cdc.kernels.memory import Reused
from cdc.pgvalues.binary import readable
from cdc.source.pins import read_pins
from snapshots.catalog import SourceTable, look
from snapshots.copy import Abandoned, Block, copy_blocks, read_rows
from snapshots.failures import ends_connection
from snapshots.feed import PREFIX, Chunk, SnapshotFeed, State
from snapshots.fence import Snapshot, Window
from snapshots.flight import ARRIVED, IN_FLIGHT, SAFE, Again, Flight, Part, Reading
from snapshots.jobs import Board, Job, Task
from snapshots.locks import LockedOut, Locks
from snapshots.plan import MissingKeys, lock
from snapshots.session import Unreachable
from snapshots.throttle import Throttle

PART_BYTES: Final = 8 * 2**20
"""A part is held in memory until its watermark has come back; wide rows make it shorter than the configured number of rows."""
MEMORY_BYTES: Final = 64 * 2**20
"""So much of each size is kept for the next blocks while a worker reads: about what its parts on their way hold."""
HELD_KEYS: Final = 5_000
"""Held rows that are read back at once."""
LOCKED_S: Final = 5.0
"""So long a table stays locked (ACCESS SHARE: against DDL, behind which everybody would wait) while the log takes nothing."""
_LOCK_TIMEOUT: Final = "200ms"
_RETRY_S: Final = (0.01, 1.0)
_WAIT_S: Final = 0.5

log = structlog.get_logger("snapshot")


class Emitter:
    """Writes watermarks. Thread-safe, as psycopg's connections are."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._run = secrets.token_hex(8)
        self._numbers = count(1)

    def content(self) -> bytes:
        """The content of a watermark that nobody else has."""
        return f"chunk:{self._run}:{next(self._numbers)}".encode()

    def emit(self, content: bytes) -> None:
        self._connection.execute("select pg_logical_emit_message(true, %s, %b)", (PREFIX, content))


class Reader:
    """See the module's text. One thread uses it."""

    def __init__(
        self,
        opening: Callable[[], psycopg.Connection],
        emitter: Emitter,
        feed: SnapshotFeed,
        board: Board,
        typists: ThreadPoolExecutor,
        emitters: ThreadPoolExecutor,
        throttle: Throttle,
        chunk_rows: int,
        stop: Event,
        locks: Locks,
    ) -> None:
        self._opening = opening
        self._connection = opening()
        self._copying = False
        """The connection is in the middle of a COPY's reply."""
        self._emitter = emitter
        self._feed = feed
        self._board = board
        self._typists = typists
        self._emitters = emitters
        self._throttle = throttle
        self._chunk_rows = chunk_rows
        self._memory = Reused(MEMORY_BYTES)
        self._stop = stop
        self._locks = locks

    def read(self, job: Job) -> None:
        """The job's tasks, as long as there are any. Everything is durable and reported to the job's purpose when it returns. Raises Again."""
        self._read_all(job, iter(lambda: self._board.claim(job), None))

    def finish(self, job: Job) -> None:
        """Rows that are held and lie in no part that is still to come are read back by their keys; then the job ends. Raises Again."""
        flight: Flight[Future[None]] = Flight(self._feed, job)
        while True:
            self._read_all(job, flight.held(HELD_KEYS))
            if flight.finished():
                return

    def _read_all(self, job: Job, tasks: Iterator[Task | None]) -> None:
        """A task that is None: until everything is durable."""
        self._job = job
        self._flight: Flight[Future[None]] = Flight(self._feed, job)
        try:
            for task in tasks:
                if task is None:
                    self._drain()
                else:
                    self._throttle.wait(self._stop)
                    self._read(task)
            self._drain()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise Again from None
        except LockedOut:
            self._drain()  # a table that is locked again and again would otherwise never be read
            raise
        finally:
            self._flight.give_up()

    # --- visibility ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _window(self, source: SourceTable) -> Iterator[Window]:
        """A transaction whose snapshot sees everything that the stream had delivered, and the window that belongs to it.

        The window is left open for the parts in it; it is closed when this fails. Raises LockedOut.
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
        elif isinstance(error, Again) or (isinstance(error, psycopg.Error) and not ends_connection(error)):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def _begin(self, source: SourceTable) -> Snapshot:
        """Raises LockedOut where somebody keeps the table, or one of its partitions, locked: who waits for one while holding others may be
        waited for, and the server would end the other one after deadlock_timeout (1 s)."""
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self._connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'; {lock(source)}; SET LOCAL lock_timeout = 0")
        except psycopg.errors.LockNotAvailable:
            raise self._locks.refused(source) from None
        self._locks.had(source)
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
            reading = Reading(task, window)
            for part, op in task.reads:
                take = self._memory.take
                binary = not isinstance(part, MissingKeys) and readable(source.table)
                query = part.query(source) if isinstance(part, MissingKeys) else part.query(source, binary=binary)
                blocks = copy_blocks(self._connection, query, self._stop, self._chunk_rows, take, binary=binary)
                self._send(reading, blocks, partial(read_rows, table=source.table, kind=op, take=take))
            if not reading.rows:
                # The deletes of rows that are gone are in the stream before the watermark, and on the server's disk with it: they were
                # perhaps seen before they were safe, and a crash of the server would bring the rows back.
                self._emit(reading, (), 0)
        crashpoint("snapshot.chunk.read")
        self._flight.whole(reading)

    def _send(self, reading: Reading, blocks: Iterator[Block], typing: Callable[[Block], pa.RecordBatch]) -> None:
        """The rows in parts, each as soon as it is whole."""
        typed: list[Future[pa.RecordBatch]] = []
        rows = size_bytes = 0
        for block in self._blocks(blocks):
            if typed and (rows + block.rows > self._chunk_rows or size_bytes >= PART_BYTES):
                self._emit(reading, typed, rows)
                typed, rows, size_bytes = [], 0, 0
            typed.append(self._typists.submit(typing, block))
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

    def _emit(self, reading: Reading, typed: Sequence[Future[pa.RecordBatch]], rows: int) -> None:
        self._collect(IN_FLIGHT - 1)
        chunk = Chunk(self._emitter.content(), reading.window)
        self._flight.add(reading, chunk, self._emitters.submit(self._ready, chunk, typed), rows)

    def _ready(self, chunk: Chunk, typed: Sequence[Future[pa.RecordBatch]]) -> None:
        """By a thread that types nothing: the server syncs its WAL before it answers, and the next part's blocks wait."""
        self._feed.ready(chunk, [future.result() for future in typed])
        crashpoint("snapshot.chunk.ready")
        self._emitter.emit(chunk.content)
        crashpoint("snapshot.watermark.emitted")

    # --- what is on its way ----------------------------------------------------------------------------------------------------

    def _collect(self, most: int) -> None:
        """Until at most so many parts have not entered."""
        while (part := self._flight.late(most)) is not None:
            self._await(part, ARRIVED)

    def _drain(self) -> None:
        """Until everything is durable."""
        self._collect(0)
        while (part := self._flight.unsafe()) is not None:
            self._await(part, SAFE)

    def _await(self, part: Part[Future[None]], states: frozenset[State]) -> None:
        part.emitted.result()
        began = time.monotonic()
        while not self._feed.wait(part.chunk, states, _WAIT_S):
            self._go_on()
            locks = self._connection.info.transaction_status != pq.TransactionStatus.IDLE
            if locks and time.monotonic() - began > LOCKED_S:
                raise Unreachable(f"the log takes nothing, so table {self._job.source.name} is let go")

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Abandoned
