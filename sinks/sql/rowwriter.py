"""Rows into one table, within one transaction: staged in a temporary table, then one DELETE and one INSERT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model.batch import OP, POSITION, Op, first_position, last_position, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of
from sinks.contract import Shape
from sinks.render.rowtext import keys
from sinks.reshape import same_origin
from sinks.sql.dialect import SqlSession
from sinks.sql.history import HistoryWriter
from sinks.sql.names import GONE
from sinks.sql.table import TargetTable

_BESIDE: Final = {GONE: "boolean"}
_GROUP_BYTES: Final = 64 * 2**20
"""So much goes in with one INSERT."""


class SqlRowWriter:
    """Over one table. ``shape``: the definition that its rows stand under, and afterwards stand under."""

    def __init__(self, session: SqlSession, table: TargetTable, shape: Shape, history: HistoryWriter | None = None) -> None:
        """``history``: gets all that ``write`` is given."""
        self.shape = shape
        self._history = history
        self._session = session
        self._table = table

    def write(self, batches: Iterable[pa.RecordBatch], held: Position) -> None:
        """batches: of the topic, in position order; what stands at or below ``held`` is left out."""
        for group in _groups(batches, held):
            barrier = barrier_of(group[0], self.shape.schema)
            if barrier is not None:
                self._pass(barrier, group[0])
                continue
            schema = topic_schema(group[0].schema)
            if not same_origin(self.shape.schema, schema):
                self._pass(TableBarrier(schema, Position(first_position(group[0]) - 1), RowsBefore.GONE, True), group[0])
            self._merge(schema, group)

    def replace_all(self, schema: TopicSchema, known: Sequence[str], rows: Iterable[pa.RecordBatch]) -> int:
        """Replaces every row by these, one a key. ``known``: the columns that were the store's before. Returns how many there are."""
        fits, dialect = self._table.fits(schema), self._session.dialect
        wanted = dict(self._table.columns) if fits else {field.name: dialect.column_type(field) for field in schema.fields}
        staged = dialect.stage(self._session, schema, wanted, _BESIDE)
        count, changed = 0, set[str]()
        for batch in rows:
            changed.update(staged.send(batch, {GONE: pa.array(np.zeros(len(batch), np.bool_))}))
            count += len(batch)
        if fits and schema.key:
            self._table.keep_only(schema, staged)
        else:
            self._table.empty()
        if not fits:
            self._table.replace_columns(known, schema)
        self._turn(changed)
        self._table.put(schema, staged)
        staged.drop()
        return count

    def _pass(self, barrier: TableBarrier, change: pa.RecordBatch) -> None:
        if self._history is not None:
            self._history.close(barrier, change)
        gone = barrier.rows is RowsBefore.GONE
        if gone and barrier.defines:
            self._table.empty()
        elif gone:
            self._table.truncate()
        if barrier.defines:
            self._table.evolve(self.shape.schema, barrier.schema, emptied=gone)
            self.shape = barrier.shape

    def _merge(self, schema: TopicSchema, group: Sequence[pa.RecordBatch]) -> None:
        self._table.admit(schema)
        batch = group[0] if len(group) == 1 else pa.Table.from_batches(group).combine_chunks().to_batches()[0]
        if self._history is not None:
            self._history.write(schema, batch)
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        last = _last_of_each(keys(batch, schema)) if schema.key else np.flatnonzero(~gone)
        chosen = batch if len(last) == len(batch) else batch.take(pa.array(last))
        gone = gone[last]
        staged = self._session.dialect.stage(self._session, schema, self._table.columns, _BESIDE)
        self._turn(staged.send(chosen, {GONE: pa.array(gone)}))
        if gone.any():
            self._table.remove(schema, staged)
        if not gone.all():
            self._table.put(schema, staged)
        staged.drop()

    def _turn(self, names: Iterable[str]) -> None:
        for name in names:
            if self._table.columns[name] != self._session.dialect.text:
                self._table.become_text(name)


def _groups(batches: Iterable[pa.RecordBatch], held: Position) -> Iterator[list[pa.RecordBatch]]:
    """What goes in at once: a barrier alone, else rows under one definition."""
    run: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not len(batch) or last_position(batch) <= held:
            continue
        fresh = (
            batch
            if first_position(batch) > held
            else batch.slice(int(np.searchsorted(batch.column(POSITION).to_numpy(), held, "right")))
        )
        alone = barrier_of(fresh, None) is not None
        if run and (alone or size > _GROUP_BYTES or not run[-1].schema.equals(fresh.schema, check_metadata=True)):
            yield run
            run, size = [], 0
        if alone:
            yield [fresh]
            continue
        run.append(fresh)
        size += fresh.nbytes
    if run:
        yield run


def _last_of_each(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows' numbers, rising."""
    numbers = pa.array(np.arange(len(texts), dtype=np.int64))
    grouped = pa.table({"key": texts, "number": numbers}).group_by("key", use_threads=False).aggregate([("number", "max")])
    return np.sort(grouped.column("number_max").to_numpy())
