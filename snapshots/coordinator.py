"""Brings tables into the stream while it goes on: which are to be read, and the workers that read them.

A session lasts as long as there is something to do: a connection to look with, one that emits the watermarks, and one for each worker
(``reading``) that finds work. A lost connection ends the session, and what is durable is where the next one goes on. Between sessions
nothing is open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Final, Protocol

import psycopg
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, SourceError
from cdc.source.connection import reason
from cdc.source.excerpt import Reachable
from cdc.source.pins import read_pins
from snapshots.asked import Asked, Reading
from snapshots.catalog import Look, SourceTable, load_tables, looks, reload_tables
from snapshots.copy import Abandoned
from snapshots.failures import Unreadable, ends_connection
from snapshots.feed import Chunk, SnapshotFeed, State
from snapshots.fence import Barrier, Snapshot
from snapshots.flight import Again
from snapshots.jobs import Board, Job, Task, page_tasks
from snapshots.locks import LockedOut, Locks
from snapshots.plan import Pages, range_pages
from snapshots.progress import SnapshotProgress
from snapshots.reading import Emitter, Reader
from snapshots.requests import Requests
from snapshots.session import Unreachable, open_session
from snapshots.throttle import SlotState, Throttle, reason_to_pause

MOST_REFUSALS: Final = 50
"""In a row, for one table: the stream and the catalog then disagree about it for good."""
_RECONNECT_S: Final = (0.1, 5.0)
_WAIT_S: Final = 0.5
_LOOK_S: Final = 0.05
_THROTTLE_S: Final = 1.0

log = structlog.get_logger("snapshot")


class Selection(Reading, Reachable, Protocol):
    """The part of ``[source]`` that the snapshot needs."""

    @property
    def slot(self) -> str: ...
    @property
    def snapshot_pause_lag_mb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _TableLoad:
    """A job's purpose: the table's own snapshot, as its progress knows it."""

    feed: SnapshotFeed
    progress: SnapshotProgress
    oid: int
    run: int
    refusals: Counter[int]
    unreadable: Unreadable

    def show(self, rows: int) -> None:
        self.progress.show(self.oid, self.run, rows)

    def advance(self, task: Task, rows: int) -> None:
        self.refusals.pop(self.oid, None)
        self.unreadable.read(self.oid)
        if task.pages is not None:
            self.progress.advance(self.oid, self.run, task.pages, rows, waiting=self.feed.held(self.oid))

    def finish(self) -> bool:
        return self.feed.finish(self.oid, self.run)

    def fail(self, source: SourceTable, error: psycopg.Error) -> None:
        self.refusals.pop(self.oid, None)
        self.unreadable.failed(source, error)


class SnapshotCoordinator:
    """Brings every selected table that is not finished into the stream; ``start`` once the slot and the publication exist.

    Errors that waiting does not end reach ingest through the feed. A lost connection is opened again.
    """

    def __init__(
        self,
        source: Selection,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        requests: Requests,
        stop: Event,
        *,
        log_has_begun: bool = True,
        refused: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        """``log_has_begun``: an earlier process may have been delivered transactions that are not visible yet. ``refused``: tables (OIDs) that
        cannot be captured as they are defined now: they are passed over, and read from the beginning once they can."""
        self._source = source
        self._feed = feed
        self._progress = progress
        self._stop = stop
        self._log_has_begun = log_has_begun
        self._refused = refused
        self._unreadable = Unreadable()
        self._locks = Locks()
        self._requests = requests
        self._needs_barrier = log_has_begun
        self._looked = False
        self._throttle = Throttle(source.snapshot_rows_per_s)
        self._thread = Thread(target=self._live, name="snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """After ``stop`` was set."""
        self._thread.join(timeout_s)

    @property
    def finished(self) -> bool:
        """Every selected table is in the log."""
        return self._looked and not self._work()

    @property
    def paused(self) -> str | None:
        """Why reading stands still now, if it does."""
        return self._throttle.reason

    def _work(self) -> bool:
        waiting = {*self._progress.unfinished(), *self._feed.held_tables(), *self._feed.to_read_again()}
        return bool(waiting.difference(self._refused()))

    @property
    def unreadable(self) -> list[SourceError]:
        """Why tables cannot be read that are to be; another look at each is taken every few seconds."""
        return [*self._unreadable.problems, *self._locks.problems]

    def _live(self) -> None:
        pause = _RECONNECT_S[0]
        while not self._stop.is_set():
            try:
                if self._looked and not self._work() and not self._requests.pending():
                    self._feed.untrack()
                    # What is delivered from here on is not remembered.
                    self._needs_barrier = True
                    self._feed.wait_for_work(_WAIT_S)
                    continue
                self._session()
                pause = _RECONNECT_S[0]
            except Abandoned:
                return
            except ConfigError as error:
                self._feed.fail(error)
                return
            except (psycopg.OperationalError, Unreachable) as error:
                text = str(error) if isinstance(error, Unreachable) else reason(error)
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
        dsn = self._source.dsn.get_secret_value()
        with closing(open_session(dsn)) as looking, closing(open_session(dsn)) as emitting:
            session = _Session(
                self._source,
                self._feed,
                self._progress,
                self._requests,
                self._throttle,
                self._stop,
                looking,
                Emitter(emitting),
                self._refused,
                self._unreadable,
                self._locks,
            )
            self._feed.track()
            if self._needs_barrier:
                self._feed.set_barrier(session.barrier())
                self._needs_barrier = False
                crashpoint("snapshot.barrier_set")
            if not self._looked:
                session.take_in(joined_later=self._log_has_begun)
                self._looked = True
            try:
                session.run()
            finally:
                self._progress.flush()


class _Session:
    """See the module's text."""

    def __init__(
        self,
        source: Selection,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        requests: Requests,
        throttle: Throttle,
        stop: Event,
        looking: psycopg.Connection,
        emitter: Emitter,
        refused: Callable[[], Collection[int]],
        unreadable: Unreadable,
        locks: Locks,
    ) -> None:
        self._source = source
        self._feed = feed
        self._progress = progress
        self._asked = Asked(source, feed, progress, requests, looking)
        self._throttle = throttle
        self._stop = stop
        self._looking = looking
        self._emitter = emitter
        self._refused = refused
        self._unreadable = unreadable
        self._locks = locks
        self._board = Board()
        self._over = Event()
        self._joining: dict[int, tuple[int, Barrier]] = {}
        """What a table (OID) that has joined waits for, and the run in which it joined."""
        self._refusals: Counter[int] = Counter()
        self._not_before: dict[int, float] = {}
        self._looked_at_slot = float("-inf")

    def take_in(self, *, joined_later: bool) -> None:
        """Notes every selected table. Raises SourceError when one of them cannot be read."""
        found = load_tables(self._looking, self._source.tables, self._source.publication)
        seen = looks(self._looking, [source.table.oid for source in found])
        self._progress.take_in(((source, seen[source.table.oid].files) for source in found), joined_later=joined_later)
        crashpoint("snapshot.table.begun")

    def run(self) -> None:
        """Until nothing is left to do. Raises what a worker failed with, or Abandoned."""
        with self._workers():
            while self._offer() or self._board.busy:
                self._throttle_by_slot()
                self._board.wait(_LOOK_S)
                self._progress.flush(when_due=True)
                self._go_on()

    def _offer(self) -> bool:
        """Puts what is to be read on the board; whether anything waits to be put there."""
        again = self._feed.to_read_again()
        refused = self._refused()
        wanted = {*self._progress.unfinished(), *self._feed.held_tables(), *again}.difference(refused)
        self._unreadable.keep(wanted)
        now, locked = time.monotonic(), self._locks.waiting | self._unreadable.waiting
        due = [oid for oid in sorted(wanted - locked) if not self._board.reads(oid) and now >= self._not_before.get(oid, 0.0)]
        if due:
            runs = {oid: self._progress.run(oid) for oid in due}
            # Of all at once: what tells of one published table takes the server as long as what tells of all.
            seen = looks(self._looking, due)
            found = reload_tables(self._looking, due, self._source.tables, self._source.publication)
            joined = self._joined([source for source, _ in found.values() if self._progress.joining(source.table.oid)], runs)
            for oid in due:
                job = self._job(oid, seen[oid], *found.get(oid, (None, None)), run=runs[oid], joined=oid in joined)
                if job is not None:
                    self._board.add(job)
        return self._asked.offer(self._board, wanted | locked) or bool(wanted)

    def _job(
        self, oid: int, seen: Look, source: SourceTable | None, problem: SourceError | None, *, run: int, joined: bool
    ) -> Job | None:
        """The table's job; None when it has to wait, or is gone. ``run``: in which the catalog was asked."""
        if problem is not None:
            # It could be read when we began, or was not there: the rest of the database goes on.
            self._unreadable.refused(oid, problem)
            return None
        self._unreadable.granted(oid)
        if source is None:
            log.info(
                "stopped reading a table that was dropped, has left the publication or is no longer selected",
                table=self._progress.name(oid),
            )
            self._feed.forget(oid, run)
            self._joining.pop(oid, None)
            self._locks.forget(oid)
            self._unreadable.forget(oid)
            return None
        if oid in self._feed.to_read_again():
            self._feed.reading_again(oid)
            joined = False
        if self._progress.joining(oid):
            if not joined:
                return None
            self._progress.joined(oid, run)
        if self._progress.empties(oid) and not self._empty(source):
            return None
        self._count_refusals(source)
        begun = self._progress.begin(source, seen.files)
        step = range_pages(
            source, self._source.snapshot_chunk_rows, self._source.snapshot_workers, self._source.snapshot_rows_per_s
        )
        tasks: Iterator[Task] = iter(()) if begun.finished else page_tasks(Pages(source.pages, begun.pages), step)
        return Job(source, seen, _TableLoad(self._feed, self._progress, oid, begun.number, self._refusals, self._unreadable), tasks)

    def _count_refusals(self, source: SourceTable) -> None:
        oid = source.table.oid
        if self._refusals[oid] > MOST_REFUSALS:
            raise SourceError(
                f"table {source.name} keeps changing its shape while it is read",
                hint="stop its schema changes until the snapshot is done",
            )
        self._refusals[oid] += 1
        self._not_before[oid] = time.monotonic() + min(0.01 * self._refusals[oid], 1.0)

    # --- what comes before a table's first row ---------------------------------------------------------------------------------

    def barrier(self) -> Barrier:
        snapshot = self._snapshot()
        row = self._looking.execute("select pg_current_xact_id()::text").fetchone()
        assert row is not None
        return Barrier(snapshot, int(row[0]))

    def _snapshot(self) -> Snapshot:
        row = self._looking.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        return Snapshot.parse(row[0])

    def _joined(self, joining: Sequence[SourceTable], runs: Mapping[int, int]) -> set[int]:
        """Of tables that have just joined the publication, those (OIDs) that may be read: what was changed in transactions open at that
        moment is not streamed."""
        if not joining:
            return set()
        fresh = [
            oid
            for oid in (source.table.oid for source in joining)
            if oid not in self._joining or self._joining[oid][0] != runs[oid]
        ]
        if fresh:
            barrier = self.barrier()
            self._joining |= {oid: (runs[oid], barrier) for oid in fresh}
        snapshot = self._snapshot()
        waiting = [source for source in joining if not self._joining[source.table.oid][1].passed_by(snapshot)]
        told = [source.name for source in waiting if source.table.oid not in self._not_before]
        if told:
            oldest = [str(pin) for pin in read_pins(self._looking, least_s=0, most=1)]
            log.info(
                "waits for transactions that were open when tables were published", tables=len(told), first=told[0], oldest=oldest
            )
        for source in waiting:
            self._not_before[source.table.oid] = time.monotonic() + _LOOK_S
        passed = {source.table.oid for source in joining} - {source.table.oid for source in waiting}
        for oid in passed:
            del self._joining[oid]
        return passed

    def _empty(self, source: SourceTable) -> bool:
        """Every part's window opens after the log says that the table is empty: a row that moves between pages meanwhile would otherwise
        be read on neither."""
        chunk = Chunk(self._emitter.content(), self._feed.open(source.table), empties=True)
        try:
            self._feed.ready(chunk, ())
            self._emitter.emit(chunk.content)
            while not self._feed.wait(chunk, frozenset({State.DURABLE, State.REFUSED}), _WAIT_S):
                self._go_on()
        finally:
            self._feed.close(chunk.window)
        if chunk.state is State.REFUSED:
            return False
        self._progress.emptied(source.table.oid)
        return True

    # --- workers ---------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _workers(self) -> Iterator[None]:
        number = self._source.snapshot_workers
        with (
            ThreadPoolExecutor(number, thread_name_prefix="snapshot-parse") as typists,
            ThreadPoolExecutor(number, thread_name_prefix="snapshot-emit") as emitters,
        ):
            threads = [
                Thread(target=self._work, args=(typists, emitters), name=f"snapshot-{one + 1}", daemon=True)
                for one in range(number)
            ]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._over.set()
                self._board.close()
                for thread in threads:
                    thread.join()

    def _work(self, typists: ThreadPoolExecutor, emitters: ThreadPoolExecutor) -> None:
        """One worker's life; its connection is opened when it finds something to do."""
        try:
            with ExitStack() as stack:
                reader: Reader | None = None
                while (job := self._board.next()) is not None:
                    if reader is None:
                        reader = Reader(
                            partial(open_session, self._source.dsn.get_secret_value()), self._emitter, self._feed, self._board, typists,
                            emitters, self._throttle, self._source.snapshot_chunk_rows, self._over, self._locks,
                        )  # fmt: skip
                        stack.enter_context(closing(reader))
                    self._serve(reader, job)
        except Abandoned:
            return
        except BaseException as error:
            self._board.fail(error)

    def _serve(self, reader: Reader, job: Job) -> None:
        try:
            if job.finishing:
                reader.finish(job)
                self._board.end(job)
            else:
                reader.read(job)
        except Again as again:
            if isinstance(again, LockedOut):
                self._refusals.pop(job.source.table.oid, None)  # its shape is as it was
            self._board.end(job)
        except psycopg.Error as error:
            if ends_connection(error):
                raise
            job.purpose.fail(job.source, error)
            self._board.end(job)
        finally:
            self._board.leave(job)

    # --- pauses ----------------------------------------------------------------------------------------------------------------

    def _throttle_by_slot(self) -> None:
        now = time.monotonic()
        if now - self._looked_at_slot < _THROTTLE_S:
            return
        self._looked_at_slot = now
        row = self._looking.execute(
            "select pg_current_wal_lsn() - coalesce(confirmed_flush_lsn, pg_current_wal_lsn()), safe_wal_size,"
            " nullif(pg_size_bytes(current_setting('max_slot_wal_keep_size')), -1)"
            " from pg_replication_slots where slot_name = %s",
            (self._source.slot,),
        ).fetchone()
        if row is None:
            return
        slot = SlotState(int(row[0]), row[1], row[2])
        before = self._throttle.reason
        why = reason_to_pause(slot, self._source.snapshot_pause_lag_mb << 20, paused=before is not None)
        if why is not None and before is None:
            log.warning("the snapshot pauses", reason=why)
        elif why is None and before is not None:
            log.info("the snapshot goes on")
        self._throttle.pause(why)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Abandoned
