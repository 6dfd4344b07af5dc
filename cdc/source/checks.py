"""The checks of `cdc doctor` on the source: one finding for each thing that would fail, may hurt, or is fine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, LiteralString, Protocol

import psycopg
from psycopg import sql

from cdc.errors import HeadwaterError, StopState
from cdc.model.table import Table
from cdc.source.capturable import KEYLESS, keyless_hint, quoted_name, refuse_twins, reserved_problem
from cdc.source.catalog import CatalogTable, find_tables, load_published, misnamed, select_tables
from cdc.source.excerpt import PublicationSource
from cdc.source.facts import read_facts
from cdc.source.pins import read_pins
from cdc.source.problems import Refusal, find_problems
from cdc.source.publication import (
    Publication,
    read_publication,
    refuse_partial,
    refuse_unreadable,
)
from cdc.source.slot import SlotFacts, lost_message, read_slot, rebuild_hint, refuse_foreign, refuse_unclaimed
from cdc.source.trigger import looks_after
from cdc.source.watch import INTERVAL_S
from cdc.terminal import counted

MIN_VERSION: Final = 15
MONTH_MIN: Final = 31 * 1440

Level = Literal["ok", "warn", "fail"]

_SETTINGS: Final = """
select current_setting('server_version_num')::int / 10000, current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (select count(*) from pg_replication_slots), current_setting('max_wal_senders')::int,
       (select count(*) from pg_stat_get_wal_senders()), current_setting('server_encoding'), pg_is_in_recovery()
"""
_ROLE: Final = """
select rolname, rolsuper, rolreplication or coalesce(pg_has_role(rds, 'USAGE'), false), rolbypassrls,
       has_database_privilege(current_database(), 'CREATE'), rds is not null
from pg_roles, (select case when to_regrole('rds_superuser') is not null then to_regrole('rds_replication') end) service(rds)
where rolname = current_user
"""
"""On Amazon RDS and Aurora membership in rds_replication is the right to replicate, and the attribute is nobody's to give."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``hint``: the command or the setting that helps; None where nothing has to be done."""

    level: Level
    check: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: int
    wal_level: str
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    encoding: str
    standby: bool


@dataclass(frozen=True, slots=True)
class RoleFacts:
    name: str
    superuser: bool
    replication: bool
    bypass_rls: bool
    may_create: bool
    """CREATE on the database, which making a publication needs."""
    rds: bool = False
    """The server is one of Amazon's."""


class Selected(PublicationSource, Protocol):
    """… and the slot."""

    @property
    def slot(self) -> str: ...


def check_source(
    connection: psycopg.Connection, source: Selected, *, log_has_begun: bool, record: Path | None = None
) -> Generator[Finding, None, list[CatalogTable]]:
    """Every finding about the source, in the order in which problems should be fixed. Returns what ``find_tables`` found.

    record: the folder in which it is recorded that we made the slot; None: not looked up.
    """
    server = ServerFacts(*_row(connection, _SETTINGS))
    role = RoleFacts(*_row(connection, _ROLE))
    slot = read_slot(connection, source.slot)
    yield from check_server(server, slot_exists=slot.exists)
    yield from check_role(role)
    found = find_tables(connection)
    try:
        if log_has_begun:
            for unknown in misnamed(found, source.tables):
                yield Finding("warn", "tables", str(unknown), unknown.hint)
        tables = select_tables(found, source.tables, begun=log_has_begun)
    except HeadwaterError as error:
        yield Finding("fail", "tables", str(error), error.hint)
        tables = []
    publication = read_publication(connection, source.publication)
    problems = _problems(connection, source.publication, tables, computed=publication is not None and publication.computed)
    for table in tables:
        yield from check_table(table, role, problems.get(table.table.oid))
    yield from _refusal("tables", lambda: refuse_twins([table.table for table in tables]))
    yield from check_names(tables, load_published(connection, source.publication) if publication is not None else [])
    yield from check_publication(publication, source.publication, tables, role, problems)
    yield from check_strangers(connection, publication, tables)
    yield check_trigger(looks_after(connection, source.publication), source.publication, may_remove=_may_remove(connection, source))
    if publication is not None and tables:
        yield from _refusal("reading", lambda: refuse_unreadable(connection, source.publication, tables))
    yield from check_slot(slot, log_has_begun=log_has_begun, refuse=lambda: _refuse_slot(connection, slot, log_has_begun, record))
    for pin in read_pins(connection):
        yield Finding("warn", "open transaction", f"{pin} keeps WAL from being freed, and a new slot from being made", pin.hint)
    return found


