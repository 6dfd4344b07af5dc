"""A follower's status file: its content, and when it is written.

A commit is shown at once, unless commits follow each other closely: then ten times a second, and the last one once nothing follows it.
A change of state is always written. The file is also written now and then when nothing has changed, so that a reader can tell silence
from death (``cdc.state.status``).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cdc.clock import Clock
from cdc.errors import HeadwaterError, Stopped, StopState, StoreError
from cdc.follow.rules import SchemaPause
from cdc.model.position import ZERO_CUT, Cut
from cdc.pace import Rate
from cdc.state import status, stops
from cdc.state.approvals import ask
from cdc.state.status import FollowerStatus, TableLetters
from sinks.contract import Outcome
from sinks.deadletters import Letter, LetterState

COMMITS_S: Final = 0.1
"""Commits that follow each other closely are written this often."""


Show = Callable[[Path, str, FollowerStatus], None]


def written(run_dir: Path, part: str, now: FollowerStatus) -> None:
    """Writes the status file of the part. Raises OSError for what the disk refuses, but for a full one."""
    status.write(run_dir, part, now)


class Reporter:
    """One store's. Thread-safe where two threads can meet: ``report``."""

    def __init__(self, run_dir: Path, store: str, kind: str, clock: Clock, show: Show) -> None:
        """``show``: writes the file."""
        self.status = _beginning(run_dir, store, kind)
        self._run_dir = run_dir
        self._clock = clock
        self._write = show
        self._rates = Rate(clock.monotonic())
        self._lock = threading.Lock()
        self._reported: FollowerStatus | None = None
        self._letters: Sequence[Letter] | None = None
        self._commit_at = float("-inf")
        """When a commit was last written."""

    @property
    def stopped(self) -> bool:
        return self.status.state == "stopped"

    def report(self, *, when_due: bool = False) -> None:
        """Writes the status file. when_due: only if something has changed, or nobody has heard of this store for a while."""
        with self._lock:
            self.status.rows_per_s = self._rates.per_s(self.status.written + self.status.stale, self._clock.monotonic())
            if when_due and status.silent_s(self.status) < status.BEAT_S and self.status == self._reported:
                return
            status.stamp(self.status)
            self._write(self._run_dir, self._part, self.status)
            self._reported = replace(self.status)

    def following(self) -> None:
        """The store can be reached and takes what it is given. A stop state stays, whoever has entered it meanwhile."""
        if self.status.state in ("starting", "rebuilding", "waiting"):
            self.status.state, self.status.error = "following", None
            self.report()

    def rebuilding(self) -> None:
        """The store is built again: whatever it holds until then does not count."""
        self.status.state, self.status.error = "rebuilding", None
        self._show(ZERO_CUT)
        self.report()

    def waiting(self, error: StoreError) -> None:
        """The store is down, and is tried again."""
        self.status.state, self.status.error = "waiting", error.line()
        self.report()

    def failed(self, error: HeadwaterError) -> None:
        """Enters the stop state that the error names; it is recorded, and so survives a restart."""
        stopped = (
            error if isinstance(error, Stopped) else Stopped(StopState.STORE_REFUSES, str(error), hint=_then_resume(error.hint))
        )
        stopped.hint = _of_one_part(stopped, self._part)
        stops.record(self._run_dir, self._part, stopped)
        self.status.state, self.status.stop, self.status.error = "stopped", str(stopped.state), stopped.line()
        if stopped.state in (StopState.DIVERGED, StopState.OTHER_LOG):
            self._show(ZERO_CUT)  # what it holds is none of this log's
        self.report()

    def asks(self, pause: SchemaPause) -> None:
        """Waits for an operator to let a schema change through. In this order: without its stop state, the question counts as answered."""
        self.failed(pause.stopped)
        ask(self._run_dir, self.status.store, pause.topic, pause.position)

    def exited(self) -> None:
        """The follower has closed the store."""
        if not self.stopped:
            self.status.state = "exited"
        self.report()

    def found(self, applied: Cut) -> None:
        """The store says by itself that it holds this much."""
        lower = applied.position < self.status.position
        if applied.position == 0:
            self.status.dead = 0
        self._show(applied)
        if lower:
            self.report()  # at once: somebody may be waiting for what the store has lost

    def returns_to(self, position: int | None) -> None:
        """The first change that the store may have to read again."""
        if position != self.status.returns_to:
            self.status.returns_to = position
            self.report()

    def letters(self, found: Sequence[Letter]) -> None:
        """The store's dead letters as they are now; costs nothing while they are the same object."""
        if found is self._letters:
            return
        self._letters = found
        aside = [_of_table(table, found) for table in sorted({one.table for one in found})]
        if aside != self.status.aside:
            self.status.aside = aside
            self.report()

    def committed(self, cut: Cut, outcome: Outcome) -> None:
        """The store holds everything up to ``cut``."""
        self.status.written += outcome.written
        self.status.stale += outcome.stale
        self.status.dead += len(outcome.dead)
        self.status.batches += 1
        news = (self.status.state, self.status.error) != ("following", None)
        if not self.stopped:
            self.status.state, self.status.error = "following", None  # what an accident left there is over
        self._show(cut)
        if news or self._clock.monotonic() - self._commit_at >= COMMITS_S:
            self._commit_at = self._clock.monotonic()
            self.report()

    @property
    def _part(self) -> str:
        return f"follow-{self.status.store}"

    def _show(self, cut: Cut) -> None:
        if cut.position != self.status.position:
            self.status.moved_at = time.time()
        self.status.position, self.status.commit_lsn, self.status.commit_ts_us = cut.position, cut.commit_lsn, cut.commit_ts_us


def _beginning(run_dir: Path, store: str, kind: str) -> FollowerStatus:
    """Until the store has been opened, it is where it was last seen."""
    # A store that has never moved stands still since it was first tried, however often that was begun again.
    now = FollowerStatus(store=store, kind=kind, pid=os.getpid(), moved_at=time.time())
    seen = status.read_follower(run_dir, store)
    if seen is not None and seen.kind == kind:
        now.position, now.commit_lsn, now.commit_ts_us = seen.position, seen.commit_lsn, seen.commit_ts_us
        now.moved_at = seen.moved_at or now.moved_at
        now.dead, now.aside, now.returns_to = seen.dead, seen.aside, seen.returns_to  # what is left over stays so over a restart
    return now


def _of_table(table: str, letters: Sequence[Letter]) -> TableLetters:
    mine = [one for one in letters if one.table == table]
    states = Counter(one.state for one in mine)
    since = min((one.at_s for one in mine if one.state is LetterState.ASIDE), default=0.0)
    return TableLetters(table, len(mine), states[LetterState.EDITED], states[LetterState.ACCEPTED], since)


def _of_one_part(stopped: Stopped, part: str) -> str | None:
    """The hint, with this part alone in the command: capture or another store may be stopped for the same reason."""
    command = f"cdc resume {stopped.state}"
    return stopped.hint and stopped.hint.replace(command, f"{command}:{part}").replace(f"{part}:{part}", part)


def _then_resume(hint: str | None) -> str:
    resume = f"cdc resume {StopState.STORE_REFUSES}"
    if hint and resume in hint:
        return hint
    return f"{hint}; then {resume}" if hint else resume
