"""A follower's lease on its store, in the log's home: one holder at a time, and a number that each new holder raises.

Whoever holds it renews it every few seconds. It ends with its process; and where that lives but no longer renews it (it was stopped, or its machine sleeps), another
one takes it over (``take``). Nobody can tell a process that has been replaced before it does its next thing. So what keeps a store right is not the lease but the
number: a store takes nothing from a lower epoch than the highest that it has seen. The number has to come from here: a store that failed over to an
older copy of itself would give the same one twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cdc.clock import MACHINE, Clock
from cdc.errors import HeadwaterError
from cdc.state import jsonfile

FOLDER: Final = "leases"
STEP_MAX: Final = 2**16
"""Epochs rise by steps of random size, so that followers of two copies of one log do not come to the same. 2**37 of them fit a double,
which is what a number is to some stores."""
RENEW_S: Final = 3.0
LAPSE_S: Final = 15.0
"""A lease that has not been renewed for so long may be taken over."""


class LeaseHeld(HeadwaterError):
    """Another process follows the store."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A lock as its holder left it when it renewed it last: any other means that somebody has done something since."""

    inode: int
    renewed_ns: int

    @classmethod
    def of(cls, path: Path) -> Beat | None:
        with suppress(FileNotFoundError):
            found = os.lstat(path)
            return cls(found.st_ino, found.st_mtime_ns)
        return None


class StoreLock:
    """Held as long as the object lives and is not closed, so a killed process leaves none behind."""

    def __init__(self, folder: Path, store: str, over: Beat | None = None) -> None:
        """``over``: another process's lock as it is thought to stand, which is replaced. Raises LeaseHeld when another process, or another object of
        this one, holds it; OSError."""
        home = folder / FOLDER
        # Of both, the log's folder too: a follower may start before the log exists.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        self._store = store
        self._lock_path = path_of(folder, store)
        self._fd = -1
        self._home_fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if over is None:
                self._fd = self._locked()
            else:
                self._take_over(over)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for fd in (self._fd, self._home_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._home_fd = -1

    @property
    def ours(self) -> bool:
        """False once it was closed or taken over, or its folder was replaced (the log was restored from a copy): another process may hold the new one."""
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._lock_path))
        except FileNotFoundError:
            return False

    def _locked(self) -> int:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._lock(fd)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), os.lstat(self._lock_path)):
                        return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody has taken it over since it was opened

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._held(os.pread(fd, 32, 0)) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def _held(self, content: bytes) -> LeaseHeld:
        pid = content.decode("ascii", "replace").strip()
        return LeaseHeld(f"process {pid or '?'} already follows store {self._store}", hint=f"stop it first: kill {pid or 'it'}")

    def _take_over(self, over: Beat) -> None:
        """Puts a lock of ours in the other's place, which its holder keeps: as a file that has no name any more."""
        with _Gate(self._lock_path.with_suffix(".gate")) as gate:
            if not gate.open or Beat.of(self._lock_path) != over:
                raise self._held(self._lock_path.read_bytes() if self._lock_path.exists() else b"")
            aside = self._lock_path.with_suffix(f".{secrets.token_hex(8)}")
            self._fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._lock(self._fd)
                aside.rename(self._lock_path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise


class Lease(StoreLock):
    """A lock with an epoch, which is renewed by a thread of its own until it is closed."""

    def __init__(self, folder: Path, store: str, over: Beat | None = None) -> None:
        """Takes the lease and raises its epoch, durably. Raises LeaseHeld when another process holds it, OSError."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{store}", daemon=True)
        super().__init__(folder, store, over)
        self._path = self._lock_path.with_suffix(".json")
        try:
            self.epoch = 0
            self.raise_above(self._recorded())
        except BaseException:
            self.close()
            raise
        self._thread.start()

    def raise_above(self, epoch: int) -> int:
        """Makes the epoch higher than ``epoch`` (the highest that a store has seen), durably; returns it."""
        self.epoch = max(self.epoch, epoch) + 1 + secrets.randbelow(STEP_MAX)
        jsonfile.write(self._path, {"format": 1, "epoch": self.epoch})
        return self.epoch

    @property
    def taken_over(self) -> bool:
        """Another process has it by now, in the very folder that this one was taken in."""
        if self._fd < 0 or self.ours or not self._lock_path.exists():
            return False
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._home_fd), self._lock_path.parent.stat())
        return False

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()  # it must not renew whatever has the descriptor's number next
        super().close()

    def _renew(self) -> None:
        while not self._closed.wait(RENEW_S):
            with suppress(OSError):  # one that cannot be renewed lapses
                os.utime(self._fd)

    def _recorded(self) -> int:
        """The last epoch given out here. A lost or damaged file counts as none: a store that has seen a higher one says so."""
        try:
            return int(jsonfile.decode(self._path.read_bytes())["epoch"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0


class LeaseWatch:
    """How long a lease that another process holds has not been renewed, by the watcher's own clock: clocks that are set play no part."""

    def __init__(self, clock: Clock = MACHINE) -> None:
        self._clock = clock
        self._seen: Beat | None = None
        self._since = 0.0

    def lapsed(self, beat: Beat | None) -> bool:
        """To be asked again and again."""
        now = self._clock.monotonic()
        if beat is None or beat != self._seen:
            self._seen, self._since = beat, now
            return False
        return now - self._since >= LAPSE_S


def take(folder: Path, store: str, watch: LeaseWatch) -> Lease:
    """Takes the lease where nobody holds it, or whoever does has let it lapse. Raises LeaseHeld, OSError; to be called again and again."""
    try:
        return Lease(folder, store)
    except LeaseHeld:
        beat = Beat.of(path_of(folder, store))
        if beat is None or not watch.lapsed(beat):
            raise
    return Lease(folder, store, over=beat)


def path_of(folder: Path, store: str) -> Path:
    """The lock's file."""
    name = quote(store, safe="") if store.strip(".") else store.replace(".", "%2E")
    return folder / FOLDER / f"{name}.lock"


class _Gate:
    """Lets one process at a time take a lock over. ``open``: for us."""

    def __init__(self, path: Path) -> None:
        self.open = False
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __enter__(self) -> _Gate:
        with suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.open = True
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
