"""What stands in the model's WAL: changes, and how the transactions end that made them; and what the changes make of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdc.model.table import Table
from tests.sim.tables import Key, Row, conversions, key_of, renamed

Rows = dict[Key, Row]


@dataclass(eq=False, slots=True)
class Change:
    """One WAL record of a row, a TRUNCATE, a statement about a table as a whole, or a logical message.

    ``xid``: of the (sub)transaction, 64 bits wide.
    """

    lsn: int
    xid: int
    kind: str
    """I, U, D, T (``tables``), M (a watermark: ``content``) or L (a look at the catalog: ``content``); and of ``tables`` A, an ALTER TABLE (before
    and after), C, a CREATE TABLE, P, an ALTER PUBLICATION ADD TABLE, and X, a DROP TABLE (``content`` of these: what the event trigger says)."""
    table: Table | None = None
    old: Row | None = None
    new: Row | None = None
    unchanged: frozenset[str] = frozenset()
    """Columns whose TOASTed value an update did not touch."""
    tables: tuple[Table, ...] = ()
    content: bytes = b""
    rewrites: bool = False
    """An ALTER TABLE that writes every row again."""
    unpublished: frozenset[int] = frozenset()
    """Tables (OIDs) among those of a row or a TRUNCATE that are not in the publication: nothing of these is sent."""

    @property
    def silent(self) -> bool:
        """Nothing of it is in the stream: what an ALTER TABLE has changed is told with the next row."""
        if self.kind in "ACPX":
            return not self.content
        return bool(self.unpublished) and not self.published

    @property
    def published(self) -> tuple[Table, ...]:
        """The tables of a row or a TRUNCATE of which the stream tells."""
        tables = self.tables if self.kind == "T" else () if self.table is None else (self.table,)
        return tuple(table for table in tables if table.oid not in self.unpublished) if self.unpublished else tables

    @property
    def refiled(self) -> tuple[int, ...]:
        """Tables (OIDs) that get new files by it."""
        if self.kind == "A":
            return (self.tables[0].oid,) if self.rewrites else ()
        return tuple(table.oid for table in self.tables) if self.kind == "T" else ()

    @property
    def retypes(self) -> bool:
        """An ALTER TABLE that gives a column another type."""
        if self.kind != "A":
            return False
        was = {column.attnum: (column.type_oid, column.typmod) for column in self.tables[0].columns}
        return any(was.get(c.attnum, (c.type_oid, c.typmod)) != (c.type_oid, c.typmod) for c in self.tables[1].columns)

    @property
    def moves(self) -> bool:
        """An update that changes the row's key."""
        assert self.table is not None
        assert self.old is not None
        assert self.new is not None
        return key_of(self.table, self.old) != key_of(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Commit:
    xid: int
    changes: tuple[Change, ...]
    commit_lsn: int
    end_lsn: int
    ts_us: int
    gid: str = ""
    """Of COMMIT PREPARED."""

    @property
    def lsn(self) -> int:
        """Where its record begins."""
        return self.commit_lsn


@dataclass(frozen=True, slots=True)
class Abort:
    """``gone``: what of the transaction was rolled back, a subtransaction or all of it."""

    xid: int
    gone: int
    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Prepare:
    xid: int
    changes: tuple[Change, ...]
    gid: str
    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """ROLLBACK PREPARED."""

    xid: int
    gid: str
    lsn: int
    end_lsn: int


End = Commit | Abort | Prepare | RolledBack


class State(dict[int, Rows]):
    """Table OID → its rows. Rows are never changed in place."""

    def apply(self, change: Change) -> None:
        if change.kind == "T":
            for table in change.tables:
                self[table.oid] = {}
        elif change.kind == "A":
            before, after = change.tables
            names, others = renamed(before, after), conversions(before, after)
            if names is not None:
                self[after.oid] = {key: _under(row, names) for key, row in self.get(after.oid, {}).items()}
            if others:
                self[after.oid] = {key: converted(row, others) for key, row in self.get(after.oid, {}).items()}
        elif change.kind == "C":
            self[change.tables[0].oid] = {}
        elif change.kind == "X":
            del self[change.tables[0].oid]
        elif change.table is not None:
            rows = self.setdefault(change.table.oid, {})
            if change.old is not None:
                del rows[key_of(change.table, change.old)]
            if change.new is not None:
                rows[key_of(change.table, change.new)] = change.new

    def copied(self) -> State:
        return State({oid: dict(rows) for oid, rows in self.items()})


def converted(row: Row, others: Mapping[str, Callable[[str], str]]) -> Row:
    return {name: others[name](value) if name in others and value is not None else value for name, value in row.items()}


def _under(row: Row, names: Mapping[str, str]) -> Row:
    return {names[name]: value for name, value in row.items() if name in names}
