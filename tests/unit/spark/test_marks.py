"""A follower and a store that is lost, restored, taken over or another log's, in whole or in part, at any moment."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.crashpoint import Fault, armed
from cdc.errors import Stopped, StopState
from cdc.follow import follower as followers
from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.model.topic import TopicSchema
from cdc.state import rebuilds, status, stops
from cdc.state.lease import FOLDER, Lease
from sinks.memory import STORES, MemorySink, Options
from sinks.memoryunits import Store
from tests.contract.rows import ORDERS, PAIRS, batch, order

MODES = [{}, {"sequenced": True}, {"staged": True}]
UNITS = [None, ORDERS.qualified, PAIRS.qualified]


class Pipe:
    """A log, and a store that follows it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.name = f"marks-{folder.name}"
        self.options = Options(kind="memory", **options)
        self.writer = EmbeddedLogWriter(folder / "log")
        self.number = 0
        self.followers: list[Follower] = []
        STORES.pop(self.name, None)

    @property
    def store(self) -> Store:
        return STORES[self.name]

    def write(self, count: int = 1) -> None:
        """Transactions that insert, change and delete rows of two tables."""
        for _ in range(count):
            self.number += 1
            n, at = self.number, self.writer.next_position
            self.writer.append(batch(ORDERS, [(Op.INSERT, at, order(n)), (Op.UPDATE, at + 1, order(max(1, n - 2), f"at {n}"))]))
            self.writer.append(batch(PAIRS, [(Op.INSERT, at + 2, {"a": str(n), "b": "b", "v": str(n)})]))
            if n % 3 == 0:
                self.writer.append(batch(ORDERS, [(Op.DELETE, at + 3, order(n - 1))]))
            self.writer.commit(Lsn(n * 10), n)

    def follower(self, **options: Any) -> Follower:
        given = type(self.options).model_validate({**self.options.model_dump(by_alias=True), **options})
        log = self.folder / "log"
        one = Follower(self.name, given, log, EmbeddedLogReader(log), self.folder / "run", threading.Event())
        self.followers.append(one)
        return one

    def follow(self, one: Follower) -> None:
        one.follow_to(self.writer.head)

    def status(self) -> status.FollowerStatus:
        found = status.read_follower(self.folder / "run", self.name)
        assert found is not None
        return found

    def stop(self) -> stops.Stop | None:
        return stops.held_by(self.folder / "run", f"follow-{self.name}")

    def assert_whole(self, *tables: str) -> None:
        """The store holds what the log folds to, and says so."""
        with closing(EmbeddedLogReader(self.folder / "log")) as reader:
            reading = MemorySink(self.name, self.options)
            assert reading.open(reader) == reader.head()
            for table in (ORDERS, PAIRS):
                fold = Store()
                STORES["fold"] = fold
                folded = MemorySink("fold", Options(kind="memory"))
                folded.open(reader, 1)
                for found in reader.read(table.qualified, 0, reader.head().position):  # type: ignore[arg-type]
                    folded.apply(found)
                if not tables or table.qualified in tables:
                    assert _rows(reading, table) == _rows(folded, table), table.qualified

    def close(self) -> None:
        for one in self.followers:
            one.close()
        self.writer.close()
        STORES.pop(self.name, None)


def _rows(sink: MemorySink, table: Any) -> list[str]:
    return sorted(str(row) for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist())


@pytest.fixture(params=MODES, ids=str)
def pipe(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.0)
    one = Pipe(tmp_path, **request.param)
    yield one
    one.close()


@pytest.mark.parametrize("unit", [*UNITS, "all"])
def test_what_is_lost_between_two_ranges_comes_back_and_is_not_said_to_be_there(pipe: Pipe, unit: str | None) -> None:
    follower = pipe.follower()
    pipe.write(5)
    pipe.follow(follower)
    pipe.assert_whole()
    before = pipe.status().position
    pipe.store.lose(*(pipe.store.units if unit == "all" else [unit]))
    with armed("follower.opened=error"), pytest.raises(Fault):
        follower.idle()
    assert pipe.status().position < before, "whoever waits for the store must not hear that it is there"
    pipe.follow(follower)
    pipe.assert_whole()
    pipe.write(3)
    pipe.follow(follower)
    pipe.assert_whole()
    assert pipe.stop() is None


