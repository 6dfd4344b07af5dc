from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snapshots.asked import Asked
from snapshots.catalog import Look, SourceTable
from snapshots.jobs import Board
from snapshots.queries import Looks, Published
from snapshots.requests import Request, RequestOutcome, Requests
from snapshots.steps import drive
from tests.unit.snapshots.rows import T


@pytest.mark.parametrize("state", ["queued", "running", "done", "failed"])
def test_a_request_that_was_finished_since_it_was_looked_for_is_not_read_again(tmp_path: Path, state: str) -> None:
    requests = Requests(tmp_path)
    name = requests.queue(Request(T.qualified))

    def answer(request: object) -> object:
        """The request is finished while the catalog is asked for its table."""
        if isinstance(request, Published):
            if state != "queued":
                requests.tell(name, RequestOutcome(state))
            return [SourceTable(T, ("a", "b"), False, None, 10, 8192, 1)]
        assert isinstance(request, Looks)
        return {T.oid: Look("1:1:", "facts", "files")}

    nothing: Any = None
    settings: Any = SimpleNamespace(publication="cdc", snapshot_chunk_rows=10, snapshot_workers=1, snapshot_rows_per_s=None)
    board = Board()
    assert drive(Asked(settings, nothing, nothing, requests).offer(board, set()), answer)
    assert board.busy == (state in ("queued", "running"))
