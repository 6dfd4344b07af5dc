"""Rows under one definition of their table as rows under another: what a schema change means for what a store holds. Pure.

Columns go by number where both definitions know it, so a rename keeps the values; a column that the other definition lacks is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.errors import ConfigError, StopState
from cdc.model.batch import EXACT, LSN, META_FIELDS, OP, POSITION, TS, Op, topic_batch_schema, topic_schema
from cdc.model.evolution import differences
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicField, TopicSchema
from sinks.render.fromtext import exact_column, retyped, typed
from sinks.render.rowtext import exact_values

_BUILD_AGAIN: Final = f"cdc resume {StopState.STORE_REFUSES} --rebuild builds the store again from the log"


def origins(old: TopicSchema, new: TopicSchema) -> Mapping[str, TopicField | None]:
    """Each column of ``new`` by name, and the column of ``old`` that it was; None when it was not there.

    Raises ConfigError where a store holds other columns under one than under the other (``sinks.holding``): rows are never taken from one to the other.
    """
    if old.holding != new.holding:
        raise ConfigError(f"rows of {new.topic} would be mixed with rows of other columns", hint=_BUILD_AGAIN)
    found: dict[str, TopicField | None] = {column.name: column for column in new.fields}
    for change in differences(old, new):
        if change.new is not None:
            found[change.new.name] = change.old
    return found


def same_origin(old: TopicSchema, new: TopicSchema) -> bool:
    """Whether both are of the same rows, and not of two tables that had the same name one after the other."""
    return old.origin == new.origin


def rekeyed(old: TopicSchema, new: TopicSchema) -> bool:
    """Whether rows are told apart by other columns than before. A key column's new name alone changes nothing."""
    came_from = origins(old, new)
    before = [came.name if (came := came_from[column.name]) is not None else None for column in new.key]
    return before != [column.name for column in old.key]


def rewrites(old: TopicSchema, new: TopicSchema) -> bool:
    """Whether documents written under ``old`` are not what ``new`` would have written.

    An added column is not a reason: a document that lacks a column says NULL.
    """
    for change in differences(old, new):
        if change.old is None:
            continue
        held, comes = change.old, change.new
        if comes is None or change.renamed or (held.type, held.structure) != (comes.type, comes.structure):
            return True
    return rekeyed(old, new)


def reshaped(rows: pa.RecordBatch, old: TopicSchema, new: TopicSchema, position: int) -> pa.RecordBatch:
    """Rows that a store holds, as reads of ``new`` that all stand at the change's position.

    rows: canonical text, ``sinks.contract.audit_schema(old)``. Returns a batch in ``topic_batch_schema(new)``. A value that a column's new
    Arrow type cannot hold is kept as exact text; one that is not a value of it is NULL, for the rows of such a change are read again.
    """
    came_from, count = origins(old, new), rows.num_rows
    columns, exact = [], {}
    for column in new.fields:
        came = came_from[column.name]
        texts = pa.nulls(count, pa.utf8()) if came is None else rows.column(came.name)
        other = came is not None and came.type != column.type
        values, exact[column.name] = retyped(texts, column) if other else typed(texts, column.type)
        columns.append(values)
    meta = {
        POSITION: pa.array(np.full(count, position, np.int64)),
        OP: pa.array(np.full(count, int(Op.READ), np.int8)),
        LSN: pa.array(np.zeros(count, np.int64)),
        TS: pa.nulls(count, META_FIELDS[3].type),
        EXACT: exact_column(count, exact),
    }
    return pa.RecordBatch.from_arrays([*(meta[field.name] for field in META_FIELDS), *columns], schema=topic_batch_schema(new))


def conformed(batch: pa.RecordBatch, shape: TopicSchema) -> pa.RecordBatch:
    """The changes as if their table were still ``shape``: later columns are left out, dropped ones are NULL.

    A value that the former type cannot hold is kept as exact text.
    """
    schema = topic_schema(batch.schema)
    if schema == shape:
        return batch
    came_from, texts_of = origins(schema, shape), exact_values(batch)
    columns, exact = [], {}
    for column in shape.fields:
        came, kind = came_from[column.name], column.type
        values = pa.nulls(len(batch), kind) if came is None else batch.column(came.name)
        mine: dict[int, str] = {}
        if values.type != kind:
            values, odd = typed(canonical_text(values), kind)
            mine |= odd
        if came is not None and came.name in texts_of:
            held = texts_of[came.name]
            mine |= dict(zip(held.rows.tolist(), held.texts.to_pylist(), strict=True))
        exact[column.name] = mine
        columns.append(values)
    meta = [exact_column(len(batch), exact) if field.name == EXACT else batch.column(field.name) for field in META_FIELDS]
    return pa.RecordBatch.from_arrays([*meta, *columns], schema=topic_batch_schema(shape))
