"""Whether the looks at the catalog succeed, and what stands in their way when they have not for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import psycopg
import structlog

BLIND_S: Final = 10.0
"""Looks that have failed for longer are worth telling of."""
LOGGED_S: Final = (10.0, 60.0)
"""Failures are logged after so long again: at first, and at most. Each time twice as long as before."""
_MOST: Final = 3

# Asked once our own wait has ended. Looks open the catalog's tables and those of schema headwater, so a lock on one of these comes first; the
# transaction that was prepared with a lock has no pid.
_HOLDERS: Final = """
select l.pid, l.relation::regclass::text
from pg_locks l
where l.granted and l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.pid is distinct from pg_backend_pid()
  and l.database in (0, (select d.oid from pg_database d where d.datname = current_database()))
order by not (l.relation < 16384 or exists (
           select from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = l.relation and n.nspname = 'headwater')), l.pid, 2
limit %s
"""

Holder = tuple[int | None, str]
"""Who (pid; None: a prepared transaction) has locked which table."""

_log = structlog.get_logger("catalog")


@dataclass(slots=True)
class Sight:
    """One thread looks; ``problem`` may be read by any."""

    clock: Callable[[], float] = time.monotonic
    problem: str | None = None
    """One line with what helps, once the looks have failed for more than a short while."""
    _since: float | None = field(default=None, init=False)
    _logged: float = field(default=0.0, init=False)
    _pause_s: float = field(default=0.0, init=False)
    _holders: Sequence[Holder] = field(default=(), init=False)

    def clear(self) -> None:
        """A look has succeeded."""
        if self._since is not None:
            _log.info("looks at the catalog again", after_s=round(self.clock() - self._since, 1))
        self._since, self._holders, self.problem = None, (), None

    def locked_out(self, connection: psycopg.Connection) -> None:
        """A look has waited for a lock in vain; outside a transaction. The look's failure is reported afterwards."""
        with suppress(psycopg.Error):
            self._holders = connection.execute(_HOLDERS, (_MOST,)).fetchall()

    def failed(self, reason: str) -> None:
        now = self.clock()
        if self._since is None:
            self._since = now
            self._logged, self._pause_s = now, LOGGED_S[0]
            _log.warning("cannot look at the catalog now", reason=reason)
        elif now - self._logged >= self._pause_s:
            self._logged, self._pause_s = now, min(2 * self._pause_s, LOGGED_S[1])
            _log.warning("still cannot look at the catalog", reason=reason, for_s=round(now - self._since))
        if now - self._since >= BLIND_S:
            what = "new tables are not captured, and changed ones only as far as the event trigger tells of them"
            self.problem = f"capture cannot look at the catalog ({reason}): {what} → {_help(self._holders)}"
        self._holders = ()


def _help(holders: Sequence[Holder]) -> str:
    if not holders:
        return "cdc doctor"
    pids = list(dict.fromkeys(pid for pid, _ in holders if pid is not None))
    named = [f"{'a prepared transaction' if pid is None else f'pid {pid}'} has locked {table}" for pid, table in holders]
    ends = [f"select pg_terminate_backend({pid})" for pid in pids[:1]] or [
        "COMMIT PREPARED or ROLLBACK PREPARED it (pg_prepared_xacts)"
    ]
    return f"{', '.join(named)}: wait, or {ends[0]}"
