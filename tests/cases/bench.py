"""The runner: one database and one capture for all cases of a rig; what came out, case by case."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql

from cdc.embedded.postgres import Postgres
from cdc.model.batch import LSN, POSITION, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Cut, Lsn, Position, parse_lsn
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.contract import DeadLetter, Sink, audit_schema
from sinks.memory import STORES, MemorySink, Options
from tests.cases.case import EXTENSIONS, Case, Record, Rig
from tests.cases.sessions import Sessions
from tests.integration.capture.running import Capture, changes_of
from tests.logs import EMPTY

Row = tuple[str | None, ...]
Content = Mapping[str, Sequence[Row]]
"""Table → its rows as canonical text, sorted."""

SNAPSHOT_S: Final = 240.0
SETTLE_S: Final = 120.0
"""How long the log may take to come to what the source has."""
WRONG_S: Final = 5.0
"""The same for a case of which it is known that it does not."""
DROP_S: Final = 60.0
"""Hundreds of tables, on a machine that may be busy."""

_PUBLISHED: Final = """
select p.schemaname, p.tablename, p.rowfilter, c.relkind = 'p',
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attname = any (p.attnames)
               and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000) order by a.attnum)
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = %s
"""

_UNPUBLISHED: Final = """
select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
  and not exists (select from pg_publication_tables p where p.pubname = 'cdc' and p.schemaname = n.nspname and p.tablename = c.relname)
"""
"""A table that took the name of a captured one joins the publication at capture's next look."""


@dataclass(slots=True)
class Result:
    """What became of one case."""

    error: BaseException | None = None
    """Of its SQL."""
    records: list[Record] = field(default_factory=list)
    """What the steps led to, in the log's order."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    """All of the case's batches, the snapshot's included, by first position."""
    source: Content = field(default_factory=dict)
    """What the publication shows of the case's tables at the end."""
    store: Content = field(default_factory=dict)
    """What a store has made of the log."""
    again: Content = field(default_factory=dict)
    """The same from a second capture, whose log holds nothing but the snapshot at the end."""


@dataclass(slots=True)
class Bench:
    """One run of a rig on one version."""

    results: Mapping[str, Result]
    skipped: Mapping[str, str]
    error: BaseException | None = None
    """Of capture itself; every case of the rig fails with it."""


def run(rig: Rig, cases: Sequence[Case], server: Postgres, folder: Path) -> Bench:
    name = f"{rig.name}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f'create database "{name}" {rig.database}'.encode())
    results = {case.id: Result() for case in cases}
    bench = Bench(results, {})
    dsn = server.dsn(name)
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as owner:
        bench.skipped = _extensions(owner, cases)
        if rig.publication:
            owner.execute(rig.publication.encode())
        alive = [case for case in cases if case.id not in bench.skipped and _set_up(owner, dsn, case, results[case.id])]
        try:
            _observe(alive, owner, dsn, folder, results)
        except Exception as error:
            bench.error = error
    drop(server, name)
    return bench


def _observe(cases: Sequence[Case], owner: psycopg.Connection, dsn: str, folder: Path, results: Mapping[str, Result]) -> None:
    capture = Capture(dsn, folder / "first", tables=("*",))
    with capture.running():
        capture.until_snapshot_done(deadline_s=SNAPSHOT_S)
        begun = capture.reader.head().position
        for case in cases:
            with Sessions(dsn, case) as sessions:
                try:
                    sessions.run(case.steps)
                except Exception as error:
                    results[case.id].error = error
        capture.until_lsn(now(owner))
        _settle(cases, owner, capture, results)
        for case in cases:
            found = results[case.id]
            found.records = [one for one in records(case, found.batches) if one.position > begun]
    again = Capture(dsn, folder / "again", tables=("*",), slot="again")
    with again.running():
        again.until_snapshot_done(deadline_s=SNAPSHOT_S)
    topics = again.topics()
    for case in cases:
        results[case.id].again = stored(case, batches(case, again, topics))
    again.reader.close()


