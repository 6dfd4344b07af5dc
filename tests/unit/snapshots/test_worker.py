"""A worker's steps, answered one by one: no server, no thread, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cdc.model.batch import Op
from cdc.model.group import Watermark
from cdc.model.position import Cut, Lsn, Position
from snapshots import steps
from snapshots.catalog import Look, SourceTable
from snapshots.feed import SnapshotFeed, Watermarks
from snapshots.jobs import Board, Job, Task, page_tasks
from snapshots.locks import Locks
from snapshots.plan import Key, KeyList, MissingKeys, PageRange, Pages
from snapshots.progress import SnapshotProgress
from snapshots.queries import Begin, End, KeyTypes
from snapshots.session import Unreachable
from snapshots.steps import Request, RowsRead, Steps, drive
from snapshots.throttle import Throttle
from snapshots.worker import LOCKED_S, PART_BYTES, Reader
from tests.unit.snapshots.rows import T, batch, group

SOURCE = SourceTable(T, ("a", "b"), False, None, 40, 8192 * 4, 4)
LOOK = Look("100:100:", "facts", "files")


class Purpose:
    """For whom a job reads: keeps what it is told."""

    def __init__(self) -> None:
        self.advanced: list[tuple[Task, int]] = []
        self.finished = False
        self.unsweepable = False
        self.error: psycopg.Error | None = None

    def show(self, rows: int) -> None: ...

    def advance(self, task: Task, rows: int) -> None:
        self.advanced.append((task, rows))

    since = 0

    def swept(self) -> None:
        self.since = 0

    def cannot_sweep(self) -> None:
        self.unsweepable = True

    def finish(self) -> bool:
        self.finished = True
        return True

    def fail(self, source: SourceTable, error: psycopg.Error) -> None:
        assert source is SOURCE
        self.error = error


class Over(Exception):
    """The board has nothing left to do."""


class World:
    """One worker, and answers to all that it asks: every page has two rows."""

    def __init__(self, folder: Path) -> None:
        progress = SnapshotProgress(folder, interval_s=0.0)
        progress.begin(SOURCE, LOOK.files)
        self.feed = SnapshotFeed(progress)
        self.board = Board()
        self.locks = Locks(lambda: 0.0)
        self.throttle = Throttle(None)
        self.purpose = Purpose()
        self.asked: list[Request] = []
        self.rows: Iterator[RowsRead] = iter(())
        self.block_bytes = 10
        self._lsn = 0
        self.board.add(Job(SOURCE, LOOK, self.purpose, page_tasks(Pages(4), 1)))

    def run(self) -> None:
        """Until nothing is left to do."""
        reader = Reader(self.feed, self.board, self.locks, self.throttle, Watermarks("run"), 2)
        with pytest.raises(Over):
            drive(reader.live(), self.answer)

    def answer(self, request: Request) -> object:
        self.asked.append(request)
        match request:
            case steps.NextJob():
                job = self.board.take()
                if job is None:
                    raise Over
                return job
            case Begin():
                return self.begin()
            case steps.Copy():
                assert isinstance(request.part, PageRange)
                first = request.part.first
                self.rows = iter([RowsRead(1, self.block_bytes, first * 10 + row) for row in range(2)])
            case steps.NextBlock():
                return next(self.rows, None)
            case steps.Start(started):
                return self.start(started)
            case steps.Typed(rows):
                return [batch(T, [{"a": block.content, "b": "x"}], op=Op.READ) for block in rows]
            case steps.Emit(content):
                self.come_back(content)
            case steps.Await(chunk, states):
                return chunk.state in states
        return None

    def begin(self) -> Look | None:
        return LOOK

    def start(self, started: Steps[None]) -> object:
        drive(started, self.answer)
        return object()

    def come_back(self, content: bytes) -> None:
        """The watermark does, and the log takes it in."""
        self._lsn += 10
        self.feed.on_group(group([]))
        assert self.feed.chunk_at(Watermark(content, self._lsn)) is not None
        self.feed.on_durable(Cut(Position(self._lsn), Lsn(self._lsn)))

    def count(self, kind: type) -> int:
        return sum(isinstance(request, kind) for request in self.asked)

    @property
    def pages(self) -> list[int]:
        return [task.pages[0] for task, _ in self.purpose.advanced if task.pages is not None]


def test_every_task_is_one_transaction_and_reported_once_it_is_durable(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run()
    assert world.pages == [0, 1, 2, 3]
    assert {rows for _, rows in world.purpose.advanced} == {2}
    assert (world.count(Begin), world.count(End), world.count(steps.Rollback)) == (4, 4, 0)
    assert world.purpose.finished
    assert not world.board.busy


def test_a_part_ends_at_the_most_bytes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.block_bytes = PART_BYTES
    world.run()
    assert world.count(steps.Emit) == 8
    assert world.pages == [0, 1, 2, 3]


def test_a_table_that_is_locked_midway_goes_on_with_the_task_that_was_refused(tmp_path: Path) -> None:
    class LockedMidway(World):
        tries = 0

        def begin(self) -> Look | None:
            self.tries += 1
            return None if self.tries == 3 else LOOK

    world = LockedMidway(tmp_path)
    world.run()
    assert world.pages == [0, 1], "what was read before is durable"
    assert world.count(steps.Rollback) == 1
    assert world.locks.waiting == {T.oid}
    assert world.board.reads(T.oid), "the job waits"
    world.board.resume(world.locks.waiting)
    world.run()
    assert world.pages == [0, 1], "not yet"
    world.board.resume(set())
    world.run()
    assert world.pages == [0, 1, 2, 3]
    assert world.tries == 5
    assert world.purpose.finished
    assert not world.board.busy


def test_a_table_that_has_changed_has_its_job_made_again(tmp_path: Path) -> None:
    class Changed(World):
        def begin(self) -> Look | None:
            return Look("100:100:", "other facts", "files") if self.pages else LOOK

    world = Changed(tmp_path)
    world.run()
    assert world.pages == [0]
    assert not world.purpose.finished
    assert not world.board.busy


def test_what_the_server_refuses_ends_the_job_and_not_the_worker(tmp_path: Path) -> None:
    class Refused(World):
        def begin(self) -> Look | None:
            raise psycopg.errors.DataCorrupted("missing chunk")

    world = Refused(tmp_path)
    world.run()
    assert isinstance(world.purpose.error, psycopg.errors.DataCorrupted)
    assert world.count(steps.Rollback) == 1
    assert not world.board.busy


def test_a_snapshot_that_does_not_see_what_was_delivered_is_given_up(tmp_path: Path) -> None:
    class Late(World):
        tries = 0

        def begin(self) -> Look | None:
            self.tries += 1
            return Look("100:110:105" if self.tries < 3 else "110:110:", "facts", "files")

    world = Late(tmp_path)
    world.feed.on_group(group([], (105, 0)))
    world.run()
    pauses = [request.seconds for request in world.asked if isinstance(request, steps.Pause)]
    assert pauses == [0.01, 0.02]
    assert (world.count(steps.Rollback), world.count(Begin)) == (2, 6)
    assert world.pages == [0, 1, 2, 3]


def test_a_table_is_let_go_while_the_log_takes_nothing(tmp_path: Path) -> None:
    """A worker waits for ever, but not inside a transaction."""

    class Stalled(World):
        def come_back(self, content: bytes) -> None: ...

    world = Stalled(tmp_path)
    world.block_bytes = PART_BYTES
    reader = Reader(world.feed, world.board, world.locks, world.throttle, Watermarks("run"), 2)
    with pytest.raises(Unreachable, match=r"the log takes nothing, so table public\.t is let go"):
        drive(reader.live(), world.answer)
    assert [request.most_s for request in world.asked if isinstance(request, steps.Await)] == [LOCKED_S]


def test_nothing_is_read_while_the_snapshot_pauses(tmp_path: Path) -> None:
    class Paused(World):
        def answer(self, request: Request) -> object:
            if isinstance(request, steps.Pause):
                assert not self.count(Begin)
                self.throttle.pause(None)
            return super().answer(request)

    world = Paused(tmp_path)
    world.throttle.pause("because")
    world.run()
    assert world.count(steps.Pause) == 1
    assert world.pages == [0, 1, 2, 3]


def test_steps_that_are_dropped_do_nothing_any_more(tmp_path: Path) -> None:
    """As when the process is killed: the server is not asked for anything on the way out."""
    world = World(tmp_path)
    reader = Reader(world.feed, world.board, world.locks, world.throttle, Watermarks("run"), 2).live()
    request = next(reader)
    while not isinstance(request, steps.NextBlock):
        request = reader.send(world.answer(request))
    reader.close()
    assert world.pages == []


class Sweeping(World):
    """The log has rows, and the source no longer has all of them."""

    def __init__(self, folder: Path, pieces: list[list[Key] | None]) -> None:
        super().__init__(folder)
        self.purpose.since = 40
        self.pieces = iter(pieces)
        self.problem: psycopg.Error | None = None

    def answer(self, request: Request) -> object:
        match request:
            case KeyTypes():
                return ("int", "text")
            case steps.NextKeys():
                return next(self.pieces, [])
            case steps.Copy(part=KeyList() | MissingKeys()):
                self.asked.append(request)
                if self.problem is not None:
                    raise self.problem
                self.rows = iter(())
                return None
        return super().answer(request)

    @property
    def looked_for(self) -> list[tuple[type, Op, list[Key]]]:
        copies = [one for one in self.asked if isinstance(one, steps.Copy) and not isinstance(one.part, PageRange)]
        return [(type(one.part), one.op, list(one.part.keys)) for one in copies]  # type: ignore[union-attr]


def test_what_the_log_has_of_unread_rows_is_looked_for_once_all_is_read(tmp_path: Path) -> None:
    keys: list[Key] = [("1", "x"), ("2", "y")]
    world = Sweeping(tmp_path, [keys, keys[:1], []])
    world.run()
    assert world.pages == [0, 1, 2, 3]
    assert world.looked_for == [
        (KeyList, Op.READ, keys),
        (MissingKeys, Op.DELETE, keys),
        (KeyList, Op.READ, keys[:1]),
        (MissingKeys, Op.DELETE, keys[:1]),
    ]
    first = next(
        number for number, one in enumerate(world.asked) if isinstance(one, steps.Copy) and not isinstance(one.part, PageRange)
    )
    assert sum(isinstance(one, End) for one in world.asked[:first]) == 4
    assert world.purpose.since == 0
    assert world.purpose.finished


@pytest.mark.parametrize(
    "problem", [psycopg.errors.InvalidTextRepresentation("a key"), psycopg.errors.CheckViolation("a key"), None]
)
def test_a_table_whose_rows_cannot_be_looked_for_is_given_up(tmp_path: Path, problem: psycopg.Error | None) -> None:
    world = Sweeping(tmp_path, [[("1", "x")] if problem is not None else None])
    world.problem = problem
    world.run()
    assert world.purpose.unsweepable
    assert not world.purpose.finished
    assert world.purpose.error is None
    assert not world.board.busy
