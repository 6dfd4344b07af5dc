"""Requests as files: what stays, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from snapshots.requests import FOLDER, OUTCOME_KEPT_S, Request, RequestOutcome, Requests


def test_the_outcome_of_a_request_that_nobody_waits_for_goes_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(tmp_path)
    finished, failed, fresh, running = (requests.queue(Request(f"public.t{number}")) for number in range(4))
    for name, state in ((finished, "done"), (failed, "failed"), (running, "running")):
        requests.tell(name, RequestOutcome(state, rows=7))
    requests.pending()
    later = time.monotonic() + OUTCOME_KEPT_S / 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    requests.tell(fresh, RequestOutcome("done", rows=7))
    requests.pending()
    assert requests.outcome(finished).state == "done"
    end = later + OUTCOME_KEPT_S / 2 + 1
    monkeypatch.setattr(time, "monotonic", lambda: end)
    assert list(requests.pending()) == [running]
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {f"{fresh}.state", f"{running}.state", f"{running}.json"}
    assert requests.outcome(running).rows == 7
