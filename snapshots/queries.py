"""The questions that the snapshot asks the server, each as a value: a connection answers it in SQL, the simulator's model in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from cdc.errors import SourceError
from cdc.source.pins import read_pins
from snapshots.catalog import Look, SourceTable, key_types, load_tables, look, looks, reload_tables
from snapshots.plan import lock
from snapshots.steps import Query
from snapshots.throttle import SlotState

_LOCK_TIMEOUT: Final = "200ms"


@dataclass(frozen=True, slots=True)
class Begin(Query):
    """Begins a transaction that reads one table, and looks at it. None where somebody keeps the table, or one of its partitions, locked: who
    waits for one while holding others may be waited for, and the server would end the other one after deadlock_timeout (1 s)."""

    source: SourceTable

    def ask(self, connection: psycopg.Connection) -> Look | None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'; {lock(self.source)}; SET LOCAL lock_timeout = 0")
        except psycopg.errors.LockNotAvailable:
            return None
        return look(connection, self.source.table.oid)


@dataclass(frozen=True, slots=True)
class End(Query):
    """Ends the transaction that has been read in."""

    def ask(self, connection: psycopg.Connection) -> None:
        connection.execute("COMMIT")


@dataclass(frozen=True, slots=True)
class IdleXids(Query):
    """Transactions (64-bit ids) whose sessions are idle inside them."""

    def ask(self, connection: psycopg.Connection) -> list[int]:
        rows = connection.execute(
            "select backend_xid::text::int8 from pg_stat_activity where state like 'idle in transaction%' and backend_xid is not null"
        ).fetchall()
        return [row[0] for row in rows]


@dataclass(frozen=True, slots=True)
class OldestTransaction(Query):
    """The one that has been open for longest, in words; empty when none is."""

    def ask(self, connection: psycopg.Connection) -> list[str]:
        return [str(pin) for pin in read_pins(connection, least_s=0, most=1)]


@dataclass(frozen=True, slots=True)
class CurrentSnapshot(Query):
    """``pg_current_snapshot()``."""

    def ask(self, connection: psycopg.Connection) -> str:
        return _one(connection, "select pg_current_snapshot()::text")


@dataclass(frozen=True, slots=True)
class NextXid(Query):
    """A transaction id (64 bits) that is assigned now."""

    def ask(self, connection: psycopg.Connection) -> int:
        return int(_one(connection, "select pg_current_xact_id()::text"))


@dataclass(frozen=True, slots=True)
class Published(Query):
    """``load_tables``."""

    patterns: Sequence[str]
    publication: str

    def ask(self, connection: psycopg.Connection) -> list[SourceTable]:
        return load_tables(connection, self.patterns, self.publication)


@dataclass(frozen=True, slots=True)
class Reload(Query):
    """``reload_tables``."""

    oids: Sequence[int]
    patterns: Sequence[str]
    publication: str

    def ask(self, connection: psycopg.Connection) -> Mapping[int, tuple[SourceTable, SourceError | None]]:
        return reload_tables(connection, self.oids, self.patterns, self.publication)


@dataclass(frozen=True, slots=True)
class Looks(Query):
    """``looks``."""

    oids: Sequence[int]

    def ask(self, connection: psycopg.Connection) -> Mapping[int, Look]:
        return looks(connection, self.oids)


@dataclass(frozen=True, slots=True)
class KeyTypes(Query):
    """``key_types``."""

    source: SourceTable

    def ask(self, connection: psycopg.Connection) -> tuple[str, ...]:
        return key_types(connection, self.source)


@dataclass(frozen=True, slots=True)
class SlotNow(Query):
    """The slot's ``SlotState``; None when it does not exist."""

    slot: str

    def ask(self, connection: psycopg.Connection) -> SlotState | None:
        row = connection.execute(
            "select pg_current_wal_lsn() - coalesce(confirmed_flush_lsn, pg_current_wal_lsn()), safe_wal_size,"
            " nullif(pg_size_bytes(current_setting('max_slot_wal_keep_size')), -1)"
            " from pg_replication_slots where slot_name = %s",
            (self.slot,),
        ).fetchone()
        return None if row is None else SlotState(int(row[0]), row[1], row[2])


def _one(connection: psycopg.Connection, query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])
