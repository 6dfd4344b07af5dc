"""A topic's changes in a range as their net effect: for each key the row at the range's end, or that there is none. Pure and columnar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import Stopped, StopState
from cdc.log.orphans import ENDING
from cdc.model.batch import EXACT, EXACT_TYPE, OP, POSITION, Op, first_position, is_truncate, topic_schema
from cdc.model.evolution import Kind, topic_change_of
from cdc.model.topic import TopicField, TopicSchema
from cdc.views.contract import Delta
from sinks.render.rowtext import exact_values

_FEW: Final = 10_000

Signature = tuple[tuple[object, ...], ...]
"""The part of a topic's definition that a view's rows follow from: another one is other columns."""


class Redefined(Exception):
    """The range holds a definition under which the columns that the view reads are others."""


@dataclass(frozen=True, slots=True)
class TopicReads:
    """The columns that a view reads of one topic. ``columns``: in the topic's order."""

    topic: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    signature: Signature
    schema: pa.Schema

    @classmethod
    def of(cls, schema: TopicSchema, columns: Sequence[str]) -> TopicReads:
        """Raises Stopped for a topic whose rows have no key, and for a column that it does not have."""
        whole_rows = schema.identity == "row" and all(one.key for one in schema.fields)
        if not schema.key or whole_rows:
            raise Stopped(
                StopState.VIEW_REFUSED,
                f"{schema.topic} has no primary key, so a view cannot tell its rows apart",
                hint="give the table a primary key, or take it out of the view; then cdc resume VIEW_REFUSED",
            )
        lacking = [name for name in columns if name not in schema.names]
        if lacking:
            raise Stopped(StopState.VIEW_REFUSED, f"{schema.topic} has no column {lacking[0]} any more, which a view reads")
        wanted = {*columns, *(one.name for one in schema.key)}
        fields = [one for one in schema.fields if one.name in wanted]
        return cls(
            schema.topic,
            tuple(one.name for one in fields),
            tuple(one.name for one in fields if one.key),
            signature_of(schema, wanted),
            pa.schema([pa.field(one.name, one.type) for one in fields]),
        )


def signature_of(schema: TopicSchema, columns: Iterable[str]) -> Signature:
    """The signature of these columns, and of the key."""
    wanted = set(columns)
    return ((schema.origin,), *(_facts(one) for one in schema.fields if one.name in wanted or one.key))


def _facts(one: TopicField) -> tuple[object, ...]:
    facts = one.name, one.origin, one.source_type, str(one.type), one.key, one.protected
    return (*facts, one.outline) if one.outline else facts  # the view's own documents say what those look like that it carries


@dataclass(frozen=True, slots=True)
class Net:
    """``delta``: None where nothing happened. ``begins_again``: the log says that all rows are gone, and they come again, as they are read."""

    delta: Delta | None
    begins_again: bool = False


def net(reads: TopicReads, batches: Iterable[pa.RecordBatch]) -> Net:
    """The net changes of a range, from its batches in position order.

    Raises Redefined; Stopped where the table is gone, or a column that is read holds a value that its Arrow type cannot hold.
    """
    kept: list[pa.RecordBatch] = []
    emptied = again = False
    for batch in batches:
        if is_truncate(batch):
            kept, emptied, again = [], True, False
            continue
        change = topic_change_of(batch)
        if change is not None:
            if change.kind in ENDING:
                raise _gone(reads.topic, change.kind, first_position(batch))
            if change.empties:
                kept, emptied, again = [], True, True
        if signature_of(topic_schema(batch.schema), reads.columns) != reads.signature:
            raise Redefined
        if change is None and len(batch):
            refuse_odd_keys(reads, batch)
            kept.append(batch.select([POSITION, OP, EXACT, *reads.columns]))
    if not kept:
        return Net(Delta(_empty(reads.schema), _empty(_key_schema(reads)), emptied) if emptied else None, again)
    last = _last_of_each(pa.Table.from_batches([_plain(batch) for batch in kept]), reads.key)
    deleted = pc.equal(last.column(OP), int(Op.DELETE))
    rows = _read(reads, last.filter(pc.invert(deleted)))
    gone = last.filter(deleted).select(list(reads.key))
    return Net(Delta(rows, gone, emptied), again)


def _last_of_each(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Each key's last change, in position order."""
    positions = changes.column(POSITION).to_numpy()
    # By threads a handful of rows takes milliseconds.
    last = (
        changes.group_by(list(key), use_threads=len(changes) > _FEW)
        .aggregate([(POSITION, "max")])
        .column(f"{POSITION}_max")
        .to_numpy()
    )
    if len(last) == len(positions):
        return changes
    return changes.take(pa.array(np.searchsorted(positions, np.sort(last))))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.replace_schema_metadata(None)


def _key_schema(reads: TopicReads) -> pa.Schema:
    return pa.schema([reads.schema.field(name) for name in reads.key])


def _empty(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def loaded(reads: TopicReads, rows: Sequence[pa.RecordBatch]) -> Delta:
    """Rows of a table as of a cut, as the changes of a view that has none of them yet."""
    for batch in rows:
        refuse_odd_keys(reads, batch)
    found = pa.Table.from_batches([_plain(batch.select([EXACT, *reads.columns])) for batch in rows])
    return Delta(_read(reads, found), _empty(_key_schema(reads)), fresh=True)


def _read(reads: TopicReads, rows: pa.Table) -> pa.Table:
    """The columns that are read; with the exact texts where there are any."""
    schema = reads.schema
    if rows.column(EXACT).null_count < len(rows):
        schema = schema.append(pa.field(EXACT, EXACT_TYPE))
    return rows.select(schema.names).cast(schema)


def refuse_odd_keys(reads: TopicReads, batch: pa.RecordBatch) -> None:
    """Raises Stopped where a key has a value that its Arrow type cannot hold: rows could not be told apart by it."""
    odd = [name for name in exact_values(batch) if name in reads.key]
    if odd:
        raise Stopped(
            StopState.VIEW_REFUSED,
            f"key column {odd[0]} of {reads.topic} holds a value that a view cannot tell rows apart by (such as infinity), at or behind position "
            f"{first_position(batch)}",
            hint="correct the row at the source; then cdc resume VIEW_REFUSED",
        )


def _gone(topic: str, kind: Kind, position: int) -> Stopped:
    return Stopped(
        StopState.VIEW_REFUSED,
        f"{topic}, which the view reads, was {kind} at position {position}",
        hint="take it out of the view, or bring it back; then cdc resume VIEW_REFUSED, which builds the view again",
    )
