"""Holds stores against the log that the checker has seen: what they take back, what they show, and what is claimed of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc.model.evolution import TopicChange, differences
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import SchemaPolicy
from sinks.contract import Shape
from sinks.memoryunits import Store, TableUnit
from sinks.reshape import same_origin
from tests.sim.tables import Key, Row, first_name, key_of
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.checker import Checker
    from tests.sim.entries import Entry, Folded


@dataclass(slots=True)
class Terms:
    """What a store does when the definition of a table changes."""

    policy: SchemaPolicy = "apply"
    approved: Mapping[str, int] = field(default_factory=dict)
    """Topic → the position up to which an operator has let its changes through."""

    def lets_through(self, topic: str, position: int) -> bool:
        return self.policy == "apply" or position <= self.approved.get(topic, 0)


def _as_logged(shown: Row, logged: Row, schema: TopicSchema) -> Row:
    """The row with its numbers spelled as before a change of the definition: a store spells them as its column's type does now, ``7.00`` for ``7``, until they are read again."""
    types = {first_name(one.name): one.type for one in schema.fields}
    return {
        column: logged[column] if _is_spelling_of(value, logged.get(column), types.get(column)) else value
        for column, value in shown.items()
    }


def _is_spelling_of(shown: str, logged: str | None, kind: pa.DataType | None) -> bool:
    """Whether it is that number as a column of this type has it."""
    try:
        if logged is None or kind is None or Decimal(shown) != Decimal(logged):
            return False
    except InvalidOperation:
        return False
    if pa.types.is_decimal(kind):
        return shown == f"{Decimal(shown):.{kind.scale}f}"
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