def _refusal(check: str, refuse: Callable[[], None]) -> Iterator[Finding]:
    try:
        refuse()
    except HeadwaterError as error:
        yield Finding("fail", check, str(error), error.hint)


def check_server(facts: ServerFacts, *, slot_exists: bool) -> Iterator[Finding]:
    if facts.version < MIN_VERSION:
        yield Finding("fail", "version", f"Postgres {facts.version} is too old", f"upgrade to Postgres {MIN_VERSION} or newer")
    else:
        yield Finding("ok", "version", f"Postgres {facts.version}")
    if facts.wal_level == "logical":
        yield Finding("ok", "wal_level", "logical")
    else:
        hint = "ALTER SYSTEM SET wal_level = logical; then restart Postgres"
        yield Finding("fail", "wal_level", f"is {facts.wal_level}, must be logical", hint)
    yield _headroom("max_replication_slots", facts.max_slots, facts.used_slots, needed=0 if slot_exists else 1)
    yield _headroom("max_wal_senders", facts.max_senders, facts.used_senders, needed=0 if slot_exists else 1)
    if facts.standby:
        yield Finding(
            "fail", "primary", "the server is a standby", "point source.dsn at the primary (target_session_attrs=read-write)"
        )
    if facts.encoding == "SQL_ASCII":
        yield Finding(
            "fail", "encoding", "the database is SQL_ASCII: its text has no known encoding", "move the data to a UTF8 database"
        )


def check_role(role: RoleFacts) -> Iterator[Finding]:
    name = sql.Identifier(role.name).as_string()
    if role.superuser:
        why = "row-level security and missing grants do not show, and whoever owns a captured table can have code run as one"
        yield Finding("warn", "role", f"{role.name} is a superuser: {why}", "use a role as in deploy/roles.sql")
    elif role.replication:
        yield Finding("ok", "role", f"{role.name} has REPLICATION")
    else:
        give = f"GRANT rds_replication TO {name}" if role.rds else f"ALTER ROLE {name} REPLICATION"
        yield Finding("fail", "role", f"{role.name} lacks REPLICATION", give)


def check_table(table: CatalogTable, role: RoleFacts, refusal: Refusal | None = None) -> Iterator[Finding]:
    """Nothing is wrong with a table that yields one ``ok``."""
    quoted, grantee = quoted_name(table.table), sql.Identifier(role.name).as_string()
    check = f"table {table.name}"
    fine = True
    if refusal is not None:
        fine = False
        yield Finding("fail", check, refusal.problem, refusal.hint)
    if not table.readable:
        fine = False
        schema = sql.Identifier(table.table.schema).as_string()
        yield Finding(
            "fail",
            check,
            f"{role.name} may not read it",
            f"GRANT USAGE ON SCHEMA {schema} TO {grantee}; GRANT SELECT ON {quoted} TO {grantee}",
        )
    if table.row_security:
        fine = False
        message = f"row-level security hides rows from {role.name}, but not from the stream"
        yield Finding("fail", check, message, f"ALTER ROLE {grantee} BYPASSRLS")
    if table.table.identity == "f" and not table.definition.has_primary_key:
        fine = False
        yield Finding("warn", check, KEYLESS, keyless_hint(table.table))
    if fine:
        yield Finding(
            "ok",
            check,
            f"{counted(len(table.table.columns), 'column')}, about {counted(table.rows_estimate, 'row')}, identity {_identity(table)}",
        )


def check_names(tables: Sequence[CatalogTable], published: Sequence[Table]) -> Iterator[Finding]:
    """Columns that have a name of ours, in the tables as they are published, or would be."""
    as_published = {table.qualified: table for table in published}
    for table in tables:
        problem = reserved_problem(as_published.get(table.name, table.table))
        if problem is not None:
            yield Finding("fail", f"table {table.name}", problem[0], problem[1])


