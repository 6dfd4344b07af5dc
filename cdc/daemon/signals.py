"""SIGTERM and SIGINT as an event that the parts look at."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

DRAIN_S: Final = 30.0
"""A process that has not drained this long after its signal ends itself; a later start loses nothing by that."""
_ASKING: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(drain_s: float = DRAIN_S) -> Iterator[threading.Event]:
    """Sets the event on the first SIGTERM or SIGINT. A second SIGINT, or ``drain_s`` without an end, ends the process at once.

    SIGHUP counts where a terminal is closed. To a service it says "read your configuration again", which it does by itself.

    A thread does all this, not the handlers: these interrupt the main thread wherever it is, amid the event's own lock too, and
    they run only when it comes back from what it has called.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    asking = (*_ASKING, signal.SIGHUP) if _at_a_terminal() else _ASKING
    watcher = threading.Thread(target=_watch, args=(reading, stop, drain_s, asking), name="signals", daemon=True)
    watcher.start()
    # In this order: a signal that has a handler already, and whose number is written nowhere, would be lost.
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # The interpreter writes a signal's number there only if the signal has a handler.
    before = {number: signal.signal(number, lambda *_: None) for number in (*_ASKING, signal.SIGHUP)}
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        watcher.join()
        os.close(reading)


def _at_a_terminal() -> bool:
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and sys.stderr.isatty()  # nohup has it ignored


def _watch(reading: int, stop: threading.Event, drain_s: float, asking: Collection[int]) -> None:
    """Until the other end of ``reading`` is closed."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    ends_at: float | None = None
    while True:
        left_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
        if not poll.poll(None if left_s is None else left_s * 1000):
            os._exit(128 + signal.SIGKILL)
        numbers = os.read(reading, 4096)
        if not numbers:
            return
        for number in numbers:
            if number in asking and ends_at is None:  # whether or not the process has set ``stop`` itself
                stop.set()
                ends_at = time.monotonic() + drain_s
            elif number == signal.SIGINT:
                os._exit(128 + signal.SIGINT)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel send SIGTERM to this process when its parent ends, and ends now should it have ended already (Linux only)."""
    import ctypes

    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGTERM)
