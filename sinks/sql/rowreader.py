"""Rows out of the store's tables as the text that Postgres gives, by COPY; for the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema
from sinks.sql import ledger
from sinks.sql.database import SqlSession, TargetDatabase
from sinks.sql.names import TargetPlace, place_of, quoted
from sinks.sql.options import Options
from sinks.sql.table import TargetTable, digest, digested

_WANTED = "pg_temp.headwater_wanted"


class SqlRowReader:
    """Reads only tables that the ledger says are the store's."""

    def __init__(self, store: str, options: Options) -> None:
        self._store = store
        self._options = options
        self._database = TargetDatabase(store, options, writing=False)

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        """On a connection of its own: meanwhile the caller may ask for other rows."""
        database = TargetDatabase(self._store, self._options, writing=False)
        try:
            with database.transaction() as session:
                table = self._table(session, schema)
                if table is not None:
                    statement = f"copy (select {_columns(table, schema)} from {table.place.sql} t) to stdout"
                    yield from session.copy_out(statement, audit_schema(schema))
        finally:
            database.close()

    def close(self) -> None:
        self._database.close()

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        found: list[pa.RecordBatch] = []
        if schema.key and len(keys):
            with self._database.transaction() as session:
                table = self._table(session, schema)
                if table is not None:
                    found += self._found(session, table, schema, keys)
        whole = pa.Table.from_batches(found, audit_schema(schema)).combine_chunks()
        return whole.to_batches()[0] if len(whole) else pa.RecordBatch.from_pylist([], audit_schema(schema))

    def _found(
        self, session: SqlSession, table: TargetTable, schema: TopicSchema, keys: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        names = [field.name for field in schema.key]
        made = ", ".join(f"{quoted(name)} {table.columns[name]}" for name in names)
        session.run(f"create temporary table {_WANTED.split('.')[1]} ({made}) on commit drop")
        session.copy_in(f"copy {_WANTED} ({', '.join(map(quoted, names))}) from stdin", [keys.select(names)])
        if digested(schema):
            same = f"t.{quoted('_cdc_key')} = {digest(schema, 'w')}"
        else:
            same = " and ".join(f"t.{quoted(name)} = w.{quoted(name)}" for name in names)
        statement = f"copy (select {_columns(table, schema)} from {table.place.sql} t join {_WANTED} w on {same}) to stdout"
        yield from session.copy_out(statement, audit_schema(schema))

    def _table(self, session: SqlSession, schema: TopicSchema) -> TargetTable | None:
        entry = ledger.read(session, self._store).entries.get(schema.topic)
        place: TargetPlace = place_of(schema, self._options.namespace)
        return TargetTable(session, place) if entry is not None and entry.has_table and entry.place == place else None


def _columns(table: TargetTable, schema: TopicSchema) -> str:
    return ", ".join(f"t.{quoted(name)}" if name in table.columns else "null::text" for name in schema.names)
