"""Changes with the rows that they replaced: as the source sent them (``cdc.model.oldrows``), else the last change of the key before.

That is looked up for a window of changes at a time, by one look at everything before the window. A window whose former rows take more than it may
take itself is divided, so memory is bounded by the window and not by the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.contract import LogReader
from cdc.model.batch import LSN, OP, POSITION, Op, first_position, is_truncate, last_position, table_of, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.oldrows import completed, taken_apart, without_old_rows
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.state import clean_from
from sinks.past import live_rows
from sinks.render.rowtext import keys
from sinks.reshape import conformed

WINDOW_BYTES: Final = 64 * 2**20
ROWS: Final = 16_384
"""Handed out together."""
_UPDATE, _DELETE = int(Op.UPDATE), int(Op.DELETE)


class WithFormer(NamedTuple):
    """Changes, and for each the row it replaced."""

    changes: pa.RecordBatch
    former: pa.RecordBatch | None
    """One row for each change, under the same definition; NULL in every column where none is known. None: none is known of any."""
    known: npt.NDArray[np.bool_]


def with_sent(log: LogReader, topic: str, after: Position, upto: Position, *, history: str | None = None) -> Iterator[WithFormer]:
    """The topic's changes in (after, upto], in position order, each with the row that it replaced if the source sent that, which costs no look at
    anything before. Only updates and deletes replace a row, and of those before the topic's clean point it is not known.

    Raises PositionGone as ``LogReader.read``.
    """
    clean = clean_from(log, topic)
    for batch in log.read(topic, after, upto, history, old_rows=True):
        changes, has, old = taken_apart(batch)
        known = has & (changes.column(POSITION).to_numpy() >= clean)
        if old is None or not known.any():
            yield WithFormer(changes, None, known)
            continue
        yield WithFormer(changes, taken(pa.Table.from_batches([old]), pa.array(np.cumsum(has) - 1, mask=~known)), known)


def with_former(
    log: LogReader,
    topic: str,
    after: Position,
    upto: Position,
    *,
    window_bytes: int = WINDOW_BYTES,
    history: str | None = None,
) -> Iterator[WithFormer]:
    """The same, and what the source did not send is looked up.

    Raises PositionGone when the log no longer has the topic's beginning.
    """
    window: list[pa.RecordBatch] = []
    clean = clean_from(log, topic)
    start, size, any_before = after, 0, True
    for batch in log.read(topic, after, upto, history, old_rows=True):
        change = topic_change_of(batch)
        whole = change is not None or is_truncate(batch)
        if window and (whole or size >= window_bytes):
            yield from _window(log if any_before else None, topic, start, window, window_bytes, clean)
            start, window, size, any_before = Position(last_position(window[-1])), [], 0, True
        if whole:
            yield WithFormer(without_old_rows(batch), None, np.zeros(1, np.bool_))
            start, any_before = Position(first_position(batch)), change is not None and not change.empties
        else:
            window.append(completed(batch, table_of(batch.schema)))  # where compaction has been, the old rows are gone
            size += batch.nbytes
    if window:
        yield from _window(log if any_before else None, topic, start, window, window_bytes, clean)


def _window(
    log: LogReader | None, topic: str, start: Position, batches: Sequence[pa.RecordBatch], most_bytes: int, clean: Position
) -> Iterator[WithFormer]:
    """``log``: None where nothing comes before. ``clean``: changes before this position get no former row: what is left of those before them
    need not be what stood directly before."""
    changes, sent, old = zip(*map(taken_apart, batches), strict=True)
    arrow_schema, shape = changes[0].schema, topic_schema(changes[0].schema)
    own = pa.chunked_array([keys(batch, shape) for batch in changes], pa.utf8())
    ops, has = np.concatenate([batch.column(OP).to_numpy() for batch in changes]), np.concatenate(sent)
    asked = ((ops == _UPDATE) | (ops == _DELETE)) & ~has
    earlier: list[pa.RecordBatch] | None = []
    if log is not None and asked.any():
        earlier = few_rows_with(log, topic, start, shape, pc.unique(own.filter(pa.array(asked))), most_bytes)
    if earlier is None:
        window, half = pa.Table.from_batches(batches), len(ops) // 2
        first, second = window.slice(0, half).to_batches(), window.slice(half).to_batches()
        yield from _window(log, topic, start, first, most_bytes, clean)
        yield from _window(log, topic, Position(last_position(first[-1])), second, most_bytes, clean)
        return
    held = [pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema) for batch in earlier]
    count = sum(map(len, held))
    whole = pa.Table.from_batches([*held, *changes, *(rows for rows in old if rows is not None)], arrow_schema).combine_chunks()
    all_ops, positions = (whole.column(name).to_numpy()[: count + len(ops)] for name in (OP, POSITION))
    last = _predecessors(pa.chunked_array([*(keys(batch, shape) for batch in earlier), *own.chunks], pa.utf8()), positions)[count:]
    # Below the clean point what stands before a change is not always what stood directly before it.
    known = (has | (asked & (last >= 0) & (all_ops[np.maximum(last, 0)] != _DELETE))) & (positions[count:] >= clean)
    former = np.where(has, count + len(ops) + np.cumsum(has) - 1, last)
    for low in range(0, len(ops), ROWS):
        mine = slice(low, low + ROWS)
        at = pa.array(former[mine], mask=~known[mine])
        rows = whole.slice(count + low, min(ROWS, len(ops) - low)).combine_chunks().to_batches()[0]
        yield WithFormer(rows, taken(whole, at) if known[mine].any() else None, known[mine])


def taken(rows: pa.Table, at: pa.Array) -> pa.RecordBatch:
    """The rows with these numbers. Where the number is NULL the table's own columns are NULL, and ours that never are so are 0."""
    chosen = rows.take(at)
    found = pa.RecordBatch.from_arrays([column.combine_chunks() for column in chosen.columns], schema=chosen.schema)
    for name in (POSITION, OP, LSN):
        number = found.schema.get_field_index(name)
        found = found.set_column(number, found.schema.field(number), found.column(number).fill_null(0))
    return found


def rows_with(log: LogReader, topic: str, upto: Position, shape: TopicSchema, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    """The topic's rows as of ``upto`` that have one of these keys (``sinks.render.rowtext.keys``), under ``shape``."""
    if not len(wanted):
        return
    for batch in live_rows(log, topic, upto):
        rows = conformed(batch, shape)
        mine = rows.filter(pc.is_in(keys(rows, shape), value_set=wanted))
        if mine.num_rows:
            yield mine


def few_rows_with(
    log: LogReader, topic: str, upto: Position, shape: TopicSchema, wanted: pa.Array, most_bytes: int
) -> list[pa.RecordBatch] | None:
    """The same at once; None where they take more bytes than this and fewer keys can be asked for."""
    found, size = [], 0
    for rows in rows_with(log, topic, upto, shape, wanted):
        found.append(rows)
        size += rows.nbytes
        if size > most_bytes and len(wanted) > 1:
            return None
    return found


def _predecessors(all_keys: pa.ChunkedArray, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row the number of the one before it that has the same key; -1 where there is none."""
    codes = all_keys.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((positions, codes))
    found = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    found[order[1:][same]] = order[:-1][same]
    return found
