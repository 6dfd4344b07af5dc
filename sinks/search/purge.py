"""When deleted rows go for good: once their names were fenced long enough ago (``fence``)."""

from __future__ import annotations

from collections.abc import Callable

from sinks.search import fence
from sinks.search.barriers import SearchBarriers
from sinks.search.tables import Tables
from sinks.search.wire import Cluster


class Purging:
    """Purges one store. ``after_s``: how long a fence stands before."""

    def __init__(
        self, cluster: Cluster, tables: Tables, barriers: SearchBarriers, after_s: float, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._tables = tables
        self._barriers = barriers
        self._after_s = after_s
        self._clock = clock
        self._fenced: fence.Fenced | None = None

    def forget(self) -> None:
        """The store is opened again."""
        self._fenced = None

    def after_commit(self) -> None:
        """Fences what is applied now; removes what was fenced long enough ago. Costs nothing most of the time."""
        now, places = self._clock(), list(self._tables.known.values())
        if self._fenced is None and places and self._barriers.replace_writers(places):
            self._fenced = fence.Fenced(self._tables.held.applied.position, now)
        if self._fenced is not None and now - self._fenced.at_s >= self._after_s:
            for unit, floor in ((unit, place.floor) for place in places for unit in place.units):
                fence.purge(self._cluster, unit.names, deleted_before=self._fenced.position, written_before=floor)
            self._fenced = None
