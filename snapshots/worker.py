"""The steps of one worker: it reads a job's tasks, each in a transaction of its own, and sends their rows into the stream in parts.

While the rows come in, others type them and emit the watermarks (``hand_over``), so that the next part is read while the ones before wait for
theirs to come back; at most ``IN_FLIGHT`` parts of a worker are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import numpy as np
import psycopg
import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.model.batch import Op
from snapshots.catalog import Look
from snapshots.failures import ends_connection
from snapshots.feed import Chunk, SnapshotFeed, State, Watermarks
from snapshots.fence import Snapshot
from snapshots.flight import ARRIVED, IN_FLIGHT, SAFE, Again, Flight, Part, Reading
from snapshots.jobs import Board, Job, Task
from snapshots.locks import Locks
from snapshots.plan import Key, KeyList, MissingKeys, Range
from snapshots.queries import Begin, End, IdleXids, KeyTypes, OldestTransaction
from snapshots.session import Unreachable
from snapshots.steps import (
    Await,
    Copy,
    Emit,
    Finished,
    NextBlock,
    NextJob,
    NextKeys,
    Pause,
    Rollback,
    RowsRead,
    Start,
    Started,
    Steps,
    Typed,
    Unread,
)
from snapshots.throttle import Throttle

PART_BYTES: Final = 8 * 2**20
"""A part is held in memory until its watermark has come back; wide rows make it shorter than the configured number of rows."""
HELD_KEYS: Final = 5_000
"""Held rows that are read back at once, at most."""
LOCKED_S: Final = 5.0
"""So long a table stays locked (ACCESS SHARE: against DDL, behind which everybody would wait) while the log takes nothing."""
_RETRY_S: Final = (0.01, 1.0)
_THROTTLED_S: Final = 0.2

log = structlog.get_logger("snapshot")


class _LockedOut(Exception):
    """Somebody keeps the table locked."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task


def hand_over(feed: SnapshotFeed, chunk: Chunk, rows: Sequence[RowsRead]) -> Steps[None]:
    """A part of which everything has been read, up to its watermark."""
    batches: list[pa.RecordBatch] = yield Typed(rows)
    feed.ready(chunk, batches)
    crashpoint("snapshot.chunk.ready")
    yield Emit(chunk.content)
    crashpoint("snapshot.watermark.emitted")


