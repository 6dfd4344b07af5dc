"""What the log has to have of each commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.model.batch import Op
from tests.sim.storecheck import slim
from tests.sim.tables import Key, Row, first_name, key_of, keyless, tag_of
from tests.sim.wal import Change, Commit

if TYPE_CHECKING:
    from tests.sim.entries import Entry


@dataclass(slots=True)
class Expected:
    """One change as the source committed it."""

    op: str
    oid: int
    key: Key
    row: Row | None
    commit: Commit
    change: Change
    may_wait: bool = False
    """An update that leaves values out: it may be held back until its row is known."""
    by_tag: bool = False
    """Its key is the whole row, though the table has one."""

    def __str__(self) -> str:
        return f"{self.op} of table {self.oid} {list(self.key)} tag {self.row and self.row.get('tag')} (commit {self.commit.end_lsn:X})"

    def matches(self, entry: Entry) -> bool:
        if self.op == "T":
            return entry.op == Op.TRUNCATE and entry.oid == self.oid
        ops = {"D": (Op.DELETE,), "I": (Op.INSERT,)}.get(self.op, (Op.UPDATE, Op.INSERT))
        return (
            entry.op in ops
            and (entry.oid, entry.key, entry.row) == (self.oid, self.key, self.row)
            and entry.lsn == self.commit.commit_lsn
            and self._replaced(entry)
        )

    def _replaced(self, entry: Entry) -> bool:
        """Whether the old row beside it, if there is one, is the one that the source had."""
        old = self.change.old
        if entry.before is None or entry.table is None:
            return True
        names = {first_name(name) for name in entry.table.names}
        return old is not None and entry.before == {
            name: value for name, value in slim(old).items() if name in names and value is not None
        }


def expected_of(commit: Commit) -> list[Expected]:
    found: list[Expected] = []
    for change in commit.changes:
        if change.kind == "T":
            found += [Expected("T", table.oid, (), None, commit, change) for table in change.published]
        elif change.table is not None and not change.unpublished:
            found += _of_row(change, commit)
    return found


def go_by_tag(expected: deque[Expected]) -> None:
    """The log has the next change under the whole row, as its table's key was not known then: an update takes one row away and brings another."""
    first = expected[0]
    if first.by_tag or first.change.table is None or first.change.table.identity != "f" or keyless(first.change.table):
        return
    while expected and expected[0].change is first.change:
        expected.popleft()
    expected.extendleft(reversed([*_of_row(first.change, first.commit, by_tag=True)]))


def _of_row(change: Change, commit: Commit, *, by_tag: bool = False) -> Iterator[Expected]:
    table, old, new = change.table, change.old, change.new
    assert table is not None
    oid, before, after = table.oid, *(() if row is None else tag_of(row) if by_tag else key_of(table, row) for row in (old, new))
    if old is not None and (new is None or before != after):
        yield Expected("D", oid, before, None, commit, change, by_tag=by_tag)
    if new is not None:
        may_wait = bool(change.unchanged) and table.identity != "f"
        yield Expected(change.kind, oid, after, slim(new), commit, change, may_wait, by_tag)
