"""Tables that somebody keeps locked: no worker waits for one, so that the others are read meanwhile; each is tried again, and named.

Workers tell, the coordinator asks: thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import structlog

from snapshots.catalog import Locked, SourceTable, holders

AGAIN_S: Final = (0.5, 8.0)
"""Before a lock that could not be had is asked for again: at first, and at most. Each time twice as long as before."""
NAMED_S: Final = 3.0
"""A lock that lasts longer is worth telling of."""
_FORGOTTEN_S: Final = 60.0
"""Who has not asked for a table's lock for so long reads it no more."""

_log = structlog.get_logger("snapshot")


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    problem: Locked
    since: float
    tried: float
    pause_s: float
    named: bool = False


class Locks:
    """The tables (by OID) that could not be locked when last tried."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._waiting: dict[int, _Waiting] = {}

    def refused(self, source: SourceTable) -> None:
        """The lock could not be had."""
        now, oid = self._clock(), source.table.oid
        with self._lock:
            before = self._waiting.get(oid)
            if before is None:
                hint = f"wait, or end who holds it: {holders(source.table, partitioned=source.partitioned)}"
                problem = Locked(
                    f"table {source.name} is locked (ACCESS EXCLUSIVE); the other tables are read meanwhile", hint=hint
                )
                self._waiting[oid] = _Waiting(source.name, problem, now, now, AGAIN_S[0])
                return
            named = now - before.since >= NAMED_S
            if named and not before.named:
                _log.warning("a table cannot be read", problem=before.problem.line(), again_in_s=AGAIN_S[1])
            self._waiting[oid] = replace(before, tried=now, pause_s=min(2 * before.pause_s, AGAIN_S[1]), named=named)

    def had(self, source: SourceTable) -> None:
        """The table has been locked by us."""
        with self._lock:
            ended = self._waiting.pop(source.table.oid, None)
        if ended is not None and ended.named:
            _log.info("a table can be read again", table=source.name, after_s=round(self._clock() - ended.since))

    def forget(self, oid: int) -> None:
        with self._lock:
            self._waiting.pop(oid, None)

    @property
    def waiting(self) -> set[int]:
        """Tables (OIDs) that are not tried yet again."""
        if not self._waiting:
            return set()  # nearly always, and it is asked twenty times a second
        now = self._clock()
        with self._lock:
            return {oid for oid, one in self._waiting.items() if now < one.tried + one.pause_s}

    @property
    def problems(self) -> list[Locked]:
        """The problems of tables that have been locked for a while."""
        now = self._clock()
        with self._lock:
            return [one.problem for one in self._waiting.values() if now - one.since >= NAMED_S and now - one.tried < _FORGOTTEN_S]