def _settle(cases: Sequence[Case], owner: psycopg.Connection, capture: Capture, results: Mapping[str, Result]) -> None:
    """Rows that are read back, or read again after a schema change, come when they come."""
    began = time.monotonic()
    left = list(cases)
    while True:
        awaited = [row[0] for row in owner.execute(_UNPUBLISHED).fetchall()]
        covered = published(owner)  # asked later, so that a table which is published in between is awaited or covered
        unequal = []
        topics = capture.topics()
        for case in left:
            found = results[case.id]
            found.batches = batches(case, capture, topics)
            found.source = content(owner, case, covered)
            found.store = stored(case, found.batches)
            joining = {case.table_of(name) for name in awaited} & found.store.keys()
            if (joining or not agree(found.source, found.store)) and found.error is None:
                unequal.append(case)
        waited_s = time.monotonic() - began
        if waited_s > (SETTLE_S if any(not case.wrong for case in unequal) else WRONG_S) or not unequal:
            return
        if capture.error is not None:
            raise capture.error
        left = unequal
        time.sleep(0.2)


def agree(source: Content, store: Content) -> bool:
    """Every table of the source is in the store, row for row, and nothing else is."""
    return {table: rows for table, rows in store.items() if rows or table in source} == {
        table: rows for table, rows in source.items() if rows or table in store
    }


# --- the source ------------------------------------------------------------------------------------------------------------


def _extensions(owner: psycopg.Connection, cases: Sequence[Case]) -> dict[str, str]:
    """Installs what the cases need; case → why it is skipped."""
    owner.execute(f"create schema {EXTENSIONS}")
    missing: dict[str, str] = {}
    tried: dict[str, bool] = {}
    for case in cases:
        if not case.needs:
            continue
        if case.needs not in tried:
            statement = (
                "select '<a/>'::xml" if case.needs == "xml" else f"create extension {case.needs} with schema {EXTENSIONS} cascade"
            )
            try:
                owner.execute(statement.encode())
            except psycopg.errors.FeatureNotSupported:
                tried[case.needs] = False
            except psycopg.errors.UndefinedFile:
                tried[case.needs] = False
            else:
                tried[case.needs] = True
        if not tried[case.needs]:
            missing[case.id] = f"this server was built without {case.needs}"
    return missing


def _set_up(owner: psycopg.Connection, dsn: str, case: Case, found: Result) -> bool:
    owner.execute(f"create schema {case.schema}".encode())
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        connection.execute(f"set search_path = {case.schema}, {EXTENSIONS}")
        try:
            connection.execute(case.sql(case.setup).encode())
        except psycopg.Error as error:
            found.error = error
            owner.execute(f"drop schema {case.schema} cascade".encode())
            return False
    return True


