"""When a table's next job may be made: a little later each time that one had to be given up, and not for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from cdc.errors import SourceError
from snapshots.catalog import SourceTable

MOST_REFUSALS: Final = 50
"""In a row, for one table: the stream and the catalog then disagree about it for good."""
_STEP_S: Final = 0.01
_MOST_S: Final = 1.0


class Turns:
    """Tables by OID. One session's: a new one begins with all of them due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: Counter[int] = Counter()
        self._not_before: dict[int, float] = {}

    def due(self, oid: int) -> bool:
        return self._clock() >= self._not_before.get(oid, 0.0)

    def take(self, source: SourceTable) -> None:
        """A job is made of the table. Raises SourceError when there have been too many of which nothing became durable."""
        oid = source.table.oid
        if self._jobs[oid] > MOST_REFUSALS:
            raise SourceError(
                f"table {source.name} keeps changing its shape while it is read",
                hint="stop its schema changes until the snapshot is done",
            )
        self._jobs[oid] += 1
        self.hold_back(oid, min(_STEP_S * self._jobs[oid], _MOST_S))

    def hold_back(self, oid: int, seconds: float) -> None:
        """Makes no job of the table for so long."""
        self._not_before[oid] = self._clock() + seconds

    def went_on(self, oid: int) -> None:
        """Something of the table has become durable, or it is not its shape that keeps it from being read."""
        self._jobs.pop(oid, None)
