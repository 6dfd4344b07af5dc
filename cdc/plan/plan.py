"""`cdc plan`: what a change of the source's definitions, or of the configuration, will do to every store, before it does.

The changes are found as capture finds them (``cdc.capture.definitions``) and judged as followers judge them (``cdc.follow.rules``): from the
catalog as it is now against what the log knows, or from DDL that is run in a transaction and rolled back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from cdc.capture.definitions import CapturedPart, Definitions
from cdc.errors import ConfigError, HeadwaterError, SourceError, StopState
from cdc.follow.rules import Rules
from cdc.log.contract import LogReader, captured
from cdc.log.home import open_reader
from cdc.log.orphans import ENDING, ended_topics
from cdc.model.evolution import Kind, SchemaChange, TopicChange
from cdc.model.facts import Facts, Publishing
from cdc.model.selection import matches, named
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.plan import histories, views
from cdc.privacy.policies import protection_of
from cdc.settings.models import Settings, StoreOptions
from cdc.source.capturable import identity_problem, keyless_line
from cdc.source.catalog import CatalogTable, find_tables
from cdc.source.connection import connect, reason
from cdc.source.facts import load_facts, read_facts
from cdc.source.rehearsal import rehearse
from cdc.state.approvals import approved
from cdc.terminal import counted
from sinks import make_sink, traits_of
from sinks.contract import Sink
from sinks.heldlog import HeldLog
from sinks.holding import bound, check
from sinks.policy import Action, described

JOINS: Final = "takes it in"
STOPS: Final = f"stops ({StopState.STORE_REFUSES})"
LOCK_TIMEOUT_MS: Final = 2000
_VERBS: Final = re.compile(r"\s*(alter|create|drop|comment|truncate)\s+(\w+)", re.IGNORECASE)
_REFUSED_OBJECTS: Final = frozenset(("system", "database", "role", "user", "group", "tablespace", "subscription", "server"))
_PASSWORD: Final = "plan"
_UNSEEN: Final = "what its rows, or objects that depend on it, would refuse does not show"
_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one change on one store, or on one view."""

    store: str
    """Its name; of a view, ``view NAME``."""
    action: str
    """One of ``sinks.policy.Action``, ``JOINS`` or ``STOPS``; of a view, or of a store that holds one, one of those of ``cdc.plan.views``."""
    why: str

    @property
    def stops(self) -> bool:
        return self.action in (Action.PAUSE, Action.BROKEN, STOPS, views.STOPS)

    @property
    def explained(self) -> bool:
        """``why`` says more than the change itself does."""
        return self.stops or self.action == views.REMADE


