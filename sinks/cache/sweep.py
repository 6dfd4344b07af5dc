"""The names that a table's keys may have in a store, and the rows that stand under them: computed from the log alone."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, TS, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.cache.keytemplate import TableKeys
from sinks.cache.lane import Lane
from sinks.cache.ledger import Base
from sinks.past import all_keys, rows_and_under, rows_under
from sinks.render.jsonrows import Texts
from sinks.render.rowtext import column_text, exact_values
from sinks.reshape import origins


def names(log: LogReader, keys: TableKeys, base: Base, upto: Position) -> Iterator[Texts]:
    """Every key that the table may have, when its rows stand under ``keys.table``: those that it had at its base, and whatever a change in
    (base, upto] carries. Some may come twice."""
    shape = keys.schema
    if base.rewritten:
        for batch in rows_under(log, shape, base.position, base.position):
            yield keys.texts(keys.own_rows(batch))
    for batch in all_keys(log, shape.topic, base.position, upto):
        if (texts := _key_texts(batch, shape)) is not None:
            yield keys.texts_of_keys(keys.own_keys(texts))


def rows(log: LogReader, shape: TopicSchema, upto: Position, lane: Lane | None) -> Iterator[pa.RecordBatch]:
    """The table's rows as of ``upto``, under this definition, as reads at the positions, and of the times, of the changes that brought them. ``lane``: the
    one whose rows are wanted; None: all."""
    for own, batch in rows_and_under(log, shape, upto, upto):
        for name in (POSITION, TS):
            at = batch.schema.names.index(name)
            batch = batch.set_column(at, batch.schema.field(at), own.column(name))
        yield batch if lane is None else lane.rows(batch, shape)


def same_names(old: TableKeys, new: TableKeys) -> bool:
    """Whether every row has the same key under both."""
    if old.prefix != new.prefix or old.whole != new.whole:
        return False
    came_from = origins(old.schema, new.schema)

    def before(name: str) -> str | None:
        came = came_from[name]
        return None if came is None else came.name

    if new.whole:
        return old.columns == new.columns and [before(c.name) for c in new.schema.key] == [c.name for c in old.schema.key]
    return [(before(name), literal) for name, literal in new.columns] == list(old.columns)


def _key_texts(batch: pa.RecordBatch, shape: TopicSchema) -> pa.RecordBatch | None:
    """The key's columns of ``shape`` as canonical text, from changes that were logged under another definition.

    None where that definition lacks one of them: such a row was never written under ``shape``.
    """
    came_from, exact = origins(topic_schema(batch.schema), shape), exact_values(batch)
    came = [came_from[column.name] for column in shape.key]
    if any(column is None or column.name not in batch.schema.names for column in came):
        return None
    columns = [column_text(batch, column.name, exact) for column in came if column is not None]
    return pa.RecordBatch.from_arrays(columns, names=[column.name for column in shape.key])
