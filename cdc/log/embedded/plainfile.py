"""The log's files, opened to be read: only what is a file. A folder, a link or a pipe of that name was put there by somebody else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from cdc.errors import LogCorrupt


def opened(path: Path) -> int:
    """The file's descriptor, to read from. Raises LogCorrupt where something else has its name, and OSError (FileNotFoundError among them)."""
    try:
        # A pipe would keep us waiting for whoever writes into it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path)
    return fd


def content(path: Path) -> bytes:
    """All of the file. Raises as ``opened`` does."""
    with open(opened(path), "rb") as file:
        return file.read()


def _no_file(path: Path) -> LogCorrupt:
    return LogCorrupt(f"{path}: is not a file")
