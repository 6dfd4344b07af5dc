"""Every file operation that changes the log, in one small class, so that tests can lose, fail and count them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

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
