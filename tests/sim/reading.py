"""A model of the snapshot's coordinator and its workers: the same calls in the same order, cut into steps wherever time passes.

Generators that yield wherever the real threads wait for the server, the stream, the log or each other, so that anything may happen in
between. The board of jobs, the page ranges, the progress and the feed are the real ones; what is modelled is SQL and threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model.table import Table
from snapshots.catalog import Look, SourceTable
from snapshots.coordinator import _TableLoad
from snapshots.copy import Block, read_rows
from snapshots.failures import Unreadable
from snapshots.feed import Chunk, SnapshotFeed, State
from snapshots.fence import Barrier, Snapshot
from snapshots.flight import ARRIVED, IN_FLIGHT, SAFE, Again, Flight, Part, Reading
from snapshots.jobs import Board, Job, Task, page_tasks
from snapshots.plan import KeyList, PageRange, Pages
from snapshots.progress import SnapshotProgress
from tests.sim.source import Source
from tests.sim.tables import PAGES, Row, keyless, page_of

Steps = Iterator[None]

HELD_KEYS: Final = 3
"""Held rows that are read back at once."""


class Reader:
    """One capture process's coordinator. ``session`` lasts as long as its connections do."""

    def __init__(
        self, source: Source, feed: SnapshotFeed, progress: SnapshotProgress, chance: Random, chunk_rows: int, workers: int
    ) -> None:
        self.source = source
        self.feed = feed
        self.progress = progress
        self.chance = chance
        self.chunk_rows = chunk_rows
        self.chunks = 0
        self.refused = 0
        self.not_admitted = 0
        self.finished = False
        """Nothing is left to do for now."""
        self.emits = chance.choice((0.15, 0.7))
        """How likely a watermark is emitted when it could be."""
        self._workers = workers
        self._run = f"{chance.randrange(2**64):016x}"
        self._needs_barrier = True
        self._looked = False
        self._joining: dict[int, Barrier] = {}

    def session(self) -> Steps:
        while True:
            yield
            if self._looked and not self._work():
                self.feed.untrack()
                self._needs_barrier = self.finished = True
                continue
            self.finished = False
            self.feed.track()
            if self._needs_barrier:
                self.feed.set_barrier((yield from self._barrier()))
                self._needs_barrier = False
            if not self._looked:
                for oid in sorted(self.source.tables):
                    if not self.progress.known(oid):
                        self.progress.restart(oid)
                    self.progress.begin(self._facts(oid), self.look(oid).files)
                    yield
                self._looked = True
            yield from self._all_together()

    def _work(self) -> bool:
        return bool(self.progress.unfinished() or self.feed.held_tables() or self.feed.to_read_again())

    def _all_together(self) -> Steps:
        """The coordinator's thread and the workers', one step of one of them at a time, until nothing is left to do."""
        board = Board()
        coordinator = self._coordinate(board)
        threads = [coordinator, *(_Worker(self, board).live() for _ in range(self._workers))]
        try:
            while True:
                thread = self.chance.choice(threads)
                try:
                    next(thread)
                except StopIteration:
                    assert thread is coordinator
                    return
                yield
        finally:
            for thread in threads:
                thread.close()  # type: ignore[attr-defined]

    def _coordinate(self, board: Board) -> Steps:
        refusals: Counter[int] = Counter()
        while True:
            wanted = {*self.progress.unfinished(), *self.feed.held_tables(), *self.feed.to_read_again()}
            for oid in sorted(wanted):
                if not board.reads(oid):
                    yield
                    job = yield from self._job(oid, refusals)
                    if job is not None:
                        board.add(job)
            if not wanted and not board.busy:
                return
            yield

    def _job(self, oid: int, refusals: Counter[int]) -> Generator[None, None, Job | None]:
        seen = self.look(oid)
        source = self._facts(oid)
        if oid in self.feed.to_read_again():
            self.feed.reading_again(oid)
        if self.progress.joining(oid) and not (yield from self._joined(oid)):
            return None
        if self.progress.empties(oid) and not (yield from self._empty(source)):
            return None
        run = self.progress.begin(source, seen.files)
        tasks: Iterator[Task] = (
            iter(()) if run.finished else page_tasks(Pages(source.pages, run.pages), self.chance.randrange(1, 4))
        )
        return Job(source, seen, _TableLoad(self.feed, self.progress, oid, run.number, refusals, Unreadable()), tasks)

    def _joined(self, oid: int) -> Generator[None, None, bool]:
        if oid not in self._joining:
            self._joining[oid] = yield from self._barrier()
        yield
        if not self._joining[oid].passed_by(Snapshot.parse(self.source.snapshot())):
            return False
        del self._joining[oid]
        self.progress.joined(oid, self.progress.run(oid))
        return True

    def _empty(self, source: SourceTable) -> Generator[None, None, bool]:
        chunk = Chunk(self.content(), self.feed.open(source.table), empties=True)
        try:
            self.feed.ready(chunk, ())
            yield
            self.source.emit(chunk.content)
            while chunk.state not in SAFE:
                yield
        finally:
            self.feed.close(chunk.window)
        if chunk.state is State.REFUSED:
            return False
        self.progress.emptied(source.table.oid)
        return True

    def _barrier(self) -> Generator[None, None, Barrier]:
        snapshot = Snapshot.parse(self.source.snapshot())
        yield
        return Barrier(snapshot, self.source.current_xid())

    # --- for the workers ------------------------------------------------------------------------------------------------------------

    def content(self) -> bytes:
        self.chunks += 1
        return f"chunk:{self._run}:{self.chunks}".encode()

    def look(self, oid: int) -> Look:
        return Look(self.source.snapshot(), self.source.tables[oid].to_json(), str(self.source.files[oid]))

    def _facts(self, oid: int) -> SourceTable:
        table = self.source.tables[oid]
        index = () if keyless(table) else tuple(column.name for column in table.key)
        return SourceTable(table, index[::-1] if oid % 2 else index, False, None, 0, 0, self.chance.randrange(1, PAGES + 1))


