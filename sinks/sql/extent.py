"""How much of the log a SQL store holds, by its ledger's word and by each of its tables'."""

from __future__ import annotations

from cdc.errors import StoreError
from cdc.log.contract import LogReader, selected
from cdc.model.lineage import Lineage, believed, of_another_log
from cdc.model.position import ZERO_CUT, Cut, Position
from sinks.followedlog import Followed, refuse_missed
from sinks.sql.historyupkeep import SqlHistoryUpkeep
from sinks.sql.ledger import SqlLedger
from sinks.sql.options import Options


class SqlExtent:
    """Compared with one log."""

    def __init__(self, store: str, options: Options, log: LogReader, *, writing: bool) -> None:
        self._store = store
        self._patterns = options.tables
        self.log = log
        self.histories = SqlHistoryUpkeep(store, options, log)
        self._followed = Followed(store)
        if (lineage := log.lineage()) is not None:
            self._followed.begin(log, lineage, writing=writing)

    def selected(self) -> list[str]:
        """The store's topics."""
        return [topic.name for topic in selected(self.log, self._patterns)]

    def last_change(self, topic: str, upto: Cut) -> Position:
        return self.log.last_change(topic, upto.position)

    def lineage(self) -> Lineage:
        """Raises StoreError as ``Followed`` does."""
        if not self._followed.begun:
            raise StoreError(f"there is no log yet that store {self._store} could be compared with", retryable=True)
        return self._followed.lineage()

    def whole(self, held: SqlLedger) -> Cut:
        """The highest cut that the ledger and every table hold. Raises Stopped for marks that are not believed, or lie where DELETEs are gone."""
        if not self._followed.begun:
            first = held.mark or next((one.mark for one in held.entries.values()), None)
            if first is not None:
                raise of_another_log(first, f"store {self._store}")
            return ZERO_CUT
        applied = ZERO_CUT if held.mark is None else believed(held.mark, self.lineage(), f"store {self._store}")
        least = applied
        for topic in selected(self.log, self._patterns):
            entry, where = held.entries.get(topic.name), f"the table of {topic.name} in store {self._store}"
            cut = ZERO_CUT
            if entry is not None and entry.counts:
                cut = believed(entry.mark, self.lineage(), where)
                if entry.has_table:
                    refuse_missed(topic, cut.position, [entry.mark.history] if cut.position else [], self.lineage(), where)
            if cut.position < min(least.position, self.last_change(topic.name, applied)):
                least = cut
        return least