@dataclass(frozen=True, slots=True)
class PlannedChange:
    table: str
    kind: Kind
    what: str
    reread_rows: int | None
    """Rows (estimated) that are read from the source again; None: none are."""
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """The meaning of the configuration for a store as it stands. ``stops``: its follower would stop, or the store would lack rows."""

    store: str
    what: str
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    changes: tuple[PlannedChange, ...]
    remarks: tuple[Remark, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing would pause or break."""
        return not any(effect.stops for change in self.changes for effect in change.effects) and not any(
            remark.stops for remark in self.remarks
        )


@dataclass(frozen=True, slots=True)
class _KnownTables:
    """The log's side: each topic's newest definition, the topics whose table is gone, and the catalog's facts as capture has kept them."""

    tables: Mapping[str, Table]
    ended: frozenset[str]
    facts: Mapping[int, Facts]


def plan_catalog(settings: Settings) -> Plan:
    """Plans for what the log does not know yet of the source's catalog, and for what the configuration means to each store as it stands.

    Raises SourceError when the source cannot be asked.
    """
    with closing(open_reader(settings.log.dir)) as reader, connect(settings.source.dsn.get_secret_value()) as connection:
        known = _known(settings, reader)
        now = _facts(connection, settings, known)
        now |= _joining(connection, settings, now)
        revealed = tuple(_revealed(settings, reader, now.values()))
        left_out = _left_out(settings, connection, now.keys())
        of_views = [Remark(f"view {name}", what) for name, what in views.redefined(settings, reader)]
        of_views += [Remark(store, what) for store, what in views.remade(settings, reader)]
        aged = [Remark(store, what) for store, what in histories.aged(settings, reader)]
        remarks = (
            *revealed,
            *_keyless(settings, now.values()),
            *left_out,
            *_remarks(settings, reader, connection),
            *aged,
            *of_views,
        )
        if any(remark.stops for remark in revealed):
            return Plan((), remarks)
        gone = sorted(known.facts.keys() - now.keys())
        changes = _planned(connection, settings, reader, known, known.facts, list(now.values()), gone)
        return Plan(changes, remarks)


def plan_ddl(settings: Settings, ddl: str, *, timeout_ms: int) -> Plan:
    """Plans what one DDL statement would do. The statement is run and rolled back; it waits no longer than ``LOCK_TIMEOUT_MS`` for a lock, and holds its
    locks for ``timeout_ms`` at most.

    Raises ConfigError when it is anything but one DDL statement that can be rolled back, SourceError when the server refuses it.
    """
    _refuse_other_statements(ddl)
    with closing(open_reader(settings.log.dir)) as reader, connect(settings.source.dsn.get_secret_value()) as connection:
        known = _known(settings, reader)
        before = _facts(connection, settings, known)
        before |= _joining(connection, settings, before)
        connection.execute("begin read write")
        try:
            connection.execute("select set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_MS}ms",))
            connection.execute("select set_config('statement_timeout', %s, true)", (f"{timeout_ms}ms",))
            connection.execute("set local search_path to default")
            connection.execute("savepoint tried")
            try:
                connection.execute(ddl.encode(), prepare=True)  # a prepared statement is one statement
            except psycopg.errors.InsufficientPrivilege as error:
                connection.execute("rollback to tried")
                return _rehearsed(connection, settings, reader, known, before, ddl, error)
            except psycopg.Error as error:
                raise _refused(error) from None
            connection.execute("set local search_path to ''")
            after = _facts(connection, settings, known, sorted(before))
            after |= _joining(connection, settings, after)
            gone = sorted(before.keys() - after.keys())
            changed = [facts for oid, facts in after.items() if facts != before.get(oid)]
            return Plan(_planned(connection, settings, reader, known, before, changed, gone))
        finally:
            if not connection.broken:
                connection.execute("rollback")


def _rehearsed(
    connection: psycopg.Connection,
    settings: Settings,
    reader: LogReader,
    known: _KnownTables,
    before: Mapping[int, Facts],
    ddl: str,
    denied: psycopg.Error,
) -> Plan:
    """As the statement would do for the table's owner, tried on a copy."""
    try:
        tried = rehearse(connection, ddl, before, settings.source.publication)
    except psycopg.errors.InsufficientPrivilege:
        tried = None  # such as without TEMP on the database
    except psycopg.Error as error:
        raise _refused(error) from None
    if tried is None:
        raise _refused(denied) from None
    connection.execute("set local search_path to ''")
    changed = [tried.changed] if tried.changed is not None and tried.changed != before[tried.changed.oid] else []
    changes = _planned(connection, settings, reader, known, before, changed, sorted(tried.gone))
    return Plan(changes, (Remark("plan", f"tried on an empty copy, as {connection.info.user} does not own the table: {_UNSEEN}"),))


def _refused(error: psycopg.Error) -> SourceError:
    return SourceError(f"the server refuses the DDL: {reason(error)}", hint=_ddl_hint(error))


def _refuse_other_statements(ddl: str) -> None:
    plain = _COMMENTS.sub(" ", ddl)
    found = _VERBS.match(plain)
    if found is None:
        raise ConfigError(
            "--ddl takes one ALTER, CREATE, DROP, COMMENT or TRUNCATE statement", hint='cdc plan --ddl "ALTER TABLE …"'
        )
    if found[2].lower() in _REFUSED_OBJECTS or re.search(r"\bconcurrently\b", plain, re.IGNORECASE):
        raise ConfigError(f"{found[1].upper()} {found[2].upper()} cannot be tried and rolled back", hint="leave it out of the plan")
    if re.match(
        r"\s*create\s+(table|materialized|unlogged|temp\w*)\b.*\bas\b.*\b(select|values|table|execute)\b", plain, re.I | re.S
    ):
        raise ConfigError("CREATE … AS runs a query, which may do more than define something", hint="leave the query out")


