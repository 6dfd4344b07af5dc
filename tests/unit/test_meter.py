"""Capture's status file: how soon it shows how far the stream has come."""

from __future__ import annotations

import time
from pathlib import Path

from cdc import status
from cdc.meter import PROMPT_STATUS_S, STATUS_S, Meter
from snapshots.progress import SnapshotProgress


def told(tmp_path: Path) -> int:
    found = status.read_capture(tmp_path)
    assert found is not None
    return found.received_lsn


def test_an_lsn_that_only_the_status_shows_is_told_at_once_but_not_always_again(tmp_path: Path) -> None:
    meter = Meter(tmp_path, "cdc", SnapshotProgress(tmp_path))
    meter.write()
    meter.status.received_lsn = 10
    time.sleep(PROMPT_STATUS_S)
    meter.write()
    assert told(tmp_path) == 10
    meter.status.received_lsn = 11
    began = time.monotonic()
    while told(tmp_path) != 11:
        meter.write()
    assert PROMPT_STATUS_S * 0.5 < time.monotonic() - began < STATUS_S
    # A commit shows in the log itself.
    meter.status.received_lsn = meter.status.commit_lsn = 12
    time.sleep(PROMPT_STATUS_S * 2)
    meter.write()
    assert told(tmp_path) == 11
