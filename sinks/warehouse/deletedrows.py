"""Rows of a table that is built again which the log has no more: they stay, marked as deleted, where the store keeps such rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdc.errors import StoreError
from cdc.model.batch import POSITION
from cdc.model.topic import TopicSchema
from sinks.reshape import same_origin
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import IcebergTable, name_of
from sinks.warehouse.columns import IcebergField, iceberg_kind, labels
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.keys import Int64s, KeyPlan, Mask, encode, key_plan
from sinks.warehouse.marks import TABLE_KEY
from sinks.warehouse.options import Options
from sinks.warehouse.owncolumns import OwnFields
from sinks.warehouse.tablefiles import NO, Live, TableFiles

_log = structlog.get_logger("warehouse")


class DeletedRows:
    """The deleted rows of one table. The keys of all rows that are written are in memory meanwhile: 8 bytes each where they are numbers, else their text."""

    def __init__(self, table: IcebergTable, options: Options, own: OwnFields, schema: TopicSchema, plan: KeyPlan) -> None:
        self._files = TableFiles(table, KeyCache(options.key_cache_bytes), own=own)
        self._schema, self._plan = schema, plan
        self._written: list[Int64s | pa.Array] = []

    @classmethod
    def of(cls, table: IcebergTable, options: Options, schema: TopicSchema) -> DeletedRows | None:
        """None where none can be there: the store does not keep them, or the rows that are there are not of this definition: they are told apart otherwise, or
        a column has another type."""
        own, plan, text = options.own_columns(schema.topic), key_plan(schema), table.properties.get(TABLE_KEY)
        if plan is None or text is None or own.mark_of(table.fields) is None:
            return None
        try:
            before = TopicSchema.from_json(text)
        except (KeyError, TypeError, ValueError):
            return None
        there = {(field.name, field.kind) for field in table.fields}
        fits = all((labels(schema)[field.name], iceberg_kind(field)) in there for field in schema.fields)
        if not fits or key_plan(before) != plan or not same_origin(before, schema):
            return None
        return cls(table, options, own, schema, plan)

    def saw(self, batches: Sequence[pa.RecordBatch]) -> None:
        """These rows are written."""
        self._written += [encode(self._plan, batch.column, batch.num_rows) for batch in batches]

    def left(self, fields: Sequence[IcebergField], position: int) -> Iterator[pa.Table]:
        """The rows whose keys were not written, a file's at a time. ``position``: at which those are marked that are not yet. ``fields``: the table's columns
        from then on. A file that nobody can read any more, as it may be the reason why the store is built again, leaves none, and the log says so."""
        mark = self._files.own.mark_of(fields)
        assert mark is not None
        for live in list(self._files.live().values()):
            try:
                rows = self._rows(live, fields)
            except (OSError, ValueError, StoreError) as error:
                _log.warning(
                    f"{self._schema.topic}: a data file cannot be read, so deleted rows that only it has are lost; the others come from the log",
                    facts={"table": self._schema.topic, "file": name_of(live.path), "error": type(error).__name__},
                )
                continue
            keys = self._files.keys_of(rows, self._plan, self._schema)
            rows = rows.filter(pa.array(~self._is_written(keys)))
            if not rows.num_rows:
                continue
            fresh = pc.invert(rows.column(mark.name).fill_null(NO))
            for name, value in {**self._files.own.values(deleted=True), POSITION: pa.scalar(position, pa.int64())}.items():
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), pc.if_else(fresh, value, rows.column(name)))
            yield rows

    def _rows(self, live: Live, fields: Sequence[IcebergField]) -> pa.Table:
        rows = datafiles.read(live.path, fields, storage=self._files.folder.storage)
        return datafiles.without(rows, self._files.gone(live))

    def _is_written(self, keys: Int64s | pa.Array) -> Mask:
        if not self._written:
            return np.zeros(len(keys), np.bool_)
        if isinstance(keys, np.ndarray):
            if len(self._written) > 1:
                self._written = [np.unique(np.concatenate(self._written))]
            return np.isin(keys, self._written[0])
        found: Mask = pc.is_in(keys, value_set=pa.chunked_array(self._written).unique()).to_numpy(zero_copy_only=False)
        return found
