"""Changes as the rows that ``format("cdc")`` hands to Spark: which columns they have, and their values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.batch import EXACT, LSN, META_FIELDS, OP, POSITION, TOPIC_METADATA, TS, Op, op_letters, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from cdc.replay.former import WithFormer
from sinks.reshape import conformed, origins

SLICES: Final = pa.schema([("topic", pa.utf8()), ("after", pa.int64()), ("upto", pa.int64()), ("rows", pa.int64())])

CHANGE_TYPE: Final = "_change_type"
CHANGE_FIELDS: Final = (
    pa.field(CHANGE_TYPE, pa.utf8()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", META_FIELDS[3].type),
)
"""The columns of a change feed, as Spark's and Delta's users know them."""
_OF_CHANGE: Final = frozenset({POSITION, OP, LSN, TS})
_PREIMAGE: Final = "update_preimage"
_TYPES: Final = pa.array(
    [
        {
            Op.INSERT: "insert",
            Op.READ: "insert",
            Op.UPDATE: "update_postimage",
            Op.DELETE: "delete",
            Op.TRUNCATE: "truncate",
            Op.SCHEMA: "truncate",
        }.get(op)  # type: ignore[call-overload]
        for op in range(128)
    ],
    pa.utf8(),
)


def rows_schema(shape: TopicSchema) -> pa.Schema:
    """The Arrow schema of ``as = changes`` for a topic of this definition."""
    meta = [pa.field(OP, pa.utf8()) if field.name == OP else field for field in META_FIELDS]
    return _of_topic(shape, [*meta, *_own_fields(shape)])


def feed_schema(shape: TopicSchema) -> pa.Schema:
    """… of ``as = changefeed``. Raises ConfigError where the table has a column of a name that the feed needs itself."""
    own = {field.name for field in CHANGE_FIELDS}
    # Spark does not tell names apart by the case of their letters.
    taken = next((name for name in shape.names if name.casefold() in own), None)
    if taken is not None:
        raise ConfigError(f"the change feed of {shape.topic} would have the column {taken} twice: read it with as = changes")
    return _of_topic(shape, [*_own_fields(shape), *CHANGE_FIELDS, *_told_apart()])


def state_schema(shape: TopicSchema) -> pa.Schema:
    """… of ``as = rows``."""
    return _of_topic(shape, [*_own_fields(shape), *_told_apart()])


def _of_topic(shape: TopicSchema, fields: Sequence[pa.Field]) -> pa.Schema:
    """With the topic's schema (``cdc.model.batch.topic_schema``): values of other definitions come under this one."""
    return pa.schema(fields, metadata={TOPIC_METADATA: shape.to_json().encode()})


def _own_fields(shape: TopicSchema) -> list[pa.Field]:
    # Spark 4.1 has no time of day.
    return [pa.field(field.name, pa.utf8() if pa.types.is_time64(field.type) else field.type) for field in shape.fields]


def _told_apart() -> list[pa.Field]:
    """What the table's own columns cannot tell: the order within a commit, and values that their types cannot hold."""
    return [field for field in META_FIELDS if field.name in (POSITION, EXACT)]


def chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The schema with these columns only, in their order. Raises ConfigError for one that it does not have, and for one that is named twice."""
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ConfigError(f"the table has no column {unknown[0]!r}", hint='.option("columns", …) names columns of printSchema()')
    twice = next((name for number, name in enumerate(columns) if name in columns[:number]), None)
    if twice is not None:
        raise ConfigError(f"columns names {twice!r} twice", hint="name it once")
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)


def alike(held: TopicSchema, shape: TopicSchema) -> bool:
    """Whether rows under ``held`` are rows under ``shape`` as they stand: each column of ``shape`` has its name and type there, or is missing."""
    if held == shape:
        return True
    came_from = origins(held, shape)
    # Spark does not tell names apart by the case of their letters.
    names = {name.casefold() for name in held.names}
    for field in shape.fields:
        came = came_from[field.name]
        if field.name.casefold() in names if came is None else (came.name, came.type) != (field.name, field.type):
            return False
    return True


def to_rows(changes: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Changes of a table under any of its definitions, as rows of ``schema`` (some or all columns of one of the schemas above).

    A renamed column has its values under the name that it has in ``schema``. A value that differs as text under the type there is NULL,
    and its text stands in ``_cdc_exact``. Raises ConfigError where that column is not among those of ``schema``.
    """
    shape = topic_schema(schema)
    rows = changes if alike(topic_schema(changes.schema), shape) else _conformed(changes, shape, schema.names)
    arrays = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        if field.name == OP:
            arrays.append(op_letters(rows))
        elif index < 0:
            arrays.append(_of_commit(rows, field))
        else:
            values = rows.column(index)
            arrays.append(values if values.type == field.type else canonical_text(values))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())


def _conformed(changes: pa.RecordBatch, shape: TopicSchema, wanted: Sequence[str]) -> pa.RecordBatch:
    rows = conformed(changes, shape)
    if topic_change_of(changes) is not None:
        # There it does not tell of columns, but of what happened to the definition.
        return rows.set_column(rows.schema.get_field_index(EXACT), rows.schema.field(EXACT), changes.column(EXACT))
    if EXACT not in wanted:
        for name, came in origins(topic_schema(changes.schema), shape).items():
            if name in wanted and came is not None and rows.column(name).null_count > changes.column(came.name).null_count:
                hint = f"name {EXACT} among the columns, where their texts stand, or read from a later position on"
                raise ConfigError(f"earlier values of column {name} are not the same under its newest type", hint=hint)
    return rows


def _of_commit(changes: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name == CHANGE_TYPE:
        return _TYPES.take(changes.column(OP))
    if field.name == CHANGE_FIELDS[1].name:
        return changes.column(LSN)
    if field.name == CHANGE_FIELDS[2].name:
        return changes.column(TS)
    return pa.nulls(changes.num_rows, field.type)


def to_feed(replaced: WithFormer, schema: pa.Schema) -> pa.RecordBatch | None:
    """Changes as a change feed (``feed_schema``, or some of its columns): each preimage stands before its postimage, and a DELETE has the whole row
    where that is known. A change of the definition that leaves the rows as they are is none of the feed's."""
    changes, former = replaced.changes, replaced.former
    if len(changes) == 1 and (change := topic_change_of(changes)) is not None and not change.empties:
        return None
    if former is None:
        return to_rows(changes, schema)
    rows = changes.num_rows
    # First the changes, then the rows they replaced, each with the change's own commit and position.
    moved = [(changes if field.name in _OF_CHANGE else former).column(field.name) for field in changes.schema]
    preimages = to_rows(pa.RecordBatch.from_arrays(moved, schema=changes.schema), schema)
    whole = pa.concat_batches([to_rows(changes, schema), preimages])
    deleted = (changes.column(OP).to_numpy() == int(Op.DELETE)) & replaced.known
    updated = (changes.column(OP).to_numpy() == int(Op.UPDATE)) & replaced.known
    numbers = np.arange(rows)
    own = np.where(deleted, numbers + rows, numbers)
    order = np.column_stack((numbers + rows, own))[np.column_stack((updated, np.ones(rows, np.bool_)))]
    found = whole.take(pa.array(order))
    at = schema.get_field_index(CHANGE_TYPE)
    if at < 0:
        return found
    is_preimage = np.column_stack((np.ones(rows, np.bool_), np.zeros(rows, np.bool_)))[
        np.column_stack((updated, np.ones(rows, np.bool_)))
    ]
    return found.set_column(at, schema.field(at), pc.if_else(pa.array(is_preimage), _PREIMAGE, found.column(at)))
