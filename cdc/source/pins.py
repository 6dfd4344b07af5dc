"""Who keeps the slot from letting WAL go: transactions that have been open for long, prepared ones included. No query's text is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

LONG_S: Final = 300
"""A transaction that is open for longer is worth naming."""
MOST: Final = 5
_WATCHED_MAX: Final = 1000

# What is open anywhere in the cluster pins restart_lsn. Without pg_read_all_stats the start of others' transactions cannot be seen:
# then the age is unknown, and the oldest xid comes first.
_OPEN: Final = """
select a.pid, a.backend_xid::text, extract(epoch from clock_timestamp() - a.xact_start)::int8, coalesce(a.application_name, ''), null
from pg_stat_activity a
where a.backend_xid is not null and a.pid <> pg_backend_pid()
  and coalesce(clock_timestamp() - a.xact_start >= make_interval(secs => %(least)s), %(unseen)s)
union all
select null, p.transaction::text, extract(epoch from clock_timestamp() - p.prepared)::int8, '', p.gid
from pg_prepared_xacts p
where clock_timestamp() - p.prepared >= make_interval(secs => %(least)s)
order by 3 desc nulls last, 2
limit %(most)s
"""


@dataclass(frozen=True, slots=True)
class Pin:
    """One open transaction: a session's (``pid``), or a prepared one (``gid``)."""

    pid: int | None
    xid: str
    age_s: int | None
    """None where the role may not see it."""
    application: str
    gid: str | None
    at_least: bool = False
    """The age is how long we have watched it, as the role may not see more."""

    def __str__(self) -> str:
        what = f"prepared transaction {self.gid!r}" if self.gid is not None else f"pid {self.pid}"
        age = "" if self.age_s is None else f", {'at least ' if self.at_least else ''}{self.age_s} s old"
        return f"{what}, xid {self.xid}{age}{f', {self.application!r}' if self.application else ''}"

    @property
    def hint(self) -> str:
        """The command that ends it."""
        if self.gid is not None:
            return "COMMIT PREPARED or ROLLBACK PREPARED it"
        return f"select pg_terminate_backend({self.pid})"


def read_pins(connection: psycopg.Connection, *, least_s: int = LONG_S, most: int = MOST) -> list[Pin]:
    """The longest open first; one whose age the role may not see counts as new. Raises psycopg.Error when the server does not answer."""
    return _read(connection, least_s=least_s, unseen=least_s == 0, most=most)


@dataclass(slots=True)
class PinWatch:
    """Reads them again and again, and so knows of those whose age the role may not see how long they have been open at least."""

    least_s: int = LONG_S
    clock: Callable[[], float] = time.monotonic
    _since: dict[tuple[int | None, str], float] = field(default_factory=dict)

    def look(self, connection: psycopg.Connection) -> list[Pin]:
        """As ``read_pins``."""
        return self.judge(_read(connection, least_s=self.least_s, unseen=True, most=_WATCHED_MAX))

    def judge(self, found: list[Pin]) -> list[Pin]:
        """Keeps those that have been open for long; others may be open for a moment only."""
        now = self.clock()
        self._since = {(pin.pid, pin.xid): self._since.get((pin.pid, pin.xid), now) for pin in found if pin.age_s is None}
        aged = [
            pin if pin.age_s is not None else replace(pin, age_s=int(now - self._since[pin.pid, pin.xid]), at_least=True)
            for pin in found
        ]
        old = [pin for pin in aged if (pin.age_s or 0) >= self.least_s]
        return sorted(old, key=lambda pin: -(pin.age_s or 0))[:MOST]


def _read(connection: psycopg.Connection, *, least_s: int, unseen: bool, most: int) -> list[Pin]:
    rows = connection.execute(_OPEN, {"least": least_s, "unseen": unseen, "most": most}).fetchall()
    return [Pin(*row) for row in rows]
