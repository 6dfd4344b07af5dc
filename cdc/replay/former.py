"""Changes with the rows that they replaced. The log holds no row twice: what an UPDATE or a DELETE replaced is the last change of its key before.

It is looked up for a window of changes at a time, by one look at everything before the window. A window whose former rows take more than it may
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
from cdc.model.batch import LSN, OP, POSITION, Op, first_position, is_truncate, last_position, topic_schema
from cdc.model.evolution import topic_change_of
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


def with_former(
    log: LogReader,
    topic: str,
    after: Position,
    upto: Position,
    *,
    window_bytes: int = WINDOW_BYTES,
    history: str | None = None,
) -> Iterator[WithFormer]:
    """The topic's changes in (after, upto], in position order. Only updates and deletes replace a row, and of those before the topic's clean
    point it is not known.

    Raises PositionGone when the log no longer has the topic's beginning.
    """
    window: list[pa.RecordBatch] = []
    clean = clean_from(log, topic)
    start, size, any_before = after, 0, True
    for batch in log.read(topic, after, upto, history):
        change = topic_change_of(batch)
        whole = change is not None or is_truncate(batch)
        if window and (whole or size >= window_bytes):
            yield from _window(log if any_before else None, topic, start, window, window_bytes, clean)
            start, window, size, any_before = Position(last_position(window[-1])), [], 0, True
        if whole:
            yield WithFormer(batch, None, np.zeros(1, np.bool_))
            start, any_before = Position(first_position(batch)), change is not None and not change.empties
        else:
            window.append(batch)
            size += batch.nbytes
    if window:
        yield from _window(log if any_before else None, topic, start, window, window_bytes, clean)


def _window(
    log: LogReader | None, topic: str, start: Position, batches: Sequence[pa.RecordBatch], most_bytes: int, clean: Position
) -> Iterator[WithFormer]:
    """``log``: None where nothing comes before. ``clean``: changes before this position get no former row: what is left of those before them
    need not be what stood directly before."""
    arrow_schema, shape = batches[0].schema, topic_schema(batches[0].schema)
    own = pa.chunked_array([keys(batch, shape) for batch in batches], pa.utf8())
    ops = np.concatenate([batch.column(OP).to_numpy() for batch in batches])
    replaces = (ops == _UPDATE) | (ops == _DELETE)
    earlier: list[pa.RecordBatch] | None = []
    if log is not None and replaces.any():
        earlier = few_rows_with(log, topic, start, shape, pc.unique(own.filter(pa.array(replaces))), most_bytes)
    if earlier is None:
        window, half = pa.Table.from_batches(batches, arrow_schema), len(ops) // 2
        first, second = window.slice(0, half).to_batches(), window.slice(half).to_batches()
        yield from _window(log, topic, start, first, most_bytes, clean)
        yield from _window(log, topic, Position(last_position(first[-1])), second, most_bytes, clean)
        return
    held = [pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema) for batch in earlier]
    whole = pa.Table.from_batches([*held, *batches], arrow_schema).combine_chunks()
    all_keys = pa.chunked_array([*(keys(batch, shape) for batch in earlier), *own.chunks], pa.utf8())
    count = whole.num_rows - len(ops)
    last = _predecessors(all_keys, whole.column(POSITION).to_numpy())[count:]
    all_ops = whole.column(OP).to_numpy()
    positions = whole.column(POSITION).to_numpy()[count:]
    # Below the clean point what stands before a change is not always what stood directly before it.
    known = replaces & (last >= 0) & (all_ops[np.maximum(last, 0)] != _DELETE) & (positions >= clean)
    for low in range(0, len(ops), ROWS):
        mine = slice(low, low + ROWS)
        at = pa.array(last[mine], mask=~known[mine])
        changes = whole.slice(count + low, ROWS).combine_chunks().to_batches()[0]
        yield WithFormer(changes, taken(whole, at) if known[mine].any() else None, known[mine])


def taken(rows: pa.Table, at: pa.Array) -> pa.RecordBatch:
    """The rows with these numbers. Where the number is NULL the table's own columns are NULL, and ours that never are so are 0."""
    found = rows.take(at).combine_chunks().to_batches()[0]
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
