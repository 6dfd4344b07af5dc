"""The replication slot: its facts, its creation, and the WAL that it holds back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import psycopg

from cdc.crashpoint import crashpoint
from cdc.errors import SourceError, Stopped, StopState
from cdc.model.position import Lsn, parse_lsn
from cdc.source.connection import reason

PLUGIN: Final = "pgoutput"

_FACTS: Final = """
select s.slot_name, s.slot_type, s.plugin, s.database, s.active, s.active_pid, s.wal_status, s.safe_wal_size,
       s.restart_lsn::text, s.confirmed_flush_lsn::text, h.lsn::text,
       pg_wal_lsn_diff(h.lsn, s.confirmed_flush_lsn)::int8, pg_wal_lsn_diff(h.lsn, s.restart_lsn)::int8,
       current_setting('max_slot_wal_keep_size'), pg_size_bytes(current_setting('max_slot_wal_keep_size'))
from (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn) h
left join pg_replication_slots s on s.slot_name = %s
"""


class Slot(Protocol):
    """What of ``[source]`` names the slot (``cdc.settings.Source`` is one)."""

    @property
    def slot(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One row of pg_replication_slots, and the server's WAL position at that moment."""

    name: str
    exists: bool
    server_lsn: Lsn
    plugin: str | None = None
    database: str | None = None
    active: bool = False
    active_pid: int | None = None
    wal_status: str | None = None
    """reserved | extended | unreserved | lost"""
    safe_wal_bytes: int | None = None
    """How much more WAL may be written before the slot is in danger of being lost; None without max_slot_wal_keep_size."""
    restart_lsn: Lsn | None = None
    confirmed_lsn: Lsn | None = None
    lag_bytes: int | None = None
    """WAL written since the confirmed LSN."""
    held_bytes: int | None = None
    """WAL that the server keeps because of the slot."""
    max_keep_bytes: int | None = None
    """max_slot_wal_keep_size; None when it is -1, no limit."""


def read_slot(connection: psycopg.Connection, name: str) -> SlotFacts:
    """The slot's facts (``exists`` False when there is none). Raises psycopg.Error when the server does not answer."""
    row = connection.execute(_FACTS, (name,)).fetchone()
    assert row is not None
    max_keep = None if row[13].startswith("-1") else int(row[14])
    server_lsn = parse_lsn(row[10] or "0/0")
    if row[0] is None:
        return SlotFacts(name, False, server_lsn, max_keep_bytes=max_keep)
    return SlotFacts(
        name=name,
        exists=True,
        server_lsn=server_lsn,
        plugin=row[2] if row[1] == "logical" else "physical",
        database=row[3],
        active=row[4],
        active_pid=row[5],
        wal_status=row[6],
        safe_wal_bytes=row[7],
        restart_lsn=parse_lsn(row[8]) if row[8] else None,
        confirmed_lsn=parse_lsn(row[9]) if row[9] else None,
        lag_bytes=row[11],
        held_bytes=row[12],
        max_keep_bytes=max_keep,
    )


def ensure_slot(connection: psycopg.Connection, source: Slot, *, create: bool, timeout_s: float = 30.0) -> SlotFacts:
    """The slot as it stands, made first when there is none and ``create`` says so (a log that has begun must not: changes would
    be missing).

    connection: an ordinary one, outside a transaction. Creation waits for the transactions that are open; after ``timeout_s`` it gives
    up with a SourceError that names the oldest of them. Raises Stopped (SLOT_MISSING, SLOT_LOST) and SourceError when the slot is
    somebody else's.
    """
    facts = read_slot(connection, source.slot)
    if not facts.exists:
        if not create:
            raise Stopped(
                StopState.SLOT_MISSING,
                f"replication slot {source.slot!r} is gone, so changes since the log's end may be lost",
            )
        _create(connection, source.slot, timeout_s)
        return read_slot(connection, source.slot)
    refuse_foreign(connection, facts)
    if facts.wal_status == "lost":
        raise Stopped(
            StopState.SLOT_LOST,
            f"replication slot {source.slot!r} has been invalidated: the server removed WAL that it still needed",
        )
    return facts


def refuse_foreign(connection: psycopg.Connection, facts: SlotFacts) -> None:
    """Raises SourceError when a slot of this name exists but cannot be ours."""
    if facts.plugin != PLUGIN:
        raise SourceError(
            f"replication slot {facts.name!r} belongs to somebody else (plugin {facts.plugin})",
            hint="set another source.slot in the configuration",
        )
    if facts.database != connection.info.dbname:
        raise SourceError(
            f"replication slot {facts.name!r} belongs to database {facts.database!r}, not {connection.info.dbname!r}",
            hint="set another source.slot in the configuration",
        )


def _create(connection: psycopg.Connection, name: str, timeout_s: float) -> None:
    connection.execute("select set_config('statement_timeout', %s, false)", (f"{int(timeout_s * 1000)}ms",))
    try:
        crashpoint("slot.before_create")
        connection.execute("select pg_create_logical_replication_slot(%s, %s)", (name, PLUGIN))
        crashpoint("slot.created")
    except psycopg.errors.QueryCanceled:
        raise SourceError(
            f"creating replication slot {name!r} waits for open transactions{_oldest_transaction(connection)}",
            hint="end that transaction, or try again later",
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise SourceError(
            f"role {connection.info.user!r} may not create replication slots",
            hint=f'ALTER ROLE "{connection.info.user}" REPLICATION',
        ) from None
    except psycopg.errors.ObjectNotInPrerequisiteState:
        raise SourceError(
            "the server's wal_level is not logical",
            hint="ALTER SYSTEM SET wal_level = logical; then restart Postgres",
        ) from None
    except psycopg.errors.ConfigurationLimitExceeded:
        raise SourceError(
            "all replication slots are in use", hint="raise max_replication_slots on the server, or drop a slot that nobody reads"
        ) from None
    except psycopg.errors.DuplicateObject:
        return  # another process was faster; the caller reads the facts again
    except psycopg.Error as error:
        raise SourceError(f"cannot create replication slot {name!r}: {reason(error)}", hint="cdc doctor") from None
    finally:
        if not connection.closed:
            connection.execute("select set_config('statement_timeout', '0', false)")


def _oldest_transaction(connection: psycopg.Connection) -> str:
    row = connection.execute(
        "select pid, backend_xid::text, extract(epoch from now() - xact_start)::int from pg_stat_activity "
        "where backend_xid is not null and pid <> pg_backend_pid() order by xact_start limit 1"
    ).fetchone()
    return f"; the oldest is pid {row[0]}, xid {row[1]}, {row[2]} s old" if row else ""
