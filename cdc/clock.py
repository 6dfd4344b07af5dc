"""The clock that intervals are measured by, and waiting by it. Whoever needs one is given it, so that a test can pass its own."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol


class Clock(Protocol):
    """Seconds that only ever pass: nobody sets it."""

    def monotonic(self) -> float: ...

    def worked(self) -> float:
        """Seconds of a core that this thread has had."""
        ...

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Returns after so long, or as soon as ``stop`` is set; whether it is."""
        ...


class _Machine:
    def monotonic(self) -> float:
        return time.monotonic()

    def worked(self) -> float:
        return time.thread_time()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


MACHINE: Final[Clock] = _Machine()


class SteadyTime:
    """The wall clock, unless it was set forward since this object was made: what was written before that would look old."""

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def now_s(self) -> float:
        return min(time.time(), self._began + time.monotonic())
