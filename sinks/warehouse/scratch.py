"""Changes that wait for the commit: in memory, and beyond a size in a file that the operating system may page out."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

_LOCK: Final = ".lock"
_PIN: Final = "pin-"


class Scratch:
    """A folder of this object's own below ``home``, which it shares with others like it, in this process and in others.

    The holder of the lock in its folder lives. Locks end with their process, so ``sweep`` tells the folders of the dead.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / uuid4().hex
        self._lock: int | None = None

    @property
    def owner(self) -> str:
        """The folder's name, which nobody had before and nobody has after ``remove``."""
        return self._folder.name

    def lives(self, owner: str) -> bool:
        """Whether this object or another one, in any process, has that folder. One that has not asked for its ``folder`` has none."""
        return (owner == self.owner and self._lock is not None) or not _is_free(self._home / owner / _LOCK)

    def folder(self) -> Path:
        """Made on the first call."""
        if self._lock is None:
            self._home.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._folder.mkdir(exist_ok=True)  # the disk may have been full in the middle of an attempt before this one
                self._lock = _locked(self._folder / _LOCK)
        return self._folder

    @contextmanager
    def pinned(self, snapshot: int | None) -> Iterator[None]:
        """Whoever keeps the tables up leaves this snapshot as it is meanwhile. Without a right to write here there is only its age that protects it."""
        pin: Path | None = None
        with suppress(OSError):
            if snapshot is not None:
                pin = self.folder() / f"{_PIN}{snapshot}-{uuid4().hex}"
                pin.touch()
        try:
            yield
        finally:
            if pin is not None:
                with suppress(OSError):
                    pin.unlink(missing_ok=True)

    def pins(self) -> set[int]:
        """The snapshots that living processes have pinned, this one's among them."""
        found = [path for path in self._home.glob(f"*/{_PIN}*") if self.lives(path.parent.name)]
        return {int(path.name.removeprefix(_PIN).partition("-")[0]) for path in found}

    def sweep(self) -> None:
        """Removes what owners that are gone have left behind."""
        if not self._home.is_dir():
            return
        with self._alone():
            for left in self._home.iterdir():
                if left.is_dir() and left != self._folder and _is_free(left / _LOCK):
                    shutil.rmtree(left, ignore_errors=True)

    def remove(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
            self._folder = self._home / uuid4().hex

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else makes or sweeps folders inside."""
        door = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(door, fcntl.LOCK_EX)
            yield
        finally:
            os.close(door)


def _locked(path: Path) -> int:
    """The lock's file, open: whoever has it open holds the lock."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _is_free(lock: Path) -> bool:
    try:
        held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(held)
    return True


class Staging:
    """The staged batches of all tables, in the order in which they came."""

    def __init__(self, scratch: Scratch, limit_bytes: int) -> None:
        self._scratch = scratch
        self._limit_bytes = limit_bytes
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._in_memory: dict[str, int] = {}
        self._files: list[Path] = []

    @property
    def tables(self) -> Sequence[str]:
        return tuple(self._batches)

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        self._batches.setdefault(table, []).append(batch)
        self._in_memory[table] = self._in_memory.get(table, 0) + batch.nbytes
        if sum(self._in_memory.values()) > self._limit_bytes:
            self._spill(max(self._in_memory, key=lambda name: self._in_memory[name]))

    def batches(self, table: str) -> Sequence[pa.RecordBatch]:
        return self._batches[table]

    def drop(self, table: str) -> None:
        """Forgets what is committed. Its file goes with ``clear``."""
        del self._batches[table]
        self._in_memory.pop(table, None)

    def clear(self) -> None:
        self._batches.clear()
        self._in_memory.clear()
        for path in self._files:
            path.unlink(missing_ok=True)  # what is still mapped stays readable
        self._files.clear()

    def _spill(self, table: str) -> None:
        """Moves a table's batches to a file. Batches under another definition begin another file."""
        spilled: list[pa.RecordBatch] = []
        run: list[pa.RecordBatch] = []
        for batch in [*self._batches[table], None]:
            if batch is not None and (not run or batch.schema.equals(run[0].schema, check_metadata=True)):
                run.append(batch)
                continue
            spilled += self._written(run)
            run = [] if batch is None else [batch]
        self._batches[table] = spilled
        self._in_memory[table] = 0

    def _written(self, run: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        path = self._scratch.folder() / f"{uuid4().hex}.arrow"
        self._files.append(path)
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, run[0].schema) as writer:
            for batch in run:
                writer.write_batch(batch)
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
