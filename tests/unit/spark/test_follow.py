"""How a store's thread goes about small ranges: what it gathers, and that it looks at the store meanwhile. A clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.position import Cut, Lsn, Position
from cdc.spark import queries as follow
from cdc.spark.queries import INTERVAL_S, REST, StoreQuery

STEP_S = 0.001


@dataclass(slots=True)
class Clock:
    """Also the event that asks the thread to stop, and time passes only while somebody waits for it."""

    until_s: float
    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def is_set(self) -> bool:
        return self.now_s >= self.until_s

    def wait(self, timeout_s: float) -> bool:
        self.now_s += max(timeout_s, STEP_S)
        return self.is_set()


@dataclass(slots=True)
class Steady:
    """A follower, and a log that always has something new. ``concerned``: of the follower's topics."""

    clock: Clock
    options: Any
    took_s: float = 0.0
    concerned: bool = True
    store: str = "lake"
    applied: Cut = field(default_factory=lambda: _cut(0))
    by_query: bool = False
    stopped: bool = False
    counted: int = 0
    began: list[float] = field(default_factory=list)
    looked: list[float] = field(default_factory=list)

    def follow_to(self, cut: Cut) -> None:
        self.began.append(self.clock.now_s)
        self.clock.now_s += self.took_s
        self.applied = cut
        self.counted += self.concerned

    def idle(self) -> None:
        self.looked.append(self.clock.now_s)

    def settled(self) -> None: ...

    def wait(self, after: Position, timeout_s: float) -> Cut:  # noqa: ARG002
        return _cut(after + 1)


def _cut(number: int) -> Cut:
    return Cut(Position(number), Lsn(number))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Steady]:
    def run(seconds: float, options: Any, took_s: float = 0.0, *, concerned: bool = True) -> Steady:
        clock = Clock(100.0 + seconds)
        monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=clock.monotonic))
        steady = Steady(clock, options, took_s, concerned)
        engine: Any = None
        both: Any = steady
        stop: Any = clock
        StoreQuery(engine, both, both, tmp_path, tmp_path, stop)._follow()
        return steady

    return run


def test_a_store_is_looked_at_as_often_as_ever_while_its_changes_are_gathered(followed: Callable[..., Steady]) -> None:
    """Looking only when a commit is due would find what the store has lost seconds later."""
    steady = followed(10.0, SimpleNamespace(commit_interval_s=3.0), took_s=0.2)
    assert len(steady.began) == 4, "the interval counts from begin to begin"
    longest = max(after - before for before, after in zip([100.0, *steady.looked], [*steady.looked, 110.0], strict=True))
    assert longest <= 1.0


def test_small_ranges_of_any_store_keep_their_distance(followed: Callable[..., Steady]) -> None:
    steady = followed(1.0, SimpleNamespace(commit_interval_s=0.0))
    assert len(steady.began) == pytest.approx(1.0 / INTERVAL_S, abs=1)


def test_changes_of_other_topics_make_a_store_rest_no_longer_than_its_share_of_a_core_asks_for(
    followed: Callable[..., Steady],
) -> None:
    """Such as those of the tables that its view is computed from: the view's own come right behind."""
    steady = followed(1.0, SimpleNamespace(commit_interval_s=0.0), took_s=0.001, concerned=False)
    assert len(steady.began) == pytest.approx(1.0 / (0.001 * (1 + REST)), abs=1)
    steady = followed(10.0, SimpleNamespace(commit_interval_s=3.0), took_s=0.001, concerned=False)
    assert len(steady.began) == 4, "a store that has an interval of its own keeps it"


def test_a_thread_that_is_asked_to_stop_does_not_rest_to_the_end(followed: Callable[..., Steady]) -> None:
    steady = followed(1.0, SimpleNamespace(commit_interval_s=600.0))
    assert steady.clock.now_s < 102.0