def _ddl_hint(error: psycopg.Error) -> str | None:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return "point source.dsn of a copy of cdc.toml at a role that owns the table: cdc --config copy.toml plan --ddl …"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "somebody uses the table: try again, or on a copy of the database"
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "it reads or rewrites the table: raise --timeout, or try it on a copy of the database"
    return None


# --- what there is ---------------------------------------------------------------------------------------------------


def _known(settings: Settings, reader: LogReader) -> _KnownTables:
    tables = {topic.name: topic.table for topic in captured(reader)}
    return _KnownTables(tables, frozenset(ended_topics(reader)), load_facts(settings.log.dir))


def _facts(connection: psycopg.Connection, settings: Settings, known: _KnownTables, oids: Sequence[int] = ()) -> dict[int, Facts]:
    wanted = {*oids, *known.facts, *(table.oid for name, table in known.tables.items() if name not in known.ended)}
    return {facts.oid: facts for facts in read_facts(connection, settings.source.publication, sorted(wanted), published=True)}


def _joining(connection: psycopg.Connection, settings: Settings, known: Mapping[int, Facts]) -> dict[int, Facts]:
    """Tables that the configuration selects, and capture will therefore add to the publication."""
    unknown = [
        table.table.oid
        for table in find_tables(connection)
        if table.root_oid is None
        and table.table.oid not in known
        and _selected(settings, table)
        and not identity_problem(table.definition)
    ]
    found = read_facts(connection, settings.source.publication, unknown)
    return {facts.oid: replace(facts, publishing=Publishing(True)) for facts in found}


def _selected(settings: Settings, table: CatalogTable) -> bool:
    return table.capturable and matches(settings.source.tables, table.table)


def _left_out(settings: Settings, connection: psycopg.Connection, captured: Collection[int]) -> Iterator[Remark]:
    """Remarks on tables that the configuration selects, and capture will leave out as they are. ``captured``: OIDs."""
    for table in find_tables(connection):
        if _selected(settings, table) and table.table.oid not in captured and (problem := identity_problem(table.definition)):
            yield Remark("capture", f"{table.name} is left out: it {problem[0]} → {problem[1]}")


# --- changes ---------------------------------------------------------------------------------------------------------


def _planned(
    connection: psycopg.Connection,
    settings: Settings,
    reader: LogReader,
    known: _KnownTables,
    before: Mapping[int, Facts],
    after: Sequence[Facts],
    gone: Sequence[int],
) -> tuple[PlannedChange, ...]:
    """The changes that capture will make of ``after`` (and of the tables ``gone``), each with its effects."""
    definitions = Definitions(
        {facts.oid: facts for facts in after}.get,
        known=[table for name, table in known.tables.items()],
        ended=known.ended,
        facts=before,
        passwords=[_PASSWORD],
        selection=CapturedPart(logged=protection_of(settings, reader).logged),
    )
    told = {"password": _PASSWORD, "dropped": list(gone), "tables": [facts.to_json() for facts in after]}
    changes, _ = definitions.on_message(json.dumps(told, ensure_ascii=False).encode())
    again = set(definitions.take_again())
    rows = {source.table.oid: source.rows_estimate for source in find_tables(connection)} if again else {}
    logged = protection_of(settings, reader).logged
    found = []
    held = dict(known.tables)
    reading = views.ReadingViews(settings, reader)
    for change in _logged(changes, logged):
        topic = change.table.qualified
        effects = (*_effects(settings, held, known.ended, change), *_on_views(reading, held, known.ended, change))
        if not (change.kind is Kind.ALTERED and all(effect.action == Action.NOTHING for effect in effects) and effects):
            reread = rows.get(change.table.oid, 0) if change.table.oid in again and change.kind in _READ_AGAIN else None
            what = described(_schema(held.get(topic)), TopicChange.of(change))
            found.append(PlannedChange(topic, change.kind, what, reread, effects))
        held[topic] = change.table
    told_of = {change.table.oid for change in changes}
    for facts in after:
        if facts.oid in again - told_of:
            table = logged(facts.table())
            effects = tuple(_joins(settings, {name: one for name, one in held.items() if name not in known.ended}, table))
            what = f"{table.qualified}: is new, and is read"
            found.append(PlannedChange(table.qualified, Kind.CREATED, what, rows.get(facts.oid, 0), effects))
    return tuple(found)


