"""The capture process's status file, kept current: what other processes and people see of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from cdc.state import status
from cdc.state.chronicle import CaptureChronicle
from snapshots.progress import SnapshotProgress

STATUS_S: Final = 0.5
PROMPT_STATUS_S: Final = 0.02
"""After the stream has moved past changes that are not ours: a wait for an LSN there can look at nothing but the status file."""

_log = structlog.get_logger("capture")


class Meter:
    """Keeps the capture process's status file current."""

    def __init__(self, run_dir: Path, slot: str, progress: SnapshotProgress) -> None:
        self._run_dir = run_dir
        self._progress = progress
        self._written_at = float("-inf")
        self._told_lsn = 0
        self._counted = (time.monotonic(), 0)
        self._chronicle = CaptureChronicle()
        self.status = status.CaptureStatus(pid=os.getpid(), slot=slot)
        self._written: status.CaptureStatus | None = None
        self.loaded: Callable[[], bool] = lambda: False
        """Whether every selected table is in the log."""
        self.paused: Callable[[], str | None] = lambda: None
        """Why the snapshot stands still, if it does."""
        self.left_out: Callable[[], Sequence[str]] = lambda: ()
        """Selected tables, or parts of them, that do not reach the log."""
        self.notes: Callable[[], Sequence[str]] = lambda: ()
        """Facts to know about captured tables."""
        self.log_alarm: Callable[[], str | None] = lambda: None
        """Why the log's disk refuses to take sealed files, if it does."""
        self.passed_over: Callable[[], Collection[int]] = tuple
        """Tables (OIDs) that cannot be captured as they are defined now."""

    def write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        unseen = self.status.received_lsn > max(self._told_lsn, self.status.commit_lsn)
        if not force and now - self._written_at < (PROMPT_STATUS_S if unseen else STATUS_S):
            return
        self._written_at, self._told_lsn = now, self.status.received_lsn
        then, changes = self._counted
        if now - then >= 2 * STATUS_S:
            self.status.changes_per_s = (self.status.changes - changes) / (now - then)
            self._counted = (now, self.status.changes)
        self.status.snapshot = self._progress.tables(without=self.passed_over())
        self.status.snapshot_paused = self.paused()
        self.status.left_out = list(self.left_out())
        self.status.notes = list(self.notes())
        self.status.log_alarm = self.log_alarm()
        if not self.loaded():
            self.status.complete_position = None
        elif self.status.complete_position is None:
            self.status.complete_position = self.status.position
        if self.status.state in ("snapshot", "streaming"):
            self.status.state = "snapshot" if self.status.complete_position is None else "streaming"
        if (line := self._chronicle.look(self.status, now)) is not None:
            getattr(_log, line.level)(line.words, facts=line.facts)
        if not force and status.silent_s(self.status) < status.BEAT_S and self.status == self._written:
            return
        status.stamp(self.status)
        status.write(self._run_dir, "capture", self.status)
        self._written = replace(self.status)

    def say(self, state: str, error: str | None = None) -> None:
        self.status.state, self.status.error = state, error
        self.write(force=True)
