"""Processes of ours in milliseconds: a parent that has imported and compiled everything forks one child per job.

The parent (``python -m tests.faults.nursery``) has no threads; the child is what ``cdc run --only …`` would be after its imports: signals
handled, stop states checked and recorded, exit codes as the command line's. One JSON line asks for a child, one JSON line answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Job = dict[str, Any]
GONE_S = 60.0
"""After kill -9."""


# The tests' side


class ParentGone(Exception):
    """Nobody forks or reaps any more."""


class Process:
    """One forked child. ``told`` is what it printed."""

    def __init__(self, parent: _Parent, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self.code: int | None = None
        self._parent = parent
        self._pidfd = os.pidfd_open(pid)

    @property
    def told(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def poll(self) -> int | None:
        """The exit code (minus the signal's number), or None while it lives."""
        return self.code if self.code is not None else self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        if self.code is None and select.select([self._pidfd], [], [], timeout_s)[0]:
            try:
                self.code = int(self._parent.ask({"reap": self.pid})["code"])
            except ParentGone:
                self.code = -signal.SIGKILL  # as every child whose parent ends
            os.close(self._pidfd)
        return self.code

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self.signal(signal.SIGKILL)
        assert self.wait(GONE_S) is not None


class Nursery:
    """Starts children, and the parent that forks them when there is none: one that a test has broken is nothing to the next test."""

    def __init__(self) -> None:
        self._parent: _Parent | None = None
        self._children: list[Process] = []

    def start(self, job: Job, log: Path) -> Process:
        """job: ``{"run": name of a function below, …its arguments…, "crash": a point as in HEADWATER_CRASHPOINT}``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        if self._parent is None or not self._parent.lives:
            self._parent = _Parent()
        child = Process(self._parent, int(self._parent.ask({**job, "log": str(log)})["pid"]), log)
        self._children = [one for one in self._children if one.code is None]
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
        if self._parent is not None:
            self._parent.close()


class _Parent:
    """The parent process, as its client."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._in_step(self._answer)

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Job) -> Job:
        return self._in_step(lambda: self._asked(request))

    def _in_step(self, exchange: Callable[[], Job]) -> Job:
        """An exchange that is cut short (by a test's time-out) would leave its answer to whoever asks next, so it is the last one."""
        try:
            return exchange()
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def _asked(self, request: Job) -> Job:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:  # ValueError: we have closed it ourselves
            raise ParentGone from error
        return self._answer()

    def _answer(self) -> Job:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ParentGone
        answer: Job = json.loads(line)
        return answer

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # closes both pipes, which tells it to end, and waits for it


# The parent's and the children's side


def capture(job: Job) -> int:
    from cdc.commands.run import _capture
    from cdc.daemon.signals import stop_on_signals

    with stop_on_signals() as stop:
        return _capture(settings_of(job), stop)


def follow(job: Job) -> int:
    """The store's follower without Spark, until it has applied everything that the log holds."""
    from cdc.follow.follower import Follower
    from cdc.log.home import open_reader

    settings = settings_of(job)
    [(name, options)] = settings.stores.items()
    reader = open_reader(settings.log.dir)
    follower = Follower(name, options, settings.log.dir, reader, settings.run_dir, threading.Event())
    follower.start()
    while not follower.stopped and follower.applied.position < reader.head().position:
        follower.follow_to(reader.head())
    follower.close()
    return 4 if follower.stopped else 0


def supervise(job: Job) -> int:
    from cdc.daemon.configuration import Configuration
    from cdc.daemon.signals import stop_on_signals
    from cdc.daemon.supervisor import supervise as run
    from sinks import options_model

    os.environ.pop("HEADWATER_CRASHPOINT", None)
    with stop_on_signals() as stop:
        config = Path(job["config"])
        return run(Configuration(config, options_model), config, stop, listen=None)


def settings_of(job: Job) -> Any:
    from cdc.settings.implications import with_implied
    from cdc.settings.models import Log, Settings, Source
    from cdc.settings.outbox import Outbox
    from sinks import options_model

    folder = Path(job["folder"])
    stores = {name: options_model(given["kind"]).model_validate(given) for name, given in job.get("stores", {}).items()}
    return with_implied(
        Settings(
            source=Source(**job["source"]),
            outbox=Outbox(**job["outbox"]) if "outbox" in job else None,
            log=Log(dir=folder / "log", **job.get("log_options", {"segment_bytes": job.get("segment_bytes", 1 << 20)})),
            stores=stores,
            run_dir=folder / "run",
        )
    )


JOBS = {"capture": capture, "follow": follow, "supervise": supervise}


def _child(job: Job, parent: int) -> int:
    from cdc import crashpoint
    from cdc.errors import HeadwaterError

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    if job.get("crash"):
        crashpoint._armed = crashpoint.Armed.parse(job["crash"])
    try:
        return JOBS[job["run"]](job)
    except HeadwaterError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stderr.flush()


_MODULES = (
    "cdc.ingest.process",
    "cdc.commands.run",
    "cdc.follow.follower",
    "cdc.daemon.supervisor",
    "sinks.cache.sink",
    "sinks.search.sink",
)


def _warm() -> None:
    for name in _MODULES:
        import_module(name)
    from cdc.capture.warm import warm
    from sinks.cache import resp
    from sinks.render import jsonrows

    warm()
    jsonrows.warm_up()
    resp.warm_up()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _warm()
    began = time.monotonic()
    while threading.active_count() > 1 and time.monotonic() - began < 5:
        time.sleep(0.01)

    def answer(value: Job) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"ready": os.getpid()})
    for line in sys.stdin:
        job = json.loads(line)
        if "reap" in job:
            answer({"code": os.waitstatus_to_exitcode(os.waitpid(job["reap"], 0)[1])})
            continue
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os._exit(_child(job, parent))
        answer({"pid": pid})


if __name__ == "__main__":
    main()
