"""Who holds compaction back: the stores that have not read on yet.

A store that is behind keeps what it still has to read, so that it shows whole commits all the way. One that reads may take as long as it needs. One that
does not (it is down, has stopped, or nobody follows it) no longer counts once it has stood still for ``[log] pin_hours``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import Settings
from cdc.state import status

SILENT_S = 3600.0
"""A follower that has not written its status for so long does not read at present."""


@dataclass(frozen=True, slots=True)
class StorePin:
    """A store that has read up to ``position``."""

    store: str
    tables: tuple[str, ...]
    position: int

    def holds(self, schema: TopicSchema) -> bool:
        """Whether it counts for this topic."""
        return matches(self.tables, schema)


class Pins:
    """Looks at the stores' status again and again. ``now``: by this process's clock of ``time.monotonic``.

    ``in_force``: says the configuration as it is now: followers take up a new store at once, so it has to count at once.
    """

    def __init__(self, in_force: Callable[[], Settings]) -> None:
        self._in_force = in_force
        self._since: dict[str, tuple[int, float]] = {}
        """Each store's position, and since when it stands there."""

    def look(self, now: float) -> list[StorePin]:
        """The stores that count now. One that has never run has read nothing."""
        found = []
        settings = self._in_force()
        for name, options in settings.stores.items():
            told = status.read_follower(settings.run_dir, name)
            position = 0 if told is None else told.position
            if self._since.get(name, (-1, 0.0))[0] != position:
                # What it did before this process began is known by its own last word.
                silent_s = 0.0 if told is None or name in self._since else max(0.0, time.time() - told.updated_at)
                self._since[name] = position, now - silent_s
            reads = told is not None and told.state in ("starting", "following") and status.silent_s(told) < SILENT_S
            if reads or now - self._since[name][1] < 3600.0 * settings.log.pin_hours:
                found.append(StorePin(name, options.tables, position))
        return found
