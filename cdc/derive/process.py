"""The process that keeps one view up, and what it says of itself. One slow view holds up nobody but itself, and what is computed from it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import structlog

from cdc.derive.inforce import ViewWaits
from cdc.derive.ports import DeclaredView
from cdc.derive.runner import Around, Halted, StepLimits, ViewRunner
from cdc.derive.statefolder import FOLDER, StateFolder, StateHeld
from cdc.errors import HeadwaterError, Stopped
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.state import status, stops

LOOK_S: Final = 0.5
"""Whatever a view waits for is looked at so often."""
PUMP_S: Final = 0.01
REST_S_MAX: Final = 0.03
"""After a step that took t, the next one comes t later, and this at most: so what a small group costs is shared by more changes."""
SIZE_S: Final = 30.0
"""The state's size is looked at so often."""

_log = structlog.get_logger("views")


def _keep_up(runner: ViewRunner, log: LogReader, report: ViewReport, stop: threading.Event) -> None:
    """Takes a step whenever the log has more, until it is asked to end."""
    while not stop.is_set():
        runner.move_mark()
        report.say(runner)
        if log.wait(runner.at, LOOK_S).position <= runner.at:
            continue
        began = time.monotonic()
        try:
            runner.step()
        except ViewWaits as waiting:
            report.wait(str(waiting))
            stop.wait(LOOK_S)
            continue
        stop.wait(min(REST_S_MAX, time.monotonic() - began))


def run_view(
    name: str,
    declared: DeclaredView,
    log_dir: Path,
    run_dir: Path,
    stop: threading.Event,
    *,
    limits: StepLimits | None = None,
) -> int:
    """Keeps the view up until ``stop`` is set; returns 0. Raises Stopped, which is recorded, and HeadwaterError."""
    part = status.view_part(name)
    stops.check(run_dir, part)
    report = ViewReport(run_dir, name, list(declared.topics))
    with ExitStack() as stack:
        stack.enter_context(_said(report, run_dir, part))
        folder = stack.enter_context(_folder(log_dir, name, report, stop))
        if folder is None:
            return 0
        log = stack.enter_context(closing(open_reader(log_dir)))
        runner = ViewRunner(name, declared, Around(log, log_dir, run_dir, _pump(stop)), folder, limits)
        stack.enter_context(closing(runner))
        report.measures(folder)
        try:
            if _begin(runner, report, stop):
                _keep_up(runner, log, report, stop)
        except Halted:
            pass
    return 0


@contextmanager
def _said(report: ViewReport, run_dir: Path, part: str) -> Iterator[None]:
    """The status says how it ended."""
    try:
        yield
    except Stopped as stopped:
        stops.record(run_dir, part, stopped)
        report.end("stopped", str(stopped), str(stopped.state))
        raise
    except HeadwaterError as error:
        report.end("exited", error.line())
        raise
    report.end("exited")


@contextmanager
def _folder(log_dir: Path, name: str, report: ViewReport, stop: threading.Event) -> Iterator[StateFolder | None]:
    """None when it is asked to end before the state is free."""
    while not stop.is_set():
        try:
            folder = StateFolder(log_dir / FOLDER, name)
        except StateHeld as held:
            report.wait(str(held))
            stop.wait(LOOK_S)
            continue
        with closing(folder):
            yield folder
        return
    yield None


def _pump(stop: threading.Event) -> Callable[[], None]:
    def pump() -> None:
        if stop.wait(PUMP_S):
            raise Halted("the process was asked to end")

    return pump


def _begin(runner: ViewRunner, report: ViewReport, stop: threading.Event) -> bool:
    """False when it is asked to end before."""
    while not stop.is_set():
        try:
            runner.begin()
        except ViewWaits as waiting:
            report.wait(str(waiting))
            stop.wait(LOOK_S)
        else:
            report.say(runner)
            return True
    return False


class ViewReport:
    """The view's status file, kept current."""

    def __init__(self, run_dir: Path, view: str, topics: list[str]) -> None:
        before = status.read_view(run_dir, view)
        self._run_dir = run_dir
        self._status = status.ViewStatus(view, os.getpid(), topics=topics)
        if before is not None:
            self._status.position, self._status.moved_at = before.position, before.moved_at
            self._status.commit_ts_us, self._status.commit_lsn = before.commit_ts_us, before.commit_lsn
        self._written: tuple[object, ...] = ()
        self._written_at = self._measured_at = float("-inf")
        self._folder: StateFolder | None = None
        self._write()

    def measures(self, folder: StateFolder) -> None:
        """Whose size is shown."""
        self._folder = folder

    def wait(self, why: str) -> None:
        if self._status.error != why:
            _log.info(f"view {self._status.view} waits: {why}", facts={"view": self._status.view})
        self._status.state, self._status.error = "waiting", why
        self._write()

    def say(self, runner: ViewRunner) -> None:
        """How far the view is."""
        one, now = self._status, time.monotonic()
        if runner.at != one.position:
            one.position, one.moved_at = runner.at, time.time()
            one.commit_lsn, one.commit_ts_us = runner.reflects()
        one.state, one.error, one.written, one.built = "following", None, runner.written, runner.why
        if self._folder is not None and now - self._measured_at >= SIZE_S:
            self._measured_at, one.state_bytes = now, self._folder.bytes()
        self._write()

    def end(self, state: str, error: str | None = None, stop: str | None = None) -> None:
        self._status.state, self._status.error, self._status.stop = state, error, stop
        self._written_at = float("-inf")
        self._write()

    def _write(self) -> None:
        one, now = self._status, time.monotonic()
        content = (one.state, one.error, one.position, one.written, one.state_bytes)
        if content == self._written and now - self._written_at < status.BEAT_S:
            return
        self._written, self._written_at = content, now
        status.stamp(one)
        status.write(self._run_dir, status.view_part(one.view), one)
