"""The columnar unit that flows: changes of one table, in position order, under one definition.

Arrow schema of a batch (``batch_schema``): five columns of ours, then the table's own in the table's order, each in the
type that ``cdc.model.pgtypes.arrow_type`` gives.

=================  =======================  ==================================================================
``_cdc_position``  int64, not null          the change's position; strictly rising within a batch of the log. As a store is given it, a row may come
                                            right behind the DELETE of the place that it has left, at the same position (``sinks.places``)
``_cdc_op``        int8, not null           one of ``Op`` (an ASCII letter)
``_cdc_lsn``       int64, not null          LSN of the commit record that made the change (for ``Op.READ`` the
                                            commit of the chunk's high watermark)
``_cdc_ts``        timestamp[us, UTC]       that commit's time; informational, not monotonic
``_cdc_exact``     map<utf8, utf8>          column name → exact text, for the values that their Arrow type cannot hold; NULL
                                            in nearly every row. Such a value is NULL in its own column
=================  =======================  ==================================================================

What a row carries by operation: INSERT, UPDATE and READ the whole row; DELETE the key's columns only, every other column
is NULL and means "not sent"; TRUNCATE nothing at all (every earlier row of the table is gone); SCHEMA nothing at all: the batch's
table is the definition in force from here on, and ``_cdc_exact`` tells what happened (``cdc.model.evolution``).
The schema's metadata holds the table itself under ``cdc.table`` (``Table.to_json``); of a batch that a store made for itself, out of such ones,
the topic's schema under ``cdc.topic`` (``TopicSchema.to_json``). ``topic_schema`` reads both.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa

from cdc.model.pgtypes import arrow_type
from cdc.model.table import Table, one
from cdc.model.topic import TopicSchema

POSITION: Final = "_cdc_position"
OP: Final = "_cdc_op"
LSN: Final = "_cdc_lsn"
TS: Final = "_cdc_ts"
EXACT: Final = "_cdc_exact"
BEFORE: Final = "_cdc_before"
"""The column of old rows, which only who asks for it gets (``cdc.model.oldrows``)."""
FAILED: Final = ""
"""The entry of ``_cdc_exact`` that says why an expression of the store has no value for the row (``sinks.holding``). No column can be called so."""
TABLE_METADATA: Final = b"cdc.table"
TOPIC_METADATA: Final = b"cdc.topic"

EXACT_TYPE: Final = pa.map_(pa.utf8(), pa.utf8())

META_FIELDS: Final = (
    pa.field(POSITION, pa.int64(), nullable=False),
    pa.field(OP, pa.int8(), nullable=False),
    pa.field(LSN, pa.int64(), nullable=False),
    pa.field(TS, pa.timestamp("us", tz="UTC")),
    pa.field(EXACT, EXACT_TYPE),
)


RESERVED: Final = frozenset({POSITION, OP, LSN, TS, EXACT, BEFORE, "_cdc_deleted", "_cdc_truncated", "_cdc_schema", "_cdc_xmin"})
"""Names that a column of a captured table cannot have: batches, and the documents and rows of stores, use them beside its own."""


def reserved_column(table: Table) -> str | None:
    """The first column that has one of our names, however written."""
    return next((name for name in table.names if name.casefold() in RESERVED), None)


class Op(IntEnum):
    """The operation on a row (or, for TRUNCATE and SCHEMA, on its table): Debezium's letters, and ``s``."""

    INSERT = ord("c")
    UPDATE = ord("u")
    DELETE = ord("d")
    READ = ord("r")
    TRUNCATE = ord("t")
    SCHEMA = ord("s")


ALONE: Final = (int(Op.TRUNCATE), int(Op.SCHEMA))
"""Changes of the table as a whole: a reader hands each of them out as a batch of its own."""


@lru_cache(maxsize=4096)
def batch_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a batch of this table's changes (see the module's text)."""
    fields = [pa.field(column.name, arrow_type(column)) for column in table.columns]
    return pa.schema([*META_FIELDS, *fields], metadata={TABLE_METADATA: table.to_json().encode()})


@lru_cache(maxsize=4096)
def _table_of(metadata: bytes) -> Table:
    return one(Table.from_json(metadata))


def table_of(schema: pa.Schema) -> Table:
    """The table that a batch's schema carries. Raises KeyError when it is not a batch's schema."""
    return _table_of(schema.metadata[TABLE_METADATA])


def keys_schema(schema: pa.Schema) -> pa.Schema:
    """A batch's schema with our own columns and the key's only. Its metadata says all of the definition none the less."""
    wanted = {field.name for field in META_FIELDS} | {field.name for field in topic_schema(schema).key}
    return pa.schema([field for field in schema if field.name in wanted], metadata=schema.metadata)


def only_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with these columns only. The same object where it has no others."""
    schema = keys_schema(batch.schema)
    return batch if len(schema) == len(batch.schema) else batch.select(schema.names)


@lru_cache(maxsize=4096)
def topic_batch_schema(schema: TopicSchema) -> pa.Schema:
    """As ``batch_schema``, of a batch that never comes into the log: a store's rows under another definition than they were logged with."""
    fields = [pa.field(one.name, one.type) for one in schema.fields]
    return pa.schema([*META_FIELDS, *fields], metadata={TOPIC_METADATA: schema.to_json().encode()})


def topic_schema(schema: pa.Schema) -> TopicSchema:
    """The topic's schema that a batch's Arrow schema carries. Raises KeyError when it is not a batch's."""
    metadata = schema.metadata
    own = metadata.get(TOPIC_METADATA)
    return _of_tables_batch(metadata[TABLE_METADATA]) if own is None else _of_topics_batch(own)


@lru_cache(maxsize=4096)
def _of_tables_batch(metadata: bytes) -> TopicSchema:
    return TopicSchema.of(_table_of(metadata))


@lru_cache(maxsize=4096)
def _of_topics_batch(metadata: bytes) -> TopicSchema:
    return TopicSchema.from_json(metadata)


def first_position(batch: pa.RecordBatch) -> int:
    return int(batch.column(0)[0].as_py())


def last_position(batch: pa.RecordBatch) -> int:
    return int(batch.column(0)[-1].as_py())


def is_truncate(batch: pa.RecordBatch) -> bool:
    """Whether the batch is a TRUNCATE, which has no other change beside it."""
    return bool(len(batch) == 1 and batch.column(OP)[0].as_py() == Op.TRUNCATE)


def op_letters(batch: pa.RecordBatch) -> pa.Array:
    """Each change's operation as its letter, utf8."""
    return _letters().take(batch.column(OP))


@cache
def _letters() -> pa.Array:
    # No constant: with the first value that Arrow makes it loads pandas, which most commands do not need.
    return pa.array([chr(op) for op in range(128)], pa.utf8())
