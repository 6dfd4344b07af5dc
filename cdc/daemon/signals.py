"""SIGTERM and SIGINT as an event that the parts look at."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

DRAIN_S: Final = 30.0
"""A process that has not drained this long after its signal ends itself; a later start loses nothing by that."""


@contextmanager
def stop_on_signals(drain_s: float = DRAIN_S) -> Iterator[threading.Event]:
    """Sets the event on the first SIGTERM or SIGINT. A second SIGINT, or ``drain_s`` without an end, ends the process at once."""
    stop = threading.Event()
    timers: list[threading.Timer] = []

    def asked(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            if number == signal.SIGINT:
                os._exit(128 + signal.SIGINT)
            return
        stop.set()
        timer = threading.Timer(drain_s, os._exit, (128 + signal.SIGKILL,))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel send SIGTERM to this process when its parent ends, and ends now should it have ended already (Linux only)."""
    import ctypes
    import sys

    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGTERM)
