"""From staged changes to what one commit writes: where old rows end, and the last change of each key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final as Constant

import numpy as np
import pyarrow as pa

from cdc.model.batch import OP, POSITION, Op, first_position, is_truncate, last_position, topic_schema
from cdc.model.evolution import differences, topic_change_of
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, barrier_of
from sinks.reshape import same_origin
from sinks.warehouse.keys import (
    Int64s,
    KeyPlan,
    Mask,
    codes_of,
    concatenate,
    encode,
    first_of_each_position,
    key_plan,
    last_of_each,
    select,
)


@dataclass(frozen=True, slots=True)
class UpsertGroup:
    """Changes that one commit takes: one way of telling rows apart, and no moment at which the whole table goes but before all."""

    schema: TopicSchema
    """The newest definition."""
    plan: KeyPlan | None
    batches: tuple[pa.RecordBatch, ...]
    floor: int
    """Rows at or below this position are gone, in the table and among these changes; -1 when nothing goes."""
    last: int
    """The last position."""
    truncates: bool = False
    """It is a TRUNCATE, alone: only of groups that are made ``apart``."""


def groups(batches: Sequence[pa.RecordBatch], known: TopicSchema | None, held: int, *, apart: bool = False) -> list[UpsertGroup]:
    """The staged batches of one table in position order, cut where the key's columns change or a column is renamed, and around a SCHEMA
    record, which is a group of its own; without those that it holds already.

    known: the schema that the table's rows were written under. Another origin is another table, whose rows replace it.
    held: the table holds everything up to this position.
    apart: where rows that go leave something behind. Each group is of one definition, a TRUNCATE is one by itself, and none is larger than
    ``_APART_BYTES`` by more than a batch.
    """
    found: list[UpsertGroup] = []
    run: list[pa.RecordBatch] = []
    floor, size = -1, 0
    for batch in sorted((batch for batch in batches if batch.num_rows and last_position(batch) > held), key=first_position):
        schema = topic_schema(batch.schema)
        change = topic_change_of(batch)
        cut = change is not None or (run and topic_change_of(run[-1]) is not None)
        if run and (
            cut or _apart(topic_schema(run[-1].schema), schema) or (apart and (size >= _APART_BYTES or _ends(run[-1], batch)))
        ):
            found.append(_group(run, floor, apart=apart))
            run, floor, size = [], -1, 0
        if known is not None and not same_origin(known, schema):
            floor = max(floor, first_position(batch) - 1, held)
        barrier = barrier_of(batch, known)
        if barrier is not None and barrier.rows is RowsBefore.GONE:
            floor = max(floor, barrier.position)
        run.append(batch)
        size += batch.nbytes
        known = schema
    return [*found, _group(run, floor, apart=apart)] if run else found


_APART_BYTES: Constant = 256 * 2**20


def _ends(before: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    return is_truncate(batch) or is_truncate(before) or not before.schema.equals(batch.schema, check_metadata=True)


def _apart(one: TopicSchema, other: TopicSchema) -> bool:
    """Whether rows of the two cannot go into one commit: their keys or their columns' names would be mistaken for each other's."""
    return key_plan(one) != key_plan(other) or any(found.renamed for found in differences(one, other))


def _group(run: Sequence[pa.RecordBatch], floor: int, *, apart: bool) -> UpsertGroup:
    schema = topic_schema(run[-1].schema)
    return UpsertGroup(schema, key_plan(schema), tuple(run), floor, max(map(last_position, run)), apart and is_truncate(run[0]))


@dataclass(frozen=True, slots=True)
class Final:
    """The last change of each key. ``upserts[i]`` marks the rows of batch i that are to be written."""

    touched: Int64s | pa.Array | None
    """Every key with a change; None for a table without a key."""
    upserts: tuple[Mask, ...]
    written: Int64s | pa.Array | None
    """The keys of the rows to be written, in their order."""


def final(group: UpsertGroup, held: int) -> Final:
    """held: the table already holds everything up to this position."""
    positions = np.concatenate([batch.column(POSITION).to_numpy() for batch in group.batches])
    ops = np.concatenate([batch.column(OP).to_numpy() for batch in group.batches])
    live = (positions > max(group.floor, held)) & (ops != Op.TRUNCATE) & (ops != Op.SCHEMA)
    if group.plan is None:
        kept = live.copy()
        kept[live] = first_of_each_position(positions[live])
        return Final(None, _split(kept & (ops != Op.DELETE), group.batches), None)
    plan = group.plan
    keys = concatenate([encode(plan, batch.column, batch.num_rows) for batch in group.batches])
    kept = live.copy()
    kept[live] = last_of_each(select(keys, live), positions[live])
    upserts = kept & (ops != Op.DELETE)
    return Final(select(keys, kept), _split(upserts, group.batches), select(keys, upserts))


def _split(mask: Mask, batches: Sequence[pa.RecordBatch]) -> tuple[Mask, ...]:
    ends = np.cumsum([batch.num_rows for batch in batches])
    return tuple(np.split(mask, ends[:-1]))


@dataclass(frozen=True, slots=True)
class Deletions:
    """The keys of a group whose last change is a DELETE."""

    keys: Int64s | pa.Array
    positions: Int64s
    """Of the DELETEs."""
    rows: Int64s
    """The last change of the key before it that brought a row, counted over the group's batches; -1: none in the group."""


def deletions(group: UpsertGroup, held: int) -> Deletions | None:
    """None where nothing is deleted. ``held``: as for ``final``. The group has a key."""
    assert group.plan is not None
    positions = np.concatenate([batch.column(POSITION).to_numpy() for batch in group.batches])
    ops = np.concatenate([batch.column(OP).to_numpy() for batch in group.batches])
    there = np.flatnonzero((positions > max(group.floor, held)) & (ops != Op.TRUNCATE) & (ops != Op.SCHEMA))
    if not np.any(ops[there] == Op.DELETE):
        return None
    keys = concatenate([encode(group.plan, batch.column, batch.num_rows) for batch in group.batches])
    codes = codes_of(keys)[there]
    order = np.lexsort((positions[there], codes))
    ordered, deleted = codes[order], ops[there][order] == Op.DELETE
    begins = np.append(True, ordered[1:] != ordered[:-1])
    ends = np.flatnonzero(np.append(begins[1:], True))
    starts = np.flatnonzero(begins)
    brought = np.maximum.accumulate(np.where(deleted, -1, np.arange(len(order))))[ends]
    chosen = deleted[ends]
    last, before = there[order[ends]], np.where(brought >= starts, there[order[brought]], -1)
    rows = pa.array(last[chosen])
    found = keys[last[chosen]] if isinstance(keys, np.ndarray) else keys.take(rows)
    return Deletions(found, positions[last[chosen]], before[chosen])
