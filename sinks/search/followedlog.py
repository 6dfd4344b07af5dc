"""The log that a store follows, as it was when the store was opened."""

from __future__ import annotations

from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.lineage import Lineage


class Followed:
    """None before ``begin``."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._log: LogReader | None = None
        self._lineage: Lineage | None = None
        self._writing = False

    def begin(self, log: LogReader, lineage: Lineage, *, writing: bool) -> None:
        """``writing``: a log that has begun another history since is refused (``lineage``)."""
        self._log, self._lineage, self._writing = log, lineage, writing

    def end(self) -> None:
        self._log = self._lineage = None

    @property
    def begun(self) -> bool:
        """Whether there is a log to compare with."""
        return self._log is not None

    @property
    def log(self) -> LogReader:
        """Raises StoreError (retryable) before ``begin``."""
        if self._log is None:
            raise StoreError(f"store {self._store} is not open", retryable=True)
        return self._log

    def lineage(self) -> Lineage:
        """The log's. For a writer it raises StoreError when it is no longer the one that the store was opened with."""
        now = self.log.lineage()
        if now is None or (now != self._lineage and self._writing):
            raise StoreError(f"store {self._store}: the log has begun another history: it is opened again", retryable=True)
        return now
