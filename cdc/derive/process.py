"""The process that keeps one view up, and what it says of itself. One slow view holds up nobody but itself, and what is computed from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import structlog

from cdc.derive.around import Around, Halted, StepLimits
from cdc.derive.inforce import ViewWaits
from cdc.derive.ports import DeclaredView
from cdc.derive.reporter import ViewReporter
from cdc.derive.runner import ViewRunner
from cdc.derive.sourcerows import RowWorkers
from cdc.derive.statefolder import FOLDER, StateFolder, StateHeld
from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.state import status, stops

LOOK_S: Final = 0.5
"""Whatever a view waits for is looked at so often."""
PUMP_S: Final = (0.001, 0.02)
"""How often a group that waits in the inbox is looked at: at first, and after a while."""
REST_S_MAX: Final = 0.01
"""After a step that took t, the next one comes t later, and this at most: so what a small group costs is shared by more changes."""

_log = structlog.get_logger("views")


def keep_up(runner: ViewRunner, log: LogReader, report: ViewReporter, stop: threading.Event) -> None:
    """Takes a step whenever the log has more, and between two of them a slice of what is built beside, until it is asked to end."""
    waits = False
    while not stop.is_set():
        runner.move_mark()
        runner.forget_former()
        if not waits:
            report.say(runner)
        building = runner.building
        rest_s = 0.0
        if log.wait(runner.at, 0.0 if building else LOOK_S).position > runner.at:
            began, taken, written = time.monotonic(), runner.counts.taken, runner.counts.written
            try:
                moved, waits = runner.step(), False
                took_s = time.monotonic() - began
                if moved and runner.counts.taken > taken:
                    report.stepped(took_s, runner.counts.taken - taken, runner.counts.written - written)
                rest_s = min(REST_S_MAX, took_s)
            except ViewWaits as waiting:
                waits, rest_s = True, LOOK_S
                report.wait(str(waiting))
        if building:
            runner.build()
        else:
            stop.wait(rest_s)


def run_view(
    name: str,
    declared: DeclaredView,
    log_dir: Path,
    run_dir: Path,
    stop: threading.Event,
    *,
    limits: StepLimits | None = None,
    workers: RowWorkers | None = None,
) -> int:
    """Keeps the view up until ``stop`` is set; returns 0. ``workers``: for large builds. Raises Stopped, which is recorded, and HeadwaterError."""
    part = status.view_part(name)
    try_again_if_changed(run_dir, name, declared)
    stops.check(run_dir, part)
    report = ViewReporter(run_dir, name, declared)
    with ExitStack() as stack:
        stack.enter_context(_said(report, run_dir, part))
        folder = stack.enter_context(_folder(log_dir, name, report, stop))
        if folder is None:
            return 0
        log = stack.enter_context(closing(open_reader(log_dir)))
        if workers is not None:
            stack.callback(workers.end)
        runner = ViewRunner(name, declared, Around(log, log_dir, run_dir, _pump(stop), workers=workers), folder, limits)
        stack.enter_context(closing(runner))
        try:
            if _begin(runner, report, stop):
                keep_up(runner, log, report, stop)
        except Halted:
            pass
    return 0


def try_again_if_changed(run_dir: Path, name: str, declared: DeclaredView) -> None:
    """A view that was refused is not held by that where the configuration says another thing of it since."""
    saved = status.read_view(run_dir, name)
    if saved is None or saved.declaration in ("", declared.declaration):
        return
    for part in (status.view_part(name), status.next_part(name)):
        stop = stops.held_by(run_dir, part)
        if stop is not None and stop.state is StopState.VIEW_REFUSED:
            stops.clear(run_dir, stop.name)
            _log.info(f"view {name} is tried again, as its definition has changed since it was refused", facts={"view": name})


@contextmanager
def _said(report: ViewReporter, run_dir: Path, part: str) -> Iterator[None]:
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
def _folder(log_dir: Path, name: str, report: ViewReporter, stop: threading.Event) -> Iterator[StateFolder | None]:
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
    least_s, most_s = PUMP_S
    pause_s, looked_at = least_s, 0.0

    def pump() -> None:
        nonlocal pause_s, looked_at
        # Long after the last look it is another group that waits.
        pause_s = min(1.5 * pause_s, most_s) if time.monotonic() - looked_at < least_s else least_s
        if stop.wait(pause_s):
            raise Halted("the process was asked to end")
        looked_at = time.monotonic()

    return pump


def _begin(runner: ViewRunner, report: ViewReporter, stop: threading.Event) -> bool:
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
