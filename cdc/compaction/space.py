"""Room on the log's disk: compaction leaves some of it to capture. While there is less, it gives back at once what it holds, and makes what may go go early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdc.diskspace import MAKE_ROOM, free_bytes
from cdc.errors import HeadwaterError
from cdc.settings.models import Log


class Space:
    """``free``: the bytes that are free on the disk of a folder."""

    def __init__(self, log: Log, free: Callable[[Path], int] = free_bytes) -> None:
        self._folder = log.dir
        self._reserve_mb = log.reserve_mb
        self._free = free
        self.refused = False
        """The disk has said that it is full, which a quota says without being seen in ``free``; until something was freed."""
        self.scarce: str | None = None
        """Says that less than the reserve was left when it was looked at last, with what helps."""

    def short(self, more: int = 0) -> bool:
        """Whether less than the reserve would be left once so many bytes are written. Raises OSError."""
        return self._free(self._folder) - more < self._reserve_mb * 10**6

    def check(self, more: int = 0, *, replaces: bool = True) -> None:
        """Raises HeadwaterError when so many bytes are not to be written; OSError.

        Where less than the reserve is left as it is, half of that may be written by what ``replaces`` more, which goes right afterwards.
        """
        free, reserve = self._free(self._folder), self._reserve_mb * 10**6
        if free - more < reserve and not (replaces and free < reserve and 0 <= more <= free // 2):
            raise HeadwaterError(
                f"less than {self._reserve_mb} MB (log.reserve_mb) would be left on the disk of {self._folder}",
                hint=f"{MAKE_ROOM}, or stop cdc run and let cdc log compact make it, which leaves no reserve",
            )

    def look(self) -> bool:
        """Notes whether less than the reserve is left now, in ``scarce``; says whether it has just become so. Raises OSError."""
        before = self.scarce
        self.scarce = (
            f"less than {self._reserve_mb} MB (log.reserve_mb) is left on the disk of {self._folder}: what may go from the log goes at once "
            f"→ {MAKE_ROOM}; cdc log stat says which stores hold back more"
            if self.short()
            else None
        )
        return self.scarce is not None and before is None
