"""Decides which tables are to be read now. It puts them on the board, where the workers (``reading``) find them.

A session lasts as long as there is something to do. A lost connection ends it, and what is durable is where the next one goes on. Between
sessions nothing is read, and what the stream delivers is not remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import SourceError
from snapshots.catalog import Look, SourceTable
from snapshots.failures import Unreadable
from snapshots.feed import SnapshotFeed, Watermarks
from snapshots.jobs import Board
from snapshots.latecomers import Joining, barrier
from snapshots.loads import Loads
from snapshots.locks import Locks
from snapshots.progress import SnapshotProgress
from snapshots.queries import Looks, Published, Reload
from snapshots.requestjobs import Asked, ReadingOptions
from snapshots.requests import Requests
from snapshots.slotwatch import SlotWatch
from snapshots.steps import AwaitBoard, Steps
from snapshots.throttle import Throttle
from snapshots.turns import Turns
from snapshots.worker import Reader

_LOOK_S: Final = 0.05

log = structlog.get_logger("snapshot")


class Selection(ReadingOptions, Protocol):
    """The part of ``[source]`` that says what is read, and when it pauses."""

    @property
    def slot(self) -> str: ...
    @property
    def snapshot_pause_lag_mb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Session:
    """The parts that begin again with every session."""

    board: Board
    turns: Turns
    joining: Joining
    loads: Loads
    asked: Asked


class Agenda:
    """See the module's text. One thread uses it, but for the properties."""

    def __init__(
        self,
        source: Selection,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        requests: Requests,
        *,
        log_has_begun: bool = True,
        refused: Callable[[], Collection[int]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``log_has_begun``: an earlier process may have been delivered transactions that are not visible yet. ``refused``: tables (OIDs) that
        cannot be captured as they are defined now: they are passed over, and read from the beginning once they can."""
        self._source = source
        self._feed = feed
        self._progress = progress
        self._requests = requests
        self._refused = refused
        self._clock = clock
        self._joined_later = log_has_begun
        self._needs_barrier = log_has_begun
        self._looked = False
        self._unreadable = Unreadable(clock)
        self._locks = Locks(clock)
        self._throttle = Throttle(source.snapshot_rows_per_s, clock)

    @property
    def finished(self) -> bool:
        """Every selected table is in the log."""
        return self._looked and not self._wanted()

    @property
    def paused(self) -> str | None:
        """Why reading stands still now, if it does."""
        return self._throttle.reason

    @property
    def unreadable(self) -> list[SourceError]:
        """Why tables cannot be read that are to be; another look at each is taken every few seconds."""
        return [*self._unreadable.problems, *self._locks.problems]

    def rests(self) -> bool:
        """Whether there is nothing to do: then no session is needed."""
        if not self.finished or self._requests.pending():
            return False
        self._feed.untrack()
        # What is delivered from here on is not remembered.
        self._needs_barrier = True
        return True

    def reader(self, board: Board, watermarks: Watermarks) -> Reader:
        """One worker of a session."""
        return Reader(self._feed, board, self._locks, self._throttle, watermarks, self._source.snapshot_chunk_rows)

    def session(self, board: Board, watermarks: Watermarks) -> Steps[None]:
        """Until nothing is left to do. Raises what a worker failed with; SourceError when a table cannot be read that is met for the first
        time."""
        self._feed.track()
        if self._needs_barrier:
            self._feed.set_barrier((yield from barrier()))
            self._needs_barrier = False
            crashpoint("snapshot.barrier_set")
        if not self._looked:
            yield from self._take_in()
            self._looked = True
        turns = Turns(self._clock)
        loads = Loads(self._source, self._feed, self._progress, self._unreadable, turns, watermarks)
        slot = SlotWatch(self._source.slot, self._source.snapshot_pause_lag_mb << 20, self._throttle, self._clock)
        asked = Asked(self._source, self._feed, self._progress, self._requests, self._clock)
        session = _Session(board, turns, Joining(), loads, asked)
        while (yield from self._offer(session)) or board.busy:
            yield from slot.look()
            yield AwaitBoard(_LOOK_S)
            self._progress.flush(when_due=True)

    def over(self) -> None:
        """Records what has become durable, after a session has ended and its workers have: they may have seen some of it since."""
        self._progress.flush()

    def _take_in(self) -> Steps[None]:
        """Notes every selected table."""
        found: list[SourceTable] = yield Published(self._source.tables, self._source.publication)
        seen: Mapping[int, Look] = yield Looks([source.table.oid for source in found])
        self._progress.take_in(((source, seen[source.table.oid].files) for source in found), joined_later=self._joined_later)
        crashpoint("snapshot.table.begun")

    def _wanted(self) -> set[int]:
        """The tables of which something has to be read."""
        wanted = {*self._progress.unfinished(), *self._feed.unsettled()}
        return wanted.difference(self._refused()) if wanted else wanted

    def _offer(self, session: _Session) -> Steps[bool]:
        """Puts what is to be read on the board; whether anything waits to be put there."""
        wanted = self._wanted()
        self._unreadable.keep(wanted)
        locked = self._locks.waiting
        session.board.resume(locked)
        later = locked | self._unreadable.waiting
        due = [oid for oid in sorted(wanted - later - session.board.read()) if session.turns.due(oid)]
        if due:
            yield from self._offer_loads(session, due)
        return (yield from session.asked.offer(session.board, wanted | later)) or bool(wanted)

    def _offer_loads(self, session: _Session, due: list[int]) -> Steps[None]:
        runs = {oid: self._progress.run(oid) for oid in due}
        joining = [oid for oid in due if self._progress.joining(oid)]
        # Before the catalog is asked: the stream may show a table before the transaction that has made it is visible.
        passed = yield from session.joining.passed(joining, runs)
        # Of all at once: what tells of one published table takes the server as long as what tells of all.
        seen: Mapping[int, Look] = yield Looks(due)
        found: Mapping[int, tuple[SourceTable, SourceError | None]] = yield Reload(
            due, self._source.tables, self._source.publication
        )
        yield from session.joining.tell({oid: source.name for oid, (source, _) in found.items()})
        waiting = set(joining) - passed
        for oid in waiting:
            session.turns.hold_back(oid, _LOOK_S)
        for oid in due:
            if oid not in found:
                if oid not in waiting:
                    self._leave_out(session, oid, runs[oid])
                continue
            source, problem = found[oid]
            if problem is not None:
                # It could be read when we began, or was not there: the rest of the database goes on.
                self._unreadable.refused(oid, problem)
                continue
            self._unreadable.granted(oid)
            job = yield from session.loads.job(source, seen[oid], runs[oid], joined=oid in passed)
            if job is not None:
                session.board.add(job)

    def _leave_out(self, session: _Session, oid: int, run: int) -> None:
        log.info(
            "stopped reading a table that was dropped, has left the publication or is no longer selected",
            table=self._progress.name(oid),
        )
        self._feed.forget(oid, run)
        session.joining.forget(oid)
        self._locks.forget(oid)
        self._unreadable.forget(oid)
