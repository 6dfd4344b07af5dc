"""The net change of a topic between two places: for each key the row before and the row after, however often it changed in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, is_truncate, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.former import WithFormer, few_rows_with, rows_with, taken
from cdc.replay.state import definition_at, last_change, refuse_compacted, rows_as_of
from sinks.barrier import emptied
from sinks.past import all_keys, live_rows
from sinks.render.rowtext import keys, row_text
from sinks.reshape import conformed

LOOKUP_BYTES: Final = 32 * 2**20
"""Rows that are compared at a time; each time costs one look at everything before."""


def net_changes(
    log: LogReader, topic: str, after: Position, upto: Position, *, lookup_bytes: int = LOOKUP_BYTES
) -> Iterator[WithFormer]:
    """One change for each key whose row as of ``upto`` differs from its row as of ``after``: an INSERT or an UPDATE for those that have a row now, in
    the order of their last changes, then a DELETE for those that have none any longer. Position, LSN and time are those of the row's last change.
    Rows of both sides stand under the definition as of ``upto``.

    Raises PositionGone when the log no longer has the topic's beginning, or no longer all that it had at either place.
    """
    for found in chain(_differing(log, topic, after, upto, lookup_bytes), (None,)):
        # Asked after each piece was made: the log may have been compacted meanwhile, and then rows were missing.
        refuse_compacted(log, topic, after)
        refuse_compacted(log, topic, upto)
        if found is not None:
            yield found


def _differing(log: LogReader, topic: str, after: Position, upto: Position, lookup_bytes: int) -> Iterator[WithFormer]:
    shape = definition_at(log, topic, upto)
    if shape is None or last_change(log, topic, upto) <= after:
        return
    newer = (batch.filter(pc.greater(batch.column(POSITION), after)) for batch in rows_as_of(log, topic, upto))
    for rows in _chunks(newer, lookup_bytes):
        yield from _compared(log, topic, after, shape, rows, lookup_bytes)
    lost = _lost_of_all if _begins_again(log, topic, after, upto) else _deleted
    for rows in lost(log, topic, after, upto, shape, lookup_bytes):
        if rows.num_rows:
            yield WithFormer(_as(rows, np.full(len(rows), int(Op.DELETE), np.int8)), rows, np.ones(len(rows), np.bool_))


def _compared(
    log: LogReader, topic: str, after: Position, shape: TopicSchema, rows: pa.RecordBatch, lookup_bytes: int
) -> Iterator[WithFormer]:
    """The rows that were others as of ``after``; in two parts where the former ones take too much at once."""
    wanted = keys(rows, shape)
    former = few_rows_with(log, topic, after, shape, wanted, lookup_bytes)
    if former is not None:
        yield from _paired(former, wanted, rows, shape)
        return
    half = len(rows) // 2
    for part in (rows.slice(0, half), rows.slice(half)):
        yield from _compared(log, topic, after, shape, part, lookup_bytes)


def _paired(former: list[pa.RecordBatch], wanted: pa.Array, rows: pa.RecordBatch, shape: TopicSchema) -> Iterator[WithFormer]:
    """The rows beside those that had the same key, without pairs that are equal."""
    at = pc.index_in(wanted, value_set=_texts([keys(batch, shape) for batch in former]))
    had = at.is_valid().to_numpy(zero_copy_only=False)
    if not had.any():
        yield WithFormer(_as(rows, np.full(len(rows), int(Op.INSERT), np.int8)), None, had)
        return
    before = taken(pa.Table.from_batches([_joined(former, rows.schema)]), at)
    differs = ~had
    for old, new in zip(row_text(before, shape).columns, row_text(rows, shape).columns, strict=True):
        same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))
        differs |= ~same.to_numpy(zero_copy_only=False)
    if differs.any():
        mask = pa.array(differs)
        changes = _as(rows, np.where(had, int(Op.UPDATE), int(Op.INSERT)).astype(np.int8)).filter(mask)
        yield WithFormer(changes, before.filter(mask), had[differs])


def _as(rows: pa.RecordBatch, ops: npt.NDArray[np.int8]) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(OP), rows.schema.field(OP), pa.array(ops))


def _deleted(
    log: LogReader, topic: str, after: Position, upto: Position, shape: TopicSchema, lookup_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows as of ``after`` of keys whose last change is a DELETE."""
    last = all_keys(log, topic, after, upto)
    for some in _chunks(
        (
            pa.record_batch([keys(batch, topic_schema(batch.schema)).filter(pc.equal(batch.column(OP), int(Op.DELETE)))], ["key"])
            for batch in last
        ),
        lookup_bytes,
    ):
        yield from rows_with(log, topic, after, shape, some.column(0))


def _lost_of_all(
    log: LogReader, topic: str, after: Position, upto: Position, shape: TopicSchema, lookup_bytes: int
) -> Iterator[pa.RecordBatch]:
    """All rows as of ``after`` whose keys have none as of ``upto``."""
    for rows in _chunks((conformed(batch, shape) for batch in live_rows(log, topic, after)), lookup_bytes):
        wanted = keys(rows, shape)
        now = [keys(batch, shape) for batch in rows_with(log, topic, upto, shape, wanted)]
        yield rows.filter(pc.invert(pc.is_in(wanted, value_set=_texts(now))))


def _begins_again(log: LogReader, topic: str, after: Position, upto: Position) -> bool:
    """Whether something in between took all rows away, or changed what tells rows apart: then last changes of keys do not say what is gone.

    A key that was changed and changed back counts, too, and so does a key column's new name: a delete carries its key under the definition of then.
    """
    held = definition_at(log, topic, after)
    if held is None:
        return True
    key = _identity(held)
    for batch in log.read(topic, after, upto):
        change = topic_change_of(batch)
        if is_truncate(batch):
            return True
        if change is not None and (emptied(held, change) or _identity(change.schema) != key):
            return True
    return False


def _identity(schema: TopicSchema) -> list[tuple[str, int, pa.DataType]]:
    """What makes the text of a key: equal texts are equal keys only where this is equal."""
    return [(column.name, column.origin, column.type) for column in schema.key]


def _chunks(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield _joined(waiting, waiting[0].schema)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting, waiting[0].schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches with the columns of the schema as one; none make an empty one."""
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return pa.concat_batches([empty, *(pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)])


def _texts(arrays: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.utf8()), *arrays])
