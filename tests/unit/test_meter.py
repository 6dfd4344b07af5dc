"""Capture's status file: how soon it shows how far the stream has come."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest

from cdc.ingest.meter import PROMPT_STATUS_S, STATUS_S, Meter
from cdc.state import status
from snapshots.progress import SnapshotProgress


class Clock:
    """The meter's, and in place of the module ``time``."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wait(self, stop: Event, seconds: float) -> bool:
        self.now += seconds
        return stop.is_set()


def told(tmp_path: Path) -> int:
    found = status.read_capture(tmp_path)
    assert found is not None
    return found.received_lsn


def test_an_lsn_that_only_the_status_shows_is_told_at_once_but_not_always_again(tmp_path: Path) -> None:
    clock = Clock()
    meter = Meter(tmp_path, "cdc", SnapshotProgress(tmp_path), clock=clock)
    meter.write()
    meter.status.received_lsn = 10
    clock.now += PROMPT_STATUS_S * 1.5
    meter.write()
    assert told(tmp_path) == 10
    meter.status.received_lsn = 11
    clock.now += PROMPT_STATUS_S / 2
    meter.write()
    assert told(tmp_path) == 10
    clock.now += PROMPT_STATUS_S
    meter.write()
    assert told(tmp_path) == 11
    # A commit shows in the log itself.
    meter.status.received_lsn = meter.status.commit_lsn = 12
    clock.now += PROMPT_STATUS_S * 2
    meter.write()
    assert told(tmp_path) == 11
    clock.now += STATUS_S
    meter.write()
    assert told(tmp_path) == 12


def test_a_status_that_has_not_changed_is_written_as_a_sign_of_life_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(status, "time", clock)
    meter = Meter(tmp_path, "cdc", SnapshotProgress(tmp_path), clock=clock)
    written: list[float] = []
    real = status.write
    monkeypatch.setattr(status, "write", lambda *args: written.append(clock.now) or real(*args))
    meter.say("streaming")
    for _ in range(40):
        clock.now += STATUS_S / 2
        meter.write()
    assert len(written) <= 1 + 10 / status.BEAT_S
    assert max(after - before for before, after in pairwise(written)) <= status.BEAT_S + STATUS_S
    meter.status.changes += 1
    clock.now += STATUS_S
    meter.write()
    assert written[-1] == clock.now
