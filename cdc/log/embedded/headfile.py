"""The head's file: how a writer tells readers in other processes what is durable. 64 bytes, overwritten in place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from cdc.errors import LogCorrupt
from cdc.log.embedded import plainfile
from cdc.log.embedded.format import HEAD_BYTES, Head, decode_head

_TRIES: Final = 100
_PAUSE_S: Final = 0.002
LOOK_S: Final = 1.0


class HeadFile:
    """A reader's open head."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError when there is no log yet, LogCorrupt where the name is not a file's."""
        self.path = path
        self._fd = plainfile.opened(path)
        self._last: tuple[bytes, Head] | None = None
        self._looked_at = time.monotonic()

    def read(self) -> Head:
        """Reads what is durable now. A half-overwritten head is read again; raises LogCorrupt when it stays damaged."""
        for attempt in range(_TRIES):
            data = os.pread(self._fd, HEAD_BYTES, 0)
            last = self._last
            if last is not None and last[0] == data:
                return last[1]  # nearly every look finds what the last one found
            head = decode_head(data)
            if head is not None:
                self._last = (data, head)
                return head
            if attempt:
                time.sleep(_PAUSE_S)
        raise LogCorrupt(f"{self.path} at byte 0: the head is damaged; starting capture writes it again from the timeline")

    def stands(self) -> bool:
        """Whether its name still leads to it; looks once a second. An open file outlives its name: of a log that was moved, deleted or put back
        from a copy it would say for ever what it said last. A writer keeps the file that it finds. Raises OSError."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return True
        self._looked_at = now
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