def check_publication(
    publication: Publication | None,
    name: str,
    tables: Sequence[CatalogTable],
    role: RoleFacts,
    problems: Collection[int] = (),
) -> Iterator[Finding]:
    """``problems``: tables (OIDs) that cannot be captured, and so do not belong in it."""
    tables = [table for table in tables if table.table.oid not in problems]
    quoted = sql.Identifier(name).as_string()
    missing = [table for table in tables if publication is None or table.name not in publication.tables]
    foreign = sorted({table.owner for table in missing} - {role.name}) if not role.superuser else []
    able = not foreign and (publication is not None or role.may_create or role.superuser)
    listed = ", ".join(f"ONLY {quoted_name(table.table)}" for table in missing)
    if publication is None:
        statement = f"CREATE PUBLICATION {quoted} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
        if not tables:
            yield Finding("warn", "publication", f"{name} does not exist yet")
        elif able:
            yield Finding("warn", "publication", f"{name} does not exist yet; the first run makes it", "cdc doctor --fix")
        else:
            yield Finding(
                "fail", "publication", f"{name} does not exist, and {role.name} may not make it", f"let the owner run: {statement}"
            )
        return
    try:
        refuse_partial(publication)
    except HeadwaterError as error:
        yield Finding("fail", "publication", str(error), error.hint)
    if "truncate" not in publication.publishes:
        hint = f"ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate')"
        yield Finding("warn", "publication", f"{name} does not publish truncate: stores would keep truncated rows", hint)
    if missing and able:
        yield Finding("warn", "publication", f"{name} lacks {_names(missing)}; the next start adds them", "cdc doctor --fix")
    elif missing:
        hint = f"let the owner run: ALTER PUBLICATION {quoted} ADD TABLE {listed}"
        yield Finding("fail", "publication", f"{name} lacks {_names(missing)}, and {role.name} may not add them", hint)
    filtered = sorted(publication.filtered & {table.name for table in tables})
    if filtered:
        yield Finding("warn", "publication", f"{name} has row filters on {', '.join(filtered)}: stores hold the filtered rows only")
    if not publication.via_root and any(table.kind == "p" for table in tables):
        hint = f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true)"
        yield Finding("fail", "publication", f"{name} publishes partitions under their own names", hint)
    if not missing:
        yield Finding("ok", "publication", f"{name} covers {counted(len(tables), 'table')}")


def check_strangers(
    connection: psycopg.Connection, publication: Publication | None, tables: Sequence[CatalogTable]
) -> Iterator[Finding]:
    """Published tables that nobody selected, and whose updates and deletes Postgres refuses because of it."""
    if publication is None:
        return
    selected = {table.table.oid for table in tables}
    others = [facts for facts in read_facts(connection, publication.name, published=True) if facts.oid not in selected]
    for refusal in find_problems(connection, others, computed=publication.computed).values():
        yield Finding(
            "warn",
            "publication",
            f"{publication.name} publishes {refusal.table}, which is not selected and {refusal.problem}: its updates may fail",
            f"ALTER PUBLICATION {sql.Identifier(publication.name).as_string()} DROP TABLE ONLY {refusal.table}; or {refusal.hint}",
        )


def check_trigger(looked_after: bool | None, publication: str, *, may_remove: bool) -> Finding:
    """Whether updates of a table can fail at the source once it loses what identifies its rows. ``looked_after``: see ``trigger.looks_after``."""
    install = f"let a superuser run deploy/roles.sql with -v publication={publication}"
    if looked_after:
        return Finding("ok", "event trigger", f"a table that loses its replica identity leaves {publication} at once")
    if looked_after is None:
        why = "there is no event trigger that this role knows of"
    else:
        why = f"the event trigger does not look after publication {publication}"
    loses = "a table that loses its replica identity refuses updates and deletes"
    if may_remove:
        return Finding(
            "warn", "event trigger", f"{why}: {loses} for up to {INTERVAL_S:.0f} s, and for as long as capture is down", install
        )
    return Finding("warn", "event trigger", f"{why}: {loses} until its owner takes it out of {publication}", install)


def _problems(
    connection: psycopg.Connection, publication: str, tables: Sequence[CatalogTable], *, computed: bool
) -> dict[int, Refusal]:
    facts = read_facts(connection, publication, [table.table.oid for table in tables])
    return find_problems(connection, facts, computed=computed)


