"""A follower's lease on its store, in the log's home: one holder at a time, and a number that each new holder raises.

A store that fences its writers (the cache) takes a call only from the highest epoch that it has seen. The number has to come from here:
a store that failed over to an older copy of itself would give the same one twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cdc.errors import HeadwaterError
from cdc.state import jsonfile

FOLDER: Final = "leases"
STEP_MAX: Final = 2**16
"""Epochs rise by steps of random size, so that followers of two copies of one log do not come to the same. 2**37 of them fit a double,
which is what a number is to some stores."""


class LeaseHeld(HeadwaterError):
    """Another process follows the store."""


class StoreLock:
    """Held as long as the object lives and is not closed, so a killed process leaves none behind."""

    def __init__(self, folder: Path, store: str) -> None:
        """Raises LeaseHeld when another process, or another object of this one, holds it; OSError."""
        home = folder / FOLDER
        # Of both, the log's folder too: a follower may start before the log exists.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        self._store = store
        name = quote(store, safe="") if store.strip(".") else store.replace(".", "%2E")
        self._lock_path = home / f"{name}.lock"
        self._fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._lock()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            raise LeaseHeld(
                f"process {pid or '?'} already follows store {self._store}", hint=f"stop it first: kill {pid or 'it'}"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)


class Lease(StoreLock):
    """A lock with an epoch."""

    def __init__(self, folder: Path, store: str) -> None:
        """Takes the lease and raises its epoch, durably. Raises LeaseHeld when another process holds it, OSError."""
        super().__init__(folder, store)
        self._path = self._lock_path.with_suffix(".json")
        try:
            self.epoch = 0
            self.raise_above(self._recorded())
        except BaseException:
            self.close()
            raise

    def raise_above(self, epoch: int) -> int:
        """Makes the epoch higher than ``epoch`` (the highest that a store has seen), durably; returns it."""
        self.epoch = max(self.epoch, epoch) + 1 + secrets.randbelow(STEP_MAX)
        jsonfile.write(self._path, {"format": 1, "epoch": self.epoch})
        return self.epoch

    @property
    def ours(self) -> bool:
        """False once it was closed, or its folder was replaced (the log was restored from a copy): another process may hold the new one."""
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._lock_path))
        except FileNotFoundError:
            return False

    def _recorded(self) -> int:
        """The last epoch given out here. A lost or damaged file counts as none: a store that has seen a higher one says so."""
        try:
            return int(jsonfile.decode(self._path.read_bytes())["epoch"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0
