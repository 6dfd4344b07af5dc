"""Holds stores against the log that the checker has seen: what they take back, what they show, and what is claimed of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cdc.model.position import Cut
from sinks.memory import Store
from tests.sim.tables import Key, Row
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.checker import Checker


class StoreCheck:
    """Rules e, f, g and j (see ``tests.sim.checker``)."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._applied: dict[str, int] = {}
        self._seen: dict[str, dict[str, dict[str, tuple[int, Row | None]]]] = {}

    def struck(self, name: str, store: Store) -> None:
        """The store has lost something, or is as it once was: it may begin again from there."""
        self._applied[name] = store.applied.position
        self._seen[name] = {topic: dict(rows) for topic, rows in store.rows.items()}

    def wrote(self, name: str, store: Store, *, staged: bool, cut: Cut | None) -> None:
        """After each write. ``cut``: what was just committed."""
        seen, entries = self._seen.setdefault(name, {}), self._checker.entries
        if store.applied.position < self._applied.get(name, 0) and cut is None:
            raise Violation("e", f"{name}: went back from {self._applied[name]} to {store.applied}")
        self._applied[name] = store.applied.position
        for topic, unit in store.tables.items():
            before = seen.setdefault(topic, {})
            for text, kept in unit.rows.items():
                known = before.get(text)
                if known is kept:
                    continue  # the very same: nothing that is asked here can have changed
                position, row = kept
                if known is not None and position < known[0]:
                    raise Violation("e", f"{name}: {topic} {text!r} went back from position {known[0]} to {position}")
                before[text] = kept
                if position > len(entries):
                    raise Violation("c", f"{name}: {topic} {text!r} is of position {position}, the log ends at {len(entries)}")
                entry = entries[position - 1]
                if entry.topic != topic or (None if row is None else slim(row)) != entry.row:
                    raise Violation("c", f"{name}: {topic} {text!r} at position {position} is not what the log has there")
                if staged and position > unit.mark.cut.position:
                    raise Violation("g", f"{name}: shows position {position}, committed is {unit.mark.cut.position}")
        if cut is not None:
            self.claims(name, store, store.applied.position)

    def claims(self, name: str, store: Store, at: int) -> None:
        """Somebody takes the store to hold everything up to ``at``. A table may be further: the others were set back."""
        if at == 0:
            return
        for table in self._checker.source.tables.values():
            unit = store.tables.get(table.qualified)
            upto = max(at, unit.mark.cut.position) if unit is not None else at
            fold = self._fold(name, at, upto)[table.oid]
            held: dict[Key, int] = {}
            gone: dict[Key, int] = {}
            for kept, row in (unit.rows if unit is not None else {}).values():
                (gone if row is None else held)[self._checker.entries[kept - 1].key] = kept
            floor = 0 if unit is None else unit.floor
            for key, entry in fold.items():
                newest = max(held.get(key, 0), gone.get(key, 0), floor if floor > upto else 0)
                if newest < entry.position or (newest > entry.position and newest <= upto):
                    raise Violation(
                        "fj", f"{name} at {at}: {table.qualified} {list(key)} is of position {newest}, not {entry.position}"
                    )
            for key, kept in held.items():
                if kept <= upto and key not in fold:
                    raise Violation("fj", f"{name} at {at}: {table.qualified} {list(key)} of position {kept} should be gone")

    def _fold(self, name: str, at: int, upto: int) -> dict[int, dict[Key, object]]:
        cuts = self._checker.cuts
        positions = (cuts[bisect_right(cuts, one, key=lambda cut: cut[0]) - 1] for one in (at, upto))
        (whole, _), (table, fold) = positions
        if whole != at or table != upto:
            raise Violation("g", f"{name}: committed position {at}, {upto} in a table, which is no cut")
        return fold  # type: ignore[return-value]

    def differences(self, stores: Iterable[tuple[str, Store]], head: Cut) -> Iterator[str]:
        for name, store in stores:
            if store.applied != head:
                yield f"{name} is at {store.applied.position} of {head.position}"
            else:
                try:
                    self.claims(name, store, head.position)
                except Violation as behind:  # struck behind its ledger; its follower has yet to look
                    yield str(behind)


def slim(row: Row) -> Row:
    """Without NULLs: a column added later is NULL in rows from before."""
    return {name: value for name, value in row.items() if value is not None}
