"""The folder of one session for Spark's own files. Spark removes them at its end, but not where it is killed: the next session beside it does that then."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final
from uuid import uuid4

_NAMED: Final = "session-"
_LOCK: Final = ".lock"


class SessionFolder:
    """``path`` is this session's alone until ``remove``; the kernel releases the lock on it when the process ends, in whatever way."""

    def __init__(self, parent: Path | None) -> None:
        """``parent``: where it lies, beside those of other processes; nobody else may write there. Left out: among the temporary files."""
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
            for path in parent.glob(f"{_NAMED}*"):
                _remove_if_left(path)
        made = Path(tempfile.mkdtemp(prefix="headwater-spark-", dir=parent))
        self._lock: int | None = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # By its name others look for what is left: it has that once it is locked.
        self.path = made if parent is None else made.rename(parent / f"{_NAMED}{uuid4().hex}")
        atexit.register(self.remove)

    def remove(self) -> None:
        """Removes it with all that is in it."""
        atexit.unregister(self.remove)
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _remove_if_left(path: Path) -> None:
    """… by a session whose process is gone."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # it is just being made, or somebody else removes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