_READ_AGAIN: Final = (Kind.CREATED, Kind.REWRITTEN, Kind.ALTERED, Kind.RENAMED)


def _logged(changes: Sequence[SchemaChange], logged: Any) -> Iterator[SchemaChange]:
    for change in changes:
        yield SchemaChange(logged(change.table), change.kind, change.empties, change.now)


def _effects(settings: Settings, held: Mapping[str, Table], ended: Collection[str], change: SchemaChange) -> Iterator[Effect]:
    """held: the log's tables before the change, by topic; of those that have ended there is nothing any more."""
    topic = change.table.qualified
    there = {name: table for name, table in held.items() if name not in ended}
    for store, options in settings.stores.items():
        if not matches(options.tables, change.table):
            continue
        rules = Rules(store, options, settings.contracts, approved(settings.run_dir, store))
        before, after = held.get(topic), TopicChange.of(change)
        try:
            holding = bound(store, options, TopicSchema.of(change.table if before is None else before))
            now = None if before is None else holding.held(TopicSchema.of(before))
            if change.kind not in ENDING:
                holding.refuse_unmet(after.schema)
            verdict = rules.verdict(now, replace(after, schema=holding.held(after.schema)), 2**63 - 1)
        except ConfigError as error:
            yield Effect(store, STOPS, error.line())
            continue
        action = verdict.action
        if action is Action.REWRITE and traits_of(options).evolves:
            action = Action.EVOLVE
        follows = action in (Action.NOTHING, Action.EVOLVE, Action.REWRITE, Action.EMPTY) and change.kind not in ENDING
        problem = _foreseen(store, options, there, change.table) if follows else None
        yield Effect(store, action, verdict.why) if problem is None else Effect(store, STOPS, f"{verdict.why}; {problem}")


def _on_views(
    reading: views.ReadingViews, held: Mapping[str, Table], ended: Collection[str], change: SchemaChange
) -> Iterator[Effect]:
    for view in reading.reading(change.table.qualified):
        if (effect := reading.effect(view, held, ended, change)) is not None:
            yield Effect(f"view {view.name}", *effect)
    for store, what in reading.remade(held, ended, change):
        yield Effect(store, views.REMADE, what)


def _schema(table: Table | None) -> TopicSchema | None:
    return None if table is None else TopicSchema.of(table)


def _joins(settings: Settings, there: Mapping[str, Table], table: Table) -> Iterator[Effect]:
    for store, options in settings.stores.items():
        if matches(options.tables, table):
            problem = _foreseen(store, options, there, table)
            why = f"{table.qualified}: is new"
            yield Effect(store, JOINS, why) if problem is None else Effect(store, STOPS, f"{why}; {problem}")


def _foreseen(store: str, options: StoreOptions, there: Mapping[str, Table], table: Table) -> str | None:
    """Why the store could no longer hold its tables once this one is so; None when it can, as far as can be seen without it."""
    problem = _problem(store, options, there, {**there, table.qualified: table}.values())
    before = _problem(store, options, there, there.values())
    if problem is None or (before is not None and str(before) == str(problem)):
        return None
    return problem.line()


