"""How much of the log a store holds, by its ledger's word and by each of its tables'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.errors import StoreError
from cdc.log.contract import LogReader, selected
from cdc.model.lineage import Lineage, believed, of_another_log
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.followedlog import Followed, refuse_missed
from sinks.versionage import whole_since_us
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.place import unmarked
from sinks.warehouse.tables import WarehouseTables


class Extent:
    """Compared with one log."""

    def __init__(self, store: str, patterns: Sequence[str], log: LogReader, *, writing: bool) -> None:
        self.holds = ZERO_CUT
        """What the tables held when they were looked at last."""
        self._store = store
        self._patterns = patterns
        self._log = log
        self._followed = Followed(store)
        if (lineage := log.lineage()) is not None:
            self._followed.begin(log, lineage, writing=writing)
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

    def whole_since(self, held: Mapping[str, Position]) -> dict[str, int | None]:
        """``versionage.whole_since_us`` of each of these topics. ``held``: topic → up to where its changes were held before those that were read."""
        topics = self._log.topics()
        return {topic: whole_since_us(self._log, topics, topic, position) for topic, position in held.items()}

    def lineage(self) -> Lineage:
        """Raises StoreError as ``Followed`` does."""
        if not self._followed.begun:
            raise StoreError("there is no log yet that the warehouse could be compared with", retryable=True)
        return self._followed.lineage()

    def whole(self, ledger: WarehouseLedger, tables: WarehouseTables) -> Cut:
        """The highest cut that the ledger and every table hold. Raises Stopped for marks that are not believed, or lie where DELETEs are gone."""
        applied = ZERO_CUT
        if ledger.table is not None:
            if ledger.table.mark is None:
                raise unmarked(f"the ledger of store {self._store}")
            if not self._followed.begun:
                raise of_another_log(ledger.table.mark, f"store {self._store}")
            applied = believed(ledger.table.mark, self.lineage(), f"store {self._store}")
        least = applied
        found = selected(self._log, self._patterns)
        self._seen = {one.name: one.schema for one in found}
        for one in found:
            topic, where = one.name, f"the table of {one.name} in store {self._store}"
            mark, cut = tables.mark(topic), ZERO_CUT
            if mark is not None:
                cut = believed(mark, self.lineage(), where)
                refuse_missed(one, cut.position, [mark.history] if cut.position else [], self.lineage(), where)
            if max(cut.position, ledger.nothing(topic)) < min(least.position, self.last_change(topic, applied)):
                least = cut
        self.holds = least
        return least
