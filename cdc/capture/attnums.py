"""Columns' numbers for the table of a RELATION message, which has names and types alone. Pure.

Numbers tell a column that was renamed from one that was dropped and another that was added. What knows them is asked in turn; where nothing is
certain the table is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from cdc.capture.tablestate import HeldFacts, Topics
from cdc.model.facts import Facts
from cdc.model.table import Table

Catalog = Callable[[int], Facts | None]
"""Asks the catalog for the facts of a table (by OID); None when it is gone."""


class Numbering:
    """Numbers the columns of one connection's tables. ``note``: see ``Outside``."""

    def __init__(self, catalog: Catalog, facts: HeldFacts, topics: Topics, note: Callable[[int], None]) -> None:
        self.catalog = catalog
        self.uncertain: set[int] = set()
        """Tables (OIDs) whose last numbers may be wrong."""
        self._facts = facts
        self._topics = topics
        self._note = note
        self._last = 0
        """OID of the table of the last RELATION message."""

    def number(self, table: Table) -> Table:
        """The table of a RELATION message with its columns' numbers (and under FULL its key).

        The facts that hold at this place of the stream are asked first, then the catalog (which may have moved on), then the
        definition before. Columns that stay without a number have 0, and the table will be read again.
        """
        self.uncertain.discard(table.oid)
        self._leaf_of(self._last, table)
        self._last = table.oid
        facts, before = self._facts.get(table.oid), self._topics.tables.get(table.oid)
        if facts is not None and (found := _numbered_by(table, facts.table())) is not None:
            return found
        now = self.catalog(table.oid)
        live = None if now is None else now.table()
        for known in (live, before):
            if known is not None and (found := _numbered_by(table, known)) is not None:
                if now is not None and known is live and _skips(now, facts, before):
                    self.uncertain.add(table.oid)
                return found
        if live is None and before is None:
            return table
        if live is not None:  # else nothing is left to be read again
            self.uncertain.add(table.oid)
        return _guessed(table, live, before)

    def _leaf_of(self, oid: int, table: Table) -> None:
        """Behind a partitioned table (OID) the server describes the partition whose row comes next, under the partitioned table's name.

        One that the catalog has not shown yet may be gone again before it does: then this is the only trace of it.
        """
        root = self._facts.get(oid)
        if root is None or not root.partitioned or oid == table.oid or table.oid in root.leaves:
            return
        if {(c.name, c.type_oid) for c in table.columns} == {(c.name, c.type_oid) for c in root.table().columns}:
            self._facts[oid] = root.with_leaf(table.oid)
            self._facts.changed = True
            self._note(oid)


def _shape(table: Table) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in table.columns]


def _numbered_by(table: Table, known: Table) -> Table | None:
    """The table with ``known``'s numbers and structures (and key, where the stream does not tell it), if names and types are the same in the same order."""
    if _shape(table) != _shape(known):
        return None
    told = tuple((column.attnum, column.structure) for column in known.columns)
    return _with(table, told, tuple(column.name for column in known.key))


def _skips(now: Facts, facts: Facts | None, before: Table | None) -> bool:
    """Whether columns have come and gone since, so that a new one may not be the one that the catalog has under its name."""
    known = [column.attnum for column in (facts.columns if facts is not None else before.columns if before is not None else ())]
    new = [column.attnum for column in now.columns if column.attnum > max(known, default=0)]
    return bool(known) and bool(new) and max(new) != max(known) + len(new)


def _guessed(table: Table, live: Table | None, before: Table | None) -> Table:
    """A number for each column that the catalog and the definition before agree on, or that only one of them has."""
    sources = [{(c.name, c.type_oid): c.attnum for c in known.columns} for known in (live, before) if known is not None]
    structures = {c.type_oid: c.structure for known in (before, live) if known is not None for c in known.columns}
    numbers = []
    for column in table.columns:
        found = {source[column.name, column.type_oid] for source in sources if (column.name, column.type_oid) in source}
        numbers.append(found.pop() if len(found) == 1 else 0)
    certain = [number for number in numbers if number]
    if any(left >= right for left, right in pairwise(certain)):
        numbers = [0] * len(numbers)  # columns stand in the order of their numbers, so some of these are wrong
    told = [(number, structures.get(column.type_oid, "")) for number, column in zip(numbers, table.columns, strict=True)]
    return _with(table, tuple(told), _key_of(table, live, before))


def _key_of(table: Table, live: Table | None, before: Table | None) -> tuple[str, ...]:
    """The key, whose columns may have other names where it is looked up. All of them, or none: a part of a key does not tell rows apart."""
    for known in (live, before):
        key = () if known is None else tuple(column.name for column in known.key)
        if known is not None and len(key) == len(known.columns):
            return ()  # it has no key, so that the whole row is one, with columns that are not there as well
        if key and set(key) <= set(table.names):
            return key
    return ()


@lru_cache(maxsize=4096)
def _with(table: Table, told: tuple[tuple[int, str], ...], key: tuple[str, ...]) -> Table:
    """``told``: each column's number and structure. Under FULL the stream flags every column; ``key`` tells which of them identify a row, where it
    is known: else the whole row does."""
    columns = [replace(c, attnum=number, structure=structure) for c, (number, structure) in zip(table.columns, told, strict=True)]
    if table.identity == "f" and key:
        columns = [replace(column, key=column.name in key) for column in columns]
    return replace(table, columns=tuple(columns))
