"""What a follower says of itself before its store has been opened, and how far one request takes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StopState, StoreError
from cdc.follow import access
from cdc.follow import follower as followers
from cdc.follow.apply import Slices
from cdc.follow.follower import Follower
from cdc.log.contract import LogReader
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn, Position
from cdc.replay.rows import SLICES
from cdc.state import status, stops
from sinks import memory, options_model
from sinks.contract import Outcome, Traits
from sinks.memory import STORES, MemorySink, Options
from sinks.memoryunits import Store
from tests.contract.rows import ORDERS, batch, order


@pytest.mark.parametrize(("kind", "position"), [("memory", 7), ("redis", 0)])
def test_until_the_store_is_opened_it_is_where_it_was_last_seen(tmp_path: Path, kind: str, position: int) -> None:
    status.write(
        tmp_path,
        "follow-twin",
        status.FollowerStatus("twin", kind, "exited", pid=1, position=7, commit_lsn=70, commit_ts_us=9, dead=3),
    )
    options = options_model("memory").model_validate({"kind": "memory"})
    follower = Follower("twin", options, tmp_path, MemoryLog().reader(), tmp_path, threading.Event())
    follower.report()
    told = status.read_follower(tmp_path, "twin")
    assert told is not None
    assert (told.position, told.commit_lsn, told.state, told.written) == (position, position * 10, "starting", 0)
    assert told.dead == (3 if position else 0)
    follower.start()
    follower.report()
    told = status.read_follower(tmp_path, "twin")
    assert told is not None
    assert told.dead == 0, "an empty store has set nothing aside"
    follower.close()


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("redis", "redis://user:canary@cache:99999999/0"),
        ("redis", "cache:6379"),
        ("redis", "redis://[::1"),
        ("opensearch", "http://user:canary@search:99999999"),
        ("opensearch", "http://search:canary"),
        ("opensearch", "http://[::1"),
        ("opensearch", "search:9200"),
    ],
)
def test_an_address_that_is_none_stops_this_store_alone(tmp_path: Path, kind: str, url: str) -> None:
    """It may be typed into cdc.toml while the process follows other stores, too, which must not end for it."""
    options = options_model(kind).model_validate({"kind": kind, "url": url})
    log = MemoryLog()
    log.writer()
    follower = Follower("typo", options, tmp_path, log.reader(), tmp_path, threading.Event())
    assert not follower.start()
    follower.close()
    (stop,) = stops.held(tmp_path)
    assert (stop.name, "typo.url is no" in stop.message, "canary" in str(stop)) == ("STORE_REFUSES:follow-typo", True, False)


class _Frame:
    """A micro-batch's slices, worked off as Spark's workers would."""

    def __init__(self, after: int, upto: int) -> None:
        self._slices = pa.RecordBatch.from_pylist(
            [{"topic": ORDERS.qualified, "after": after, "upto": upto, "rows": upto - after}], schema=SLICES
        )
        self._results: list[pa.RecordBatch] = []
        self.used = 0

    def mapInArrow(self, work: Any, _: str) -> _Frame:
        self.used += 1
        self._results = list(work(iter([self._slices])))
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._results)


@pytest.mark.parametrize(("begins", "batch_rows", "used"), [(0, 10, 1), (3, 10, 0), (0, 3, 0)])
def test_workers_get_a_micro_batch_only_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: int, batch_rows: int, used: int
) -> None:
    """A store that was set back stands before where the micro-batch begins; one that took a part of it in the driver, behind."""
    monkeypatch.setattr(memory, "traits", lambda _: Traits(parallel=True))
    writer = EmbeddedLogWriter(tmp_path / "log")
    for position in range(1, 7):
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        writer.commit(Lsn(position), position)
    end = writer.head
    writer.close()
    name = f"slices-{tmp_path.name}"
    options = Options(kind="memory", batch_rows=batch_rows, workers_from_rows=1)
    with closing(EmbeddedLogReader(tmp_path / "log")) as reader:
        follower = Follower(name, options, tmp_path / "log", reader, tmp_path, threading.Event())
        frame = _Frame(begins, end.position)
        follower.follow_to(end, Slices(Position(begins), frame))
        follower.close()
    assert follower.applied == end
    assert len(STORES[name].rows[ORDERS.qualified]) == 6, "rows before the micro-batch's own are the store's, too"
    assert (frame.used, follower.status.stale) == (used, 0)


@pytest.mark.parametrize(("gathers", "batches"), [(True, [6]), (False, [1] * 6)])
def test_a_store_that_pays_for_each_batch_gets_a_range_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathers: bool, batches: list[int]
) -> None:
    monkeypatch.setattr("cdc.log.embedded.reader.JOINED_ROWS", 1)  # as if each of these were large
    monkeypatch.setattr(memory, "traits", lambda _: Traits(gathers=gathers))
    applied: list[int] = []
    real = MemorySink.apply
    monkeypatch.setattr(MemorySink, "apply", lambda self, changes: applied.append(len(changes)) or real(self, changes))
    writer = EmbeddedLogWriter(tmp_path / "log")
    for position in range(1, 7):
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        writer.commit(Lsn(position), position)
    end = writer.head
    writer.close()
    name = f"gathers-{tmp_path.name}"
    with closing(EmbeddedLogReader(tmp_path / "log")) as reader:
        follower = Follower(name, Options(kind="memory"), tmp_path / "log", reader, tmp_path, threading.Event())
        follower.follow_to(end)
        follower.close()
    assert (applied, follower.applied, len(STORES[name].rows[ORDERS.qualified])) == (batches, end, 6)


def _log_with_an_old_head(folder: Path) -> list[Cut]:
    """As a power loss leaves it: the timeline is synced with each commit, the head is not."""
    writer, head, cuts = EmbeddedLogWriter(folder), LogPlaces(folder).head, []
    for position in (1, 2):
        older = head.read_bytes()
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        cuts.append(writer.commit(Lsn(position), position))
    writer.close()
    head.write_bytes(older)
    return cuts


def _hold(store: str, log: Path, cut: Cut) -> None:
    """The store holds everything up to this cut."""
    STORES[store] = Store()
    sink = MemorySink(store, Options(kind="memory"))
    with closing(EmbeddedLogReader(log)) as reader:
        sink.open(reader, 1)
        sink.commit(cut)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_after_a_power_loss_a_follower_waits_until_the_head_is_what_the_timeline_says(tmp_path: Path) -> None:
    cuts = _log_with_an_old_head(tmp_path / "log")
    _hold("ahead", tmp_path / "log", cuts[1])
    stop = threading.Event()
    follower = Follower("ahead", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path, stop)
    starting = threading.Thread(target=follower.start)
    starting.start()
    try:
        _until(lambda: follower.status.state in {"waiting", "stopped"})
        assert follower.status.state == "waiting"
        EmbeddedLogWriter(tmp_path / "log").close()
        _until(lambda: follower.applied == cuts[1])
    finally:
        stop.set()
        starting.join()
    assert not follower.stopped


def test_a_store_that_knows_more_than_the_log_stops_its_follower(tmp_path: Path) -> None:
    _log_with_an_old_head(tmp_path / "log")
    _hold("beyond", tmp_path / "log", Cut(Position(3), Lsn(3)))
    follower = Follower(
        "beyond", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path, threading.Event()
    )
    assert not follower.start()
    assert follower.status.stop == StopState.DIVERGED


class _Full(MemorySink):
    """Can be opened and read, and takes nothing the first times."""

    refusals = 0

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if _Full.refusals:
            _Full.refusals -= 1
            raise StoreError("its disk is full", retryable=True)
        return super().apply(changes)


def test_a_store_that_can_be_read_and_takes_nothing_is_waited_for_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    writer = log.writer()
    writer.append(batch(ORDERS, [(Op.INSERT, 1, order(1, "new"))]))
    head = writer.commit(Lsn(1), 1)
    monkeypatch.setattr(access, "make_sink", _Full)
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    told: list[tuple[str, str | None]] = []
    write = status.write

    def shown(run_dir: Path, name: str, now: status.FollowerStatus) -> None:
        told.append((now.state, now.error))
        write(run_dir, name, now)

    monkeypatch.setattr(status, "write", shown)
    follower = Follower(f"full-{tmp_path.name}", Options(kind="memory"), tmp_path, log.reader(), tmp_path, threading.Event())
    assert follower.start()
    _Full.refusals = 3
    follower.follow_to(head)
    assert follower.applied == head
    assert [state for state, _ in groupby(told)] == [("following", None), ("waiting", "its disk is full"), ("following", None)]
    follower.close()


@pytest.mark.parametrize("what", ["a floor is raised", "a history begins"])
def test_a_store_is_opened_again_unseen_when_its_marks_are_to_be_compared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log = MemoryLog()
    writer = log.writer()
    for at in range(1, 4):
        writer.append(batch(ORDERS, [(Op.INSERT, at, order(at))]))
        writer.commit(Lsn(at), at)
    told: list[str | None] = []
    write = status.write
    monkeypatch.setattr(status, "write", lambda *args: told.append(args[2].error) or write(*args))
    follower = Follower(f"again-{tmp_path.name}", Options(kind="memory"), tmp_path, log.reader(), tmp_path, threading.Event())
    follower.follow_to(log.cuts[1])
    before = follower.history
    if what == "a floor is raised":
        log.raise_floor(ORDERS.qualified, Position(2))
    else:
        writer.begin_history()
    follower.follow_to(log.cuts[2])
    assert (follower.applied, follower.history) == (log.cuts[2], log.lineage.history)
    assert before != follower.history
    assert not any(told)
    follower.close()


def test_a_status_that_has_not_changed_is_written_as_a_sign_of_life_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    real = status.write
    monkeypatch.setattr(status, "write", lambda *args: written.append(args[2].dead) or real(*args))
    follower = Follower("still", Options(kind="memory"), tmp_path, MemoryLog().reader(), tmp_path, threading.Event())
    follower.report()
    for _ in range(20):
        follower.report(when_due=True)
    assert len(written) == 1
    follower.status.dead = 7
    follower.report(when_due=True)
    assert written == [0, 7], "what has changed shows at once"
    follower.status.said_at -= status.BEAT_S
    follower.report(when_due=True)
    assert written == [0, 7, 7]


def test_commits_that_follow_each_other_closely_are_told_together_and_the_last_one_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status is a file: writing one for each of some tens of commits a second costs as much as a commit."""
    log, now_s = MemoryLog(), [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], wait=lambda stop, _: stop.is_set())
    writer = log.writer()
    follower = Follower(
        f"often-{tmp_path.name}",
        Options(kind="memory"),
        tmp_path,
        log.reader(),
        tmp_path,
        threading.Event(),
        ports=access.Ports(clock=clock),
    )
    written: list[int] = []
    real = status.write
    monkeypatch.setattr(status, "write", lambda *args: written.append(args[2].position) or real(*args))

    def commit(position: int) -> Cut:
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        return writer.commit(Lsn(position), position)

    for position in range(1, 11):
        follower.follow_to(commit(position))
        commit_is_told = position in written
        assert commit_is_told == (position in (1, 6)), "at once where none was told for a while"
        now_s[0] += 0.021
    follower.settled()
    assert written[-1] == 10, "somebody may wait for the last one"
    commit(11)
    follower.follow_to(commit(12))
    follower.settled()
    assert written[-1] == 12
    follower.close()


