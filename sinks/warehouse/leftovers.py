"""Data files that no commit has named: whoever wrote them ended, or failed, in between. They are found by their names and removed.

A file's name begins with its writer's: the folder of scratch files that the writer has locked for as long as it lives (``staging``). So a writer
that has merely stopped, and may yet commit what it has written, differs from one that is gone. A file goes when

- its name is of our form, which nobody else's is;
- its writer is gone. A commit may outlive its writer's process by a moment, in the JVM, so it has been gone for an hour of our own time;
- no snapshot needs it, of any branch, tag or rollback: asked once the writer was known to be gone, so that it has nothing left to say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Set
from typing import Final

from sinks.warehouse.failures import Vanished, errors
from sinks.warehouse.place import TablePlace

_OURS: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{32}\.(?:parquet|puffin)")
LOOK_EVERY_S: Final = 600.0
GONE_FOR_S: Final = 3600.0


class Leftovers:
    """Those of one place."""

    def __init__(self, place: TablePlace, lives: Callable[[str], bool]) -> None:
        """``lives``: whether the writer of this name does."""
        self._place = place
        self._lives = lives
        self._looked_at = time.monotonic()
        self._since: dict[str, float] = {}
        """Files that are left over, and when they were first seen to be."""
        self._needed: Set[str] = frozenset()
        """Files of former writers that a snapshot needed when it was asked last."""

    def remove(self, epoch: int) -> None:
        """Looks for them once in a while, and removes those that have been there for long. ``epoch``: the writer's, which must be the latest.

        Raises StoreError.
        """
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        with errors("look for files that are left over"):
            found = self._left_over(epoch)
            self._since = {name: self._since.get(name, now) for name in found}
            for name in [name for name, since in self._since.items() if now - since >= GONE_FOR_S]:
                self._place.folder.storage.remove(f"{self._place.folder.location}/{name}")
                del self._since[name]

    def _left_over(self, epoch: int) -> Set[str]:
        there = self._place.folder.storage.names(self._place.folder.location)
        names = {name: found[1] for name in there if (found := _OURS.fullmatch(name))}
        gone = {writer for writer in set(names.values()) if not self._lives(writer)}
        left = {name for name, writer in names.items() if writer in gone}
        self._place.check()
        if self._place.iceberg.epoch > epoch:
            return frozenset()
        if left - self._since.keys() - self._needed or self._since.keys() & left:
            try:
                self._needed = self._place.iceberg.needed()
            except Vanished:
                return frozenset()  # a part of an old snapshot is missing: nobody can say what it needs
        return left - self._needed
