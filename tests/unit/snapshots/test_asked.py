from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snapshots import asked
from snapshots.asked import Asked
from snapshots.jobs import Board
from snapshots.requests import Outcome, Request, Requests


@pytest.mark.parametrize("state", ["queued", "running", "done", "failed"])
def test_a_request_that_was_finished_since_it_was_looked_for_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    requests = Requests(tmp_path)
    request = Request("public.t")
    name = requests.queue(request)
    table: Any = SimpleNamespace(table=SimpleNamespace(oid=7), untold=False)
    monkeypatch.setattr(asked, "load_tables", lambda *_: [table])
    monkeypatch.setattr(Asked, "_job", lambda *_: SimpleNamespace(source=table))
    if state != "queued":
        requests.tell(name, Outcome(state))
    board, nothing = Board(), SimpleNamespace(publication="cdc")
    Asked(nothing, nothing, nothing, requests, nothing)._offer(board, set(), name, request)  # type: ignore[arg-type]
    assert board.busy == (state in ("queued", "running"))
