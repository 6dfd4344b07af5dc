"""Drives the snapshot's own steps over the model of the server: one step of one thread at a time, chosen by the seed.

Agenda, workers and the handing over of parts are the product's. What answers them is a model: SQL, and the time that passes before an
answer is given, and before it is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa

from cdc.ingest.loggedtables import LoggedTables
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import Op
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.source.copyout import Block
from snapshots import queries, steps
from snapshots.agenda import Agenda
from snapshots.catalog import Look, SourceTable
from snapshots.copy import read_rows
from snapshots.feed import SnapshotFeed, Watermarks
from snapshots.jobs import Board, Job
from snapshots.loggedrows import next_keys
from snapshots.plan import RANGE_PARTS, KeyList, PageRange
from snapshots.progress import SnapshotProgress
from snapshots.session import Unreachable
from snapshots.steps import RowsRead, Steps
from tests.sim.course import Course
from tests.sim.source import Source
from tests.sim.tables import PAGES, Row, index_of, page_of
from tests.sim.turns import REST_S

STEP_S: Final = 0.25
"""By the snapshot's clock."""
COORDINATES: Final = 0.3
"""How often it is the coordinator's turn."""
LOCK_GIVEN_UP: Final = 0.3
"""How likely a lock that cannot be had is not waited for any longer."""
LOG_STALLS: Final = 0.001
"""How likely a wait ends because it has lasted too long."""
_LATER: Final = object()
"""The answer is not there yet."""
_SLOW: Final = frozenset(
    {
        queries.Begin,
        queries.CurrentSnapshot,
        queries.IdleXids,
        queries.Looks,
        queries.NextXid,
        queries.Reload,
        steps.Emit,
        steps.Typed,
    }
)
"""Other things may happen before the answer is given, and before it is heard."""
_RESTS: Final = frozenset({steps.AwaitBoard, steps.Pause})
"""Other things happen meanwhile."""
QUICK: Final = 0.6
"""How likely nothing happens where something may."""


class Reader:
    """One capture process's snapshot. ``session`` lasts as long as its connections do."""

    def __init__(
        self, course: Course, source: Source, feed: SnapshotFeed, progress: SnapshotProgress, log: EmbeddedLogReader
    ) -> None:
        self.chunks = 0
        self.refused = 0
        self.not_admitted = 0
        self.finished = False
        """Nothing is left to do for now."""
        self.moved = True
        """Whether some thread went on in the last step."""
        self._course = course
        self._source = source
        self._chance = chance = course.chance
        self.asking = course.asking
        self.logged = LoggedTables(lambda: nullcontext(log))
        self._settings = _Settings(course.ways.chunk_rows, course.ways.workers)
        self._now = 0.0
        self._agenda = Agenda(self._settings, feed, progress, self.asking, clock=lambda: self._now)
        self._watermarks = Watermarks(f"{chance.randrange(2**64):016x}")
        self._emits = chance.choice((0.15, 0.7))
        """How likely a part is handed over when it could be."""

    def session(self) -> Iterator[None]:
        while True:
            yield
            self.finished = self._agenda.rests()
            if not self.finished:
                try:
                    yield from self._all_together()
                except Unreachable:
                    self._agenda.over()
                    yield  # the connections are given up, and made again
                else:
                    self._agenda.over()

    def _all_together(self) -> Iterator[None]:
        """One step of one thread at a time, until nothing is left to do."""
        chance, workers = self._chance, self._settings.snapshot_workers
        board = _Board(self)
        server = _Server(self._source, chance, self._settings, board, self)
        coordinator = _Thread(self._agenda.session(board, self._watermarks), server)
        readers = [_Thread(self._agenda.reader(board, self._watermarks).live(), server) for _ in range(workers)]
        pool = server.pool
        try:
            while not coordinator.over:
                self._now += STEP_S
                if not self._course.faulty:
                    self.moved = self._any_of([coordinator, *readers, *pool[:workers]])
                elif chance.random() < COORDINATES:
                    coordinator.step()
                else:
                    able = [*readers, *pool[:workers]] if pool else readers
                    self._move(able, int(chance.random() * len(able)), workers)
                pool[:] = [one for one in pool if not one.over]
                yield
        finally:
            for thread in (coordinator, *readers, *pool):
                thread.close()

    def _any_of(self, threads: list[_Thread]) -> bool:
        """One that goes on. False: all of them wait, so time passes."""
        first = int(self._chance.random() * len(threads))
        moved = any(thread.step() and not thread.rests for thread in (*threads[first:], *threads[:first]))
        self._now += 0.0 if moved else REST_S
        return moved

    def _move(self, able: list[_Thread], first: int, workers: int) -> None:
        """The first one, or another worker if that one waits."""
        if first >= workers:
            if able[first].begun or self._chance.random() < self._emits:
                able[first].step()
        elif not able[first].step():
            any(worker.step() for worker in (*able[first + 1 : workers], *able[:first]))


