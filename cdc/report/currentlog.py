"""A log that is looked at for days: it may be put back from a copy meanwhile, or repaired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.errors import LogCorrupt
from cdc.log.contract import LogReader
from cdc.log.home import head_file


class CurrentLog:
    """Has the reader open the log again where it would go on with files that are no longer the log's. One thread only."""

    def __init__(self, reader: LogReader, folder: Path) -> None:
        self._reader = reader
        self._head = head_file(folder)
        self._place: tuple[int, int] | None = None

    @contextmanager
    def looked_at(self) -> Iterator[LogReader]:
        found = self._found()
        if found != self._place:
            self._reader.close()  # it opens what stands there now
            self._place = found
        try:
            yield self._reader
        except LogCorrupt:
            self._reader.close()  # the file may have been put back by the next time
            raise

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self._head.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