def _problem(store: str, options: StoreOptions, before: Mapping[str, Table], tables: Iterable[Table]) -> HeadwaterError | None:
    """``before``: the definitions by which the configuration names columns."""
    sink = make_sink(store, options)
    try:
        selected = {table: TopicSchema.of(before.get(table.qualified, table)) for table in tables if matches(options.tables, table)}
        for table, named_by in selected.items():
            if table.qualified not in before:
                check(store, options, named_by)
        sink.foresee([bound(store, options, named_by).held(TopicSchema.of(table)) for table, named_by in selected.items()])
    except HeadwaterError as error:
        return error
    finally:
        sink.close()
    return None


def _revealed(settings: Settings, reader: LogReader, tables: Iterable[Facts]) -> Iterator[Remark]:
    """Remarks on columns that were kept back from the log until now, and no longer would be; and on those that nobody has decided on."""
    protection = protection_of(settings, reader)
    for facts in tables:
        table = facts.table()
        for column, said in protection.revealed(table).items():
            if said:
                what = "is logged as it is from now on, and the table is read again, as the configuration says keep"
            else:
                what = f"is named by no policy any more: capture stops ({StopState.PRIVACY_UNDECIDED}) until its policy is back, or says keep"
            yield Remark("capture", f"{table.qualified}.{column}, kept back until now, {what}", stops=not said)
        for line in protection.undecided.lines(table):
            yield Remark("capture", line)


def _keyless(settings: Settings, tables: Iterable[Facts]) -> Iterator[Remark]:
    for facts in tables:
        if facts.keyless and matches(settings.source.tables, facts.table()):
            yield Remark("capture", keyless_line(facts))


# --- the configuration -----------------------------------------------------------------------------------------------


def _remarks(settings: Settings, reader: LogReader, connection: psycopg.Connection) -> Iterator[Remark]:
    for store, options in settings.stores.items():
        if traits_of(options).exclusive:
            yield Remark(store, f"not looked into: it belongs to its follower alone{_shaped(options, reader)}")
            continue
        sink = make_sink(store, options)
        try:
            yield from _of_store(store, options, sink, reader)
            yield from _written_again(store, sink, reader, connection)
        except ConfigError as error:
            yield Remark(store, error.line(), stops=True)
        except HeadwaterError as error:
            yield Remark(store, f"not looked into: {error}")
        finally:
            sink.close()


def _shaped(options: StoreOptions, reader: LogReader) -> str:
    """The options of such a store that make its rows what they are, which cannot be compared with those that it was written under."""
    schemas = [topic.schema for topic in reader.topics() if matches(options.tables, topic.table)]
    found = {f"{schema.topic} ({', '.join(said)})" for schema in schemas if (said := options.shaping_of(schema))}
    return (
        f"; where these options are new, its rows are of another shape, and it stops (STORE_REFUSES): {', '.join(sorted(found))}"
        if found
        else ""
    )


def _of_store(store: str, options: StoreOptions, sink: Sink, reader: LogReader) -> Iterator[Remark]:
    held = HeldLog(reader, store, options)
    sink.open(held)
    held.settle(sink)
    topics = {topic.name: topic for topic in reader.topics()}
    known = any(sink.shape(name) is not None for name in topics)
    for name in named(options.tables):
        if name not in topics:
            yield Remark(store, f"{name} has no changes in the log yet")
    for name, topic in topics.items():
        shape, wanted = sink.shape(name), matches(options.tables, topic.table)
        if wanted and shape is None and known:
            yield Remark(store, f"{name} was added: all of its rows come from the log; the store's other tables go on")
        elif not wanted and shape is not None:
            yield Remark(store, f"{name} was taken out: its rows stay as they are, and are no longer followed")


def _written_again(store: str, sink: Sink, reader: LogReader, connection: psycopg.Connection) -> Iterator[Remark]:
    """Remarks on a store whose rows are not as the configuration now says."""
    what = sink.projected()
    if what is None:
        return
    held = {topic.table.oid for topic in captured(reader) if sink.shape(topic.name) is not None}
    rows = sum(max(found.rows_estimate, 0) for found in find_tables(connection) if found.table.oid in held)
    yield Remark(store, f"{what}: about {counted(rows, 'row')}")
