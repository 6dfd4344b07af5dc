"""Is this stream the one that the log was filled from? The log's last commit has to come again, and nothing beside it. Pure.

The server's confirmed LSN trails what the log holds, so at a start it sends the end of the log again. A copy of the cluster that was
started from an earlier state has the same system identifier, the same timeline and a slot that looks right, and its WAL may since have
grown beyond ours; but where the log's last commit was, it has something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cdc.errors import Stopped, StopState
from cdc.model.batch import first_position
from cdc.model.group import Group
from cdc.model.position import Cut, format_lsn

_HINT: Final = "cdc resume DIVERGED --rebuild (reads the tables again; deploy/runbook.md, DIVERGED)"


@dataclass(slots=True)
class Continuity:
    """One connection's check. ``last``: the log's last commit that brought changes; ``head``: how far the log has come.

    ``start_lsn``: what the server was asked, and agreed, to begin with.
    """

    last: Cut
    head: Cut
    start_lsn: int
    _awaits_last: bool = False
    _done: bool = False

    def __post_init__(self) -> None:
        self._awaits_last = self.last.commit_lsn > self.start_lsn
        self._done = self.start_lsn >= self.head.commit_lsn

    @property
    def done(self) -> bool:
        """The stream has come to the log's end, and all was as it should be."""
        return self._done

    def on_group(self, group: Group) -> None:
        """Each group, in stream order, before it is appended. Raises Stopped (DIVERGED)."""
        found = group.transactions
        if self._awaits_last:
            at = np.flatnonzero(found.end_lsn == self.last.commit_lsn)
            if len(at):
                if int(found.commit_ts_us[at[0]]) != self.last.commit_ts_us:
                    raise self._diverged("another commit stands in its place")
                self._awaits_last = False
        reached = int(found.end_lsn.max(initial=0))
        if group.batches:
            # Those up to the last commit are left out by the decoder.
            before = min(first_position(batch) for batch in group.batches) - 1
            changed = np.diff(found.last_position, prepend=before) > 0
            unknown = changed & (found.end_lsn > self.last.commit_lsn) & (found.end_lsn <= self.head.commit_lsn)
            if unknown.any():
                raise self._diverged(
                    f"changes stand behind it, at {format_lsn(int(found.end_lsn[unknown][0]))}, that the log never got"
                )
        self.on_progress(reached)

    def on_progress(self, lsn: int) -> None:
        """Everything up to this LSN has been sent. Raises Stopped (DIVERGED)."""
        if self._awaits_last and lsn > self.last.commit_lsn:
            raise self._diverged("it is not there")
        self._done = self._done or (not self._awaits_last and lsn >= self.head.commit_lsn)

    def _diverged(self, why: str) -> Stopped:
        at = format_lsn(self.last.commit_lsn)
        return Stopped(
            StopState.DIVERGED,
            f"the database's history is not the one that the log holds: where the log's last commit was, {at}, {why}",
            hint=_HINT,
        )
