"""Somebody asks for snapshots (``cdc snapshot``) while there is traffic. What was asked for outlives every process, as its files do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from cdc.model.table import Table
from snapshots.plan import Key
from snapshots.requests import Request, RequestOutcome, Requests
from tests.sim.source import Source
from tests.sim.tables import Row, index_of, key_of, keyless, new_key

_KEYS_MOST: Final = 6
_MISSING_MOST: Final = 3

Types = tuple[tuple[int, int], ...]


class Asking(Requests):
    """The product's folder of requests, in memory. ``met``: hears of what has become of each."""

    def __init__(self, met: Callable[[str], None]) -> None:
        super().__init__(Path())
        self._met = met
        self._queued = 0
        self._requests: dict[str, Request] = {}
        self._outcomes: dict[str, RequestOutcome] = {}
        self._types: dict[Key, Types] = {}
        self.keys: set[Key] = set()
        """Those that were asked for, in the order of the table's columns."""

    def ask(self, chance: Random, source: Source, keys: int) -> None:
        """For one of the published tables: all of it, all of it in place of what the log has, or some keys, of which some may have no row."""
        published = [table for oid, table in source.tables.items() if source.catalog[oid].way]
        if not published:
            return
        table = chance.choice(published)
        how = chance.choice(("a table", "a table in place of what there is", "keys"))
        if how != "keys":
            self._queue(how, Request(table.qualified, replace=how != "a table"))
        elif not keyless(table):
            rows = list(source.visible[table.oid].values())
            rows = chance.sample(rows, min(len(rows), chance.randrange(_KEYS_MOST)))
            rows += [new_key(chance, table, keys) for _ in range(chance.randrange(1, _MISSING_MOST))]
            self._queue(how, Request(table.qualified, keys=tuple(self._key(table, row) for row in rows)))

    def _key(self, table: Table, row: Row) -> Key:
        self.keys.add(key_of(table, row))
        key = tuple(row[name] or "" for name in index_of(table))
        self._types[key] = types_of(table)
        return key

    def _queue(self, how: str, request: Request) -> None:
        self._met(f"snapshots of {how} asked for")
        self._requests[str(self._queued)] = request
        self._queued += 1

    def fits(self, keys: tuple[Key, ...], table: Table) -> bool:
        """Whether the keys are values of the table's key, which may be another since they were asked for; so may the table of that name."""
        return all(self._types.get(key, types_of(table)) == types_of(table) for key in keys)

    # --- as Requests ----------------------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, Request]:
        return dict(self._requests)

    def tell(self, name: str, outcome: RequestOutcome) -> None:
        self._outcomes[name] = outcome
        if outcome.state in ("done", "failed") and self._requests.pop(name, None) is not None:
            self._met(f"asked-for snapshots {outcome.state}")

    def outcome(self, name: str) -> RequestOutcome:
        return self._outcomes.get(name, RequestOutcome())


def types_of(table: Table) -> Types:
    """Of the columns of its index, in order."""
    types = {column.name: (column.type_oid, column.typmod) for column in table.columns}
    return tuple(types[name] for name in index_of(table))
