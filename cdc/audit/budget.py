"""The share of a core that the continuous audit may take: whoever has used CPU time rests for a multiple of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

from cdc.background import Interrupted

HELPERS: Final = "audit-page"
"""Threads whose names begin so read ahead for an audit (``sinks.search.documents``, ``sinks.cache.rowscan``): what they use counts, too."""
_LEAST_S: Final = 0.02
"""Rests that are shorter are put together: waking up costs something as well."""


class Budget:
    """For one thread. ``share``: of one core, in CPU time; ``stop``: ends every rest."""

    def __init__(self, share: float, stop: threading.Event) -> None:
        self._times = 1 / share - 1
        self._stop = stop
        self._owed_s = 0.0
        self._own_s = time.thread_time()
        self._helpers: WeakKeyDictionary[threading.Thread, float] = WeakKeyDictionary()

    def rest(self) -> None:
        """To be called after every little piece of work. Raises Interrupted once ``stop`` is set."""
        self._owed_s += self._used_s() * self._times
        if self._owed_s >= _LEAST_S:
            self._stop.wait(self._owed_s)
            self._owed_s = 0.0
        if self._stop.is_set():
            raise Interrupted

    def pause(self, seconds: float) -> None:
        """Waits at least so long, for another reason. Raises Interrupted as ``rest``."""
        self.rest()
        if self._stop.wait(seconds):
            raise Interrupted

    @contextmanager
    def counting(self, helped_s: Callable[[], float] | None) -> Iterator[None]:
        """Counts what another process uses inside for this thread, too: it is rested for afterwards. ``helped_s``: gives how much that is so far; None:
        no other process helps."""
        before = 0.0 if helped_s is None else helped_s()
        try:
            yield
        finally:
            if helped_s is not None:
                self._owed_s += max(0.0, helped_s() - before) * self._times

    def _used_s(self) -> float:
        """CPU time since it was asked last."""
        own, before = time.thread_time(), self._own_s
        self._own_s = own
        return own - before + sum(self._helped_s(thread) for thread in threading.enumerate() if thread.name.startswith(HELPERS))

    def _helped_s(self, thread: threading.Thread) -> float:
        """None of them ends meanwhile: they wait for what this thread does next."""
        if thread.ident is None:
            return 0.0
        now, before = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)), self._helpers.get(thread, 0.0)
        self._helpers[thread] = now
        return now - before