def now(owner: psycopg.Connection) -> int:
    """The LSN of a message that follows everything committed so far."""
    row = owner.execute("select pg_logical_emit_message(true, 'cases', '')::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


Published = tuple[str, str, str | None, bool, list[str]]
"""Schema, name, row filter, whether it is partitioned, columns."""


def published(owner: psycopg.Connection, publication: str = "cdc") -> list[Published]:
    """What the publication covers now."""
    return [(row[0], row[1], row[2], row[3], row[4]) for row in owner.execute(_PUBLISHED, (publication,)).fetchall()]


def content(owner: psycopg.Connection, case: Case, covered: Sequence[Published]) -> Content:
    """What COPY gives of each published table, columns and rows as the publication has them."""
    found: dict[str, list[Row]] = {}
    with owner.transaction():
        for name, value in PINNED_SETTINGS.items():
            owner.execute("select set_config(%s, %s, true)", (name, value))
        for schema, name, condition, partitioned, columns in covered:
            table = case.table_of(f"{schema}.{name}")
            if table is None:
                continue
            query = sql.SQL("copy (select {} from {} {} where {}) to stdout").format(
                sql.SQL(", ").join(map(sql.Identifier, columns)),
                sql.SQL("" if partitioned else "only"),
                sql.Identifier(schema, name),
                sql.SQL(condition or "true"),  # type: ignore[arg-type]
            )
            with owner.cursor() as cursor, cursor.copy(query) as copy:
                copy.set_types(["text"] * len(columns))
                found[table] = sorted(copy.rows(), key=repr)
    return found


def drop(server: Postgres, name: str) -> None:
    slots = "select slot_name, active_pid from pg_replication_slots where database = %s"
    deadline = time.monotonic() + DROP_S
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        # The server lets go of a slot a little after its capture has gone.
        while found := admin.execute(slots, (name,)).fetchall():
            assert time.monotonic() < deadline, f"slots of {name} are still read"
            for slot, active in found:
                if active is None:
                    admin.execute("select pg_drop_replication_slot(%s)", (slot,))
                else:
                    admin.execute("select pg_terminate_backend(%s)", (active,))
            time.sleep(0.01)
        admin.execute(f'drop database if exists "{name}" with (force)'.encode())


# --- the log and a store ----------------------------------------------------------------------------------------------------


def batches(case: Case, capture: Capture, topics: Sequence[str]) -> list[pa.RecordBatch]:
    """``topics``: all of the log's, of which those of the case are read."""
    found = [batch for topic in topics if case.table_of(topic) is not None for batch in capture.batches(topic)]
    return sorted(found, key=lambda batch: batch.column(POSITION)[0].as_py())


def records(case: Case, found: Sequence[pa.RecordBatch]) -> list[Record]:
    """Every change of the case, in the log's order."""
    return sorted((one for batch in found for one in _records(case, batch)), key=lambda one: one.position)


def _records(case: Case, batch: pa.RecordBatch) -> Iterator[Record]:
    table = case.table_of(table_of(batch.schema).qualified)
    assert table is not None
    change = schema_change_of(batch)
    lsns = batch.column(LSN).to_pylist()
    for (position, op, values), lsn in zip(changes_of(batch), lsns, strict=True):
        yield Record(position, op, table, tuple(values.values()), str(change.kind) if change else "", lsn)


def stored(case: Case, found: Sequence[pa.RecordBatch]) -> Content:
    """What the in-memory store makes of these changes."""
    sink = MemorySink(f"cases-{uuid.uuid4().hex}", Options(kind="memory"))
    try:
        sink.open(EMPTY, 1)
        return applied(sink, case, found)
    finally:
        sink.close()
        STORES.pop(sink.name, None)


def applied(sink: Sink, case: Case, found: Sequence[pa.RecordBatch]) -> Content:
    """Writes the batches to an opened store as a follower would, and reads the store back. Nothing may be set aside."""
    dead, content = kept(sink, case, found)
    assert not dead, dead[0].reason
    return content


def kept(sink: Sink, case: Case, found: Sequence[pa.RecordBatch]) -> tuple[list[DeadLetter], Content]:
    """As ``applied``, with what the store cannot hold."""
    tables: dict[str, Table] = {}
    prepared: set[Table] = set()
    dead: list[DeadLetter] = []
    for batch in found:
        table = table_of(batch.schema)
        if schema_change_of(batch) is not None:
            prepared.discard(table)
        elif table not in prepared:
            prepared.add(table)
            sink.prepare(TopicSchema.of(table))
        tables[table.qualified] = table
        dead += sink.apply(batch).dead
    if found:
        sink.commit(Cut(Position(max(batch.column(POSITION)[-1].as_py() for batch in found)), Lsn(1)))
    sink.make_visible()
    content: dict[str, list[Row]] = {}
    for topic, table in tables.items():
        name = case.table_of(topic)
        assert name is not None
        rows = [tuple(row.values()) for batch in sink.scan(TopicSchema.of(table)) for row in batch.to_pylist()]
        content[name] = sorted(rows, key=repr)
    return dead, content


def meant(sink: Sink, case: Case, found: Sequence[pa.RecordBatch], source: Content) -> Content:
    """The source's rows as this store would show them: what ``applied`` has to read back."""
    tables = {topic: table_of(batch.schema) for batch in found if (topic := table_of(batch.schema).qualified)}
    content: dict[str, list[Row]] = {}
    for topic, table in tables.items():
        name = case.table_of(topic)
        assert name is not None
        rows = [dict(zip(table.names, row, strict=True)) for row in source.get(name, ())]
        held = sink.as_held(pa.RecordBatch.from_pylist(rows, schema=audit_schema(TopicSchema.of(table))), TopicSchema.of(table))
        content[name] = sorted((tuple(row.values()) for row in held.to_pylist()), key=repr)
    return content
