"""The log that a store follows, as it was when the store was opened; and what a store at an earlier place has missed of it."""

from __future__ import annotations

from collections.abc import Iterable

from cdc.errors import AnotherHistory, PositionGone, StopState, StoreError
from cdc.log.contract import LogReader, Topic
from cdc.model.lineage import Lineage


class Followed:
    """None before ``begin``. A writer keeps to the lineage that its marks were compared with: floors that are raised later may be above them."""

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
        """The log's. For a writer it raises AnotherHistory when it is no longer the one that the store was opened with."""
        now = self.log.lineage()
        if now is None or (now != self._lineage and self._writing):
            raise AnotherHistory(self._store)
        return now


def refuse_missed(topic: Topic, at: int, histories: Iterable[str], lineage: Lineage, where: str) -> None:
    """Raises PositionGone where rows of the topic may be there whose DELETEs are gone from the log.

    ``at``: how far ``where``, such as "store search", holds the topic. ``histories``: of the marks on all that has rows of it; none where there are
    no rows. ``lineage``: as it was before the log was asked for the topic.
    """
    if at + 1 < topic.floor and any(lineage.raised_at(history) < topic.raised for history in histories):
        raise PositionGone(
            f"{where} holds position {at} of {topic.name}: rows were deleted since then of which the log no longer tells "
            f"(it keeps DELETEs from position {topic.floor} on)",
            hint=f"cdc resume {StopState.POSITION_GONE} --rebuild, which builds the store again from the log; or restore a newer copy of it",
        )
