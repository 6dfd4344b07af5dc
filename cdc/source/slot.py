"""The replication slot: its facts, its creation, and the WAL that it holds back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, LiteralString

import psycopg
from psycopg.rows import dict_row

from cdc.crashpoint import crashpoint
from cdc.errors import SourceError, Stopped, StopState
from cdc.model.position import Lsn, format_lsn, parse_lsn
from cdc.source import claim
from cdc.source.connection import reason
from cdc.source.excerpt import Slot
from cdc.source.heldwal import HeldWal
from cdc.source.pins import read_pins
from cdc.terminal import counted

PLUGIN: Final = "pgoutput"
FAILOVER_SINCE: Final = 170_000

_FACTS: Final = """
select s.slot_type, s.plugin, s.database, s.active_pid, s.wal_status, s.safe_wal_size, s.confirmed_flush_lsn::text as confirmed_lsn,
       h.lsn::text as server_lsn,
       pg_wal_lsn_diff(h.lsn, s.confirmed_flush_lsn)::int8 as lag_bytes, pg_wal_lsn_diff(h.lsn, s.restart_lsn)::int8 as held_bytes,
       current_setting('max_slot_wal_keep_size') as limit_text, pg_size_bytes(current_setting('max_slot_wal_keep_size')) as limit_bytes,
       coalesce(j.row ->> 'invalidation_reason', case when (j.row ->> 'conflicting')::bool then 'conflict' end) as invalidation,
       (j.row ->> 'two_phase')::bool as two_phase, (j.row ->> 'failover')::bool as failover, (j.row ->> 'temporary')::bool as temporary,
       (select coalesce(nullif(a.application_name, ''), a.backend_type) from pg_stat_activity a where a.pid = s.active_pid) as application,
       (select t.setting::int8 * case t.unit when 'min' then 60 when 's' then 1 end from pg_settings t
         where t.name = 'idle_replication_slot_timeout') as idle_timeout_s,
       extract(epoch from clock_timestamp())::float8 as server_time
from (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn) h
left join pg_replication_slots s on s.slot_name = %s
left join lateral (select to_jsonb(s) as row) j on true
"""
"""By way of jsonb: what a version's view does not have (failover: 17, invalidation_reason: 17, conflicting: 16) is then NULL."""


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """How the slot was made: what cannot be changed afterwards (``failover``: only by who reads it)."""

    plugin: str
    """``physical`` for a slot that decodes nothing."""
    database: str | None
    two_phase: bool = False
    failover: bool | None = None
    """None before 17."""
    temporary: bool = False
    """True for a slot that a standby has not finished to synchronise: it would be gone after a promotion."""


@dataclass(frozen=True, slots=True)
class SlotReader:
    """The session that reads the slot now."""

    pid: int
    application: str | None = None


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One row of pg_replication_slots, and the server's WAL position at that moment."""

    name: str
    exists: bool
    server_lsn: Lsn
    made: SlotOptions | None = None
    """None only where there is no slot."""
    reader: SlotReader | None = None
    confirmed_lsn: Lsn | None = None
    wal_status: str | None = None
    """reserved | extended | unreserved | lost"""
    wal: HeldWal = field(default_factory=HeldWal)
    invalidation: str | None = None
    """Why the server gave the slot up (wal_removed, idle_timeout, rows_removed, wal_level_insufficient, conflict); from 16 on."""
    idle_timeout_s: int | None = None
    """idle_replication_slot_timeout: a slot that nobody reads for so long is invalidated; None before 18 and when it is 0."""
    server_time: float = 0.0
    """The server's wall clock at that moment: Unix time, seconds."""

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.invalidation is not None

    @property
    def database(self) -> str:
        return (self.made and self.made.database) or ""


