"""Which tables are read, and when one is given up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.source.copyout import Abandoned
from snapshots.agenda import Agenda
from snapshots.catalog import Look, SourceTable
from snapshots.feed import SnapshotFeed, Watermarks
from snapshots.jobs import Board
from snapshots.progress import SnapshotProgress
from snapshots.queries import CurrentSnapshot, Looks, NextXid, Published, Reload
from snapshots.requests import Requests
from snapshots.steps import AwaitBoard, drive
from tests.unit.snapshots.rows import T

SOURCE = SourceTable(T, ("a", "b"), False, None, 10, 8192, 1)


class _Server:
    """Where the transaction that has made the table is open still, or its commit waits for a synchronous standby, until ``visible``."""

    def __init__(self, *, shows: bool) -> None:
        self.shows = shows
        self.visible = False
        self.turns = 0
        self.now = 0.0

    def answer(self, request: object) -> object:
        match request:
            case Published():
                return []
            case CurrentSnapshot():
                return "11:11:" if self.visible else "10:11:10"
            case NextXid():
                return 11
            case Looks():
                return dict.fromkeys(request.oids, Look("10:11:10", "facts", "files"))
            case Reload():
                return dict.fromkeys(request.oids, (SOURCE, None)) if self.shows and self.visible else {}
            case AwaitBoard():
                self.turns += 1
                self.now += 1.0
                if self.turns == 5:
                    raise Abandoned
        return None


def _agenda(folder: Path, server: _Server) -> tuple[Agenda, SnapshotProgress]:
    settings: Any = SimpleNamespace(
        publication="cdc", slot="cdc", tables=("*",), snapshot_chunk_rows=10, snapshot_workers=1, snapshot_rows_per_s=None,
        snapshot_pause_lag_mb=64,
    )  # fmt: skip
    progress = SnapshotProgress(folder)
    feed = SnapshotFeed(progress)
    feed.read_again(T.oid, joined=True)
    return Agenda(settings, feed, progress, Requests(folder), log_has_begun=False, clock=lambda: server.now), progress


def _session(agenda: Agenda, server: _Server, board: Board) -> None:
    server.turns = 0
    with pytest.raises(Abandoned):
        drive(agenda.session(board, Watermarks("one")), server.answer)


def test_a_table_that_the_stream_shows_before_the_catalog_does_is_waited_for(tmp_path: Path) -> None:
    """With a synchronous standby the stream has a transaction before anybody else sees what it has made."""
    server = _Server(shows=True)
    agenda, progress = _agenda(tmp_path, server)
    board = Board()
    _session(agenda, server, board)
    assert progress.known(T.oid)
    server.visible = True
    _session(agenda, server, board)
    assert board.reads(T.oid)


def test_a_table_that_is_gone_when_it_should_be_seen_is_given_up(tmp_path: Path) -> None:
    server = _Server(shows=False)
    agenda, progress = _agenda(tmp_path, server)
    server.visible = True
    drive(agenda.session(Board(), Watermarks("one")), server.answer)
    assert not progress.known(T.oid)
