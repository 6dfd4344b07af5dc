"""Who keeps the slot from letting WAL go: transactions that have been open for long, prepared ones included. No query's text is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg

LONG_S: Final = 300
"""A transaction that is open for longer is worth telling."""
MOST: Final = 5

# What is open anywhere in the cluster pins restart_lsn. Without pg_read_all_stats the start of others' transactions is not to be seen:
# then the age is unknown, and the oldest xid comes first.
_OPEN: Final = """
select a.pid, a.backend_xid::text, extract(epoch from clock_timestamp() - a.xact_start)::int8, coalesce(a.application_name, ''), null
from pg_stat_activity a
where a.backend_xid is not null and a.pid <> pg_backend_pid()
  and coalesce(clock_timestamp() - a.xact_start >= make_interval(secs => %(least)s), true)
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

    def __str__(self) -> str:
        what = f"prepared transaction {self.gid!r}" if self.gid is not None else f"pid {self.pid}"
        age = "" if self.age_s is None else f", {self.age_s} s old"
        return f"{what}, xid {self.xid}{age}{f', {self.application!r}' if self.application else ''}"

    @property
    def mend(self) -> str:
        """What ends it."""
        if self.gid is not None:
            return "COMMIT PREPARED or ROLLBACK PREPARED it"
        return f"select pg_terminate_backend({self.pid})"


def read_pins(connection: psycopg.Connection, *, least_s: int = LONG_S, most: int = MOST) -> list[Pin]:
    """The longest open first. Raises psycopg.Error when the server does not answer."""
    return [Pin(*row) for row in connection.execute(_OPEN, {"least": least_s, "most": most}).fetchall()]
