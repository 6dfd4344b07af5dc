"""A follower's hold on its lease: taken, checked, raised above what a store has seen, and lost to another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cdc.clock import Clock
from cdc.errors import HeadwaterError, LogReplaced, Stopped, StopState, StoreError
from cdc.state.lease import LeaseWatch


class StoreLease(Protocol):
    """The right to write to a store (``cdc.state.lease.Lease``)."""

    epoch: int

    @property
    def ours(self) -> bool: ...

    @property
    def taken_over(self) -> bool: ...

    def raise_above(self, epoch: int) -> int: ...

    def close(self) -> None: ...


TakeLease = Callable[[Path, str, LeaseWatch], StoreLease]
"""As ``cdc.state.lease.take``."""


class LeaseLost(HeadwaterError):
    """Another process has taken the lease over, because it was not renewed in time."""

    def __init__(self, store: str) -> None:
        super().__init__(f"another process follows store {store} by now: this one had not renewed its lease")


class LeaseHold:
    """One store's. Not thread-safe."""

    def __init__(self, store: str, log_dir: Path, take: TakeLease, clock: Clock) -> None:
        self.log_dir = log_dir
        self.lost = False
        """Another process follows the store from now on."""
        self._store = store
        self._take = take
        self._watch = LeaseWatch(clock)
        self._lease: StoreLease | None = None
        self._outdone = False
        """A later writer was met under this lease."""

    @property
    def epoch(self) -> int:
        """The lease's, which must have been taken."""
        assert self._lease is not None
        return self._lease.epoch

    def take(self) -> None:
        """Raises LeaseHeld when another process follows this store, LeaseLost when it has taken that over from this one, StoreError when the log's folder
        cannot be written."""
        if self._lease is not None and self._lease.ours:
            return
        self.refuse_lost()
        self.release()
        try:
            self._lease = self._take(self.log_dir, self._store, self._watch)
        except OSError as error:
            raise StoreError(
                f"the lease on store {self._store} in {self.log_dir} cannot be taken: {error.strerror}", retryable=True
            ) from error

    def release(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
            self._outdone = False

    def refuse_lost(self) -> None:
        """Raises LeaseLost when another process has taken the lease over."""
        if self._lease is not None and self._lease.taken_over:
            self.lost = True
            raise LeaseLost(self._store)

    def check(self) -> None:
        """Raises LeaseLost; LogReplaced when the log's folder was."""
        self.refuse_lost()
        if self._lease is None or not self._lease.ours:
            raise LogReplaced(self.log_dir)

    def go_above(self, seen: int) -> None:
        """A store may have seen higher epochs than the log's folder knows of, which was restored. Once: one that is outdone again has a living rival.
        Raises StoreError, Stopped, LeaseLost."""
        assert self._lease is not None
        self.refuse_lost()
        if not self._lease.ours:
            raise StoreError(f"store {self._store} was taken over, and the lease on it is another process's", retryable=True)
        if self._outdone:
            raise Stopped(
                StopState.OTHER_LOG,
                f"store {self._store} is written by another service too, which follows a copy of this log",
                hint=f"stop one of the two, then cdc resume {StopState.OTHER_LOG}",
            )
        self._lease.raise_above(seen)
        self._outdone = True
