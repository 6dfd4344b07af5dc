"""The snapshot's thread and its workers, over a server that is made up."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from snapshots import coordinator, queries
from snapshots.agenda import Agenda
from snapshots.catalog import Look, SourceTable
from snapshots.coordinator import SnapshotCoordinator
from snapshots.feed import SnapshotFeed
from snapshots.jobs import Job
from snapshots.progress import SnapshotProgress
from snapshots.requests import Requests
from snapshots.steps import NextJob, Pause, Steps
from tests.unit.snapshots.rows import T

SOURCE = SourceTable(T, ("a", "b"), False, None, 40, 8192 * 4, 4)
LOOK = Look("100:100:", "facts", "files")
SETTINGS: Any = SimpleNamespace(
    dsn=SecretStr("postgresql:///nowhere"),
    publication="cdc",
    slot="cdc",
    tables=("*",),
    snapshot_chunk_rows=10,
    snapshot_workers=1,
    snapshot_rows_per_s=None,
    snapshot_pause_lag_mb=64,
)


def test_a_range_that_is_durable_only_when_its_worker_ends_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "open_session", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(queries.Published, "ask", lambda *_: [SOURCE])
    monkeypatch.setattr(queries.Looks, "ask", lambda *_: {T.oid: LOOK})
    monkeypatch.setattr(queries.Reload, "ask", lambda *_: {T.oid: (SOURCE, None)})
    monkeypatch.setattr(queries.SlotNow, "ask", lambda *_: None)
    progress = SnapshotProgress(tmp_path, interval_s=3600.0)
    reading = Event()

    class Slow:
        """A worker that sees its part durable after the session has ended."""

        def live(self) -> Steps[None]:
            job: Job = yield NextJob()
            task = next(job.tasks)
            reading.set()
            try:
                yield Pause(60.0)
            finally:
                job.purpose.advance(task, 10)

    monkeypatch.setattr(Agenda, "reader", lambda *_: Slow())
    stop = Event()
    thread = SnapshotCoordinator(SETTINGS, SnapshotFeed(progress), progress, Requests(tmp_path), stop, log_has_begun=False)
    thread.start()
    try:
        assert reading.wait(60.0)
    finally:
        stop.set()
        thread.join(60.0)
    assert progress.rows(T.oid)[0] == 10
    assert SnapshotProgress(tmp_path).rows(T.oid)[0] == 10, "on the disk as well"
