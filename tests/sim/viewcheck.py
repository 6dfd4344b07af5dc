"""Holds a view's topic against the model (rule p, see ``tests.sim.checker``)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cdc.inbox.groupfile import GroupName
from cdc.inbox.verdicts import InboxMark
from cdc.model.batch import Op
from cdc.model.position import Cut
from cdc.views.marks import ViewMark
from tests.sim.tables import Row
from tests.sim.viewmodel import ModelView, Rows
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.entries import Entry, Folded

NAME = "v"
TOPIC = f"views.{NAME}"
PRODUCER = f"view:{NAME}"


class ViewCheck:
    """``cuts``: of the checker, as they grow."""

    def __init__(self, cuts: list[tuple[int, Folded]]) -> None:
        self._cuts = cuts
        self.models: dict[str, ModelView] = {}
        """By the digest of the definition in force."""
        self._offered: dict[str, int] = {}
        """A group's hash → the newest opening that handed it over."""
        self.mark: ViewMark | None = None
        """The newest that the log has."""
        self.compared = 0

    def offers(self, group: GroupName) -> None:
        self._offered[group.digest] = max(group.epoch, self._offered.get(group.digest, 0))

    def took(self, before: Cut, cut: Cut, entries: Sequence[Entry], marks: Mapping[str, bytes]) -> None:
        """A cut with rows of the view, which is the newest of the checker's."""
        if {entry.topic for entry in entries} != {TOPIC}:
            raise Violation("p", f"the cut at {cut.position} has changes of the view and of others")
        if (cut.commit_lsn, cut.commit_ts_us) != (before.commit_lsn, before.commit_ts_us):
            raise Violation("p", f"the cut at {cut.position} is the view's, and moves the source's LSN to {cut.commit_lsn:X}")
        inbox = InboxMark.decode(marks.get(PRODUCER))
        if self._offered.get(inbox.digest, 0) < inbox.epoch:
            raise Violation("p", f"the cut at {cut.position} is of an opening of the view from before {inbox.epoch}")
        self.marked(cut.position, marks)
        was, now = (rows_of(fold.get(TOPIC, {})) for _, fold in self._cuts[-2:])
        changed = [(entry.key, entry.row) for entry in entries if entry.op != Op.SCHEMA]
        again = any(entry.op == Op.SCHEMA for entry in entries)  # under another type every row comes again
        differing: dict[object, Row | None] = {key: row for key, row in now.items() if again or was.get(key) != row}
        differing.update((key, None) for key in was if key not in now)
        if len(changed) != len(differing) or dict(changed) != differing:
            raise Violation("p", f"the cut at {cut.position} has changes of the view that change nothing, or one twice")

    def marked(self, position: int, marks: Mapping[str, bytes]) -> None:
        """The marks as of the checker's newest cut: the view's rows are what its tables' were where its mark is."""
        mark = ViewMark.read(InboxMark.decode(marks.get(PRODUCER)).to)
        if mark is None:
            if self._cuts[-1][1].get(TOPIC):
                raise Violation("p", f"at {position} the view has rows and no mark")
            return
        if self.mark is not None and (mark.cut, mark.reflected) < (self.mark.cut, self.mark.reflected):
            raise Violation("p", f"at {position} the view's mark goes back from {self.mark.text} to {mark.text}")
        self.mark = mark
        if mark.cut > position:
            raise Violation("p", f"at {position} the view's mark is at {mark.cut}")
        if mark.done is None:
            self._compare(position, mark)

    def _compare(self, position: int, mark: ViewMark) -> None:
        at = bisect_left(self._cuts, mark.cut, key=lambda one: one[0])
        if at == len(self._cuts) or self._cuts[at][0] != mark.cut:
            raise Violation("p", f"at {position} the view's mark is at {mark.cut}, which is no cut")
        self.compared += 1
        self.compare(self.models[mark.digest].rows(self._cuts[at][1]), f"at {position}, for {mark.cut}")

    def compare(self, wanted: Rows, when: str) -> None:
        """Raises Violation unless the view has these rows at the newest cut."""
        found = rows_of(self._cuts[-1][1].get(TOPIC, {}))
        for key in wanted.keys() | found.keys():
            if wanted.get(key) != found.get(key):
                raise Violation("p", f"{when}: row {list(key)} of the view is {found.get(key)}, not {wanted.get(key)}")


def rows_of(entries: Mapping[tuple[str, ...], Entry]) -> Rows:
    return {key: entry.row for key, entry in entries.items() if entry.row is not None}
