"""The store's own tables in the target database: its mark, and for each topic which table it has there and how far that one holds it.

They live in the same database as the rows, so one transaction writes both. What can still be lost by itself is a table (dropped, replaced), or these
marks; ``TableEntry.there`` says whether the table that an entry is about is the very one (by its number) that the rows went to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc.errors import StoreError
from cdc.model.lineage import Mark
from cdc.model.position import Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed, Shape
from sinks.rowversions import history_topic
from sinks.sql.dialect import SqlSession
from sinks.sql.names import LEDGER_SCHEMA, TargetPlace
from sinks.sql.table import make_schema
from sinks.versionage import time_text

_MAKE: Final = (
    f"""create table if not exists {LEDGER_SCHEMA}.marks (
        store text primary key, epoch bigint not null,
        log text not null, history text not null, position bigint not null, commit_lsn bigint not null, commit_ts_us bigint not null)""",
    f"""create table if not exists {LEDGER_SCHEMA}.tables (
        store text, topic text, table_schema text, table_name text, table_number bigint, shape text, shape_position bigint not null,
        log text not null, history text not null, position bigint not null, commit_lsn bigint not null, commit_ts_us bigint not null,
        primary key (store, topic))""",
    f"create table if not exists {LEDGER_SCHEMA}.letters (store text, id text, letter text not null, stands text, primary key (store, id))",
    f"""create table if not exists {LEDGER_SCHEMA}.histories (
        store text, topic text, table_schema text not null, table_name text not null, complete_from timestamp with time zone not null,
        primary key (store, topic))""",
)
_LATER: Final = ("letters", "histories")
"""Those that came later than the others."""
_MARK: Final = "log, history, position, commit_lsn, commit_ts_us"
_GIVEN: Final = ":log, :history, :position, :commit_lsn, :commit_ts_us"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One topic. ``number`` None: its changes up to the mark have left nothing to hold, so it has no table."""

    topic: str
    mark: Mark
    place: TargetPlace | None = None
    number: int | None = None
    shape: Shape | None = None
    there: bool = True

    @property
    def counts(self) -> bool:
        """Whether what it says is true of what is there."""
        return self.there or self.number is None

    @property
    def has_table(self) -> bool:
        return self.there and self.number is not None


@dataclass(frozen=True, slots=True)
class SqlLedger:
    """All that the ledger says of one store. ``mark`` None: it has none there."""

    epoch: int = 0
    mark: Mark | None = None
    entries: Mapping[str, TableEntry] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.mark is None and not self.entries

    def with_entries(self, *entries: TableEntry) -> SqlLedger:
        return replace(self, entries={**self.entries, **{one.topic: one for one in entries}})


def make(session: SqlSession) -> None:
    """Makes the tables where there are none."""
    if len(_later(session, *_LATER)) < len(_LATER):
        make_schema(session, LEDGER_SCHEMA)
        for statement in _MAKE:
            session.run(statement)


def exists(session: SqlSession, table: str = "tables") -> bool:
    return session.dialect.standing(session, TargetPlace(LEDGER_SCHEMA, table)) is not None


def read(session: SqlSession, store: str, *, lock: bool = False) -> SqlLedger:
    """``lock``: nobody else writes to the store until the transaction ends."""
    if not exists(session):
        return SqlLedger()
    marks = session.rows(
        f"select epoch, {_MARK} from {LEDGER_SCHEMA}.marks where store = :store{session.dialect.lock if lock else ''}", store=store
    )
    found = session.rows(
        f"""select topic, table_schema, table_name, table_number, shape, shape_position, {_MARK}, c.number is not null
        from {LEDGER_SCHEMA}.tables t left join {session.dialect.tables} c
          on c.number = t.table_number and c.name = t.table_name and c.schema = t.table_schema
        where t.store = :store""",
        store=store,
    )
    entries = {row[0]: _entry(row) for row in found}
    return SqlLedger(marks[0][0], _mark(marks[0][1:6]), entries) if marks else SqlLedger(0, None, entries)


def _entry(row: Any) -> TableEntry:
    topic, schema, name, oid, shape, shape_position = row[:6]
    return TableEntry(
        topic,
        _mark(row[6:11]),
        None if schema is None else TargetPlace(schema, name),
        oid,
        None if shape is None else Shape(TopicSchema.from_json(shape), Position(shape_position)),
        bool(row[11]),
    )


