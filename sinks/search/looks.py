"""How far a store says that it is applied, asked of the cluster no more often than has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc.model.lineage import believed
from cdc.model.position import ZERO_CUT, Cut
from sinks.search.ledger import Entry, SearchLedger
from sinks.search.standing import order
from sinks.search.tables import Tables

LOOK_S: Final = 5.0
"""How often ``applied`` looks for indices and aliases that came or moved, and for a reader at what the indices say; where one lacked
something, it looks again sooner."""
LACKING_LOOK_S: Final = 0.5


class StoreLooks:
    """Over one store."""

    def __init__(self, ledger: SearchLedger, tables: Tables, clock: Callable[[], float]) -> None:
        self.holds: Cut = ZERO_CUT
        """As it was found last, or committed since."""
        self._ledger = ledger
        self._tables = tables
        self._clock = clock
        self._next = float("-inf")
        self._lacking = False
        """Whether the last look found less than the ledger claims."""

    def look(self, entry: Entry | None, *, writing: bool) -> Cut:
        """At everything. ``writing``: aliases that an operator has moved are put right."""
        holding = self._tables.overview.look(None if entry is None else entry.mark, point=writing)
        self._tables.held.found(holding)
        self._lacking = entry is not None and holding.applied != entry.mark.cut
        self._next = self._clock() + (LACKING_LOOK_S if self._lacking else LOOK_S)
        self.holds = holding.applied
        return holding.applied

    def applied(self, *, writing: bool) -> Cut:
        entry = self._ledger.peek()
        if entry is None or self._clock() >= self._next:
            return self.look(entry, writing=writing)
        if writing:
            return self._tables.overview.glance(entry.mark).applied  # a follower asks once a second at most
        recorded = believed(entry.mark, self._tables.followed.lineage(), f"store {self._tables.indices.cluster.store}")
        return min(recorded, self.holds, key=order) if self._lacking else recorded
