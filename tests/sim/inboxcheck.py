"""Holds what other producers handed over against the log (rule n, see ``tests.sim.checker``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc.inbox.verdicts import InboxMark
from cdc.model.batch import Op
from cdc.model.position import Cut
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.entries import Entry
    from tests.sim.producers import Row


@dataclass(frozen=True, slots=True)
class Offer:
    """A group that was handed over. ``epoch``: by which opening."""

    rows: Sequence[Row]
    epoch: int


@dataclass(slots=True)
class Account:
    """One producer's."""

    offers: dict[int, list[Offer]] = field(default_factory=lambda: defaultdict(list))
    """By where each led."""
    taken: int = 0
    """The last group with rows that the log has."""
    acknowledged: int = 0
    epoch: int = 0
    """The newest opening that was acknowledged: nothing of an older one may come any more."""
    contradicts: bool = False


class InboxCheck:
    def __init__(self) -> None:
        self._accounts: dict[str, Account] = defaultdict(Account)

    # --- what producers say ---------------------------------------------------------------------------------------------------------

    def opened(self, producer: str, mark: InboxMark) -> None:
        account = self._accounts[producer]
        if int(mark.to or 0) < account.acknowledged:
            raise Violation("n", f"{producer} opens at {mark.to or 'nothing'}, {account.acknowledged} was acknowledged")
        if mark.epoch <= account.epoch:
            raise Violation("n", f"{producer} is opened with epoch {mark.epoch}, behind {account.epoch}")
        account.epoch = mark.epoch

    def offers(self, producer: str, at: int, rows: Sequence[Row], epoch: int) -> None:
        self._accounts[producer].offers[at].append(Offer(rows, epoch))

    def contradicts(self, producer: str) -> None:
        self._accounts[producer].contradicts = True

    def contradicted(self, producer: str) -> bool:
        """Whether it ever did: nobody else may be stopped."""
        return self._accounts[producer].contradicts

    def acknowledged(self, producer: str, at: int, rows: Sequence[Row], mark: InboxMark) -> None:
        account = self._accounts[producer]
        if mark.to != str(at) or (rows and account.taken != at):
            raise Violation("n", f"{producer} was told that {at} is in the log, which has {account.taken} of it")
        account.acknowledged = at

    # --- what the log has -----------------------------------------------------------------------------------------------------------

    def took(self, before: Cut, cut: Cut, entries: Sequence[Entry]) -> None:
        """A cut with rows of a topic that the source does not bring."""
        topics = {entry.topic for entry in entries}
        if len(topics) != 1:
            raise Violation("n", f"the cut at {cut.position} has changes of {', '.join(sorted(topics))}")
        if (cut.commit_lsn, cut.commit_ts_us) != (before.commit_lsn, before.commit_ts_us):
            raise Violation("n", f"the cut at {cut.position} is a producer's, and moves the source's LSN to {cut.commit_lsn:X}")
        producer = topics.pop().partition(".")[2]
        account = self._accounts[producer]
        rows = [(entry.op, entry.key, entry.row) for entry in entries if entry.op != Op.SCHEMA]
        at = account.taken + 1
        while at in account.offers and not any(
            _logged(one.rows) == rows and one.epoch >= account.epoch for one in account.offers[at]
        ):
            if all(one.rows for one in account.offers[at]):
                break  # this one had to come first
            at += 1
        if not any(_logged(one.rows) == rows and one.epoch >= account.epoch for one in account.offers.get(at, ())):
            what = f"{producer}'s group {account.taken + 1} of opening {account.epoch} or later, or is there twice"
            raise Violation("n", f"the cut at {cut.position} is not {what}")
        account.taken = at

    def marked(self, cut: Cut, topic: str, marks: Mapping[str, bytes]) -> None:
        """The marks as of that cut: they lead as far as the groups do."""
        producer = topic.partition(".")[2]
        account = self._accounts[producer]
        to = int(InboxMark.decode(marks.get(producer)).to or 0)
        empty = (any(not one.rows for one in account.offers[at]) for at in range(account.taken + 1, to + 1))
        if to < account.taken or not all(empty):
            raise Violation("n", f"at {cut.position} the log has group {account.taken} of {producer}, its mark leads to {to}")


def _logged(rows: Sequence[Row]) -> list[tuple[Op, tuple[str], dict[str, str] | None]]:
    """As the log has them."""
    return [
        (Op.DELETE, (row.key,), None)
        if row.tag is None
        else (Op.UPDATE, (row.key,), {"k": row.key, "n": str(row.number), "tag": row.tag})
        for row in rows
    ]
