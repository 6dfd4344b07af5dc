"""Whether the server's ledger lets a write through: the decision table of the cache's fence. Pure.

A store's ledger says which log and history its keys come from, the highest epoch of a writer that it has seen, and how far it is: the
applied cut, and for each table its *progress*, the position up to which the table's changes are there. Every write is a transaction that
watches the ledger, looks at it, and names the stretch (after, upto] of one table that it brings:

====================================  =============================  ==========
the ledger                            progress                       answer
====================================  =============================  ==========
is missing, or is another log's                                      LOST
has seen a higher epoch                                              FENCED
is of another history                                                LOST
has not seen this writer's epoch                                     LOST
is ours                               = after                        DONE
is ours                               ≥ upto                         ALREADY
is ours                               anything else                  GAP
====================================  =============================  ==========

An epoch below the writer's is one of an older copy of the server (a failover, a restored file), from before this writer took the store over. It may
be as far and still have been another configuration's: its keys named otherwise, or with progress of a table that nobody has followed since. So it has
to be taken over first. A write that moves nothing (one piece of a sweep) has ``after`` = ``upto``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FenceAnswer(StrEnum):
    DONE = "done"
    """The write may be made, in the transaction that watches the ledger."""
    ALREADY = "already"
    """It was made, and its answer was lost."""
    GAP = "gap"
    """Something before it is missing: a refused write, or what an older copy of the server does not have."""
    FENCED = "fenced"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Writer:
    log: str
    history: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The ledger as a transaction sees it. ``at``: the table's own progress; None before its first write."""

    log: str
    history: str
    epoch: int
    position: int
    at: int | None = None

    @property
    def progress(self) -> int:
        """A commit covers every table."""
        return max(self.position, self.at or 0)


def answer(seen: Seen | None, writer: Writer, after: int, upto: int) -> FenceAnswer:
    if seen is None or seen.log != writer.log:
        return FenceAnswer.LOST
    if seen.epoch > writer.epoch:
        return FenceAnswer.FENCED
    if seen.epoch < writer.epoch or seen.history != writer.history:
        return FenceAnswer.LOST
    if seen.progress == after:
        return FenceAnswer.DONE
    return FenceAnswer.ALREADY if seen.progress >= upto else FenceAnswer.GAP
