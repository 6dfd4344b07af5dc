from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.source.copyout import Abandoned
from snapshots.agenda import Agenda
from snapshots.catalog import Look, SourceTable
from snapshots.feed import SnapshotFeed, Watermarks
from snapshots.jobs import Board
from snapshots.progress import SnapshotProgress
from snapshots.queries import CurrentSnapshot, Looks, NextXid, Published
from snapshots.requestjobs import Asked
from snapshots.requests import Request, RequestOutcome, Requests
from snapshots.steps import AwaitBoard, drive
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
    with capture_logs() as said:
        assert drive(Asked(settings, nothing, nothing, requests).offer(board, set()), answer)
    assert ("took up an asked-for snapshot", name, T.qualified) in [
        (one["event"], one["request"], one.get("table")) for one in said
    ]
    assert board.busy == (state in ("queued", "running"))


def test_a_session_looks_for_requests_at_once(tmp_path: Path) -> None:
    """One that came just after the last look of the session before would otherwise begin sessions, with their connections, over and over."""
    requests = Requests(tmp_path)
    progress = SnapshotProgress(tmp_path)
    settings: Any = SimpleNamespace(
        publication="cdc", slot="cdc", tables=("*",), snapshot_chunk_rows=10, snapshot_workers=1, snapshot_rows_per_s=None,
        snapshot_pause_lag_mb=64,
    )  # fmt: skip
    agenda = Agenda(settings, SnapshotFeed(progress), progress, requests, log_has_begun=False, clock=lambda: 1.0)
    source = SourceTable(T, ("a", "b"), False, None, 10, 8192, 1)

    def answer(request: object) -> object:
        if isinstance(request, Published):
            return [source] if request.patterns != ("*",) else []
        if isinstance(request, Looks):
            return dict.fromkeys(request.oids, Look("1:1:", "facts", "files"))
        if isinstance(request, CurrentSnapshot):
            return "1:1:"
        if isinstance(request, NextXid):
            return 1
        if isinstance(request, AwaitBoard):
            raise Abandoned
        return None

    drive(agenda.session(Board(), Watermarks("first")), answer)
    assert agenda.rests()
    requests.queue(Request(T.qualified))
    assert not agenda.rests()
    board = Board()
    with pytest.raises(Abandoned):
        drive(agenda.session(board, Watermarks("second")), answer)
    assert board.busy
