"""Every file operation that changes the log, in one small class, so that tests can lose, fail and count them."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

PAGE_BYTES: Final = 4096
MOST_PARTS: Final = 1024
"""The most parts that the system takes in one write."""
EARLY_BYTES: Final = 2**20
"""The disk is set to work each time so many bytes are there: about what it writes while as many are copied for it."""
_START: Final = 2
_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux alone has it."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


class Disk:
    """The real disk. Every method raises OSError as the system gives it; none retries."""

    def make_folder(self, path: Path) -> None:
        """Makes the folder (and what leads to it), private to its owner. Not yet durable: see ``sync_folder``."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """A new file's descriptor; the file must not exist."""
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, _FLAGS)

    def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        """Writes all parts one after the other at the offset, without joining them first."""
        for begin in range(0, len(parts), MOST_PARTS):
            offset = self._write(fd, parts[begin : begin + MOST_PARTS], offset)

    def _write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> int:
        """Returns where they end."""
        total = sum(len(part) for part in parts)
        done = os.pwritev(fd, parts, offset)
        while done < total:
            skipped, rest = done, []
            for part in parts:
                if skipped < len(part):
                    rest.append(memoryview(part)[skipped:])
                skipped = max(0, skipped - len(part))
            written = os.pwritev(fd, rest, offset + done)
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            done += written
        return offset + total

    def write_early(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        """As ``write``, and the disk works on what is there while the rest is copied, and after that. It gets whole pages only: one of which another
        part is still to come, before ``offset`` or behind the end, would be written twice."""
        started, portion, size = offset + -offset % PAGE_BYTES, [], 0
        for number, part in enumerate(parts, 1):
            portion.append(part)
            size += len(part)
            if size >= EARLY_BYTES or number == len(parts):
                self.write(fd, portion, offset)
                offset, portion, size = offset + size, [], 0
                whole = offset - offset % PAGE_BYTES
                if whole > started:
                    self.start_writing(fd, started, whole)
                    started = whole

    def start_writing(self, fd: int, start: int, end: int) -> None:
        """Has the disk begin to write these bytes, and does not wait for it: a later sync then has less left to do. It promises nothing."""
        if _sync_file_range is not None:
            _sync_file_range(fd, start, end - start, _START)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """Returns when the file's bytes and length are on the disk."""
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        """Makes created, renamed and removed names durable."""
        fd = os.open(path, _FOLDER_FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def close(self, fd: int) -> None:
        os.close(fd)
