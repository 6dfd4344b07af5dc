"""Rows that a store puts under names which other columns have a say in, beside the key's: what a change of such a column does to the store. Pure.

``key = "order:{region}:{id}"`` says where a row stands by a column that may change. To the store that column is part of the key (``sinks.holding``), so that a row
which goes from one place to another is what a changed key is: a DELETE of the place that it had, and a row at the one that it has. The log has only the row as
it became, and of a DELETE only the source's key. ``moves`` adds what is missing, by the row as it was before (``FormerRows``):

- a change after which the row stands elsewhere comes with a DELETE of the former place, at the same position and right before it;
- a DELETE has the former row's values, and so names the place.

All of it follows from the log alone, so it is the same however often, and in however many pieces, the log is read. A place names the whole key of the source
(whoever makes names of it refuses the rest), so that no two rows ever have one: no DELETE of one row's former place can meet another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.contract import LogReader
from cdc.model.batch import EXACT, FAILED, LSN, META_FIELDS, OP, POSITION, TS, Op, first_position, topic_schema
from cdc.model.position import Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks.past import live_rows
from sinks.render.fromtext import exact_column
from sinks.render.rowtext import exact_values, keys
from sinks.reshape import conformed

I64 = npt.NDArray[np.int64]
Given = Callable[[pa.RecordBatch], pa.RecordBatch]
"""A batch of the log → the same rows as the store is given them."""
_DELETE: Final = int(Op.DELETE)
_NONE: Final = -1


class Former(NamedTuple):
    """Rows of the source, and for each key that was asked for the number of its row among them; -1: it had none."""

    rows: pa.RecordBatch
    numbers: I64


_NO_FORMER: Final = Former(pa.RecordBatch.from_pylist([], pa.schema([])), np.empty(0, np.int64))


class FormerRows(Protocol):
    """Looks rows up."""

    def __call__(self, shape: TopicSchema, upto: Position, asked: pa.Array) -> Former:
        """The rows of this topic with these keys (``sinks.render.rowtext.keys``, each once) as of a position, under ``shape``."""
        ...


def by_reading(log: LogReader) -> FormerRows:
    """Looks them up by reading all that the log has of the topic: where nothing better is at hand."""

    def rows(shape: TopicSchema, upto: Position, asked: pa.Array) -> Former:
        found, numbers, count = [], np.full(len(asked), _NONE, np.int64), 0
        for batch in live_rows(log, shape.topic, upto):
            rows = conformed(batch, shape)
            at = pc.index_in(keys(rows, shape), value_set=asked)
            mine = rows.filter(at.is_valid())
            numbers[at.drop_null().to_numpy()] = np.arange(count, count + len(mine))
            found.append(pa.RecordBatch.from_arrays(mine.columns, schema=_plain(mine.schema)))
            count += len(mine)
        whole = pa.Table.from_batches(found).combine_chunks().to_batches() if count else []
        return Former(whole[0] if whole else pa.RecordBatch.from_pylist([], pa.schema([])), numbers)

    return rows


def named_by_others(stores: Iterable[StoreOptions], schema: TopicSchema) -> bool:
    """Whether a store has to know how rows of this topic were before: then all of its changes have to stay, and rows be looked up by their keys."""
    return any(matches(one.tables, schema) and one.looks_up(schema) for one in stores)


def moves(batch: pa.RecordBatch, given: Given, former_rows: FormerRows) -> pa.RecordBatch:
    """The changes as the store is given them, and those that are missing of rows that have left their places. ``batch``: rows as they were logged."""
    schema = topic_schema(batch.schema)
    out = given(batch)
    if not schema.key or not len(batch):
        return out
    before = ChangesBefore.of(batch, schema, former_rows)
    has = np.flatnonzero(before.numbers != _NONE)
    if not len(has):
        return out
    old = _as_deletes(given(before.rows_at(has)), out, has)
    held = topic_schema(out.schema)
    left = np.asarray(pc.not_equal(keys(old, held), keys(out, held).take(pa.array(has))))
    deleted = batch.column(OP).to_numpy()[has] == _DELETE
    if not (left | deleted).any():
        return out
    rows, numbers = np.arange(len(out), dtype=np.int64), np.arange(len(has), dtype=np.int64) + len(out)
    rows[has[deleted]] = numbers[deleted]
    apart = left & ~deleted
    order = np.insert(rows, has[apart], numbers[apart])
    whole = pa.Table.from_batches([out, pa.RecordBatch.from_arrays(old.columns, schema=out.schema)])
    return whole.take(pa.array(order)).combine_chunks().to_batches()[0]


class ChangesBefore(NamedTuple):
    """``numbers``: for each change of a batch, that of the row before it in ``rows``; -1: there was none."""

    rows: pa.Table
    numbers: I64
    schema: pa.Schema

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, schema: TopicSchema, former_rows: FormerRows, asked: npt.NDArray[np.bool_] | None = None
    ) -> ChangesBefore:
        """``asked``: the changes that it is asked of; None: all."""
        own = keys(batch, schema).dictionary_encode()
        codes = own.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        last = np.full(len(batch), _NONE, np.int64)
        again = codes[order[1:]] == codes[order[:-1]]
        last[order[1:][again]] = order[:-1][again]
        first = last == _NONE
        gone = batch.column(OP).to_numpy() == _DELETE
        last[~first & gone[last]] = _NONE
        wanted = np.ones(len(batch), np.bool_) if asked is None else asked
        some = np.unique(codes[first & wanted])
        asked_keys = own.dictionary.take(pa.array(some))
        found = former_rows(schema, Position(first_position(batch) - 1), asked_keys) if len(some) else _NO_FORMER
        plain = _plain(batch.schema)
        parts = [pa.RecordBatch.from_arrays(batch.columns, schema=plain)]
        numbers = np.where(last == _NONE, _NONE, last)
        if len(found.rows):
            parts.append(pa.RecordBatch.from_arrays(found.rows.columns, schema=plain))
            of_codes = np.full(len(own.dictionary), _NONE, np.int64)
            of_codes[some] = found.numbers
            at = of_codes[codes]
            numbers = np.where(first & (at != _NONE), at + len(batch), numbers)
        return cls(pa.Table.from_batches(parts), numbers, batch.schema)

    def rows_at(self, has: I64) -> pa.RecordBatch:
        """These rows, as reads."""
        found = self.rows.take(pa.array(self.numbers[has])).combine_chunks().to_batches()[0]
        at = found.schema.get_field_index(OP)
        found = found.set_column(at, found.schema.field(at), pa.array(np.full(len(has), int(Op.READ), np.int8)))
        return pa.RecordBatch.from_arrays(found.columns, schema=self.schema)


def _as_deletes(old: pa.RecordBatch, out: pa.RecordBatch, which: I64) -> pa.RecordBatch:
    """Rows as DELETEs at the positions of these changes."""
    at = pa.array(which)
    meta = {name: out.column(name).take(at) for name in (POSITION, LSN, TS)}
    meta[OP] = pa.array(np.full(len(which), _DELETE, np.int8))
    meta[EXACT] = _without_failures(old)
    return pa.RecordBatch.from_arrays(
        [*(meta[one.name] for one in META_FIELDS), *old.columns[len(META_FIELDS) :]], schema=out.schema
    )


def _without_failures(batch: pa.RecordBatch) -> pa.Array:
    texts = exact_values(batch)
    if FAILED not in texts:
        return batch.column(EXACT)
    left: Mapping[str, Mapping[int, str]] = {
        name: dict(zip(one.rows.tolist(), one.texts.to_pylist(), strict=True)) for name, one in texts.items() if name != FAILED
    }
    return exact_column(len(batch), left)


def _plain(schema: pa.Schema) -> pa.Schema:
    return schema.remove_metadata()
