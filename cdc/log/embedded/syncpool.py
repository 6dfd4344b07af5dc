"""Several syncs at once: a disk takes them together, and a thread that waits for it costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

_Synced = TypeVar("_Synced")


class SyncPool:
    """``threads``: the most syncs at once; with 1 they are the caller's own, one after the other. Threads start when they are first needed.

    Every commit comes through here, so what hands a sync over is as little as will do.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def together(self, sync: Callable[[_Synced], None], what: Sequence[_Synced]) -> None:
        """Calls ``sync`` for each; returns when all are done, also where one raises. A thread takes its share of them in one go, the caller's
        own thread the first."""
        count = min(self._most, len(what))
        if count <= 1:
            for one in what:
                sync(one)
            return
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
