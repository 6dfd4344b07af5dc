"""Requests as files: what stays, and for how long."""

from __future__ import annotations

import os
import time
from pathlib import Path

from snapshots.requests import FOLDER, OUTCOME_KEPT_S, Outcome, Request, Requests


def test_the_outcome_of_a_request_that_nobody_waits_for_goes_after_a_day(tmp_path: Path) -> None:
    requests = Requests(tmp_path)
    finished, failed, fresh, running = (requests.queue(Request(f"public.t{number}")) for number in range(4))
    for name, state in ((finished, "done"), (failed, "failed"), (fresh, "done"), (running, "running")):
        requests.tell(name, Outcome(state, rows=7))
    old = time.time() - OUTCOME_KEPT_S - 60
    for name in (finished, failed, running):
        os.utime(tmp_path / FOLDER / f"{name}.state", (old, old))
    assert list(requests.pending()) == [running]
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {f"{fresh}.state", f"{running}.state", f"{running}.json"}
    assert requests.outcome(running).rows == 7
