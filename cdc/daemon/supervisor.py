"""`cdc run`: capture and the followers as processes of their own, restarted when they die.

``next_step`` is the pure core (what a child's end leads to). Killing a child, or this process, loses nothing: capture resumes from the
log's head, a follower from what its store says is applied.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.daemon.configuration import VARIABLE, Configuration, Handout, NameChanges
from cdc.diskspace import described
from cdc.errors import ConfigError, Stopped
from cdc.settings.models import Settings
from cdc.state import status, stops
from cdc.state.status import ProcessStatus, SupervisorStatus
from cdc.state.strangers import forget_all_but, forget_views_but

PARENT_VARIABLE: Final = "HEADWATER_SUPERVISOR_PID"
"""Set in the children's environment, so that each can tie its life to ours."""
BACKOFF_S: Final = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before the first, second, … restart in a row."""
SETTLED_S: Final = 60.0
"""A child that lived this long has recovered: its next end counts as the first again."""
REFUSED_RETRY_S: Final = 30.0
"""A child that was refused (exit 2: the source is not set up, or down at start) tries again this often; nothing is at stake meanwhile."""
FOLLOWERS: Final = "followers"
"""The name of the child that follows all stores."""
DRAIN_S: Final = 40.0
"""Longer than a child's own bound, so that a child ends by itself."""
_TICK_S: Final = 0.25
_STATUS_S: Final = 2.0

_log = structlog.get_logger("run")


@dataclass(frozen=True, slots=True)
class Next:
    """The next step for a child that ended: its state, and the seconds until it is started again (None: when it is resumed)."""

    state: str
    delay_s: float | None
    failures: int


def next_step(exit_code: int, lived_s: float, failures: int, *, held: bool) -> Next:
    """exit_code: as of ``Popen.returncode``. failures: ends in a row before this one. held: each part of this child is in a stop state."""
    if exit_code == Stopped.exit_code and held:
        return Next("stopped", None, 0)
    if exit_code == ConfigError.exit_code:
        return Next("refused", REFUSED_RETRY_S, 0)
    before = 0 if lived_s >= SETTLED_S else failures
    return Next("backing-off", BACKOFF_S[min(before, len(BACKOFF_S) - 1)], before + 1)


def in_words(name: str, exit_code: int, lived_s: float, step: Next, held: Collection[str]) -> str:
    """Describes a child's end for the log: how, and what comes next."""
    if step.state == "stopped":
        return f"{name} is stopped until it is resumed → {', '.join(f'cdc resume {stop}' for stop in sorted(held))}"
    if step.state == "refused":
        return f"{name} cannot start (the line above says why) and tries again in {step.delay_s:.0f} s → cdc doctor"
    how = f"was ended by {_signal_name(-exit_code)}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return f"{name} {how} after {lived_s:.0f} s and starts again in {step.delay_s:g} s"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(slots=True)
class Child:
    """One child process and its history."""

    status: ProcessStatus
    arguments: Sequence[str]
    parts: frozenset[str]
    """The names under which its stop states are recorded."""
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    failures: int = 0
    again_at: float | None = 0.0
    """When it starts next, by the supervisor's clock; None while it waits for an operator."""
    stopped_for: frozenset[str] = field(default_factory=frozenset)
    """The stop states that were held when it was last looked at."""
    retired: bool = False
    """There is nothing left for it to do: it ends, and does not start again."""
    renewed: bool = False
    """It ends, and starts again at once with what the configuration says now."""
    terminated_at: float | None = None
    """When it was asked to end, by the supervisor's clock."""


