"""Each table's definition as the log has it, in stream order: what a RELATION message, a chunk or the catalog's facts change of it. Pure.

Three things tell of a change. A RELATION message comes just before the first row under a new definition, but without column numbers.
Facts (``cdc.model.facts``) come as logical messages with the prefix ``headwater.ddl``: from the event trigger in the DDL's own transaction, or
from the thread that polls the catalog, later; either way what they mean is decided here, where they stand in the stream. A snapshot's
chunk is read under the definition that holds at its watermark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hmac import compare_digest
from itertools import pairwise
from typing import Final, Self

from cdc.errors import Stopped
from cdc.model.batch import reserved_column
from cdc.model.evolution import Kind, SchemaChange
from cdc.model.facts import Facts, Publishing, hidden, was_out
from cdc.model.table import Table

DDL_PREFIX: Final = "headwater.ddl"

MOST_BYTES: Final = 128 * 2**20
"""A longer message is not parsed: the catalog is asked instead. Several thousand tables with their partitions take less."""
_HEAD: Final = re.compile(rb'[ \t\n\r]{0,8}\{[ \t\n\r]{0,8}"password"[ \t\n\r]{0,8}:[ \t\n\r]{0,8}("(?:[^"\\]|\\.)*+")')
_HEAD_BYTES: Final = 64
"""What stands before the password and its end, at most."""

Catalog = Callable[[int], Facts | None]
"""What the catalog says of a table (by OID) now; None when it is gone."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The content of one of our messages."""

    tables: tuple[Facts, ...]
    dropped: tuple[int, ...]
    """OIDs."""
    look: bool
    """Whether to look at the catalog."""

    @classmethod
    def from_json(cls, content: bytes, publication: str) -> Self:
        """``publication``: whose departures count. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for anything else than what our messages hold."""
        if len(content) > MOST_BYTES:
            raise ValueError("too long")
        raw = json.loads(content)
        dropped = tuple(raw.get("dropped", ()))
        if not all(type(oid) is int for oid in dropped):
            raise TypeError("an OID is a number")
        aside = frozenset(raw.get("aside", {}).get(publication, ()))
        tables = tuple(_left_aside(Facts.from_json(table), aside) for table in raw.get("tables", ()))
        return cls(tables, dropped, bool(raw.get("look")))


