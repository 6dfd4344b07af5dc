"""The status of one generation that readers do not see, for `cdc status` and its like, and for compaction, which leaves it what it still has to read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from cdc.clock import MACHINE
from cdc.model.position import Cut
from cdc.state import status
from cdc.state.status import GenerationStatus

OFTEN_S: Final = 0.5


class GenerationReporter:
    """One generation's. ``state``: building | kept."""

    def __init__(self, run_dir: Path, store: str, number: int, state: str, until: float | None = None) -> None:
        self._run_dir = run_dir
        self._now = GenerationStatus(
            store=store, number=number, state=state, pid=os.getpid(), until=until or 0.0, moved_at=time.time()
        )
        self._written_at = self._began = float("-inf")

    def progress(self, cut: Cut, phase: str, rows: int, expected: int) -> None:
        """How far it has come; written now and then."""
        now, at = self._now, MACHINE.monotonic()
        if phase != now.phase or self._began < 0:
            self._began, self._written_at = at, float("-inf")
        now.phase, now.rows, now.expected = phase, rows, expected
        now.rows_per_s = rows / (at - self._began) if at > self._began else 0.0
        self._at(cut)
        if at - self._written_at >= OFTEN_S:
            self._written_at = at
            self._write()

    def holds(self, cut: Cut, until: float | None) -> None:
        """It was brought on to there. Written where that is news, and as a sign of life."""
        former = (self._now.position, self._now.error, self._now.until)
        self._now.error, self._now.until = None, until or 0.0
        self._at(cut)
        if former != (self._now.position, None, self._now.until) or status.silent_s(self._now) >= status.BEAT_S:
            self._write()

    def fails(self, error: str) -> None:
        """It is not brought on at present."""
        self._now.error = error
        self._write()

    def gone(self) -> None:
        """The generation was removed, or readers see it."""
        status.remove(self._run_dir, self._now.part)

    def _at(self, cut: Cut) -> None:
        if cut.position != self._now.position:
            self._now.position, self._now.moved_at = cut.position, time.time()

    def _write(self) -> None:
        status.stamp(self._now)
        status.write(self._run_dir, self._now.part, self._now)
