"""Only one process writes to a log."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

from cdc.errors import ConfigError, WriterElsewhere
from cdc.folders import own
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import LogPlaces

_NO_PLACE: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR))


def hold(places: LogPlaces, disk: Disk) -> int:
    """The writer's lock, held as long as the descriptor lives, so a killed writer leaves none behind.

    Makes the log's folder where it is missing. Raises WriterElsewhere when another process holds the lock, ConfigError when this account cannot
    write there, OSError of the disk.
    """
    try:
        disk.make_folder(places.root)
        own(places.root, "log.dir")
        fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise ConfigError(
            f"log.dir: cannot write in {places.root}: {os.strerror(error.errno)}",
            hint="give this account a folder of its own there",
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise WriterElsewhere(
            f"process {pid or '?'} already writes to the log in {places.root}",
            hint=f"stop it first: kill {pid}" if pid else "stop it first",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def is_held(places: LogPlaces, fd: int) -> bool:
    """Whether the lock still stands where the log is. Descriptors outlive names: a log that was moved, deleted or put back from a copy goes on
    taking what is written to them, where nobody will look for it."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(places.lock))
    except OSError:
        return False
