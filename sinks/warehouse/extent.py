"""How much of the log a store holds, by its ledger's word and by each of its tables'."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import StoreError
from cdc.log.contract import LogReader, selected
from cdc.model.lineage import Lineage, believed
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.place import unmarked
from sinks.warehouse.tables import WarehouseTables


class Extent:
    """Compared with one log."""

    def __init__(self, store: str, patterns: Sequence[str], log: LogReader) -> None:
        self.holds = ZERO_CUT
        """What the tables held when they were looked at last."""
        self._store = store
        self._patterns = patterns
        self._log = log
        self._seen: dict[str, TopicSchema] = {}

    @property
    def another(self) -> bool:
        """Whether the log has other topics than when the tables were looked at last, or another definition of one."""
        return self._seen != self.selected()

    def selected(self) -> dict[str, TopicSchema]:
        """The store's topics, each under its newest definition."""
        return {topic.name: topic.schema for topic in selected(self._log, self._patterns)}

    def last_change(self, topic: str, upto: Cut) -> Position:
        return self._log.last_change(topic, upto.position)

    def lineage(self) -> Lineage:
        lineage = self._log.lineage()
        if lineage is None:
            raise StoreError("there is no log yet that the warehouse could be compared with", retryable=True)
        return lineage

    def whole(self, ledger: WarehouseLedger, tables: WarehouseTables) -> Cut:
        """The highest cut that the ledger and every table hold. Raises Stopped for marks that are not believed."""
        applied = ZERO_CUT
        if ledger.table is not None:
            if ledger.table.mark is None:
                raise unmarked(f"the ledger of store {self._store}")
            applied = believed(ledger.table.mark, self.lineage(), f"store {self._store}")
        least = applied
        self._seen = self.selected()
        for topic in self._seen:
            place = tables.places.get(topic)
            mark = None if place is None else place.iceberg.mark
            cut = ZERO_CUT if mark is None else believed(mark, self.lineage(), f"the table of {topic} in store {self._store}")
            if max(cut.position, ledger.nothing(topic)) < min(least.position, self.last_change(topic, applied)):
                least = cut
        self.holds = least
        return least
