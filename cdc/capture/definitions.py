"""Each table's definition as the log has it, in stream order: what a RELATION message, a chunk or the catalog's facts change of it. Pure.

Three things tell of a change. A RELATION message comes just before the first row under a new definition, but without column numbers.
Facts (``cdc.model.facts``) come as logical messages with the prefix ``headwater.ddl``: from the event trigger in the DDL's own transaction, or
from the thread that polls the catalog, later; either way what they mean is decided here, where they stand in the stream. A snapshot's
chunk is read under the definition that holds at its watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from cdc.capture.attnums import Catalog, Numbering
from cdc.capture.ddlmessages import DdlMessage, DdlMessages, UnreadableMessage
from cdc.capture.tablestate import HeldFacts, Rereads, Topics
from cdc.errors import Stopped
from cdc.model.batch import reserved_column
from cdc.model.evolution import Kind, SchemaChange
from cdc.model.facts import Facts, StoredChange, hidden, was_out
from cdc.model.table import Table


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPart:
    """The part of a publication that is captured, and how it is logged."""

    publication: str = ""
    wanted: Callable[[str], bool] = lambda _: True
    """Whether ``schema.name`` is selected: a publication may publish more than that."""
    logged: Callable[[Table], Table] = lambda table: table
    """A table's definition as it is logged (without columns that are kept back)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Whom definitions call when they cannot decide alone."""

    look: Callable[[], None] = _nothing
    """Asks for a look at the catalog soon."""
    unread: Callable[[], None] = _nothing
    """Hears of a message with the password that cannot be read (written by another version of deploy/roles.sql, say)."""
    note: Callable[[int], None] = _nothing
    """Takes the OID of a table that the stream has shown before any look at the catalog did."""
    unpublished: Callable[[str], Stopped] | None = None
    """Makes the stop with which capture ends when a selected table has left the publication."""
    keep: Callable[[Mapping[int, Facts]], None] = _nothing
    """Takes the facts once they are durable in the log."""


