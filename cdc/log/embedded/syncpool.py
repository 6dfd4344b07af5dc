"""Several syncs at once: a disk takes them together, and a thread that waits for it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Synced = TypeVar("_Synced")


class SyncPool:
    """``threads``: the most syncs at once; with 1 they are the caller's own, one after the other. Threads start when they are first needed."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def together(self, sync: Callable[[_Synced], None], what: Sequence[_Synced]) -> None:
        """Calls ``sync`` for each; returns when all are done. A thread takes its share of them in one go."""

        def one_by_one(share: Sequence[_Synced]) -> None:
            for one in share:
                sync(one)

        if len(what) <= 1 or self._threads <= 1:
            one_by_one(what)
            return
        self._pool = self._pool or ThreadPoolExecutor(self._threads, "log-sync")
        shares = [what[first :: self._threads] for first in range(min(self._threads, len(what)))]
        list(self._pool.map(one_by_one, shares))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
