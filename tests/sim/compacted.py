"""The rule for what compaction may take from a topic, and what it may not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from cdc.model.batch import ALONE, Op
from cdc.model.topic import TopicSchema
from sinks.reshape import same_origin
from tests.sim.tables import Key
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.entries import Entry


def check(known: Iterable[Entry], found: Iterable[Entry], clean: int, floor: int) -> None:
    """``known``: the topic as it was; ``found``: as it is, below its clean point and its floor.

    What is left is what it was. What is not was superseded below the clean point; or it is a DELETE or TRUNCATE below the floor that leaves
    nothing behind which it took away.
    """
    entries = sorted(known, key=lambda entry: entry.position)
    left = {entry.position: entry for entry in found}
    taken_away = {one.position for before, one in pairwise([*entries[:1], *entries]) if _empties(before, one)}
    ends: dict[Key, bool] = {}
    """Key → whether a later change of it stands there still; False: it was a DELETE, and is gone."""
    emptied: bool | None = None
    """The same of what took all rows away."""
    for entry in reversed(entries):
        still, alone = left.pop(entry.position, None), entry.op in ALONE
        forgotten = entry.position < floor and entry.op in (Op.DELETE, Op.TRUNCATE)
        superseded = entry.op != Op.SCHEMA and (emptied is not None or (not alone and entry.key in ends))
        if (still is None and not superseded and not forgotten) or (still is not None and _change(still) != _change(entry)):
            raise Violation("c", f"compacted below {clean}, with the floor at {floor}: {entry} is {still or 'gone'}")
        if still is not None and not alone and (emptied is False or ends.get(entry.key) is False):
            raise Violation("c", f"compacted below {clean}, with the floor at {floor}: {entry} is left, what took it away is gone")
        if not alone and entry.position < clean and (still is not None or forgotten):
            ends.setdefault(entry.key, still is not None)
        if entry.position < floor and entry.position in taken_away:
            emptied = (emptied is None or emptied) and still is not None
    if left:
        raise Violation("c", f"compacted, the topic has changes at {sorted(left)} that it never had")


def _empties(before: Entry, entry: Entry) -> bool:
    """Whether the rows from before this change are gone with it."""
    assert before.table is not None
    assert entry.table is not None
    another = entry.op == Op.SCHEMA and not same_origin(TopicSchema.of(before.table), TopicSchema.of(entry.table))
    return entry.op == Op.TRUNCATE or entry.empties or another


def _change(entry: Entry) -> tuple[object, ...]:
    """Without what only a record that stands alone in its batch tells."""
    return entry.op, entry.key, entry.row, entry.lsn, entry.table
