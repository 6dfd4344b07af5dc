"""The rows that a function makes of groups, kept up: every group that a range touches is given to it again, whole.

What the function returned for a group the last time is kept (they are the view's rows), and what differs is the view's change. So a function that does not return the
same for the same rows leaves nothing behind that it did not return.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from cdc.views.groupcall import GroupCall
from cdc.views.plan import Node
from cdc.views.rows import distinct
from cdc.views.state import KeptRelation, Replacement
from cdc.views.work import SLICE, Deltas, Maker, touched

_AT_ONCE: Final = 100_000
"""Rows of groups that are in memory at once, about."""
_FIRST: Final = 1_000
"""Groups that are looked up first, before it is known how large they are."""


class CalledGroups:
    """An operator. ``made``: the view's rows, which have ``SLICE`` by the call's ``by``; it reads them, and its caller writes them."""

    def __init__(self, workshop: Maker, node: Node, call: GroupCall, made: KeptRelation) -> None:
        self._call, self._made = call, made
        self._of = workshop.kept(node, {one.name for one in call.given.values()}, call.by)
        self.schema, self.key = made.schema, made.key
        self._waiting: pa.Table | None = None
        """Groups of the pieces that were gathered, which the function has not been given yet."""

    def gather(self, deltas: Deltas) -> None:
        """Takes in one piece of the rows that the view is first computed from; the next ``advance`` gives the function its groups."""
        groups = self._groups(deltas)
        self._waiting = groups if self._waiting is None else distinct(pa.concat_tables([self._waiting, groups]), self._call.by)

    def advance(self, deltas: Deltas) -> Replacement:
        """The rows of all groups that the range touches, before it and after it."""
        groups = self._groups(deltas)
        if self._waiting is not None:
            groups = distinct(pa.concat_tables([self._waiting, groups]), self._call.by)
        before, after = [self.schema.empty_table()], [self.schema.empty_table()]
        at, count = 0, _FIRST
        while at < groups.num_rows:
            some = groups.slice(at, count)
            rows = self._of.relation.of(SLICE, some)
            before.append(self._made.of(SLICE, some))
            after.append(self._call.rows(rows, self._of.relation.key))
            at += some.num_rows
            count = max(1, int(_AT_ONCE * some.num_rows / max(rows.num_rows, 1)))
        return Replacement(pa.concat_tables(before), pa.concat_tables(after))

    def settle(self) -> None:
        """Takes note that the last ``advance`` counts: no group waits any more."""
        self._waiting = None

    def _groups(self, deltas: Deltas) -> pa.Table:
        """The groups that the range touches. The rows that are kept are then as of its end."""
        change = self._of.prepared(deltas)
        self._of.write(change)
        return touched(change, self._call.by)
