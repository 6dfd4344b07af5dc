"""Tables that have just joined the publication wait for the transactions that were open then: what those had changed before is not streamed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

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
    """Tables by OID. Some of them may not be visible yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, Barrier]] = {}
        """The run in which a table joined, and what it waits for."""
        self._untold: set[int] = set()
        """Those that have begun to wait."""

    def passed(self, oids: Collection[int], runs: Mapping[int, int]) -> Steps[set[int]]:
        """Returns those that may be read. ``runs``: of each table, the one that it is in."""
        if not oids:
            return set()
        fresh = [oid for oid in oids if oid not in self._waiting or self._waiting[oid][0] != runs[oid]]
        if fresh:
            before = yield from barrier()
            self._waiting |= {oid: (runs[oid], before) for oid in fresh}
        now: str = yield CurrentSnapshot()
        snapshot = Snapshot.parse(now)
        passed = {oid for oid in oids if self._waiting[oid][1].passed_by(snapshot)}
        self._untold.update(oid for oid in fresh if oid not in passed)
        for oid in passed:
            del self._waiting[oid]
        return passed

    def tell(self, names: Mapping[int, str]) -> Steps[None]:
        """Logs which tables have begun to wait. ``names``: of those that the catalog shows."""
        waiting = [name for oid, name in names.items() if oid in self._untold]
        self._untold -= names.keys()
        if waiting:
            oldest: list[str] = yield OldestTransaction()
            log.info(
                "waits for transactions that were open when tables were published",
                tables=len(waiting),
                first=waiting[0],
                oldest=oldest,
            )

    def forget(self, oid: int) -> None:
        self._waiting.pop(oid, None)
        self._untold.discard(oid)
