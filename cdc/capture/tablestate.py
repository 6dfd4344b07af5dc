"""The state of the source's tables while definitions are decided: the log's topics, the facts, and what has to be read again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cdc.model.facts import Facts
from cdc.model.table import Table


class HeldFacts(dict[int, Facts]):
    """Facts by OID, as they stand at this place of the stream."""

    changed = False
    """Since they were kept."""


class Topics:
    """Which table each topic is of. ``known``: the log's topics, of which ``ended`` name no table any more."""

    def __init__(self, known: Iterable[Table], ended: Iterable[str]) -> None:
        self.ended = set(ended)
        self.tables = {table.oid: table for table in known if table.qualified not in self.ended}
        """As they are logged, by OID."""
        self.oids = {table.qualified: oid for oid, table in self.tables.items()}
        self.displaced: list[int] = []
        """OIDs of tables whose names others have taken."""

    def hold(self, table: Table) -> bool:
        """Whether the topic of that name is this table's."""
        return self.oids.get(table.qualified) == table.oid

    def end(self, table: Table) -> None:
        del self.oids[table.qualified]
        self.ended.add(table.qualified)


class Rereads:
    """Tables to be read again, or for the first time."""

    def __init__(self) -> None:
        self._due: dict[int, bool] = {}
        self.taken_in: set[int] = set()
        """Tables (OIDs) that are to be read because they have come in another's place, whether or not their facts have come yet."""

    def read(self, oid: int, *, joined: bool = False) -> None:
        self._due[oid] = joined or self._due.get(oid, False)

    def take(self) -> dict[int, bool]:
        due, self._due = self._due, {}
        return due
