"""Tables that have just joined the publication wait for the transactions that were open then: what those had changed before is not streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from snapshots.catalog import SourceTable
from snapshots.fence import Barrier, Snapshot
from snapshots.queries import CurrentSnapshot, NextXid, OldestTransaction
from snapshots.steps import Steps

log = structlog.get_logger("snapshot")


def barrier() -> Steps[Barrier]:
    """Around every transaction that is open now."""
    snapshot: str = yield CurrentSnapshot()
    next_xid: int = yield NextXid()
    return Barrier(Snapshot.parse(snapshot), next_xid)


class Joining:
    """Tables by OID."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, Barrier]] = {}
        """The run in which a table joined, and what it waits for."""

    def passed(self, joining: Sequence[SourceTable], runs: Mapping[int, int]) -> Steps[set[int]]:
        """Returns those that may be read. ``runs``: of each table, the one that it is in."""
        if not joining:
            return set()
        oids = [source.table.oid for source in joining]
        fresh = [oid for oid in oids if oid not in self._waiting or self._waiting[oid][0] != runs[oid]]
        if fresh:
            before = yield from barrier()
            self._waiting |= {oid: (runs[oid], before) for oid in fresh}
        now: str = yield CurrentSnapshot()
        snapshot = Snapshot.parse(now)
        passed = {oid for oid in oids if self._waiting[oid][1].passed_by(snapshot)}
        waiting = [source.name for source in joining if source.table.oid in fresh and source.table.oid not in passed]
        if waiting:
            oldest: list[str] = yield OldestTransaction()
            log.info(
                "waits for transactions that were open when tables were published",
                tables=len(waiting),
                first=waiting[0],
                oldest=oldest,
            )
        for oid in passed:
            del self._waiting[oid]
        return passed

    def forget(self, oid: int) -> None:
        self._waiting.pop(oid, None)