class _Courier(MemorySink):
    """An event store by its traits. Its first opening is broken off behind the sink's own part."""

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self.traits = Traits(events=True)
        self.is_open = False
        self.told: list[tuple[Position, bool]] = []
        """What was committed, and whether it was open then."""
        self._failures = 1

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self.is_open = True
        return super().open(log, epoch)

    def commit(self, cut: Cut) -> None:
        self.told.append((cut.position, self.is_open))

    def finish(self) -> None:
        if self._failures:
            self._failures -= 1
            raise RuntimeError("broken off")  # which nobody closes a store for

    def close(self) -> None:
        self.is_open = False
        super().close()


def test_a_store_whose_opening_was_broken_off_is_not_told_where_it_was_as_a_commit(tmp_path: Path) -> None:
    status.write(
        tmp_path, "follow-bus", status.FollowerStatus("bus", "memory", "running", pid=1, position=7, commit_lsn=70, commit_ts_us=9)
    )
    log = MemoryLog()
    log.writer()
    options = Options.model_validate({"kind": "memory"})
    courier = _Courier("bus", options)
    ports = access.Ports(sink=lambda *_: courier)
    opening = Follower("bus", options, tmp_path, log.reader(), tmp_path, threading.Event(), ports=ports)._opening
    with pytest.raises(RuntimeError, match="broken off"):
        opening.open()
    opening.open()
    assert courier.told == [(7, False), (7, False)]
    opening.close()
    opening.lease.release()