class _Worker:
    """``snapshots.reading.Reader`` and the thread that it is used by."""

    def __init__(self, owner: Reader, board: Board) -> None:
        self._owner = owner
        self._feed = owner.feed
        self._board = board

    def live(self) -> Steps:
        while True:
            yield
            if not any(not job.over and (not job.exhausted or (job.busy == 0 and not job.finishing)) for job in self._board._jobs):
                continue
            job = self._board.next()
            assert job is not None
            try:
                if job.finishing:
                    yield from self._finish(job)
                    self._board.end(job)
                else:
                    yield from self._read_all(job, iter(lambda: self._board.claim(job), None))  # noqa: B023
            except Again:
                self._owner.refused += 1
                self._board.end(job)
            finally:
                self._board.leave(job)

    def _finish(self, job: Job) -> Steps:
        flight: Flight[_Typed] = Flight(self._feed, job)
        while True:
            yield from self._read_all(job, flight.held(HELD_KEYS))
            if flight.finished():
                return

    def _read_all(self, job: Job, tasks: Iterator[Task | None]) -> Steps:
        """A task that is None: until everything is durable."""
        self._job = job
        self._flight: Flight[_Typed] = Flight(self._feed, job)
        try:
            for task in tasks:
                yield
                yield from self._drain() if task is None else self._read(task)
            yield from self._drain()
        finally:
            self._flight.give_up()

    # --- one transaction ------------------------------------------------------------------------------------------------------------

    def _read(self, task: Task) -> Steps:
        source, owner = self._job.source, self._owner
        while True:
            window = self._feed.open(source.table)
            try:
                yield from self._pause()
                with self._lock(source.table) as lock:
                    while not lock():
                        yield from self._pause()
                    seen = owner.look(source.table.oid)
                    if (seen.facts, seen.files) != (self._job.look.facts, self._job.look.files):
                        raise Again
                    snapshot = Snapshot.parse(seen.snapshot)
                    visible = list(owner.source.visible[source.table.oid].values())
                    yield from self._pause()
                    admitted = self._feed.admit(window, snapshot)
                    if admitted:
                        reading = Reading(task, window)
                        yield from self._send(reading, visible)
                        break
                    owner.not_admitted += 1
                    self._exclude_idle(snapshot)
            except BaseException:
                self._feed.close(window)
                raise
            yield from self._pause()
        self._flight.whole(reading)

    def _send(self, reading: Reading, visible: list[Row]) -> Steps:
        source = self._job.source
        for part, _ in reading.task.reads:
            if isinstance(part, PageRange):
                rows = sorted((row for row in visible if part.first <= page_of(row) < part.end), key=page_of)
            else:
                assert isinstance(part, KeyList)
                rows = [row for row in visible if tuple(row[name] or "" for name in source.index) in part.keys]
            for at in range(0, len(rows), self._owner.chunk_rows):
                yield from self._emit(reading, _typed(source.table, rows[at : at + self._owner.chunk_rows]))
        if not reading.rows:
            yield from self._emit(reading, None)

    def _emit(self, reading: Reading, batch: pa.RecordBatch | None) -> Steps:
        yield from self._collect(IN_FLIGHT - 1)
        chunk = Chunk(self._owner.content(), reading.window)
        self._flight.add(reading, chunk, _Typed(batch), 0 if batch is None else batch.num_rows)

    @contextmanager
    def _lock(self, table: Table) -> Iterator[_Lock]:
        lock = _Lock(self._owner.source, table.oid)
        try:
            yield lock
        finally:
            lock.release()

    def _exclude_idle(self, snapshot: Snapshot) -> None:
        if len(self._feed.barrier_suspects()):
            low = [xid & 0xFFFFFFFF for xid in self._owner.source.idle_xids()]
            self._feed.exclude(snapshot.widen(np.array(low, np.uint32)))

    # --- what is on its way ---------------------------------------------------------------------------------------------------------

    def _pause(self) -> Steps:
        """While this worker waits, the pool types its parts and emits their watermarks, in order."""
        yield
        part = next((part for part in self._flight.parts if not part.emitted.done), None)
        if part is not None and self._owner.chance.random() < self._owner.emits:
            part.emitted.done = True
            batch = part.emitted.batch
            self._feed.ready(part.chunk, [] if batch is None else [batch])
            yield
            self._owner.source.emit(part.chunk.content)

    def _collect(self, most: int) -> Steps:
        while (part := self._flight.late(most)) is not None:
            yield from self._await(part, ARRIVED)

    def _drain(self) -> Steps:
        yield from self._collect(0)
        while (part := self._flight.unsafe()) is not None:
            yield from self._await(part, SAFE)

    def _await(self, part: Part[_Typed], states: frozenset[State]) -> Steps:
        while not part.emitted.done or part.chunk.state not in states:
            yield from self._pause()