def _mark(row: Any) -> Mark:
    log, history, position, lsn, ts_us = row
    return Mark(log, history, Cut(Position(position), Lsn(lsn), ts_us))


def _given(mark: Mark) -> dict[str, Any]:
    cut = mark.cut
    return {
        "log": mark.log,
        "history": mark.history,
        "position": int(cut.position),
        "commit_lsn": int(cut.commit_lsn),
        "commit_ts_us": cut.commit_ts_us,
    }


def _taken(columns: str) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))


def sign(session: SqlSession, store: str, epoch: int, mark: Mark) -> None:
    """Writes the store's own mark."""
    session.write(
        f"""insert into {LEDGER_SCHEMA}.marks (store, epoch, {_MARK}) values (:store, :epoch, {_GIVEN})
        on conflict (store) do update set {_taken(f"epoch, {_MARK}")}""",
        store=store,
        epoch=epoch,
        **_given(mark),
    )


def put(session: SqlSession, store: str, entry: TableEntry) -> None:
    session.write(
        f"""insert into {LEDGER_SCHEMA}.tables (store, topic, table_schema, table_name, table_number, shape, shape_position, {_MARK})
        values (:store, :topic, :table_schema, :table_name, :number, :shape, :shape_position, {_GIVEN})
        on conflict (store, topic) do update set
        {_taken(f"table_schema, table_name, table_number, shape, shape_position, {_MARK}")}""",
        store=store,
        topic=entry.topic,
        table_schema=None if entry.place is None else entry.place.schema,
        table_name=None if entry.place is None else entry.place.name,
        number=entry.number,
        shape=None if entry.shape is None else entry.shape.schema.to_json(),
        shape_position=0 if entry.shape is None else int(entry.shape.position),
        **_given(entry.mark),
    )


def owner(session: SqlSession, place: TargetPlace) -> tuple[str, str] | None:
    """(store, topic) of whose table the ledger says that it stands there, whatever became of it."""
    found = session.rows(
        f"select store, topic from {LEDGER_SCHEMA}.tables where table_schema = :schema and table_name = :name",
        schema=place.schema,
        name=place.name,
    )
    return (found[0][0], found[0][1]) if found else None


def complete_from(session: SqlSession, store: str, topic: str, place: TargetPlace, since_us: int) -> None:
    """Says from when on the topic's history, which stands there, has every version that there was; unless it says a later time."""
    session.write(
        f"""insert into {LEDGER_SCHEMA}.histories (store, topic, table_schema, table_name, complete_from)
        values (:store, :topic, :schema, :name, cast(:since as timestamp with time zone))
        on conflict (store, topic) do update set {_taken("table_schema, table_name")},
          complete_from = greatest(histories.complete_from, excluded.complete_from)""",
        store=store,
        topic=history_topic(topic),
        schema=place.schema,
        name=place.name,
        since=time_text(since_us),
    )


def remove(session: SqlSession, store: str, topic: str) -> None:
    for table in ("tables", *_later(session, "histories")):
        session.write(f"delete from {LEDGER_SCHEMA}.{table} where store = :store and topic = :topic", store=store, topic=topic)


def _later(session: SqlSession, *tables: str) -> list[str]:
    """Those of the tables that are there: a ledger of before they came may lack them."""
    return [table for table in tables if exists(session, table)]


def remove_all(session: SqlSession, store: str) -> None:
    for table in ("tables", "marks", *_later(session, *_LATER)):
        session.write(f"delete from {LEDGER_SCHEMA}.{table} where store = :store", store=store)


def refuse_others(held: SqlLedger, store: str, epoch: int, mark: Mark | None) -> None:
    """Raises where the ledger has seen a later writer, or is not at the mark that this one found or left."""
    if held.mark is not None and mark is not None and held.mark.log == mark.log and held.epoch > epoch:
        raise EpochPassed(store, held.epoch)
    if held.mark is None or held.mark != mark:
        raise lost(store)


def lost(store: str) -> StoreError:
    return StoreError(
        f"store {store}: its marks or tables in the database are not as this writer left them",
        retryable=True,
        hint="it is opened again",
    )
