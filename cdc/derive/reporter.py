"""A view's status file: its content, and when it is written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import structlog

from cdc.derive.ports import DeclaredView
from cdc.derive.runner import ViewRunner
from cdc.pace import Rate
from cdc.state import status

SIZE_S: Final = 2.0
"""The state's size is looked at no more often than this,"""
SIZE_SHARE: Final = 100
"""and takes no more than one part in so many of the time."""

_log = structlog.get_logger("views")


class ViewReporter:
    """The view's status file, kept current."""

    def __init__(self, run_dir: Path, view: str, declared: DeclaredView) -> None:
        before = status.read_view(run_dir, view)
        self._run_dir = run_dir
        self._status = status.ViewStatus(view, os.getpid(), topics=list(declared.topics), declaration=declared.declaration)
        if before is not None:
            self._status.position, self._status.moved_at = before.position, before.moved_at
            self._status.commit_ts_us, self._status.commit_lsn = before.commit_ts_us, before.commit_lsn
        self._written: tuple[object, ...] = ()
        self._written_at = self._measure_at = float("-inf")
        self._bytes: dict[int, int] = {}
        self._rates = Rate(time.monotonic()), Rate(time.monotonic())
        self._write()

    def wait(self, why: str) -> None:
        if self._status.error != why:
            _log.info(f"view {self._status.view} waits: {why}", facts={"view": self._status.view})
        self._status.state, self._status.error = "waiting", why
        self._write()

    def stepped(self, took_s: float, taken: int, written: int) -> None:
        """Notes a step: its seconds, the changes that it took in, and those that it handed over."""
        one = self._status
        one.steps += 1
        one.step_s, one.step_taken, one.step_written = round(took_s, 4), taken, written

    def say(self, runner: ViewRunner) -> None:
        """How far the view is."""
        one, now = self._status, time.monotonic()
        if runner.at != one.position:
            one.position, one.moved_at = runner.at, time.time()
            one.commit_lsn, one.commit_ts_us = runner.reflects()
        self._follows()
        one.written, one.taken, one.built = runner.counts.written, runner.counts.taken, runner.why
        taken, written = self._rates
        one.taken_per_s, one.written_per_s = taken.per_s(runner.counts.taken, now), written.per_s(runner.counts.written, now)
        one.topics, one.generations = runner.topics, runner.generations()
        if now >= self._measure_at:
            self._bytes, one.state_rows = runner.state_bytes(), runner.kept_rows()
            took_s = time.monotonic() - now
            self._measure_at = now + max(SIZE_S, SIZE_SHARE * took_s)
        for generation in one.generations:
            generation.bytes = self._bytes.get(generation.number, 0)
            one.state_bytes = generation.bytes if generation.state == "live" else one.state_bytes
        self._write()

    def _follows(self) -> None:
        """Changes the state, which the daemon's log says once."""
        if self._status.state != "following":
            facts = {"view": self._status.view, "state": "following", "position": self._status.position}
            _log.info(f"view {self._status.view} follows", facts=facts)
        self._status.state, self._status.error = "following", None

    def end(self, state: str, error: str | None = None, stop: str | None = None) -> None:
        self._status.state, self._status.error, self._status.stop = state, error, stop
        self._written_at = float("-inf")
        self._write()

    def _write(self) -> None:
        one, now = self._status, time.monotonic()
        generations = [(each.number, each.state, each.position, each.done, each.error) for each in one.generations]
        content = (one.state, one.error, one.position, one.written, one.steps, one.state_bytes, one.state_rows, generations)
        if content == self._written and now - self._written_at < status.BEAT_S:
            return
        self._written, self._written_at = content, now
        status.stamp(one)
        status.write(self._run_dir, status.view_part(one.view), one)
