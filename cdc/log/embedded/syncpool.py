"""Several syncs at once: a disk takes them together, and a thread that waits for it costs nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

WORTH_S: Final = 0.001
"""Handing a sync to a thread costs a tenth of a millisecond of the processor: too much for one of two that is over in less than this."""
LOOK_AGAIN: Final = 256
"""After so many rounds of two it is found out once more."""

_Synced = TypeVar("_Synced")


class SyncPool:
    """``threads``: the most syncs at once; with 1 they are the caller's own, one after the other. Threads start when they are first needed.

    Two at once, as nearly every commit has, only where the disk is slow enough for that.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most = threads
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._rounds_at_once = 0
        """So many rounds of two are still to be at once."""

    def together(self, sync: Callable[[_Synced], None], what: Sequence[_Synced]) -> None:
        """Calls ``sync`` for each; returns when all are done, also where one raises. A thread takes its share of them in one go, the caller's
        own thread the first."""
        count = min(self._most, len(what))
        if count <= 1:
            for one in what:
                sync(one)
            return
        if len(what) == 2:
            if not self._rounds_at_once:
                self._rounds_at_once = LOOK_AGAIN if self._quicker(sync, what) > WORTH_S else 0
                return
            self._rounds_at_once -= 1
        mine, *others = (_Share(sync, what[first::count]) for first in range(count))
        self._start(len(others))
        for share in others:
            self._asked.put(share.work)
        mine.work()
        for share in (mine, *others):
            share.done.acquire()
        for share in (mine, *others):
            if share.error is not None:
                raise share.error

    def _quicker(self, sync: Callable[[_Synced], None], what: Sequence[_Synced]) -> float:
        """Seconds that the quicker one took, one after the other."""
        took = []
        for one in what:
            started = self._clock()
            sync(one)
            took.append(self._clock() - started)
        return min(took)

    def _start(self, threads: int) -> None:
        while len(self._threads) < threads:
            thread = threading.Thread(target=self._work, name="log-sync", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            work()

    def close(self) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []


class _Share(Generic[_Synced]):
    """What one thread syncs. ``done`` is free when it has; ``error`` is what stopped it."""

    def __init__(self, sync: Callable[[_Synced], None], what: Sequence[_Synced]) -> None:
        self._sync = sync
        self._what = what
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> None:
        try:
            for one in self._what:
                self._sync(one)
        except BaseException as error:  # raised again in the caller's thread
            self.error = error
        self.done.release()
