"""Rows out of the store's tables as the text that Postgres gives; for the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema
from sinks.sql import ledger
from sinks.sql.choice import dialect_of
from sinks.sql.dialect import SqlSession
from sinks.sql.names import TargetPlace, place_of
from sinks.sql.options import Options
from sinks.sql.owncolumns import OwnColumns
from sinks.sql.table import TargetTable
from sinks.stagedchanges import SpilledBatches


class SqlRowReader:
    """Reads only tables that the ledger says are the store's."""

    def __init__(self, store: str, options: Options) -> None:
        self._store = store
        self._options = options
        self._dialect = dialect_of(options)
        self._database = self._dialect.database(store, options, writing=False)

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        """On a connection of its own: meanwhile the caller may ask for other rows. Where a reader holds up the writer, the rows wait in a file."""
        database = self._dialect.database(self._store, self._options, writing=False)
        aside = SpilledBatches(audit_schema(schema)) if self._dialect.readers_hold_up else None
        try:
            with database.transaction(reading=True) as session:
                table = self._table(session, schema)
                for rows in () if table is None else table.texts(schema):
                    if aside is None:
                        yield rows
                    else:
                        aside.write(rows)
            if aside is not None:
                yield from aside.batches()
        finally:
            database.close()
            if aside is not None:
                aside.close()

    def close(self) -> None:
        self._database.close()

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        found: list[pa.RecordBatch] = []
        if schema.key and len(keys):
            with self._database.transaction(reading=True) as session:
                table = self._table(session, schema)
                if table is not None:
                    found += table.found(schema, keys)
        whole = pa.Table.from_batches(found, audit_schema(schema)).combine_chunks()
        return whole.to_batches()[0] if len(whole) else pa.RecordBatch.from_pylist([], audit_schema(schema))

    def _table(self, session: SqlSession, schema: TopicSchema) -> TargetTable | None:
        entry = ledger.read(session, self._store).entries.get(schema.topic)
        place: TargetPlace = place_of(schema, self._options.namespace)
        if entry is None or not entry.has_table or entry.place != place:
            return None
        table = session.dialect.table(session, place)
        own = self._options.own_columns(schema.topic)
        table.own = own if own.deleted in table.columns else OwnColumns()
        return table
