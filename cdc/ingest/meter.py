"""The capture process's status file, kept current: what other processes and people see of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from cdc.clock import MACHINE, Clock
from cdc.state import status
from cdc.state.chronicle import CaptureChronicle
from snapshots.progress import SnapshotProgress

STATUS_S: Final = 0.5
PROMPT_STATUS_S: Final = 0.02
"""After the stream has moved past changes that are not ours: a wait for an LSN there can look at nothing but the status file."""

_log = structlog.get_logger("capture")


class MeteredTables(Protocol):
    """The selected tables, as the catalog and the snapshot see them."""

    def loaded(self) -> bool:
        """Whether every one of them is in the log."""
        ...

    def paused(self) -> str | None:
        """Why reading them stands still, if it does."""
        ...

    def left_out(self) -> Sequence[str]:
        """Selected tables, or parts of them, that do not reach the log: one line each with what helps."""
        ...

    def notes(self) -> Sequence[str]:
        """Facts to know about captured tables: one line each with what helps."""
        ...

    def passed_over(self) -> Collection[int]:
        """Tables (OIDs) that cannot be captured as they are defined now."""
        ...


class _Unknown:
    """Before the catalog has been looked at."""

    def loaded(self) -> bool:
        return False

    def paused(self) -> str | None:
        return None

    def left_out(self) -> Sequence[str]:
        return ()

    def notes(self) -> Sequence[str]:
        return ()

    def passed_over(self) -> Collection[int]:
        return ()


class Meter:
    """Keeps the capture process's status file current. ``log_alarm``: why the log's disk refuses to take sealed files, if it does."""

    def __init__(
        self,
        run_dir: Path,
        slot: str,
        progress: SnapshotProgress,
        *,
        log_alarm: Callable[[], str | None] = lambda: None,
        clock: Clock = MACHINE,
    ) -> None:
        self._run_dir = run_dir
        self._progress = progress
        self._log_alarm = log_alarm
        self._clock = clock
        self._written_at = float("-inf")
        self._told_lsn = 0
        self._counted = (clock.monotonic(), 0)
        self._chronicle = CaptureChronicle()
        self.status = status.CaptureStatus(pid=os.getpid(), slot=slot)
        self._written: status.CaptureStatus | None = None
        self.tables: MeteredTables = _Unknown()

    def write(self, *, force: bool = False) -> None:
        now = self._clock.monotonic()
        unseen = self.status.received_lsn > max(self._told_lsn, self.status.commit_lsn)
        if not force and now - self._written_at < (PROMPT_STATUS_S if unseen else STATUS_S):
            return
        self._written_at, self._told_lsn = now, self.status.received_lsn
        then, changes = self._counted
        if now - then >= 2 * STATUS_S:
            self.status.changes_per_s = (self.status.changes - changes) / (now - then)
            self._counted = (now, self.status.changes)
        self.status.snapshot = self._progress.tables(without=self.tables.passed_over())
        self.status.snapshot_paused = self.tables.paused()
        self.status.left_out = list(self.tables.left_out())
        self.status.notes = list(self.tables.notes())
        self.status.log_alarm = self._log_alarm()
        if not self.tables.loaded():
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

    def lack(self) -> None:
        """Rows that belong to the log's next cut are still to be read: unless the file says so already, it does before that cut is there.

        Who waits for an LSN would else find a cut that covers it, and think that everything up to there was in the log.
        """
        if self.status.complete_position is not None and not self.tables.loaded():
            self.write(force=True)

    def say(self, state: str, error: str | None = None) -> None:
        self.status.state, self.status.error = state, error
        self.write(force=True)