def test_a_copy_from_before_the_last_commits_that_changed_nothing_is_noticed(pipe: Pipe) -> None:
    """Its rows are the same; what it says of the source's WAL is not."""
    follower = pipe.follower()
    pipe.write(5)
    pipe.follow(follower)
    older = pipe.store.copy()
    pipe.writer.commit(Lsn(1000), 1)
    follower.idle()
    assert pipe.store.applied.commit_lsn == 1000
    pipe.store.restore(older)
    follower.idle()
    pipe.follow(follower)
    pipe.assert_whole()


@pytest.mark.parametrize("unit", [*UNITS, "all"])
@pytest.mark.parametrize("point", ["follower.batch.read", "follower.batch.applied", "follower.before_commit"])
def test_what_is_lost_within_a_range_comes_back(pipe: Pipe, unit: str | None, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushed, or set back to the moment before, while changes are on their way into it."""
    follower = pipe.follower(batch_rows=4)
    pipe.write(4)
    pipe.follow(follower)
    older = pipe.store.copy()
    pipe.write(4)
    at = {"follower.batch.read": 2, "follower.batch.applied": 1, "follower.before_commit": 1}[point]
    for fault in ("lost", "restored"):
        reached = 0

        def reach(name: str, fault: str = fault, older: Store = older) -> None:
            nonlocal reached
            reached += name == point
            if name == point and reached == at:
                units = pipe.store.units if unit == "all" else [unit]
                pipe.store.lose(*units) if fault == "lost" else pipe.store.restore(older, *units)

        for module in ("cdc.follow.apply", "cdc.follow.follower"):
            monkeypatch.setattr(f"{module}.crashpoint", reach)
        pipe.follow(follower)
        assert reached >= at
        pipe.assert_whole()
        older = pipe.store.copy()
        pipe.write(4)
    pipe.follow(follower)
    pipe.assert_whole()
    assert pipe.stop() is None


def test_a_table_that_is_selected_later_gets_its_past_and_the_others_are_left_alone(pipe: Pipe) -> None:
    pipe.write(6)
    first = pipe.follower(tables=("public.pairs",))
    pipe.follow(first)
    first.close()
    assert ORDERS.qualified not in pipe.store.tables
    second = pipe.follower()
    pipe.follow(second)
    pipe.assert_whole()
    with closing(EmbeddedLogReader(pipe.folder / "log")) as reader:
        rows = {topic.name: topic.rows for topic in reader.topics()}
    assert second.status.written + second.status.stale == rows[ORDERS.qualified], "rows that the store holds do not come again"


def test_a_store_of_another_log_is_left_alone_until_it_is_to_be_built_again(pipe: Pipe, tmp_path: Path) -> None:
    pipe.write(3)
    pipe.follow(pipe.follower())
    pipe.followers.pop().close()
    theirs = {topic: dict(rows) for topic, rows in pipe.store.rows.items()}
    pipe.writer.close()
    shutil.move(tmp_path / "log", tmp_path / "log.theirs")
    pipe.writer, pipe.number = EmbeddedLogWriter(tmp_path / "log"), 20
    pipe.write(2)
    for _ in range(2):  # a plain resume looks again, and nothing has changed
        assert not pipe.follower().start()
        stop = pipe.stop()
        assert stop is not None
        assert stop.state is StopState.OTHER_LOG
        assert f"cdc resume OTHER_LOG:follow-{pipe.name} --rebuild" in stop.hint
        assert {topic: dict(rows) for topic, rows in pipe.store.rows.items()} == theirs
        stops.clear(tmp_path / "run", stop.name)
        pipe.followers.pop().close()
    rebuilds.request(tmp_path / "run", pipe.name, StopState.OTHER_LOG)
    pipe.follow(pipe.follower())
    pipe.assert_whole()
    assert rebuilds.requested(tmp_path / "run", pipe.name) is None


@pytest.mark.parametrize("point", ["rebuild.written", "rebuild.opened", "rebuild.done"])
def test_a_rebuild_is_carried_out_whatever_becomes_of_the_follower(pipe: Pipe, point: str) -> None:
    pipe.write(4)
    pipe.follow(pipe.follower())
    pipe.followers.pop().close()
    phantom = order(99, "nobody wrote this")
    pipe.store.tables[ORDERS.qualified].rows["99"] = (2, phantom)
    rebuilds.request(pipe.folder / "run", pipe.name, StopState.DIVERGED)
    with armed(f"{point}=error"), pytest.raises(Fault):
        pipe.follower().start()
    assert (rebuilds.requested(pipe.folder / "run", pipe.name) is None) == (point == "rebuild.done")
    pipe.followers.pop().close()
    pipe.write(1)
    pipe.follow(pipe.follower())
    pipe.assert_whole()
    assert rebuilds.requested(pipe.folder / "run", pipe.name) is None


def test_a_damaged_request_empties_nothing(pipe: Pipe) -> None:
    pipe.write(2)
    pipe.follow(pipe.follower())
    pipe.followers.pop().close()
    rebuilds.request(pipe.folder / "run", pipe.name, StopState.DIVERGED)
    [path] = (pipe.folder / "run" / "rebuild").iterdir()
    path.write_text("{}")
    assert not pipe.follower().start()
    stop = pipe.stop()
    assert stop is not None
    assert str(path) in stop.message
    pipe.assert_whole()


def test_an_older_log_under_a_store_stops_it_also_once_the_log_is_longer_again(pipe: Pipe, tmp_path: Path) -> None:
    """The log is restored from a copy, the tables are read again, and its positions pass those that the store holds."""
    pipe.write(2)
    pipe.writer.close()
    shutil.copytree(tmp_path / "log", tmp_path / "copy", ignore=shutil.ignore_patterns(FOLDER))
    pipe.writer = EmbeddedLogWriter(tmp_path / "log")
    pipe.write(3)
    pipe.follow(pipe.follower())
    pipe.followers.pop().close()
    pipe.writer.close()
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "copy", tmp_path / "log")
    pipe.writer, pipe.number = EmbeddedLogWriter(tmp_path / "log"), 2
    for step in ("the log ends before", "the history was left", "the log is longer"):
        assert not pipe.follower().start(), step
        stop = pipe.stop()
        assert stop is not None
        assert stop.state is StopState.DIVERGED
        assert f"cdc resume DIVERGED:follow-{pipe.name} --rebuild" in stop.hint
        assert pipe.status().position == 0, "none of what it holds is this log's"
        stops.clear(tmp_path / "run", stop.name)
        pipe.followers.pop().close()
        if step == "the log ends before":
            pipe.writer.begin_history()
        else:
            pipe.number += 30  # other rows than the store has seen
            pipe.write(9)
    rebuilds.request(tmp_path / "run", pipe.name, StopState.DIVERGED)
    pipe.follow(pipe.follower())
    pipe.assert_whole()


def test_a_history_that_begins_while_a_follower_runs_is_no_alarm(pipe: Pipe) -> None:
    follower = pipe.follower()
    pipe.write(2)
    pipe.follow(follower)
    pipe.writer.begin_history()
    pipe.write(2)
    pipe.follow(follower)
    follower.close()
    again = pipe.follower()
    assert again.start()
    pipe.write(1)
    pipe.follow(again)
    pipe.assert_whole()


def test_it_goes_above_an_epoch_that_its_log_does_not_know_of(pipe: Pipe) -> None:
    """The log's folder was copied without its leases."""
    pipe.write(2)
    for _ in range(5):
        pipe.follow(pipe.follower())
        pipe.followers.pop().close()
    shutil.rmtree(pipe.folder / "log" / FOLDER)
    pipe.write(1)
    pipe.follow(pipe.follower())
    pipe.assert_whole()
    assert pipe.stop() is None


def test_two_services_that_follow_copies_of_one_log_do_not_fence_each_other_for_ever(pipe: Pipe, tmp_path: Path) -> None:
    pipe.write(2)
    shutil.copytree(tmp_path / "log", tmp_path / "other" / "log")
    other = Follower(
        pipe.name, pipe.options, tmp_path / "other" / "log", EmbeddedLogReader(tmp_path / "other" / "log"),
        tmp_path / "other" / "run", threading.Event(),
    )  # fmt: skip
    ours = pipe.follower()
    for _ in range(4):
        for one in (ours, other):
            one.follow_to(pipe.writer.head)
            one.idle()
        pipe.write(1)
        shutil.copytree(tmp_path / "log" / "topics", tmp_path / "other" / "log" / "topics", dirs_exist_ok=True)
        for file in ("timeline-00000001", "head"):
            (tmp_path / "other" / "log" / file).write_bytes((tmp_path / "log" / file).read_bytes())
    stopped = [one for one in (ours, other) if one.stopped]
    assert len(stopped) == 1
    assert stopped[0].status.stop == StopState.OTHER_LOG
    assert "a copy of this log" in (stopped[0].status.error or "")
    other.close()


def test_a_log_whose_folder_is_replaced_under_a_follower_is_read_from_the_new_one(pipe: Pipe, tmp_path: Path) -> None:
    """Or it would follow files that nobody writes any more, and call that healthy."""
    pipe.write(3)
    follower = pipe.follower()
    pipe.follow(follower)
    pipe.writer.close()
    shutil.move(tmp_path / "log", tmp_path / "log.before")
    follower.idle()
    assert pipe.status().state == "waiting"
    pipe.writer, pipe.number = EmbeddedLogWriter(tmp_path / "log"), 50
    pipe.write(1)
    follower.idle()
    assert follower.status.stop == StopState.OTHER_LOG


def test_it_waits_for_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    follower = Follower("early", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path / "run", threading.Event())  # fmt: skip
    starting = threading.Thread(target=follower.start)
    starting.start()
    while follower.status.state != "waiting":
        starting.join(0.01)
    assert "no log" in (follower.status.error or "")
    assert "early" not in STORES or STORES["early"].ledger is None
    EmbeddedLogWriter(tmp_path / "log").close()
    starting.join(60)
    assert follower.status.state == "following"
    follower.close()


def test_a_lease_that_somebody_else_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    EmbeddedLogWriter(tmp_path / "log").close()
    theirs = Lease(tmp_path / "log", "taken")
    follower = Follower("taken", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path / "run", threading.Event())  # fmt: skip
    starting = threading.Thread(target=follower.start)
    starting.start()
    while follower.status.state != "waiting":
        starting.join(0.01)
    assert "already follows store taken" in (follower.status.error or "")
    theirs.close()
    starting.join(60)
    assert follower.status.state == "following"
    follower.close()


def test_the_hint_of_a_stop_state_names_this_store_alone(pipe: Pipe) -> None:
    follower = pipe.follower()
    for given, expected in (
        ("cdc resume DIVERGED --rebuild", f"cdc resume DIVERGED:follow-{pipe.name} --rebuild"),
        (f"cdc resume DIVERGED:follow-{pipe.name}", f"cdc resume DIVERGED:follow-{pipe.name}"),
    ):
        follower.fail(Stopped(StopState.DIVERGED, "…", hint=given))
        stop = pipe.stop()
        assert stop is not None
        assert stop.hint == expected


def test_it_looks_at_the_store_however_steadily_it_commits(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit looks at what it has written. A part that has no traffic may be lost meanwhile."""
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.2)
    looks: list[float] = []
    original = MemorySink.applied

    def applied(self: MemorySink) -> Any:
        looks.append(time.monotonic())
        return original(self)

    follower = pipe.follower()
    pipe.write()
    pipe.follow(follower)
    monkeypatch.setattr(MemorySink, "applied", applied)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        pipe.write()
        pipe.follow(follower)
        time.sleep(0.02)
    assert looks
