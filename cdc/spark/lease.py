"""One follower per store on a machine: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cdc import jsonfile
from cdc.errors import HeadwaterError


class Lease:
    """Held from construction until ``release`` or the process's end. Raises HeadwaterError when somebody else holds it."""

    def __init__(self, run_dir: Path, store: str) -> None:
        folder = run_dir / "lease"
        jsonfile.make_folder(folder)
        self._file = os.open(folder / f"follow-{store}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 20, 0).decode() or "unknown"
            os.close(self._file)
            raise HeadwaterError(
                f"store {store} is already followed by process {holder}",
                hint=f"stop process {holder} first, or set another run_dir",
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)
