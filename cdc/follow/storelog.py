"""A follower's lines in the daemon's log (``cdc.state.chronicle`` says which)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from cdc.clock import MACHINE, Clock
from cdc.errors import LogReplaced
from cdc.follow.follower import Follower
from cdc.log.contract import LogReader, selected
from cdc.model.position import Position
from cdc.state.chronicle import INTERVAL_S, LOADING_ROWS, Counted, StoreChronicle
from cdc.state.status import CaptureStatus, unread_rows

_ALL: Final = 2**62


class StoreLog:
    """One store's. One thread only."""

    def __init__(self, follower: Follower, reader: LogReader, clock: Clock = MACHINE) -> None:
        self._follower = follower
        self._reader = reader
        self._clock = clock
        self._chronicle = StoreChronicle(follower.store)
        self._counted = Counted(0, 0, True)
        self._counted_at = float("-inf")
        self._log: Any = structlog.get_logger(f"store {follower.store}")

    def look(self, capture: Callable[[], CaptureStatus | None]) -> None:
        """Says what has changed since the last call. ``capture``: reads its status; called now and then."""
        now = self._clock.monotonic()
        if self._follower.status.state != "following":
            self._counted_at = float("-inf")  # where the store is, nobody knows before it is open
        elif now - self._counted_at >= INTERVAL_S:
            self._counted_at = now
            with suppress(LogReplaced):  # the follower says so, and goes on with the other log
                self._counted = self._count(capture)
        line = self._chronicle.look(self._follower.status, self._counted, now)
        if line is not None:
            getattr(self._log, line.level)(line.words, facts=line.facts)

    def _count(self, capture: Callable[[], CaptureStatus | None]) -> Counted:
        # In this order: what is written in between counts as missing, and so as written afterwards.
        rows = self._follower.status.written + self._follower.status.stale
        after, head = self._follower.applied.position, self._reader.head().position
        unread = unread_rows(capture(), self._follower.options.tables)
        return Counted(self._missing(after, head, unread), rows, after == 0)

    def _missing(self, after: Position, head: Position, unread: int) -> int:
        if head - after + unread < LOADING_ROWS:
            return head - after + unread
        topics = [topic.name for topic in selected(self._reader, self._follower.options.tables) if topic.last > after]
        return unread + sum(piece.rows for piece in self._reader.slices(topics, after, head, _ALL, self._follower.history))
