"""Waiting for another process: inotify on the files that it writes to where the system has it, else short sleeps."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

IN_MODIFY: Final = 0x2
IN_MOVED_TO: Final = 0x80
IN_NONBLOCK: Final = os.O_NONBLOCK
IN_CLOEXEC: Final = os.O_CLOEXEC
POLL_S: Final = 0.005
"""How often the fallback looks: its cost is one pread, its delay is at most this."""


class Watch:
    """Tells when a file has been written to, or one in a folder been replaced. One per reader; not thread-safe."""

    def __init__(self, *paths: Path) -> None:
        """Raises FileNotFoundError when the file or folder does not exist."""
        for path in paths:
            if not path.exists():
                raise FileNotFoundError(path)
        self._fd = _inotify(paths)
        if self._fd >= 0:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    @property
    def blind(self) -> bool:
        """The system tells nothing: ``wait`` only sleeps."""
        return self._fd < 0

    def wait(self, timeout_s: float) -> bool:
        """Returns when the file was written to since the last call, or after the timeout; may also return early. Whether the system said something."""
        if self._fd < 0:
            time.sleep(min(POLL_S, max(0.0, timeout_s)))
            return False
        if not self._poll.poll(max(0.0, timeout_s) * 1000):
            return False
        try:
            os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _inotify(paths: Sequence[Path]) -> int:
    """An inotify descriptor that watches them; -1 where there is none (other systems, or no watches left)."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
    if fd < 0:
        return -1
    for path in paths:
        if libc.inotify_add_watch(fd, os.fsencode(path), IN_MOVED_TO if path.is_dir() else IN_MODIFY) < 0:
            os.close(fd)
            return -1
    return fd
