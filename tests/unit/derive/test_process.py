"""What the process of a view does about waiting, and about having been refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.derive import process
from cdc.derive.around import StepCounts
from cdc.derive.inforce import ViewWaits
from cdc.derive.process import PUMP_S, keep_up, try_again_if_changed
from cdc.derive.reporter import ViewReporter
from cdc.errors import Stopped, StopState
from cdc.model.position import ZERO_CUT, Position
from cdc.state import status, stops
from tests.unit.derive.bed import VIEW


def test_a_refused_view_is_tried_again_once_it_is_defined_otherwise(tmp_path: Path) -> None:
    status.write(tmp_path, "view-joined", status.ViewStatus("joined", declaration=VIEW.declaration))
    stops.record(tmp_path, "view-joined", Stopped(StopState.VIEW_REFUSED, "view joined: a value"))
    try_again_if_changed(tmp_path, "joined", VIEW)
    assert stops.held_by(tmp_path, "view-joined"), "nothing has changed"
    other = replace(VIEW, name="defined otherwise")
    try_again_if_changed(tmp_path, "joined", other)
    assert not stops.held_by(tmp_path, "view-joined")
    stops.record(tmp_path, "view-joined", Stopped(StopState.LOG_CORRUPT, "the log"))
    try_again_if_changed(tmp_path, "joined", other)
    assert stops.held_by(tmp_path, "view-joined"), "that is not its definition's fault"


class Waiting:
    """A runner whose tables are being read again, for three looks."""

    def __init__(self, stop: threading.Event) -> None:
        self.at, self.counts, self.why, self._stop, self._looks = Position(0), StepCounts(), "", stop, 0
        self.building, self.topics = False, ["public.orders"]

    def move_mark(self) -> None:
        pass

    def forget_former(self) -> None:
        pass

    def generations(self) -> list[status.ViewGeneration]:
        return []

    def state_bytes(self) -> dict[int, int]:
        return {}

    def kept_rows(self) -> int:
        return 0

    def reflects(self) -> tuple[int, int]:
        return 0, 0

    def step(self) -> bool:
        self._looks += 1
        if self._looks == 3:
            self._stop.set()
        raise ViewWaits("public.orders is still being read")


def test_waiting_is_said_once_and_stays_its_state(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("cdc.derive.process.LOOK_S", 0.0)
    stop, report = threading.Event(), ViewReporter(tmp_path, "joined", VIEW)
    log: Any = SimpleNamespace(wait=lambda _at, _timeout_s: replace(ZERO_CUT, position=Position(1)))
    runner: Any = Waiting(stop)
    with capture_logs() as said:
        keep_up(runner, log, report, stop)
    assert [one["event"] for one in said] == ["view joined follows", "view joined waits: public.orders is still being read"]
    saved = status.read_view(tmp_path, "joined")
    assert saved is not None
    assert (saved.state, saved.error) == ("waiting", "public.orders is still being read")


class Looks:
    """Seconds, which pass while somebody waits."""

    def __init__(self) -> None:
        self.now, self.waited = 100.0, [0.0]

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waited.append(seconds)
        return False


def test_a_group_that_waits_is_looked_at_often_first_and_each_group_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Any = Looks()
    monkeypatch.setattr(process, "time", looks)
    pump, (least_s, most_s) = process._pump(looks), PUMP_S
    for _ in range(20):
        pump()
    assert looks.waited[1] == least_s
    assert looks.waited[1:] == sorted(looks.waited[1:])
    assert looks.waited[-1] == most_s
    looks.now += 1.0
    pump()
    assert looks.waited[-1] == least_s
