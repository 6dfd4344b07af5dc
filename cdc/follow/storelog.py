"""A follower's lines in the daemon's log (``cdc.state.chronicle`` says which)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import structlog

from cdc.follow.follower import Follower
from cdc.log.contract import LogReader, selected
from cdc.model.position import Position
from cdc.state import status
from cdc.state.chronicle import INTERVAL_S, LOADING_ROWS, Counted, StoreChronicle

_ALL: Final = 2**62


class StoreLog:
    """One store's. One thread only."""

    def __init__(self, follower: Follower, reader: LogReader, run_dir: Path) -> None:
        self._follower = follower
        self._reader = reader
        self._run_dir = run_dir
        self._chronicle = StoreChronicle(follower.store)
        self._counted = Counted(0, 0, True)
        self._counted_at = float("-inf")
        self._log: Any = structlog.get_logger(f"store {follower.store}")

    def look(self) -> None:
        """Says what has changed since the last call."""
        now = time.monotonic()
        if now - self._counted_at >= INTERVAL_S:
            self._counted_at = now
            self._counted = self._count()
        line = self._chronicle.look(self._follower.status, self._counted, now)
        if line is not None:
            getattr(self._log, line.level)(line.words, facts=line.facts)

    def _count(self) -> Counted:
        # In this order: what is written in between counts as missing, and so as written afterwards.
        rows = self._follower.status.written + self._follower.status.stale
        after, head = self._follower.applied.position, self._reader.head().position
        return Counted(self._missing(after, head), rows, after == 0)

    def _missing(self, after: Position, head: Position) -> int:
        tables = self._follower.options.tables
        unread = status.unread_rows(status.read_capture(self._run_dir), tables)
        if head - after + unread < LOADING_ROWS:
            return head - after + unread
        topics = [topic.name for topic in selected(self._reader, tables) if topic.last > after]
        return unread + sum(piece.rows for piece in self._reader.slices(topics, after, head, _ALL))
