"""Which log a store follows, and which part of that log's past it has seen.

A position alone says nothing about a store: the store, the log, or the database behind it may have been restored, replaced or emptied
since it was written. So every unit of a store that can be lost or restored by itself carries a *mark* (log id, history id, cut), and a
mark is believed only where the log's own lineage shows that the same changes stand there.

A *history* is a stretch of a log in which each change follows from the one before. ``cdc resume … --rebuild`` begins a new one: the
log was restored, or the stream behind it was, so a store may hold positions of the former history that this log never had.

Compaction drops DELETEs below a topic's floor. A store at a place before the floor has missed them, unless it began from nothing after they went. So a mark
also says how often floors had been raised when it was written: its history's id, a dot and that number ("of no raising": the id alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.errors import Stopped, StopState
from cdc.model.position import Cut, Position


@dataclass(frozen=True, slots=True)
class History:
    """``id``: 32 hexadecimal digits. ``since``: the log's head when it began; its own changes lie behind that position."""

    id: str
    since: Position


@dataclass(frozen=True, slots=True)
class Lineage:
    """A log's id (16 hexadecimal digits) and its histories, the oldest first. There is always at least one."""

    log: str
    histories: tuple[History, ...]
    raised: int = 0
    """The last raising of a floor, as ``Topic.raised`` counts them."""

    @property
    def history(self) -> str:
        """The present history as marks name it."""
        raised = self.raised - self._before
        return f"{self.histories[-1].id}.{raised}" if raised > 0 else self.histories[-1].id

    @property
    def next_raising(self) -> int:
        """The number of the next raising of a floor. One of a later history is higher than any of an earlier one: where an older copy of the log was
        put back, the same number would else stand for two of them."""
        return max(self.raised, self._before) + 1

    @property
    def _before(self) -> int:
        return (len(self.histories) - 1) << _HISTORY_BITS

    def raised_at(self, history: str | None) -> int:
        """The last raising of a floor that a mark of this history knows of; 0 where it is none of this log's."""
        identity, _, raised = (history or "").partition(".")
        found = [number for number, one in enumerate(self.histories) if one.id == identity]
        return (found[0] << _HISTORY_BITS) + int(raised or 0) if found else 0

    def until(self, history: str) -> int | None:
        """The last position that the history shares with this log; None when the log never had that history."""
        history, _, _ = history.partition(".")
        ids = [one.id for one in self.histories]
        if history not in ids:
            return None
        following = ids.index(history) + 1
        return int(self.histories[following].since) if following < len(ids) else 2**63 - 1

    def mark(self, cut: Cut) -> Mark:
        """The mark that a store writes when it holds everything up to the cut."""
        return Mark(self.log, self.history, cut)


@dataclass(frozen=True, slots=True)
class Mark:
    """The statement of a store's unit that it holds everything up to ``cut`` of this history of this log."""

    log: str
    history: str
    cut: Cut


def believed(mark: Mark, lineage: Lineage, where: str) -> Cut:
    """The mark's cut, when this log holds the same changes up to there.

    ``where`` names the unit in the error, such as "store search" or "the index of public.orders in store search". Raises Stopped:
    OTHER_LOG for a mark of another log (two services share a store, or the log was replaced), DIVERGED for a position that the log's
    history did not have.
    """
    if mark.log != lineage.log:
        raise Stopped(
            StopState.OTHER_LOG,
            f"{where} is fed by another log ({mark.log}; this one is {lineage.log})",
            hint="give the store another name or address; if the other log is gone for good: cdc resume OTHER_LOG --rebuild",
        )
    until = lineage.until(mark.history)
    if until is None:
        raise _diverged(where, mark, "of a history that this log never had")
    if mark.cut.position > until:
        raise _diverged(where, mark, f"of a history that this log left at position {until}")
    return mark.cut


def of_another_log(mark: Mark, where: str) -> Stopped:
    """The error for a unit that is marked where there is no log yet, so that it is another's. ``where``: as ``believed`` takes it."""
    return Stopped(
        StopState.OTHER_LOG,
        f"{where} holds the rows of another log ({mark.log}); there is none yet in log.dir",
        hint="give the store another name or address, or set log.dir to that log's folder; if that log is gone for good: "
        "cdc run, and when it has stopped the store: cdc resume OTHER_LOG --rebuild",
    )


_HISTORY_BITS: Final = 32


def _diverged(where: str, mark: Mark, why: str) -> Stopped:
    return Stopped(
        StopState.DIVERGED,
        f"{where} holds position {mark.cut.position} {why}: the log or the store was restored",
        hint="put the right copy back; or cdc resume DIVERGED --rebuild, which builds the store again from the log",
    )