class StoreCheck:
    """Rules e, f, g, j, m and o (see ``tests.sim.checker``). ``terms``: each store's, by name."""

    def __init__(self, checker: Checker) -> None:
        self.terms: dict[str, Terms] = {}
        self._checker = checker
        self._applied: dict[str, int] = {}
        self._seen: dict[str, dict[str, dict[str, tuple[int, Row | None]]]] = {}
        self._kept: dict[str, set[tuple[str, Key, str]]] = {}
        """Rows of stores that are being built again: topic, key, and its name there. Each has been in the log at all times since it began."""
        self._given: dict[tuple[str, str], Shape] = {}
        """The last definition that each store was given of each topic: one that shows whole commits only has it later."""

    def struck(self, name: str, store: Store) -> None:
        """The store has lost something, is as it once was, or was not built again to the end: it may begin again from there."""
        self._applied[name] = store.applied.position
        self._seen[name] = {topic: dict(rows) for topic, rows in store.rows.items()}
        self._kept.pop(name, None)

    def anew(self, name: str, store: Store) -> None:
        """The store has been built again: every row of it has to be right, whatever it was before."""
        self._applied[name] = 0
        self._seen[name] = {}
        self._kept.pop(name, None)
        self.wrote(name, store, staged=False, cut=None)

    def steady(self, name: str, store: Store, *, begins: Cut | None) -> None:
        """Rule o. The store is being built again; ``begins``: from now on, as of this cut. After a loss of power, and until somebody
        has recovered the log, its readers see an earlier one than the store has seen."""
        fold = self._checker.cuts[-1][1]
        if begins is not None:
            tables = store.tables.items()
            self._kept[name] = {one for topic, unit in tables for one in self._there(topic, unit, begins.position)}
        kept = self._kept.get(name)
        if kept is None:
            return  # something has befallen it since
        kept.intersection_update([one for one in kept if one[1] in fold.get(one[0], {})])
        for topic, key, text in sorted(kept):
            unit = store.tables.get(topic)
            if unit is None or unit.rows.get(text, (0, None))[1] is None:
                raise Violation("o", f"{name}: {topic} {list(key)} is gone while the store is built again")

    def _there(self, topic: str, unit: TableUnit, upto: int) -> Iterator[tuple[str, Key, str]]:
        """The rows which the log has up to ``upto`` and the unit shows from there: topic, key, and its name there. Of a table with the
        key that the log has for it by then."""
        cuts = self._checker.cuts
        rows = cuts[bisect_right(cuts, upto, key=lambda cut: cut[0]) - 1][1].get(topic, {})
        newest = max(rows.values(), key=lambda entry: entry.at, default=None)
        if newest is None or newest.table is None or unit.shape is None:
            return
        names = [column.name for column in TopicSchema.of(newest.table).key]
        if not names or names != [column.name for column in unit.shape.schema.key]:
            return
        for text, (position, row) in unit.rows.items():
            entry = self._checker.entries[position - 1] if position <= min(upto, len(self._checker.entries)) else None
            if row is None or entry is None or entry.topic != topic:
                continue
            key = entry.key if entry.rows is None else self._key(unit, row)
            if key in rows:
                yield topic, key, text

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
                if entry.rows is not None and position < self._checker.clean.get(topic, 0):
                    continue  # written again by who has not had every change of the row before: below the clean point a store is loading
                shown = None if row is None else slim(row)
                logged = self._logged(name, entry, unit, row)
                if entry.rows is not None and shown is not None and logged is not None:
                    assert unit.shape is not None
                    shown = _as_logged(shown, logged, unit.shape.schema)
                # Where a table is to be read again, nobody may have been able to tell which of its columns had become which.
                awaited = entry.rewritten and shown is not None and logged is not None and shown.items() <= logged.items()
                if entry.topic != topic or (shown != logged and not awaited):
                    raise Violation("c", f"{name}: {topic} {text!r} at position {position} is not what the log has there")
                if staged and position > unit.mark.cut.position:
                    raise Violation("g", f"{name}: shows position {position}, committed is {unit.mark.cut.position}")
        if cut is not None:
            self.claims(name, store, store.applied.position)

    def _logged(self, name: str, entry: Entry, unit: TableUnit, row: Row | None) -> Row | None:
        """What the log has there of the row that a store shows."""
        logged = entry.row if entry.rows is None or row is None else entry.rows.get(self._key(unit, row))
        if logged is None or unit.shape is None or self.terms[name].policy != "ignore":
            return logged
        assert entry.table is not None
        held, came = unit.shape.schema, TopicSchema.of(entry.table)
        if not same_origin(held, came):
            return logged  # it came late, before what says that another table has the name now
        # Where nobody could tell which column had become which, a renamed one is another one to a store that keeps its shape.
        gone = {change.old.name for change in differences(held, came) if change.old is not None and change.new is None}
        shown = {first_name(name) for name in held.names if name not in gone}
        return {column: value for column, value in logged.items() if column in shown}

    def _wanted(self, name: str, topic: str, entry: Entry, newest: int) -> int:
        """The position at which a store that keeps its shape is to have this row: where it was written, or written again for an operator."""
        written_again = (
            entry.position < newest <= self.terms[name].approved.get(topic, 0) and self._checker.entries[newest - 1].rows
        )
        return newest if written_again else entry.position

    def _key(self, unit: TableUnit | None, row: Row) -> Key:
        assert unit is not None
        assert unit.shape is not None
        return key_of(unit.shape.schema, row)

    def reshapes(self, name: str, held: Shape | None, change: TopicChange, position: int) -> None:
        """A store is given a change of its table's definition. ``held``: the definition that its rows stand under."""
        topic = change.schema.topic
        held = max(
            (one for one in (held, self._given.get((name, topic))) if one is not None), key=lambda one: one.position, default=None
        )
        if held is None or position <= held.position or not same_origin(held.schema, change.schema):
            return
        if not self.terms[name].lets_through(topic, position) and not change.empties and differences(held.schema, change.schema):
            raise Violation("m", f"{name}: {topic} changes at position {position}, which nobody has let through")
        self._given[name, topic] = Shape(change.schema, Position(position))

    def claims(self, name: str, store: Store, at: int) -> None:
        """Somebody takes the store to hold everything up to ``at``. A table may be further: the others were set back."""
        if at == 0:
            return
        for topic in dict.fromkeys((*store.tables, *self._fold(name, at, at))):
            unit = store.tables.get(topic)
            if topic not in self._checker.known:
                continue  # another service's
            if at < self._checker.clean.get(topic, 0) - 1:
                continue  # it is on its way through what was compacted
            upto = max(at, unit.mark.cut.position) if unit is not None else at
            fold = self._fold(name, at, upto).get(topic, {})
            held: dict[Key, int] = {}
            gone: dict[Key, int] = {}
            for kept, row in (unit.rows if unit is not None else {}).values():
                entry = self._checker.entries[kept - 1]
                key = entry.key if entry.rows is None or row is None else self._key(unit, row)
                (gone if row is None else held)[key] = kept
            floor, keeps_shape = 0 if unit is None else unit.floor, self.terms[name].policy == "ignore"
            for key, entry in fold.items():
                newest = max(held.get(key, 0), gone.get(key, 0), floor if floor > upto else 0)
                wanted = self._wanted(name, topic, entry, newest) if keeps_shape else entry.at
                if newest < wanted or (newest > wanted and newest <= upto):
                    raise Violation("fj", f"{name} at {at}: {topic} {list(key)} is of position {newest}, not {wanted}")
            for key, kept in held.items():
                if kept <= upto and key not in fold:
                    raise Violation("fj", f"{name} at {at}: {topic} {list(key)} of position {kept} should be gone")

    def _fold(self, name: str, at: int, upto: int) -> Folded:
        cuts = self._checker.cuts
        positions = (cuts[bisect_right(cuts, one, key=lambda cut: cut[0]) - 1] for one in (at, upto))
        (whole, _), (table, fold) = positions
        if whole != at or table != upto:
            raise Violation("g", f"{name}: committed position {at}, {upto} in a table, which is no cut")
        return fold

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
    """Without NULLs (a column added later is NULL in rows from before), and under the first names that columns had."""
    return {first_name(name): value for name, value in row.items() if value is not None}