def read_slot(connection: psycopg.Connection, name: str) -> SlotFacts:
    """The slot's facts (``exists`` False when there is none). Raises psycopg.Error when the server does not answer."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_FACTS, (name,)).fetchone()
    assert row is not None
    exists = row["slot_type"] is not None
    return SlotFacts(
        name=name,
        exists=exists,
        server_lsn=parse_lsn(row["server_lsn"] or "0/0"),
        made=SlotOptions(
            plugin=row["plugin"] if row["slot_type"] == "logical" else "physical",
            database=row["database"],
            two_phase=bool(row["two_phase"]),
            failover=row["failover"],
            temporary=bool(row["temporary"]),
        )
        if exists
        else None,
        reader=SlotReader(row["active_pid"], row["application"]) if row["active_pid"] else None,
        confirmed_lsn=parse_lsn(row["confirmed_lsn"]) if row["confirmed_lsn"] else None,
        wal_status=row["wal_status"],
        wal=HeldWal(
            bytes=row["held_bytes"],
            lag_bytes=row["lag_bytes"],
            safe_bytes=row["safe_wal_size"],
            limit_bytes=None if row["limit_text"].startswith("-1") else int(row["limit_bytes"]),
        ),
        invalidation=row["invalidation"],
        idle_timeout_s=row["idle_timeout_s"] or None,
        server_time=row["server_time"],
    )


def ensure_slot(
    connection: psycopg.Connection,
    source: Slot,
    *,
    create: bool,
    two_phase: bool = False,
    timeout_s: float = 30.0,
    record: Path | None = None,
) -> SlotFacts:
    """The slot as it stands, made first when there is none and ``create`` says so (a log that has begun must not: changes would
    be missing).

    connection: an ordinary one, outside a transaction. two_phase: of a slot that is made here, as is ``source.failover`` where the server has it
    (from 17 on). record: the folder in which it is recorded that we made the slot, and looked up whether we made one that exists (with ``create``; None: neither).
    Creation waits for the transactions that are open; after ``timeout_s`` it gives up with a SourceError that names the oldest of them.
    Raises Stopped (SLOT_MISSING, SLOT_LOST) and SourceError when the slot is somebody else's.
    """
    facts = read_slot(connection, source.slot)
    if not facts.exists:
        if not create:
            raise Stopped(
                StopState.SLOT_MISSING,
                f"replication slot {source.slot!r} is gone, so changes since the log's end may be lost",
                hint=rebuild_hint(StopState.SLOT_MISSING),
            )
        return _create(connection, facts, timeout_s, record=record, two_phase=two_phase, failover=source.failover)
    refuse_foreign(connection, facts)
    if create and record is not None:
        refuse_unclaimed(facts, record)
        if facts.confirmed_lsn is None and facts.reader:
            raise SourceError(
                f"replication slot {source.slot!r} is still being made, by pid {facts.reader.pid}",
                hint="start again once that is done",
            )
    if facts.lost:
        raise Stopped(StopState.SLOT_LOST, lost_message(facts), hint=rebuild_hint(StopState.SLOT_LOST))
    if facts.made and facts.made.temporary:
        raise Stopped(
            StopState.SLOT_MISSING,
            f"replication slot {source.slot!r} was not synchronised yet when this standby was promoted",
            hint=rebuild_hint(StopState.SLOT_MISSING),
        )
    return facts


def slot_from_now(
    connection: psycopg.Connection,
    source: Slot,
    *,
    record: Path,
    followed: Lsn | None,
    two_phase: bool = False,
    timeout_s: float = 30.0,
) -> SlotFacts:
    """A slot that begins now, whatever was: made where there is none or a dead one of ours, else moved to the end of the WAL.

    A slot that is not ours is neither dropped nor moved. record: as in ``ensure_slot``. followed: how far the log has followed this very slot;
    None when it has not. Raises Stopped (SLOT_REPLACED) for a slot that somebody else made, moved or read, SourceError when somebody reads it
    now or it cannot be ours at all.
    """
    facts = read_slot(connection, source.slot)
    if facts.exists:
        refuse_foreign(connection, facts)
        if not _is_ours(facts, record, followed):
            raise Stopped(
                StopState.SLOT_REPLACED,
                f"replication slot {source.slot!r} was made, moved or read by somebody else, so it is neither moved nor dropped here",
                hint=replaced_hint(source.slot),
            )
        if (reader := facts.reader) is not None:
            raise SourceError(
                f"replication slot {source.slot!r} is being read by pid {reader.pid} ({reader.application})",
                hint=f"stop that reader, or: select pg_terminate_backend({reader.pid})",
            )
        if not facts.lost:
            _refuse_prepared(connection, facts)
            _advance(connection, facts, record)
            return _settled(connection, source.slot, record)
        connection.execute("select pg_drop_replication_slot(%s)", (source.slot,))
        facts = read_slot(connection, source.slot)
    return _create(connection, facts, timeout_s, record=record, two_phase=two_phase, failover=source.failover)


def _is_ours(facts: SlotFacts, record: Path, followed: Lsn | None) -> bool:
    """Nobody but us moves a slot of ours, and we never move it beyond what the log holds."""
    if followed is not None and (facts.confirmed_lsn or 0) <= followed:
        return True
    known = claim.recorded(record)
    return known is not None and known.covers(facts.name, facts.database, facts.confirmed_lsn)


def _settled(connection: psycopg.Connection, name: str, record: Path) -> SlotFacts:
    """The slot, which stands where we put it; the claim says that nothing is under way any more."""
    facts = read_slot(connection, name)
    claim.record(record, claim.SlotClaim(name, facts.database, int(facts.confirmed_lsn or 0), settled=True))
    return facts


def _refuse_prepared(connection: psycopg.Connection, facts: SlotFacts) -> None:
    """A two-phase slot takes what was prepared before its place for sent: of such a transaction only the end would come."""
    if not (facts.made and facts.made.two_phase):
        return
    rows = connection.execute("select gid from pg_prepared_xacts where database = current_database() order by prepared").fetchall()
    if rows:
        raise SourceError(
            f"{counted(len(rows), 'prepared transaction')} open, the oldest is {rows[0][0]!r}",
            hint="COMMIT PREPARED or ROLLBACK PREPARED them first",
        )


def _advance(connection: psycopg.Connection, facts: SlotFacts, record: Path) -> None:
    """Fast-forwards: the output plugin sees nothing of what lies between, so that a row it cannot bear is passed, too."""
    claim.record(record, claim.SlotClaim(facts.name, facts.database, int(facts.confirmed_lsn or 0), settled=False))
    try:
        connection.execute(
            "select pg_replication_slot_advance(%s, greatest(pg_current_wal_lsn(), %s::pg_lsn))",
            (facts.name, format_lsn(facts.confirmed_lsn or 0)),
        )
    except psycopg.Error as error:
        raise SourceError(f"cannot advance replication slot {facts.name!r}: {reason(error)}", hint="cdc doctor") from None


def lost_message(facts: SlotFacts) -> str:
    """Says why the server gave the slot up."""
    why = {
        "idle_timeout": "nobody read it for longer than idle_replication_slot_timeout",
        "rows_removed": "the server removed catalog rows that it still needed",
        "wal_level_insufficient": "the primary's wal_level was lowered",
        "conflict": "it conflicted with recovery on a standby",
    }.get(facts.invalidation or "", "the server removed WAL that it still needed (max_slot_wal_keep_size)")
    return f"replication slot {facts.name!r} has been invalidated: {why}"


def rebuild_hint(state: StopState) -> str:
    """For stop states after which only reading the tables again helps."""
    return f"cdc resume {state} --rebuild (reads the tables again; deploy/runbook.md, {state})"


def refuse_foreign(connection: psycopg.Connection, facts: SlotFacts) -> None:
    """Raises SourceError when a slot of this name exists but cannot be ours."""
    if facts.made is not None and facts.made.plugin != PLUGIN:
        raise SourceError(
            f"replication slot {facts.name!r} belongs to somebody else (plugin {facts.made.plugin})",
            hint="set another source.slot in the configuration",
        )
    if facts.database != connection.info.dbname:
        raise SourceError(
            f"replication slot {facts.name!r} belongs to database {facts.database!r}, not {connection.info.dbname!r}",
            hint="set another source.slot in the configuration",
        )


def refuse_unclaimed(facts: SlotFacts, record: Path) -> None:
    """Raises SourceError when the slot exists and, as far as the folder knows, we did not make it: its maker would lose changes."""
    if _is_ours(facts, record, None):
        return
    raise SourceError(
        f"replication slot {facts.name!r} exists already, and was not made for this log",
        hint=f"set another source.slot; or, if nobody needs what it holds: select pg_drop_replication_slot('{facts.name}')",
    )


def replaced_hint(slot: str) -> str:
    """The way out for a slot that may be somebody else's."""
    return (
        f"if nothing else uses it, select pg_drop_replication_slot('{slot}'), else set another source.slot; then "
        f"{rebuild_hint(StopState.SLOT_REPLACED)}"
    )