@dataclass(slots=True)
class _Typed:
    """What the pool is to type and to emit the watermark of."""

    batch: pa.RecordBatch | None
    done: bool = False


class _Lock:
    """ACCESS SHARE: call it until it answers True."""

    def __init__(self, source: Source, oid: int) -> None:
        self._source = source
        self._oid = oid
        self._held = False

    def __call__(self) -> bool:
        if not self._held and self._source.can_read(self._oid):
            self._source.read_locks[self._oid] = self._source.read_locks.get(self._oid, 0) + 1
            self._held = True
        return self._held

    def release(self) -> None:
        if self._held and self._source.read_locks.get(self._oid):
            self._source.read_locks[self._oid] -= 1
        self._held = False


def _typed(table: Table, rows: list[Row]) -> pa.RecordBatch:
    """The rows as COPY gives them, read as the product reads them."""
    text = b"".join(_copy_line(table, row) for row in rows)
    return read_rows(Block(np.frombuffer(bytearray(text), np.uint8), len(rows), 0), table)


def _copy_line(table: Table, row: Row) -> bytes:
    return b"\t".join(_copy_field(row.get(name)) for name in table.names) + b"\n"


def _copy_field(value: str | None) -> bytes:
    if value is None:
        return b"\\N"
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r").encode()
