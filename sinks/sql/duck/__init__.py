"""DuckDB: a file on this machine, through DuckDB's own module and Arrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from cdc.errors import ConfigError, StoreError
from cdc.model.topic import TopicField, TopicSchema
from sinks.sql.dialect import Occupant, SqlSession, StagedRows, TargetDatabase
from sinks.sql.duck import kinds, table
from sinks.sql.duck.database import DuckDatabase, DuckSession
from sinks.sql.duck.stagedrows import DuckRows
from sinks.sql.names import TableSign, TargetPlace
from sinks.sql.options import Options

if TYPE_CHECKING:
    from sinks.sql.table import TargetTable


class DuckDialect:
    """See ``Dialect``."""

    text = kinds.TEXT
    tables = """(select try_cast(regexp_extract(comment, '"number": ([0-9]+)', 1) as bigint) as number, schema_name as schema, table_name as name
        from duckdb_tables() where database_name = current_database())"""
    lock = ""
    """Whoever has the file open to write is alone."""

    has_empty_tables = False
    row_id = "rowid"
    readers_hold_up = True

    def column_type(self, field: TopicField) -> str:
        return kinds.column_type(field)

    def refuse(self, schema: TopicSchema) -> None:
        """Names of DuckDB differ by more than their case."""
        taken: dict[str, str] = {}
        for name in schema.names:
            other = taken.setdefault(name.lower(), name)
            if other != name:
                raise ConfigError(
                    f"{schema.topic}: for DuckDB the columns {other} and {name} are one",
                    hint="rename one of them for this store (rename)",
                )

    def same_name(self, name: str) -> str:
        return name.lower()

    def database(self, store: str, options: Options, *, writing: bool = True) -> TargetDatabase:  # noqa: ARG002
        return DuckDatabase(self, store, options)

    def has_schema(self, session: SqlSession, name: str) -> bool:
        found = session.rows(
            "select 1 from information_schema.schemata where catalog_name = current_database() and lower(schema_name) = lower(:name)",
            name=name,
        )
        return bool(found)

    def missing_rights(self, session: SqlSession, store: str, places: Sequence[TargetPlace]) -> Iterator[StoreError]:  # noqa: ARG002
        folder = _own(session).file.parent
        if not folder.is_dir():
            yield StoreError(
                f"{folder} does not exist, where the file of store {store} is to be", retryable=False, hint=f"mkdir -p {folder}"
            )
        elif not os.access(folder, os.W_OK):
            yield StoreError(f"{folder} is not writable", retryable=False, hint=f"sudo chown $(id -un) {folder}")

    def standing(self, session: SqlSession, place: TargetPlace) -> Occupant | None:
        return table.standing(_own(session), place)

    def signed_tables(self, session: SqlSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
        return table.signed_tables(_own(session), store)

    def table(self, session: SqlSession, place: TargetPlace) -> TargetTable:
        return table.DuckTable(_own(session), place)

    def index(self, session: SqlSession, place: TargetPlace, schema: TopicSchema, where: str) -> None:
        """DuckDB reads a column as fast as it would look into an index, and would have to drop it for each change of the table."""

    def index_once(self, session: SqlSession, place: TargetPlace, column: str) -> None:
        """As ``index``: nothing."""

    def stage(self, session: SqlSession, schema: TopicSchema, columns: Mapping[str, str], beside: Mapping[str, str]) -> StagedRows:
        return DuckRows(_own(session), schema, columns, beside)


def _own(session: SqlSession) -> DuckSession:
    return cast("DuckSession", session)