class Supervisor:
    """Starts, watches and drains the children. One thread only."""

    def __init__(
        self,
        run_dir: Path,
        children: Sequence[Child],
        *,
        listen: str | None = None,
        configuration: Configuration | None = None,
        followers: Callable[[], Child] | None = None,
        view: Callable[[str], Child] | None = None,
        clock: Clock = MACHINE,
    ) -> None:
        """``configuration`` is watched. ``followers`` makes the child that follows its stores, when there are some again; ``view`` that of a view."""
        self._run_dir = run_dir
        self._children = list(children)
        self._configuration = configuration
        self._followers = followers
        self._view = view
        self._clock = clock
        self._handout = Handout(configuration) if configuration is not None else None
        self._status = SupervisorStatus(os.getpid(), listen=listen)
        self._written_at = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Returns when ``stop`` is set and every child has ended."""
        self._forget_strangers()
        self._forget_views()
        try:
            while not stop.is_set():
                self._look_at_the_configuration()
                for child in list(self._children):
                    self._look_after(child)
                if _is_first():
                    self._bury()
                self._write(force=False)
                self._clock.wait(stop, _TICK_S)
        finally:
            self._drain()
            if self._handout is not None:
                self._handout.close()

    def _look_at_the_configuration(self) -> None:
        if self._configuration is None or self._handout is None:
            return
        change = self._configuration.look()
        problem = self._configuration.problem
        self._status.problems = [problem] if problem is not None else []
        self._status.notes = list(self._configuration.pending)
        if change is not None:
            self._handout.write()
            self._adapt_views(change.views)
            self._adapt(self._configuration.settings)

    def _adapt_views(self, change: NameChanges) -> None:
        """Each has a process of its own, which reads what is said of it when it starts."""
        children = {child.status.name: child for child in self._children}
        for name in change.removed:
            children[status.view_part(name)].retired = True
        for name in (*change.changed, *change.added):
            child = children.get(status.view_part(name))
            if child is not None:  # one that is added again may still be ending
                child.retired, child.renewed = False, child.process is not None
                child.again_at, child.failures = 0.0, 0
            elif self._view is not None:
                self._children.append(self._view(name))

    def _adapt(self, settings: Settings) -> None:
        """The followers' process takes the change in by itself; it may have to be started for it, or to end."""
        child = next((child for child in self._children if child.status.name == FOLLOWERS), None)
        if child is None:
            if settings.stores and self._followers is not None:
                self._children.append(self._followers())
            return
        child.parts = parts_of(settings)
        child.retired = not settings.stores
        if child.process is None:
            self._forget_strangers()
            child.again_at = 0.0
        child.stopped_for = self._held(child)

    def _forget_strangers(self) -> None:
        """Of stores that are not (or no longer) in the configuration. To be called while nobody follows them."""
        if self._configuration is None:
            return
        forget_all_but(self._run_dir, self._configuration.settings.stores)

    def _forget_views(self) -> None:
        """Of those that are not (or no longer) in the configuration. One whose process is still ending is forgotten again once it has ended."""
        if self._configuration is not None:
            forget_views_but(self._run_dir, self._configuration.settings.views)

    def _look_after(self, child: Child) -> None:
        held = self._held(child)
        resumed = bool(child.stopped_for - held)
        child.stopped_for = held
        if child.process is None:
            if child.retired:
                self._children.remove(child)
                if child.status.name == FOLLOWERS:
                    self._forget_strangers()
                else:
                    self._forget_views()
                return
            if resumed:
                child.again_at = 0.0
            if child.again_at is not None and self._clock.monotonic() >= child.again_at:
                self._start(child)
        elif child.process.poll() is not None:
            self._ended(child, child.process.returncode)
        elif child.retired or child.renewed:
            self._end(child, child.process)

    def _end(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """Asks it to end, once; one that does not, as when its function never returns, is killed."""
        now = self._clock.monotonic()
        if child.terminated_at is None:
            child.terminated_at = now
            process.terminate()
        elif now - child.terminated_at >= DRAIN_S:
            _kill(child, process)

    def _start(self, child: Child) -> None:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        # A session of its own: a terminal's Ctrl-C reaches only us, and we can end the whole group (Spark's JVM is in it).
        handed: tuple[int, ...] = ()
        if self._handout is not None:
            handed = (self._handout.descriptor,)
            environment[VARIABLE] = str(self._handout.descriptor)
        try:
            child.process = subprocess.Popen(
                list(child.arguments), env=environment, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=handed
            )
        except OSError as error:  # the machine has no process left to give, or no memory
            self._not_started(child, error)
            return
        child.terminated_at = None
        crashpoint("supervise.started")
        child.began = self._clock.monotonic()
        child.status.pid, child.status.state, child.status.started_at = child.process.pid, "running", time.time()
        _log.info(f"{child.status.name} started", process=child.process.pid)
        self._write(force=True)

    def _not_started(self, child: Child, error: OSError) -> None:
        step = next_step(1, 0.0, child.failures, held=False)
        assert step.delay_s is not None
        child.failures, child.again_at = step.failures, self._clock.monotonic() + step.delay_s
        child.status.state = step.state
        child.status.restarts += 1
        name = child.status.name
        _log.error(
            f"{name} cannot be started: {described(error)}; it is tried again in {step.delay_s:g} s", facts={"process": name}
        )
        self._write(force=True)

    def _ended(self, child: Child, code: int) -> None:
        lived_s = self._clock.monotonic() - child.began
        # As of now: what is resumed from here on was seen to be held.
        stopped = self._stops(child)
        held = child.stopped_for = frozenset(stop.name for stop in stopped)
        free = child.parts - {stop.part for stop in stopped}
        step = next_step(code, lived_s, child.failures, held=bool(held) and not free)
        if child.renewed and not child.retired:  # it has not failed, and does not count as such
            step = Next("starting", None, 0)
        crashpoint("supervise.child_ended")
        _end_group(child)  # what it left behind, such as a JVM
        child.process = None
        child.failures = step.failures
        child.again_at = None if step.delay_s is None else self._clock.monotonic() + step.delay_s
        child.status.pid, child.status.state, child.status.exit_code = 0, step.state, code
        child.status.restarts += 1 if step.delay_s is not None else 0
        facts = {"process": child.status.name, "exit_code": code, "state": step.state, "held": sorted(held)}
        if child.retired:
            _log.info(f"{child.status.name} ended, as the configuration has nothing for it to do any more", facts=facts)
        elif child.renewed:
            child.renewed, child.again_at = False, 0.0
            _log.info(f"{child.status.name} ended, and starts again with what the configuration says now", facts=facts)
        else:
            _log.warning(in_words(child.status.name, code, lived_s, step, held), facts=facts)
        self._write(force=True)

    def _bury(self) -> None:
        """Takes note of the orphans that have ended, such as a killed child's JVM: they come to the first process of a container, and stay in
        the kernel's table until it does."""
        ours = {child.process.pid for child in self._children if child.process is not None}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and ended.si_pid not in ours:
                os.waitpid(ended.si_pid, 0)

    def _stops(self, child: Child) -> list[stops.Stop]:
        return [stop for stop in stops.held(self._run_dir) if stop.part in child.parts]

    def _held(self, child: Child) -> frozenset[str]:
        return frozenset(stop.name for stop in self._stops(child))

    def _drain(self) -> None:
        crashpoint("supervise.draining")
        self._status.state = "draining"
        self._write(force=True)
        _log.info("stopping: every part finishes what it has begun")
        running = [child for child in self._children if child.process is not None]
        for child in running:
            assert child.process is not None
            child.process.terminate()
        deadline = self._clock.monotonic() + DRAIN_S
        for child in running:
            assert child.process is not None
            try:
                child.process.wait(max(0.0, deadline - self._clock.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(child, child.process)
            _end_group(child)
            child.status.pid, child.status.state, child.status.exit_code = 0, "exited", child.process.returncode
        self._status.state = "exited"
        self._write(force=True)
        _log.info("stopped")

    def _write(self, *, force: bool) -> None:
        now = self._clock.monotonic()
        if force or now - self._written_at >= _STATUS_S:
            self._written_at = now
            self._status.updated_at = time.time()
            self._status.processes = [child.status for child in self._children]
            status.write(self._run_dir, "supervisor", self._status)


def supervise(configuration: Configuration, config: Path, stop: threading.Event, *, listen: str | None, debug: bool = False) -> int:
    """Runs capture and the followers until ``stop`` is set; returns 0. ``listen``: the HTTP port's URL, for the status.

    To be called ``alone``.
    """
    run_dir = configuration.settings.run_dir

    def view_child(name: str) -> Child:
        part = status.view_part(name)
        return Child(ProcessStatus(part), [*command, f"view:{name}"], frozenset({part}))

    def followers() -> Child:
        return Child(ProcessStatus(FOLLOWERS), [*command, "follow:*"], parts_of(configuration.settings))

    command = [sys.executable, "-m", "cdc", "--config", str(config), *(["--debug"] if debug else []), "run", "--only"]
    children = [Child(ProcessStatus("capture"), [*command, "capture"], frozenset({"capture"}))]
    children += map(view_child, configuration.settings.views)
    if configuration.settings.stores:
        children.append(followers())
    Supervisor(run_dir, children, listen=listen, configuration=configuration, followers=followers, view=view_child).run(stop)
    return 0


def parts_of(settings: Settings) -> frozenset[str]:
    """The names under which the followers' stop states are recorded."""
    return frozenset(f"follow-{name}" for name in settings.stores)


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """No other supervisor works in this folder meanwhile: the kernel releases it when this process ends, in whatever way.

    Raises ConfigError when another one does, OSError.
    """
    lock = os.open(run_dir / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(lock, run_dir)
        yield
    finally:
        os.close(lock)


def _take(lock: int, run_dir: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        hint = "stop it first, or set another run_dir"
        raise ConfigError(f"another cdc run (pid {pid or '?'}) works in {run_dir}", hint=hint) from None
    with suppress(OSError):  # the disk is full
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _is_first() -> bool:
    return os.getpid() == 1


def _kill(child: Child, process: subprocess.Popen[bytes]) -> None:
    _log.warning(f"{child.status.name} did not finish within {DRAIN_S:.0f} s and was killed; nothing is lost by that")
    _end_group(child)
    process.wait()


def _end_group(child: Child) -> None:
    assert child.process is not None
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