class Definitions:
    """What the log says of each table, from the last durable cut on."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        known: Iterable[Table] = (),
        ended: Iterable[str] = (),
        facts: Mapping[int, Facts] | None = None,
        passwords: Collection[str] = (),
        publication: str = "",
        wanted: Callable[[str], bool] = lambda _: True,
        logged: Callable[[Table], Table] = lambda table: table,
        look: Callable[[], None] = lambda: None,
        unread: Callable[[], None] = lambda: None,
        note: Callable[[int], None] = lambda _: None,
        unpublished: Callable[[str], Stopped] | None = None,
        keep: Callable[[Mapping[int, Facts]], None] = lambda _: None,
    ) -> None:
        """``known``: the log's topics, of which ``ended`` name no table any more. ``facts``: as they stood at the last durable cut.
        ``passwords``: messages without one of these are not ours. ``publication``: ours, as the event trigger tells which tables have left one.
        ``wanted``: whether ``schema.name`` is selected: a publication may publish more than that. ``logged``: a table's definition as it is
        logged (without columns that are kept back). ``look``: asks for a look at the catalog soon. ``unread``: hears of a message with the
        password that cannot be read (written by another version of deploy/roles.sql, say). ``note``: takes the OID of a table of which the
        stream has told before any look at the catalog did. ``unpublished``: what capture has to stop with when a selected table has left the
        publication. ``keep``: takes the facts once they are durable in the log.
        """
        self._catalog = catalog
        self._passwords = [json.dumps(password, ensure_ascii=False).encode() for password in passwords]
        self.head_bytes = _HEAD_BYTES + max(map(len, self._passwords), default=0)
        """So much of a message's content tells whether it bears a password."""
        self._publication = publication
        self._wanted = wanted
        self._logged = logged
        self._look = look
        self._unread = unread
        self._note = note
        self._unpublished_stop = unpublished
        self._keep = keep
        self._uncertain: set[int] = set()
        self._numbered_last = 0
        """OID of the table of the last RELATION message."""
        self._ended = set(ended)
        self._facts = dict(facts or {})
        self._tables = {table.oid: table for table in known if table.qualified not in self._ended}
        self._topics = {table.qualified: oid for oid, table in self._tables.items()}
        self._again: dict[int, bool] = {}
        self._displaced: list[int] = []
        self._unselected = {oid for oid, told in self._facts.items() if not wanted(told.qualified)}
        self.passed_over = {oid for oid, told in self._facts.items() if told.refused} | self._unselected
        """Tables (OIDs) of which no row is logged: they are not selected, nothing identifies their rows, or the facts say that they cannot be
        captured. They begin again when they can."""
        self._taken_in: set[int] = set()
        """Tables (OIDs) that are to be read because they have come in another's place, whether or not their facts have come yet."""
        self._facts_changed = False
        self._stopped: Stopped | None = None

    def settle(self) -> None:
        """Everything that was decided so far is durable in the log. Raises Stopped when capture cannot go on after it."""
        if self._facts_changed:
            self._keep(self._facts)
            self._facts_changed = False
        if self._stopped is not None:
            raise self._stopped

    def take_again(self) -> dict[int, bool]:
        """Tables (OIDs) whose stored rows have to be read again (or that are gone), since the last call; each with whether it has just joined
        the publication. To be asked for before the changes that were returned become durable: at worst a table is then read once more
        than needed."""
        again, self._again = self._again, {}
        return again

    def _read_again(self, oid: int, *, joined: bool = False) -> None:
        self._again[oid] = joined or self._again.get(oid, False)

    def take_displaced(self) -> list[tuple[int, str, str]]:
        """(OID, schema, name) of tables whose names others have taken, and which go on under these, since the last call.

        The server describes a table again before the next row under its new name, but for a partitioned one: it looks only whether the
        partition was altered.
        """
        displaced, self._displaced = self._displaced, []
        found = []
        for oid in displaced:
            table, now = self._tables.get(oid), self._catalog(oid)
            if table is not None and now is not None and self._topics.get(table.qualified) != oid:
                found.append((oid, now.schema, now.name))
        return found

    @property
    def displaces(self) -> bool:
        """Whether ``take_displaced`` has something to look at."""
        return bool(self._displaced)

    def standing(self, table: Table) -> Table:
        """The table of a RELATION message in a transaction that the log has already, as it was when the log's last one ended.

        What changed in between need not be described again (see ``take_displaced``).
        """
        known = self._tables.get(table.oid)
        if known is None or not set(known.names) <= set(table.names):
            return table
        keys = {column.name for column in known.key}
        columns = tuple(replace(column, key=column.name in keys) for column in table.columns)
        return replace(table, schema=known.schema, name=known.name, identity=known.identity, columns=columns)

    # --- what comes ----------------------------------------------------------------------------------------------------------

    def number(self, table: Table) -> Table:
        """The table of a RELATION message with its columns' numbers (and under FULL its key).

        The facts that hold at this place of the stream are asked first, then the catalog (which may have moved on), then the
        definition before. Columns that stay without a number have 0, and the table will be read again.
        """
        self._uncertain.discard(table.oid)
        self._leaf_of(self._numbered_last, table)
        self._numbered_last = table.oid
        facts, before = self._facts.get(table.oid), self._tables.get(table.oid)
        if facts is not None and (found := _numbered_by(table, facts.table())) is not None:
            return found
        now = self._catalog(table.oid)
        live = None if now is None else now.table()
        for known in (live, before):
            if known is not None and (found := _numbered_by(table, known)) is not None:
                if now is not None and known is live and _skips(now, facts, before):
                    self._uncertain.add(table.oid)
                return found
        if live is None and before is None:
            return table
        if live is not None:  # else nothing is left to be read again
            self._uncertain.add(table.oid)
        return _guessed(table, live, before)

    def _leaf_of(self, oid: int, table: Table) -> None:
        """Behind a partitioned table (OID) the server describes the partition whose row comes next, under the partitioned table's name.

        One that the catalog has not told of yet may be gone again before it does: then this is the only trace of it.
        """
        root = self._facts.get(oid)
        if root is None or not root.partitioned or oid == table.oid or table.oid in root.leaves:
            return
        if {(c.name, c.type_oid) for c in table.columns} == {(c.name, c.type_oid) for c in root.table().columns}:
            self._facts[oid] = root.with_leaf(table.oid)
            self._facts_changed = True
            self._note(oid)

    def enter(self, table: Table) -> list[SchemaChange]:
        """From here on the table's rows have this definition; returns the SCHEMA records that have to come before them."""
        if not self._wanted(table.qualified):
            return self._deselected(table)
        if table.oid in self._unselected:
            # Under its name before this one nothing of it was logged.
            self._unselected.discard(table.oid)
            self._read_again(table.oid, joined=True)
            self._taken_in.add(table.oid)
        if (facts := self._facts.get(table.oid)) is not None and facts.refused:
            return []
        if not table.key:
            self.passed_over.add(table.oid)
            return self._left(table.oid, refused=True)
        self.passed_over.discard(table.oid)
        new, old = self._logged(table), self._tables.get(table.oid)
        certain = table.oid not in self._uncertain
        self._uncertain.discard(table.oid)
        topic, holder = new.qualified, self._topics.get(new.qualified)
        self._tables[table.oid] = new
        self._topics[topic] = table.oid
        if old is None and table.oid not in self._facts:
            self._note(table.oid)
        if old == new and holder == table.oid:
            return []
        changes: list[SchemaChange] = []
        moved = old is not None and old.qualified != topic
        if moved and old is not None and self._topics.get(old.qualified) == table.oid:
            changes.append(SchemaChange(replace(table, schema=old.schema, name=old.name), Kind.RENAMED, empties=True, now=topic))
            del self._topics[old.qualified]
            self._ended.add(old.qualified)
        if holder not in (None, table.oid) or topic in self._ended:
            self._ended.discard(topic)
            changes.append(SchemaChange(table, Kind.CREATED, empties=True))
            self._read_again(table.oid, joined=old is None)
            self._taken_in.add(table.oid)
            if holder not in (None, table.oid):
                self._displaced.append(holder)
        elif moved:
            self._read_again(table.oid)
        elif old is not None:
            changes.append(self._altered(old, new, table, certain=certain))
        return changes

    def on_message(self, content: bytes) -> tuple[list[SchemaChange], list[Table]]:
        """A logical message with our prefix: the SCHEMA records that it makes, and the definitions that hold from here on."""
        told = self._ours(content)
        if told is None:
            return [], []
        if told.look:
            self._look()
        changes: list[SchemaChange] = []
        for oid in told.dropped:
            changes += self._leaf_dropped(oid, told.dropped)
            changes += self._dropped(oid)
        for facts in told.tables:
            changes += self._learn(facts)
        return changes, [
            self._facts[facts.oid].table() for facts in told.tables if facts.oid in self._tables and facts.oid in self._facts
        ]

    def doubt(self, content: bytes) -> None:
        """A logical message with our prefix that may have been rolled back: the next look at the catalog tells of its tables."""
        told = self._ours(content)
        if told is None:
            return
        for oid in {*told.dropped, *(facts.oid for facts in told.tables)}:
            self._note(oid)
        self._look()

    def bears_password(self, content: bytes) -> bool:
        """``content``: of a message, or its first ``head_bytes``."""
        head = _HEAD.match(content[: self.head_bytes])
        return head is not None and True in [compare_digest(head[1], password) for password in self._passwords]

    def _ours(self, content: bytes) -> _Told | None:
        """What one of our messages holds; None for somebody else's: anybody may emit messages under any prefix.

        Nothing is parsed before the password at its head has been compared. One of ours that cannot be read is not passed over: what
        it says is in the catalog as well, only later.
        """
        if not self.bears_password(content):
            return None
        try:
            return _Told.from_json(content, self._publication)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._unread()
            self._look()
            return None

    # --- decisions -----------------------------------------------------------------------------------------------------------

    def _altered(self, old: Table, new: Table, table: Table, *, certain: bool) -> SchemaChange:
        """``old`` and ``new``: as they are logged; ``table``: as the source has the new one."""
        numbered, was_numbered = _numbered(new), _numbered(old)
        by_number = numbered and was_numbered
        if new.key and _key(old, by_number=by_number) != _key(new, by_number=by_number):
            # Rows under the old key would stay for ever beside those under the new one.
            self._read_again(table.oid)
            return SchemaChange(table, Kind.REWRITTEN, empties=True)
        if not certain or (numbered and not was_numbered and old.names != new.names) or self._otherwise_logged(old, new):
            self._read_again(table.oid)
            return SchemaChange(table, Kind.REWRITTEN)
        return SchemaChange(table, Kind.ALTERED)

    def _otherwise_logged(self, old: Table, new: Table) -> bool:
        """Whether a column that the stream brought all the time is logged in another way now, so that logged rows have what nobody would log."""
        facts, logged = self._facts.get(new.oid), {column.attnum: column.protected for column in old.columns}
        sent = {column.attnum for column in facts.published} if facts is not None else set()
        return any(
            column.protected != logged[column.attnum] if column.attnum in logged else column.attnum in sent
            for column in new.columns
            if column.attnum
        )

    def _learn(self, told: Facts) -> list[SchemaChange]:
        before = self._facts.get(told.oid)
        facts = told if told.publishing is not None or before is None else replace(told, publishing=before.publishing)
        if facts.publishing is None:
            self._look()  # only a look at the catalog tells whether it is published
            return []
        if not self._wanted(facts.qualified):
            self._facts_changed |= facts != before
            self._facts[facts.oid] = facts
            return self._deselected(facts.table())
        if before is not None and not self._wanted(before.qualified):
            before = None
        self._unselected.discard(facts.oid)
        if facts.publishing.published and reserved_column(facts.table()) is not None:
            # No row can come like this: the look stops capture unless the column has been renamed since, and the first row does.
            self._look()
            return []
        self._facts_changed |= facts != before
        if facts.refused:
            self._look()  # it may be one that can be captured now
            self._facts[facts.oid] = facts
            self.passed_over.add(facts.oid)
            return self._left(facts.oid, attached=facts.attached, refused=True)
        self.passed_over.discard(facts.oid)
        if not facts.publishing.published:
            self._facts.pop(facts.oid, None)
            return self._left(facts.oid, attached=facts.attached)
        if before is not None and before.refused:
            before = None
            del self._facts[facts.oid]
        old, table = self._tables.get(facts.oid), facts.table()
        changes: list[SchemaChange] = []
        if old is not None or table.qualified in self._topics or table.qualified in self._ended:
            changes = self.enter(table)
        self._facts[facts.oid] = facts
        if before is None:
            # It has joined while the stream goes on. A row of it may have come before this, but none that it had already.
            if facts.oid not in self._taken_in:
                self._read_again(facts.oid, joined=True)
            return changes
        verdict = hidden(before, facts)
        if verdict is not None:
            self._read_again(facts.oid, joined=was_out(before, facts))
            if facts.oid in self._tables and not any(change.empties for change in changes):
                changes.append(SchemaChange(table, Kind.REWRITTEN, empties=verdict.vanished))
        return changes

    def _deselected(self, table: Table) -> list[SchemaChange]:
        """No row of a table is logged that is not selected under the name which it has now."""
        self._unselected.add(table.oid)
        self.passed_over.add(table.oid)
        self._taken_in.discard(table.oid)
        old = self._tables.get(table.oid)
        if old is None or old.qualified == table.qualified or self._topics.get(old.qualified) != table.oid:
            return self._left(table.oid, refused=True)
        del self._tables[table.oid]
        self._end(old)
        self._read_again(table.oid)
        return [SchemaChange(old, Kind.RENAMED, empties=True)]

    def _dropped(self, oid: int) -> list[SchemaChange]:
        self.passed_over.discard(oid)
        self._unselected.discard(oid)
        self._facts_changed |= self._facts.pop(oid, None) is not None
        table = self._tables.pop(oid, None)
        if table is None:
            return []
        self._read_again(oid)
        if self._topics.get(table.qualified) != oid:
            return []
        self._end(table)
        return [SchemaChange(table, Kind.DROPPED, empties=True)]

    def _leaf_dropped(self, oid: int, dropped: Collection[int]) -> list[SchemaChange]:
        root = next((facts for facts in self._facts.values() if facts.partitioned and oid in facts.leaves), None)
        if root is None or root.oid in dropped:
            return []
        return self._learn(root.without(oid))

    def _left(self, oid: int, *, attached: bool = False, refused: bool = False) -> list[SchemaChange]:
        """The table has left the publication; ``attached``: as a partition, so that its rows belong to its root from now on. ``refused``: as it
        cannot be captured, which concerns no other table."""
        table = self._tables.pop(oid, None)
        if table is None:
            return []
        if self._topics.get(table.qualified) != table.oid:
            return []
        self._end(table)
        self._read_again(table.oid)
        if attached:
            return [SchemaChange(table, Kind.DROPPED, empties=True)]
        if self._unpublished_stop is not None and not refused and self._wanted(table.qualified):
            self._stopped = self._unpublished_stop(table.qualified)
        return [SchemaChange(table, Kind.UNPUBLISHED)]

    def _end(self, table: Table) -> None:
        del self._topics[table.qualified]
        self._ended.add(table.qualified)


def _left_aside(facts: Facts, aside: Collection[int]) -> Facts:
    return replace(facts, publishing=Publishing(False, refused=True)) if facts.oid in aside else facts


def _numbered(table: Table) -> bool:
    return all(column.attnum for column in table.columns)


def _key(table: Table, *, by_number: bool) -> list[tuple[int | str, int, str]]:
    return [(column.attnum if by_number else column.name, column.type_oid, column.protected) for column in table.key]


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
    key = next(([column.name for column in known.key] for known in (live, before) if known is not None), [])
    told = [(number, structures.get(column.type_oid, "")) for number, column in zip(numbers, table.columns, strict=True)]
    return _with(table, tuple(told), tuple(key))


@lru_cache(maxsize=4096)
def _with(table: Table, told: tuple[tuple[int, str], ...], key: tuple[str, ...]) -> Table:
    """``told``: each column's number and structure. Under FULL the stream flags every column; ``key`` tells which of them identify a row."""
    columns = [replace(c, attnum=number, structure=structure) for c, (number, structure) in zip(table.columns, told, strict=True)]
    if table.identity == "f" and set(key) & set(table.names):
        columns = [replace(column, key=column.name in key) for column in columns]
    return replace(table, columns=tuple(columns))