class Definitions:
    """The definition of each table as the log has it, from the last durable cut on.

    A table (OID) is *selected* or not by the name that it has now, *passed over* when no row of it is logged for any reason, and *known* when
    a topic is its own. What comes of it goes through three steps: its columns get numbers (``number``), its definition is entered, which may
    take a topic from another table or end its own (``enter``), and facts say of it what no RELATION message does (``on_message``).
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        known: Iterable[Table] = (),
        ended: Iterable[str] = (),
        facts: Mapping[int, Facts] | None = None,
        passwords: Collection[str] = (),
        selection: CapturedPart = CapturedPart(),
        outside: Outside = Outside(),
    ) -> None:
        """``known``: the log's topics, of which ``ended`` name no table any more. ``facts``: as they stood at the last durable cut.
        ``passwords``: messages without one of these are not ours."""
        self.ours = DdlMessages(passwords, selection.publication)
        self._selection = selection
        self._outside = outside
        self._facts = HeldFacts(facts or {})
        self._topics = Topics(known, ended)
        self._numbering = Numbering(catalog, self._facts, self._topics, outside.note)
        self._again = Rereads()
        self._lost = self._topics.tables.keys() - self._facts.keys()
        """Tables (OIDs) that the log has, and of which no facts were kept: what has become of their stored rows since nobody knows."""
        self._unselected = {oid for oid, told in self._facts.items() if not selection.wanted(told.qualified)}
        self.passed_over = {oid for oid, told in self._facts.items() if told.refused} | self._unselected
        """Tables (OIDs) of which no row is logged: they are not selected, nothing identifies their rows, or the facts say that they cannot be
        captured. They begin again when they can."""
        self._stopped: Stopped | None = None

    def number(self, table: Table) -> Table:
        """The table of a RELATION message with its columns' numbers (and under FULL its key)."""
        return self._numbering.number(table)

    def sends_whole_rows(self, table: Table) -> bool:
        """Whether the old rows of a table under FULL are whole. Of a partitioned table they have what its partition's identity says, and the message
        does not tell which partition that is."""
        facts = self._facts.get(table.oid)
        return table.identity == "f" and facts is not None and not facts.partitioned

    def settle(self) -> None:
        """Everything that was decided so far is durable in the log. Raises Stopped when capture cannot go on after it."""
        if self._facts.changed:
            self._outside.keep(self._facts)
            self._facts.changed = False
        if self._stopped is not None:
            raise self._stopped

    def take_again(self) -> dict[int, bool]:
        """Tables (OIDs) whose stored rows have to be read again (or that are gone), since the last call; each with whether it has just joined
        the publication. To be asked for before the changes that were returned become durable: at worst a table is then read once more
        than needed."""
        return self._again.take()

    def take_displaced(self) -> list[tuple[int, str, str]]:
        """(OID, schema, name) of tables whose names others have taken, and which go on under these, since the last call.

        The server describes a table again before the next row under its new name, but for a partitioned one: it looks only whether the
        partition was altered.
        """
        displaced, self._topics.displaced = self._topics.displaced, []
        found = []
        for oid in displaced:
            table, now = self._topics.tables.get(oid), self._numbering.catalog(oid)
            if table is None or now is None or self._topics.hold(table):
                continue
            if now.qualified != table.qualified:  # else the catalog does not show yet what has become of it
                found.append((oid, now.schema, now.name))
        return found

    @property
    def displaces(self) -> bool:
        """Whether ``take_displaced`` has something to look at."""
        return bool(self._topics.displaced)

    def logs(self, oid: int) -> bool:
        """Whether the log has the table by now."""
        return oid in self._topics.tables

    def standing(self, table: Table) -> Table:
        """The table of a RELATION message in a transaction that the log has already, as it was when the log's last one ended.

        What changed in between need not be described again (see ``take_displaced``).
        """
        known = self._topics.tables.get(table.oid)
        if known is None or not set(known.names) <= set(table.names):
            return table
        keys = {column.name for column in known.key}
        columns = tuple(replace(column, key=column.name in keys) for column in table.columns)
        return replace(table, schema=known.schema, name=known.name, identity=known.identity, columns=columns)

    # --- what comes ----------------------------------------------------------------------------------------------------------

    def enter(self, table: Table) -> list[SchemaChange]:
        """From here on the table's rows have this definition; returns the SCHEMA records that have to come before them."""
        if not self._selection.wanted(table.qualified):
            return self._deselected(table)
        if table.oid in self._unselected:
            # Under its name before this one nothing of it was logged.
            self._unselected.discard(table.oid)
            self._again.read(table.oid, joined=True)
            self._again.taken_in.add(table.oid)
        if (facts := self._facts.get(table.oid)) is not None and facts.refused:
            return []
        if not table.key:
            self.passed_over.add(table.oid)
            return self._left(table.oid, refused=True)
        self.passed_over.discard(table.oid)
        new, old = self._selection.logged(table), self._topics.tables.get(table.oid)
        certain = table.oid not in self._numbering.uncertain
        self._numbering.uncertain.discard(table.oid)
        topic, holder = new.qualified, self._topics.oids.get(new.qualified)
        self._topics.tables[table.oid] = new
        self._topics.oids[topic] = table.oid
        if old is None and table.oid not in self._facts:
            self._outside.note(table.oid)
        if old == new and holder == table.oid:
            return []
        changes: list[SchemaChange] = []
        moved = old is not None and old.qualified != topic
        if moved and old is not None and self._topics.hold(old):
            changes.append(SchemaChange(replace(table, schema=old.schema, name=old.name), Kind.RENAMED, empties=True, now=topic))
            self._topics.end(old)
        if holder not in (None, table.oid) or topic in self._topics.ended:
            self._topics.ended.discard(topic)
            changes.append(SchemaChange(table, Kind.CREATED, empties=True))
            self._again.read(table.oid, joined=old is None)
            self._again.taken_in.add(table.oid)
            if holder not in (None, table.oid):
                self._topics.displaced.append(holder)
                # It may be gone, while a part that was read of it is on its way: that may not take the name back.
                self._again.read(holder)
        elif moved:
            self._again.read(table.oid)
        elif old is not None:
            changes.append(self._altered(old, new, table, certain=certain))
        return changes

    def on_message(self, content: bytes) -> tuple[list[SchemaChange], list[Table]]:
        """A logical message with our prefix: the SCHEMA records that it makes, and the definitions that hold from here on."""
        told = self._read(content)
        if told is None:
            return [], []
        if told.look:
            self._outside.look()
        changes: list[SchemaChange] = []
        for oid in told.dropped:
            changes += self._leaf_dropped(oid, told.dropped)
            changes += self._dropped(oid)
        for facts in told.tables:
            changes += self._learn(facts)
        return changes, [
            self._facts[facts.oid].table() for facts in told.tables if facts.oid in self._topics.tables and facts.oid in self._facts
        ]

    def doubt(self, content: bytes) -> None:
        """A logical message with our prefix that may have been rolled back: the next look at the catalog tells of its tables."""
        told = self._read(content)
        if told is None:
            return
        for oid in {*told.dropped, *(facts.oid for facts in told.tables)}:
            if oid in self._facts or oid in self._topics.tables:  # another is new to the look, which publishes it where it has to
                self._outside.note(oid)
        self._outside.look()

    def _read(self, content: bytes) -> DdlMessage | None:
        """Reads one of our messages. One that cannot be read is not passed over: what it says is in the catalog as well, only later."""
        try:
            return self.ours.read(content)
        except UnreadableMessage:
            self._outside.unread()
            self._outside.look()
            return None

    # --- decisions -----------------------------------------------------------------------------------------------------------

    def _altered(self, old: Table, new: Table, table: Table, *, certain: bool) -> SchemaChange:
        """``old`` and ``new``: as they are logged; ``table``: as the source has the new one."""
        numbered, was_numbered = _numbered(new), _numbered(old)
        by_number = numbered and was_numbered
        if new.key and _key(old, by_number=by_number) != _key(new, by_number=by_number):
            # Rows under the old key would stay for ever beside those under the new one.
            self._again.read(table.oid)
            return SchemaChange(table, Kind.REWRITTEN, empties=True)
        if not certain or (numbered and not was_numbered and old.names != new.names) or self._otherwise_logged(old, new):
            self._again.read(table.oid)
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
            self._outside.look()  # only a look at the catalog tells whether it is published
            return []
        if not self._selection.wanted(facts.qualified):
            self._facts.changed |= facts != before
            self._facts[facts.oid] = facts
            return self._deselected(facts.table())
        if before is not None and not self._selection.wanted(before.qualified):
            before = None
        self._unselected.discard(facts.oid)
        if facts.publishing.published and reserved_column(facts.table()) is not None:
            # No row can come like this: the look stops capture unless the column has been renamed since, and the first row does.
            self._outside.look()
            return []
        self._facts.changed |= facts != before
        if facts.refused:
            self._outside.look()  # it may be one that can be captured now
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
        old, table = self._topics.tables.get(facts.oid), facts.table()
        changes: list[SchemaChange] = []
        if old is not None or table.qualified in self._topics.oids or table.qualified in self._topics.ended:
            changes = self.enter(table)
        self._facts[facts.oid] = facts
        if before is None and facts.oid not in self._lost:
            # It has joined while the stream goes on. A row of it may have come before this, but none that it had already.
            if facts.oid not in self._again.taken_in:
                self._again.read(facts.oid, joined=True)
            return changes
        self._lost.discard(facts.oid)
        verdict = StoredChange(vanished=True) if before is None else hidden(before, facts)
        if verdict is not None:
            self._again.read(facts.oid, joined=before is None or was_out(before, facts))
            if facts.oid in self._topics.tables and not any(change.empties for change in changes):
                changes.append(SchemaChange(table, Kind.REWRITTEN, empties=verdict.vanished))
        return changes

    def _deselected(self, table: Table) -> list[SchemaChange]:
        """No row of a table is logged that is not selected under the name which it has now."""
        self._unselected.add(table.oid)
        self.passed_over.add(table.oid)
        self._again.taken_in.discard(table.oid)
        old = self._topics.tables.get(table.oid)
        if old is None or old.qualified == table.qualified or not self._topics.hold(old):
            return self._left(table.oid, refused=True)
        del self._topics.tables[table.oid]
        self._topics.end(old)
        self._again.read(table.oid)
        return [SchemaChange(old, Kind.RENAMED, empties=True)]

    def _dropped(self, oid: int) -> list[SchemaChange]:
        self.passed_over.discard(oid)
        self._unselected.discard(oid)
        self._facts.changed |= self._facts.pop(oid, None) is not None
        table = self._topics.tables.pop(oid, None)
        if table is None:
            return []
        self._again.read(oid)
        if not self._topics.hold(table):
            return []
        self._topics.end(table)
        return [SchemaChange(table, Kind.DROPPED, empties=True)]

    def _leaf_dropped(self, oid: int, dropped: Collection[int]) -> list[SchemaChange]:
        root = next((facts for facts in self._facts.values() if facts.partitioned and oid in facts.leaves), None)
        if root is None or root.oid in dropped:
            return []
        return self._learn(root.without(oid))

    def _left(self, oid: int, *, attached: bool = False, refused: bool = False) -> list[SchemaChange]:
        """The table has left the publication; ``attached``: as a partition, so that its rows belong to its root from now on. ``refused``: as it
        cannot be captured, which concerns no other table."""
        table = self._topics.tables.pop(oid, None)
        if table is None:
            return []
        if not self._topics.hold(table):
            return []
        self._topics.end(table)
        self._again.read(table.oid)
        if attached:
            return [SchemaChange(table, Kind.DROPPED, empties=True)]
        if self._outside.unpublished is not None and not refused and self._selection.wanted(table.qualified):
            self._stopped = self._outside.unpublished(table.qualified)
        return [SchemaChange(table, Kind.UNPUBLISHED)]


def _numbered(table: Table) -> bool:
    return all(column.attnum for column in table.columns)


def _key(table: Table, *, by_number: bool) -> list[tuple[int | str, int, str]]:
    return [(column.attnum if by_number else column.name, column.type_oid, column.protected) for column in table.key]