class _Thread:
    """One of the product's threads: its steps, what they ask, and the transaction that they are in."""

    __slots__ = ("_answer", "_asked", "_handler", "_request", "_server", "_steps", "blocks", "locked", "over", "visible")

    def __init__(self, given: Steps[None], server: _Server) -> None:
        self._steps = given
        self._server = server
        self._request: Any = None
        self._asked: type = object
        self._handler: _Handler = _nothing
        self._answer: object = None
        self.over = False
        self.locked: int | None = None
        """The table that it holds ACCESS SHARE on."""
        self.visible: list[Row] = []
        """Its rows, in the transaction's snapshot."""
        self.blocks: Iterator[RowsRead] = iter(())

    @property
    def rests(self) -> bool:
        """It waits for others, or for time to pass."""
        return self._asked in _RESTS

    @property
    def begun(self) -> bool:
        return self._request is not None

    def done(self) -> bool:
        return self.over

    def step(self) -> bool:
        """Goes on until something takes time; whether it went on at all."""
        server, chance, moved = self._server, self._server.chance, False
        try:
            while True:
                if self._answer is _LATER:
                    self._answer = self._handler(self, self._request)
                    if self._answer is _LATER:
                        return moved
                    moved = True
                    if self._asked in _SLOW and chance.random() >= QUICK:
                        return True
                answer, steps = self._answer, self._steps
                self._request = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
                self._answer = _LATER
                asked = self._asked = type(self._request)
                self._handler = server.answers[asked]
                if asked in _RESTS or (asked in _SLOW and chance.random() >= QUICK):
                    return True
        except StopIteration:
            self.over = True
            return True

    def unlock(self) -> None:
        locks = self._server.source.read_locks
        if self.locked is not None and locks.get(self.locked):
            locks[self.locked] -= 1
        self.locked = None

    def close(self) -> None:
        self._steps.close()
        self.unlock()


_Handler = Callable[[_Thread, Any], object]
"""Gives the answer to a request of a thread, or ``_LATER``."""


def _nothing(*_: object) -> None: ...