def _may_remove(connection: psycopg.Connection, source: Selected) -> bool:
    row = connection.execute(
        "select pg_has_role(pubowner, 'USAGE') from pg_publication where pubname = %s", (source.publication,)
    ).fetchone()
    return row is None or bool(row[0])


def check_slot(slot: SlotFacts, *, log_has_begun: bool, refuse: Callable[[], None]) -> Iterator[Finding]:
    if not slot.exists:
        if log_has_begun:
            yield Finding(
                "fail",
                "slot",
                f"{slot.name} is gone although the log has begun (SLOT_MISSING)",
                rebuild_hint(StopState.SLOT_MISSING),
            )
        else:
            yield Finding("warn", "slot", f"{slot.name} does not exist yet; the first run makes it", "cdc doctor --fix")
    else:
        try:
            refuse()
        except HeadwaterError as error:
            yield Finding("fail", "slot", str(error), error.hint)
            return
        if slot.lost:
            yield Finding("fail", "slot", f"{lost_message(slot)} (SLOT_LOST)", rebuild_hint(StopState.SLOT_LOST))
        elif slot.wal_status == "unreserved":
            yield Finding(
                "warn", "slot", f"{slot.name} is about to be lost: WAL that it needs may go any time", "start cdc run now"
            )
        else:
            reader = f"read by pid {slot.reader.pid}" if slot.reader else "not read at present"
            yield Finding("ok", "slot", f"{slot.name} is {slot.wal_status}, {reader}")
    yield _keep_size(slot)
    if slot.idle_timeout_s is not None:
        message = f"idle_replication_slot_timeout is {slot.idle_timeout_s / 60:.0f} min: a longer pause of capture loses the slot"
        yield Finding(
            "warn", "idle timeout", message, "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()"
        )


def _refuse_slot(connection: psycopg.Connection, slot: SlotFacts, log_has_begun: bool, record: Path | None) -> None:
    refuse_foreign(connection, slot)
    if not log_has_begun and slot.exists and record is not None:
        refuse_unclaimed(slot, record)


def check_budget(slot: SlotFacts, wal_bytes_per_s: float | None) -> Finding | None:
    """How long nobody may read the slot before Postgres gives it up; None where there is no limit or no slot."""
    if not slot.exists or slot.wal.safe_bytes is None:
        return None
    left = f"{max(0, slot.wal.safe_bytes) / 1e6:.0f} MB"
    if not wal_bytes_per_s:
        eta = "no WAL is being written now"
    else:
        minutes = max(0, slot.wal.safe_bytes) / wal_bytes_per_s / 60
        lasts = "more than a month" if minutes > MONTH_MIN else f"{minutes:.0f} min"
        eta = f"{lasts} at the present {wal_bytes_per_s / 1e6:.1f} MB/s"
    level: Level = "warn" if slot.wal.short else "ok"
    hint = "let capture catch up (cdc status), or raise max_slot_wal_keep_size" if level == "warn" else None
    return Finding(level, "wal budget", f"{left} left: {eta}", hint)


def _keep_size(slot: SlotFacts) -> Finding:
    if slot.wal.limit_bytes is None:
        message = "max_slot_wal_keep_size is not set: while capture is down, WAL grows until the server's disk is full"
        hint = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB' (what the disk bears); SELECT pg_reload_conf()"
        return Finding("warn", "wal limit", message, hint)
    return Finding("ok", "wal limit", f"max_slot_wal_keep_size is {slot.wal.limit_bytes / 1e6:.0f} MB")


def _headroom(setting: str, limit: int, used: int, *, needed: int) -> Finding:
    if limit - used < needed:
        return Finding(
            "fail", setting, f"all {limit} are in use", f"ALTER SYSTEM SET {setting} = {limit + 4}; then restart Postgres"
        )
    return Finding("ok", setting, f"{used} of {limit} in use")


def _names(tables: Sequence[CatalogTable]) -> str:
    shown = ", ".join(table.name for table in tables[:5])
    return f"{shown} and {len(tables) - 5} more" if len(tables) > 5 else shown


def _identity(table: CatalogTable) -> str:
    if table.table.identity == "f" and not table.definition.has_primary_key:
        return "full row"
    return f"({', '.join(column.name for column in table.table.key)})"


def _row(connection: psycopg.Connection, query: LiteralString) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row
