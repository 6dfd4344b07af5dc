"""A store commits every few seconds whatever its pace, and loses next to nothing by it: on a model of stores and a clock of our own."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.follow import access
from cdc.follow.follower import Follower
from cdc.follow.stride import GOAL_S, GROWTH, LEAST_ROWS, START_ROWS, Stride
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn
from cdc.pace import Rate
from sinks.contract import Outcome
from sinks.memory import MemorySink, Options
from tests.contract.rows import ORDERS, batch, order


def steps(stride: Stride, rows: int, per_s: float, fixed_s: float, commit_s: float) -> list[tuple[int, float]]:
    """What a load of so many rows is divided into: rows and seconds of each step."""
    done: list[tuple[int, float]] = []
    while rows:
        taken = min(stride.rows, rows)
        apply_s = fixed_s + taken / per_s
        stride.took(taken, apply_s, commit_s)
        done.append((taken, apply_s + commit_s))
        rows -= taken
    return done


@pytest.mark.parametrize("per_s", [150, 3_000, 25_000, 60_000])
def test_a_load_commits_every_few_seconds_and_keeps_its_pace(per_s: int) -> None:
    rows = 60 * per_s
    done = steps(Stride(200_000), rows, per_s, fixed_s=0.01, commit_s=0.02)
    assert max(seconds for _, seconds in done[:-1]) <= max(GOAL_S + 0.1, START_ROWS / per_s + 0.1)
    assert len(done) <= 60 / GOAL_S + 10
    assert sum(seconds for _, seconds in done) <= 1.05 * (rows / per_s)


def test_a_store_whose_commits_are_slow_gets_longer_steps_and_loses_a_twentieth_at_most() -> None:
    done = steps(Stride(1_000_000), 12_000_000, 30_000, fixed_s=0.0, commit_s=0.5)
    assert sum(seconds for _, seconds in done) <= 1.05 * 400
    assert max(seconds for _, seconds in done) <= 12.6


def test_a_store_whose_steps_cost_much_however_small_they_are_soon_gets_large_ones() -> None:
    """As a warehouse: half a second for a file and its commit, a million rows in one more."""
    done = steps(Stride(1_000_000), 3_000_000, 1_000_000, fixed_s=0.4, commit_s=0.1)
    assert len(done) <= 7
    assert sum(rows for rows, _ in done[:3]) > 400_000
    assert max(seconds for _, seconds in done) <= GOAL_S


def test_after_a_first_little_backlog_the_next_is_taken_as_a_whole() -> None:
    stride = Stride(1_000_000)
    steps(stride, 30_000, 1_500_000, fixed_s=0.1, commit_s=0.05)
    assert stride.rows == 1_000_000


def test_a_step_never_exceeds_the_limit_nor_grows_by_more_than_its_bound(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(200):
        most = random_.choice([1, 50, 5_000, 200_000])
        stride = Stride(most)
        assert stride.rows <= min(most, START_ROWS)
        for _ in range(30):
            before = stride.rows
            stride.took(random_.randint(1, 2 * before), random_.choice([0.0, 0.01, 3.0, 500.0]), random_.choice([0.0, 0.3]))
            assert 1 <= stride.rows <= most
            assert stride.rows <= max(before * GROWTH, LEAST_ROWS)


def test_a_store_that_slows_down_gets_shorter_steps_at_once_and_live_changes_say_nothing() -> None:
    stride = Stride(200_000)
    steps(stride, 500_000, 20_000, 0.0, 0.01)
    full = stride.rows
    for _ in range(100):
        stride.took(3, 0.01, 0.01)
    assert stride.rows == full
    stride.took(full, 60.0, 0.01)
    assert stride.rows == pytest.approx(full * GOAL_S / 60, rel=0.01)


def test_a_rate_is_that_of_the_last_commits_however_far_apart_they_come() -> None:
    rate = Rate(0.0)
    seen = [rate.per_s(rows, now) for now, rows in [(3.0, 3_000), (3.5, 3_000), (4.0, 3_000), (6.0, 6_000), (7.0, 6_000)]]
    assert min(seen) > 600, "it does not fall to 0 between two commits"
    assert [rate.per_s(rows, now) for now, rows in [(40.0, 36_000), (80.0, 76_000)]] == [pytest.approx(900, rel=0.1), 1_000.0]
    assert rate.per_s(76_000, 95.0) == 0.0, "nothing for ten seconds is nothing"


def test_a_step_that_fails_is_followed_by_a_smaller_one() -> None:
    """A store that needs longer than its own limit on time for what it gets would otherwise get the same again and again."""
    stride = Stride(200_000)
    steps(stride, 500_000, 20_000, 0.0, 0.01)
    full = stride.rows
    stride.failed()
    assert stride.rows == full // 2
    for _ in range(20):
        stride.failed()
    assert stride.rows == LEAST_ROWS
    small = Stride(10)
    small.failed()
    assert small.rows == 10


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.now += seconds
        return stop.is_set()


def test_a_follower_commits_a_backlog_in_steps_of_seconds_and_stops_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stop = Clock(), threading.Event()
    commits: list[float] = []

    class Slow(MemorySink):
        """1,000 rows a second."""

        def apply(self, changes: pa.RecordBatch) -> Outcome:
            clock.now += len(changes) / 1_000
            return super().apply(changes)

        def commit(self, cut: Cut) -> None:
            super().commit(cut)
            commits.append(clock.now)
            if len(commits) == 6:
                stop.set()

    monkeypatch.setattr(access, "make_sink", lambda name, options: Slow(name, options))
    writer = EmbeddedLogWriter(tmp_path / "log")
    for number in range(600):
        writer.append(batch(ORDERS, [(Op.INSERT, number * 100 + i, order(number * 100 + i, "new")) for i in range(1, 101)]))
        writer.commit(Lsn(number + 1), number)
    end = writer.head
    writer.close()
    with closing(EmbeddedLogReader(tmp_path / "log")) as reader:
        follower = Follower(
            f"slow-{tmp_path.name}",
            Options(kind="memory", batch_rows=200_000),
            tmp_path / "log",
            reader,
            tmp_path,
            stop,
            ports=access.Ports(clock=clock),
        )
        follower.follow_to(end)
        follower.close()
    assert [after - before for before, after in zip([100.0, *commits], commits, strict=False)] == pytest.approx(
        [2.0] + [GOAL_S] * 5
    )
    assert follower.applied.position == 2_000 + 5 * GOAL_S * 1_000, (
        "asked to stop it ends at the next commit, not at the end of the backlog"
    )
    assert follower.status.rows_per_s == pytest.approx(1_000, rel=0.05)


def test_a_store_that_fails_in_the_middle_goes_on_from_its_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [False, False, True, False]

    class Weak(MemorySink):
        def commit(self, cut: Cut) -> None:
            if failing and failing.pop(0):
                raise StoreError("it is down", retryable=True)
            super().commit(cut)

    monkeypatch.setattr(access, "make_sink", lambda name, options: Weak(name, options))
    writer = EmbeddedLogWriter(tmp_path / "log")
    for number in range(60):
        writer.append(batch(ORDERS, [(Op.INSERT, number * 100 + i, order(number * 100 + i, "new")) for i in range(1, 101)]))
        writer.commit(Lsn(number + 1), number)
    with closing(writer), closing(EmbeddedLogReader(tmp_path / "log")) as reader:
        follower = Follower(
            f"weak-{tmp_path.name}", Options(kind="memory", batch_rows=1_000), tmp_path / "log", reader, tmp_path, threading.Event()
        )
        follower.follow_to(writer.head)
        follower.close()
        assert follower.applied == writer.head
        assert not failing
