"""Named places at which a test can end, fail or stop this process: ``crashpoint("log.commit.written")``.

Off (always, unless ``HEADWATER_CRASHPOINT`` is set when the process starts) a point costs one call and one comparison. Points stand where
something becomes durable, is sent or is believed, never per row. tests/faults enumerates them from the sources and crashes at every one.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, Self

VARIABLE: Final = "HEADWATER_CRASHPOINT"
"""``name=kind``, ``name=kind:nth`` (the nth time that the point is reached, from 1) and with ``@file`` behind: the file is made
when the point is hit, and where it is already there the point is not: once, whichever of several processes comes there first."""
KILLED: Final = 137


class CrashKind(StrEnum):
    KILL = "kill"
    """The process is gone at once: nothing is flushed, no handler runs."""
    ERROR = "error"
    """OSError (EIO), once."""
    HANG = "hang"
    """The thread goes no further until the process is killed."""
    STOP = "stop"
    """The whole process sleeps (SIGSTOP) until somebody wakes it up: it goes on as if nothing had happened."""


class Points(Protocol):
    """Decides at every point whether it is passed: returns, or raises what happens there."""

    def reach(self, name: str) -> None: ...


class Fault(OSError):
    """Raised by an armed point of kind ERROR."""


@dataclass(slots=True)
class Armed:
    """One point that is going to be hit."""

    name: str
    kind: CrashKind
    nth: int = 1
    mark: Path | None = None
    """Made when the point is hit, so that a watcher knows and no other process hits it again."""
    _reached: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but VARIABLE's notation."""
        spec, _, mark = text.partition("@")
        name, equals, rest = spec.partition("=")
        kind, _, nth = rest.partition(":")
        if not name or not equals:
            raise ValueError(f"{VARIABLE} looks like name=kill, name=error:2 or name=hang@file")
        return cls(name, CrashKind(kind), int(nth or 1), Path(mark) if mark else None)

    @property
    def hit(self) -> bool:
        return self._reached >= self.nth

    def reach(self, name: str) -> None:
        if name != self.name:
            return
        with self._lock:
            self._reached += 1
            if self._reached != self.nth:
                return
        if self.mark is not None:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                return
        match self.kind:
            case CrashKind.KILL:
                os._exit(KILLED)
            case CrashKind.ERROR:
                raise Fault(errno.EIO, f"crash point {name}")
            case CrashKind.HANG:
                while True:
                    time.sleep(3600)
            case CrashKind.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)


def _of_environment() -> Armed | None:
    text = os.environ.get(VARIABLE)
    return Armed.parse(text) if text else None


_armed: Points | None = _of_environment()


def crashpoint(name: str) -> None:
    """The point ``name``: does nothing unless it is armed."""
    if _armed is not None:
        _armed.reach(name)


@contextmanager
def armed(text: str) -> Iterator[Armed]:
    """Arms a point in this process, for tests; ``text`` as in VARIABLE."""
    point = Armed.parse(text)
    with decided_by(point):
        yield point


@contextmanager
def decided_by(points: Points) -> Iterator[None]:
    """Has ``points`` decide what happens at every point of this process. They are everywhere, also in what nobody constructs, so they are
    given to the process and not to each part; the environment's own point does nothing meanwhile."""
    global _armed
    before, _armed = _armed, points
    try:
        yield
    finally:
        _armed = before
