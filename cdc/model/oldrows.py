"""The rows that changes replaced, beside the changes: Postgres sends them under REPLICA IDENTITY FULL. Pure, columnar.

They are one more column of the batch, its last: ``_cdc_before``, a list of at most one row. The row has the table's own columns in their types, and
``_cdc_exact`` before them for what these cannot hold, as in the batch itself. An UPDATE has there the row that it replaced, a DELETE the row that
it removed. A key that changed is a DELETE, which has the old row, and an UPDATE, which has none. The list is empty where no row was sent, as in every other change.

A list, and not a row that may be NULL, because rows that are not there then take no room: a first load has millions of them.

Only who asks for the column gets it (``LogReader.read``): for everybody else a batch is what it is without (``cdc.model.batch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import BEFORE, EXACT, META_FIELDS, Op, batch_schema
from cdc.model.table import Table

_READ: Final = int(Op.READ)
_ELEMENT: Final = "element"
"""As Parquet names it, so that the type is the same when it comes out of a sealed segment."""


@lru_cache(maxsize=4096)
def logged_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a batch as the log has it: that of ``batch_schema``, with the column of old rows where the table has them."""
    schema = batch_schema(table)
    return schema.append(pa.field(BEFORE, _list_of(schema))) if table.keeps_old_rows else schema


def _list_of(schema: pa.Schema) -> pa.DataType:
    return pa.list_(pa.field(_ELEMENT, pa.struct([schema.field(EXACT), *list(schema)[len(META_FIELDS) :]])))


def old_rows_column(table: Table, has: npt.NDArray[np.bool_], exact: pa.Array, columns: Sequence[pa.Array]) -> pa.Array:
    """The column. ``has``: which changes have an old row; ``exact``, ``columns``: these rows, one behind the other."""
    kind = logged_schema(table).field(BEFORE).type
    return _lists(kind, has, pa.StructArray.from_arrays([exact, *columns], fields=list(kind.value_type)))


def completed(batch: pa.RecordBatch, table: Table, column: pa.Array | None = None) -> pa.RecordBatch:
    """The batch of the table's changes as the log has it. ``column``: its old rows; None: it has none, and gets the column all the same where the
    table's others have it, so that they have one schema."""
    if not table.keeps_old_rows or batch.schema.get_field_index(BEFORE) >= 0:
        return batch
    if column is None:
        # Not an array of NULLs: as Arrow writes that, it takes six times as much.
        column = _lists(logged_schema(table).field(BEFORE).type, np.zeros(len(batch), np.bool_), _no_rows(table))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=logged_schema(table))


def with_old_rows(changes: pa.RecordBatch, has: npt.NDArray[np.bool_], old: pa.RecordBatch | None) -> pa.RecordBatch:
    """The way back from ``taken_apart``. ``old``: the rows of the changes that have one, one behind the other, under the same definition."""
    kind = _list_of(changes.schema)
    fields = list(kind.value_type)
    rows = [pa.nulls(0, one.type) for one in fields] if old is None else [old.column(one.name) for one in fields]
    column = _lists(kind, has if old is not None else np.zeros(len(has), np.bool_), pa.StructArray.from_arrays(rows, fields=fields))
    return pa.RecordBatch.from_arrays([*changes.columns, column], schema=changes.schema.append(pa.field(BEFORE, kind)))


def _lists(kind: pa.DataType, has: npt.NDArray[np.bool_], rows: pa.Array) -> pa.Array:
    ends = np.zeros(len(has) + 1, np.int32)
    np.cumsum(has, out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), rows, type=kind)


@lru_cache(maxsize=4096)
def _no_rows(table: Table) -> pa.Array:
    fields = list(logged_schema(table).field(BEFORE).type.value_type)
    return pa.StructArray.from_arrays([pa.nulls(0, field.type) for field in fields], fields=fields)


def without_old_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The changes alone. The same object where they are."""
    at = batch.schema.get_field_index(BEFORE)
    return batch if at < 0 else batch.remove_column(at)


def schema_without_old_rows(schema: pa.Schema) -> pa.Schema:
    """The same of a schema."""
    at = schema.get_field_index(BEFORE)
    return schema if at < 0 else schema.remove(at)


def taken_apart(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_], pa.RecordBatch | None]:
    """The changes alone, which of them have an old row, and these rows one behind the other: as reads under the changes' definition, without a
    position. None where there are none."""
    at = batch.schema.get_field_index(BEFORE)
    if at < 0:
        return batch, np.zeros(len(batch), np.bool_), None
    changes, column = batch.remove_column(at), batch.column(at)
    has = pc.greater(pc.list_value_length(column).fill_null(0), 0).to_numpy(zero_copy_only=False)
    rows = column.flatten()
    if not len(rows):
        return changes, has, None
    exact, *columns = rows.flatten()
    count = len(rows)
    nothing = pa.array(np.zeros(count, np.int64))
    meta = [nothing, pa.array(np.full(count, _READ, np.int8)), nothing, pa.nulls(count, META_FIELDS[3].type), exact]
    return changes, has, pa.RecordBatch.from_arrays([*meta, *columns], schema=changes.schema)
