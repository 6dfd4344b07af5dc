"""Postgres, by SQLAlchemy and psycopg's COPY."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from cdc.errors import StoreError
from cdc.model.topic import TopicField, TopicSchema
from sinks.sql.dialect import Occupant, SqlSession, StagedRows, TargetDatabase
from sinks.sql.names import TableSign, TargetPlace, quoted
from sinks.sql.options import Options
from sinks.sql.postgres import kinds, rights, table
from sinks.sql.postgres.database import PostgresDatabase, PostgresSession
from sinks.sql.postgres.stagedrows import PostgresRows
from sinks.sql.table import digested

if TYPE_CHECKING:
    from sinks.sql.table import TargetTable


class PostgresDialect:
    """See ``Dialect``."""

    text = kinds.TEXT
    tables = """(select c.oid::bigint as number, n.nspname as schema, c.relname as name
        from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.relkind = 'r')"""
    lock = " for update"

    has_empty_tables = True
    row_id = "ctid"
    readers_hold_up = False

    def column_type(self, field: TopicField) -> str:
        return kinds.column_type(field)

    def refuse(self, schema: TopicSchema) -> None:
        """Whatever a source has, fits."""

    def same_name(self, name: str) -> str:
        return name

    def database(self, store: str, options: Options, *, writing: bool = True) -> TargetDatabase:
        return PostgresDatabase(self, store, options, writing=writing)

    def has_schema(self, session: SqlSession, name: str) -> bool:
        return bool(session.rows("select 1 from pg_catalog.pg_namespace where nspname = :name", name=name))

    def missing_rights(self, session: SqlSession, store: str, places: Sequence[TargetPlace]) -> Iterator[StoreError]:
        return rights.missing(session, store, places)

    def standing(self, session: SqlSession, place: TargetPlace) -> Occupant | None:
        return table.standing(_own(session), place)

    def signed_tables(self, session: SqlSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
        return table.signed_tables(_own(session), store)

    def table(self, session: SqlSession, place: TargetPlace) -> TargetTable:
        return table.PostgresTable(_own(session), place)

    def index(self, session: SqlSession, place: TargetPlace, schema: TopicSchema, where: str) -> None:
        if schema.key and not digested(schema):
            columns = ", ".join(quoted(field.name) for field in schema.key)
            session.run(f"create index on {place.sql} ({columns}) where {where}")

    def index_once(self, session: SqlSession, place: TargetPlace, column: str) -> None:
        there = session.rows(
            """select 1 from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
            where n.nspname = :schema and c.relname = :name and a.attname = :column and i.indisvalid""",
            schema=place.schema,
            name=place.name,
            column=column,
        )
        if not there:
            session.run(f"create index on {place.sql} ({quoted(column)}) where {quoted(column)} is not null")

    def stage(self, session: SqlSession, schema: TopicSchema, columns: Mapping[str, str], beside: Mapping[str, str]) -> StagedRows:
        return PostgresRows(_own(session), schema, columns, beside)


def _own(session: SqlSession) -> PostgresSession:
    return cast("PostgresSession", session)