def _create(
    connection: psycopg.Connection, facts: SlotFacts, timeout_s: float, *, record: Path | None, two_phase: bool, failover: bool
) -> SlotFacts:
    """facts: of the slot that does not exist yet. Returns those of the one that was made."""
    if record is None:
        _create_now(connection, facts.name, timeout_s, two_phase=two_phase, failover=failover)
        return read_slot(connection, facts.name)
    intent = claim.SlotClaim(facts.name, connection.info.dbname, int(facts.server_lsn), settled=False)
    claim.record(record, intent)
    try:
        _create_now(connection, facts.name, timeout_s, two_phase=two_phase, failover=failover)
    except SourceError:
        # Without the server's answer the slot may come into being after all.
        if not connection.closed:
            claim.withdraw(record, intent)
        raise
    return _settled(connection, facts.name, record)


def _create_now(connection: psycopg.Connection, name: str, timeout_s: float, *, two_phase: bool, failover: bool) -> None:
    query: LiteralString = "select pg_create_logical_replication_slot(%s, %s, false, %s)"
    parameters: tuple[str | bool, ...] = (name, PLUGIN, two_phase)
    if connection.info.server_version >= FAILOVER_SINCE:
        query = "select pg_create_logical_replication_slot(%s, %s, false, %s, %s)"
        parameters = (*parameters, failover)
    connection.execute("select set_config('statement_timeout', %s, false)", (f"{int(timeout_s * 1000)}ms",))
    try:
        crashpoint("slot.before_create")
        connection.execute(query, parameters)
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
        raise SourceError(
            f"replication slot {name!r} was made by somebody else at the same moment", hint="try again; cdc doctor says whose it is"
        ) from None
    except psycopg.Error as error:
        raise SourceError(f"cannot create replication slot {name!r}: {reason(error)}", hint="cdc doctor") from None
    finally:
        if not connection.closed:
            connection.execute("select set_config('statement_timeout', '0', false)")


def _oldest_transaction(connection: psycopg.Connection) -> str:
    pins = read_pins(connection, least_s=0, most=1)
    return f"; the oldest is {pins[0]}" if pins else ""