class Reader:
    """See the module's text."""

    def __init__(
        self, feed: SnapshotFeed, board: Board, locks: Locks, throttle: Throttle, watermarks: Watermarks, chunk_rows: int
    ) -> None:
        self._feed = feed
        self._board = board
        self._locks = locks
        self._throttle = throttle
        self._watermarks = watermarks
        self._chunk_rows = chunk_rows
        self._inside = False
        """A transaction, which keeps a table locked."""

    def live(self) -> Steps[None]:
        """Serves one job after the other, until the session is over. Raises what ends the session."""
        while True:
            job: Job | None = yield NextJob()
            if job is None:
                return
            try:
                yield from self._serve(job)
            finally:
                self._board.leave(job)

    def _serve(self, job: Job) -> Steps[None]:
        finishing = job.finishing
        try:
            if finishing:
                yield from self._finish(job)
                self._board.end(job)
            else:
                yield from self._read_all(job, iter(lambda: self._board.claim(job), None))
        except Again:
            self._board.recreate(job)
        except _LockedOut as locked:
            self._board.give_back(job, None if finishing else locked.task)
        except psycopg.Error as error:
            if ends_connection(error):
                raise
            job.purpose.fail(job.source, error)
            self._board.end(job)

    def _finish(self, job: Job) -> Steps[None]:
        """Rows that are held and lie in no part that is still to come are read back by their keys, and what the log has of rows that are gone is
        deleted; then the job ends."""
        flight = Flight(self._feed, job)
        while True:
            yield from self._read_all(job, flight.held(min(HELD_KEYS, self._chunk_rows)))
            if since := job.purpose.since:
                yield from self._sweep(job, since)
            if flight.finished():
                return

    def _sweep(self, job: Job, since: int) -> Steps[None]:
        """Each row of the log that nothing has come of since is asked for by its key: one snapshot says whether it is there, and so whether it is
        read or deleted, and its window keeps that from standing over anything newer."""
        types: tuple[str, ...] = yield KeyTypes(job.source)
        unread: Iterator[Sequence[Key]] = yield Unread(job.source, since)
        while True:
            keys: Sequence[Key] | None = yield NextKeys(unread)
            if keys is None:
                self._cannot_sweep(job)
            if not keys:
                break
            try:
                yield from self._read_all(job, iter([Task(((KeyList(keys), Op.READ), (MissingKeys(keys, types), Op.DELETE)))]))
            except (psycopg.DataError, psycopg.IntegrityError):
                # A key that is not a value of its type any more, such as one that a domain has come to refuse.
                self._cannot_sweep(job)
            crashpoint("snapshot.sweep.piece")
        job.purpose.swept()
        crashpoint("snapshot.sweep.done")

    def _cannot_sweep(self, job: Job) -> NoReturn:
        log.warning("rows that are gone cannot be looked for by their keys: the table is emptied first", table=job.source.name)
        job.purpose.cannot_sweep()
        raise Again

    def _read_all(self, job: Job, tasks: Iterator[Task | None]) -> Steps[None]:
        """Everything is durable and reported to the job's purpose at the end. A task that is None: until everything is durable."""
        flight = Flight(self._feed, job)
        try:
            for task in tasks:
                if task is None:
                    yield from self._drain(flight)
                    continue
                while self._throttle.reason is not None:
                    yield Pause(_THROTTLED_S)
                yield from self._read(flight, task)
            yield from self._drain(flight)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise Again from None
        except _LockedOut:
            yield from self._drain(flight)  # what was read before it is not read again
            raise
        finally:
            flight.give_up()

    # --- one transaction -------------------------------------------------------------------------------------------------------

    def _read(self, flight: Flight, task: Task) -> Steps[None]:
        """Again and again, until a snapshot sees everything that the stream had delivered."""
        wait_s = _RETRY_S[0]
        while (reading := (yield from self._attempt(flight, task))) is None:
            yield Pause(wait_s)
            if wait_s < _RETRY_S[1] <= wait_s * 2:
                oldest: list[str] = yield OldestTransaction()
                log.info(
                    "a chunk waits until what the stream has delivered is visible", table=flight.job.source.name, oldest=oldest
                )
            wait_s = min(wait_s * 2, _RETRY_S[1])
        crashpoint("snapshot.chunk.read")
        flight.whole(reading)

    def _attempt(self, flight: Flight, task: Task) -> Steps[Reading | None]:
        """The window is left open for the parts in it, unless this fails."""
        window = self._feed.open(flight.job.source.table)
        self._inside = True
        try:
            snapshot = yield from self._begin(flight.job, task)
            crashpoint("snapshot.window.opened")
            if not self._feed.admit(window, snapshot):
                yield Rollback()
                self._inside = False
                yield from self._exclude_idle(snapshot)
                return None
            reading = Reading(task, window)
            for part, op in task.reads:
                yield from self._send(flight, reading, part, op)
            if not reading.rows:
                # The deletes of rows that are gone are in the stream before the watermark, and on the server's disk with it: they were
                # perhaps seen before they were safe, and a crash of the server would bring the rows back.
                yield from self._emit(flight, reading, ())
            yield End()
        except BaseException as error:
            self._feed.close(window)
            if isinstance(error, Again | _LockedOut) or (isinstance(error, psycopg.Error) and not ends_connection(error)):
                yield Rollback()
            raise
        finally:
            self._inside = False
        return reading

    def _begin(self, job: Job, task: Task) -> Steps[Snapshot]:
        seen: Look | None = yield Begin(job.source)
        if seen is None:
            self._locks.refused(job.source)
            raise _LockedOut(task)
        self._locks.had(job.source)
        if (seen.facts, seen.files) != (job.look.facts, job.look.files):
            raise Again
        return Snapshot.parse(seen.snapshot)

    def _exclude_idle(self, snapshot: Snapshot) -> Steps[None]:
        """Who is idle inside a transaction now has not committed before we began, so no earlier process was delivered it."""
        if not len(self._feed.barrier_suspects()):
            return
        xids: list[int] = yield IdleXids()
        self._feed.exclude(snapshot.widen(np.array(xids, np.int64).astype(np.uint32)))

    def _send(self, flight: Flight, reading: Reading, part: Range, op: Op) -> Steps[None]:
        """The rows in parts, each as soon as it is whole."""
        yield Copy(flight.job.source, part, op, self._chunk_rows)
        unsent: list[RowsRead] = []
        rows = size_bytes = 0
        while True:
            block: RowsRead | None = yield NextBlock()
            if block is None:
                break
            if unsent and (rows + block.rows > self._chunk_rows or size_bytes >= PART_BYTES):
                yield from self._emit(flight, reading, unsent)
                unsent, rows, size_bytes = [], 0, 0
            unsent.append(block)
            rows += block.rows
            size_bytes += block.size_bytes
            if owed_s := self._throttle.owed_s(block.rows):
                yield Pause(owed_s)
        if unsent:
            yield from self._emit(flight, reading, unsent)

    def _emit(self, flight: Flight, reading: Reading, rows: Sequence[RowsRead]) -> Steps[None]:
        yield from self._collect(flight, IN_FLIGHT - 1)
        chunk = Chunk(self._watermarks.next(), reading.window)
        emitting: Started = yield Start(hand_over(self._feed, chunk, rows))
        flight.add(reading, chunk, emitting, sum(block.rows for block in rows))

    # --- what is on its way ----------------------------------------------------------------------------------------------------

    def _collect(self, flight: Flight, most: int) -> Steps[None]:
        """Until at most so many parts have not entered."""
        while (part := flight.late(most)) is not None:
            yield from self._await(flight, part, ARRIVED)

    def _drain(self, flight: Flight) -> Steps[None]:
        """Until everything is durable."""
        yield from self._collect(flight, 0)
        while (part := flight.unsafe()) is not None:
            yield from self._await(flight, part, SAFE)

    def _await(self, flight: Flight, part: Part, states: frozenset[State]) -> Steps[None]:
        yield Finished(part.emitting)
        arrived: bool = yield Await(part.chunk, states, LOCKED_S if self._inside else None)
        if not arrived:
            raise Unreachable(f"the log takes nothing, so table {flight.job.source.name} is let go")