class _Server:
    """Answers every kind of request, out of the model of Postgres."""

    def __init__(self, source: Source, chance: Random, settings: _Settings, board: Board, told: Reader) -> None:
        self.source = source
        self.chance = chance
        self.pool: list[_Thread] = []
        """Parts that are handed over; as many at a time as there are workers."""
        self._settings = settings
        self._board = board
        self._told = told
        self.answers: Mapping[type, _Handler] = {
            queries.Begin: self._begin,
            queries.End: lambda thread, _: thread.unlock(),
            queries.CurrentSnapshot: lambda *_: source.snapshot(),
            queries.IdleXids: lambda *_: source.idle_xids(),
            queries.Looks: lambda _, request: {oid: self._look(oid) for oid in request.oids},
            queries.NextXid: lambda *_: source.current_xid(),
            queries.OldestTransaction: lambda *_: [],
            queries.KeyTypes: lambda _, request: request.source.index,
            queries.Published: lambda _, request: [
                self._facts(oid)
                for oid, table in sorted(source.tables.items())
                if source.catalog[oid].way and matches(request.patterns, table)
            ],
            queries.Reload: lambda _, request: {
                oid: (self._facts(oid), None) for oid in request.oids if oid in source.catalog and source.catalog[oid].way
            },
            queries.SlotNow: lambda *_: None,
            steps.Await: self._await,
            steps.AwaitBoard: lambda *_: None,
            steps.Copy: self._copy,
            steps.Emit: lambda _, request: source.emit(request.content),
            steps.Finished: lambda _, request: None if request.started.over else _LATER,
            steps.NextBlock: lambda thread, _: next(thread.blocks, None),
            steps.NextKeys: lambda _, request: next_keys(request.keys),
            steps.Since: lambda _, request: told.logged.since(request.source.table, request.source.index),
            steps.Unread: lambda _, request: told.logged.unread(
                request.source.table, request.source.index, request.since, lambda: None
            ),
            steps.NextJob: lambda *_: self._board.take() or _LATER,
            steps.Pause: self._pause,
            steps.Rollback: lambda thread, _: thread.unlock(),
            steps.Start: self._start,
            steps.Typed: lambda _, request: [block.content() for block in request.rows],
        }

    def _begin(self, thread: _Thread, request: queries.Begin) -> object:
        oid = request.source.table.oid
        if not self.source.can_read(oid):
            return None if self.chance.random() < LOCK_GIVEN_UP else _LATER
        if oid not in self.source.tables:
            again = any(table.qualified == request.source.name for table in self.source.tables.values())
            return self._look(oid) if again else psycopg.errors.UndefinedTable(f"relation {request.source.name} does not exist")
        self.source.read_locks[oid] = self.source.read_locks.get(oid, 0) + 1
        thread.locked = oid
        thread.visible = list(self.source.visible[oid].values())
        return self._look(oid)

    def _copy(self, thread: _Thread, request: steps.Copy) -> object:
        part, source = request.part, request.source
        if isinstance(part, PageRange):
            rows = sorted((row for row in thread.visible if part.first <= page_of(row) < part.end), key=page_of)
        elif not self._told.asking.fits(tuple(part.keys), source.table):
            return psycopg.errors.InvalidTextRepresentation("a key is not of its column's type")
        else:
            found = {tuple(row[name] or "" for name in source.index): row for row in thread.visible}
            wanted = dict.fromkeys(part.keys)
            if isinstance(part, KeyList):
                rows = [row for key, row in found.items() if key in wanted]
            else:
                rows = [dict(zip(source.index, key, strict=True)) for key in wanted if key not in found]
        pieces = (rows[at : at + request.most_rows] for at in range(0, len(rows), request.most_rows))
        thread.blocks = (RowsRead(len(some), 0, partial(_typed, source.table, some, request.op)) for some in pieces)
        return None

    def _start(self, _: _Thread, request: steps.Start) -> _Thread:
        self._told.chunks += 1
        started = _Thread(request.steps, self)
        self.pool.append(started)
        return started

    def _await(self, _: _Thread, request: steps.Await) -> object:
        if request.chunk.state in request.states:
            return True
        stalled = request.most_s is not None and self.chance.random() < LOG_STALLS
        return False if stalled else _LATER

    def _pause(self, *_: object) -> None:
        """Nothing is throttled here, so a worker pauses only where its snapshot did not see what the stream had delivered."""
        self._told.not_admitted += 1

    def _look(self, oid: int) -> Look:
        if oid not in self.source.tables:
            return Look(self.source.snapshot(), "", "")
        return Look(self.source.snapshot(), _json(self.source.tables[oid]), str(self.source.files[oid]))

    def _facts(self, oid: int) -> SourceTable:
        """Its rows are estimated so that a range has one to three pages."""
        table = self.source.tables[oid]
        pages = self.chance.randrange(1, PAGES + 1)
        rows = RANGE_PARTS * self._settings.snapshot_chunk_rows * pages // self.chance.randrange(1, 4)
        return SourceTable(table, index_of(table), False, None, rows, 0, pages)


class _Board(Board):
    """Counts."""

    def __init__(self, told: Reader) -> None:
        super().__init__()
        self._told = told

    def recreate(self, job: Job) -> None:
        super().recreate(job)
        self._told.refused += 1


@dataclass(frozen=True, slots=True)
class _Settings:
    snapshot_chunk_rows: int
    snapshot_workers: int
    snapshot_rows_per_s: int | None = None
    snapshot_pause_lag_mb: int = 1
    slot: str = "cdc"
    publication: str = "cdc"
    tables: tuple[str, ...] = ("*",)


@lru_cache(maxsize=1024)
def _json(table: Table) -> str:
    return table.to_json()


def _typed(table: Table, rows: list[Row], op: Op) -> pa.RecordBatch:
    """The rows as COPY gives them, read as the product reads them."""
    text = b"".join(_copy_line(table, row) for row in rows)
    return read_rows(Block(np.frombuffer(bytearray(text), np.uint8), len(rows), 0), table, op)


def _copy_line(table: Table, row: Row) -> bytes:
    return b"\t".join(_copy_field(row.get(name)) for name in table.names) + b"\n"


def _copy_field(value: str | None) -> bytes:
    if value is None:
        return b"\\N"
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r").encode()
