"""A topic's past, computed from the log alone: its live rows at a position, and the keys that it ever had.

What a TRUNCATE, a re-read or a schema change removes from a store or rewrites in it is computed here, never from what the store holds: below
a prefix of ours there may be other people's keys, and a rewrite repeated over its own result would turn a renamed column into NULL.

Two passes over the topic. The first finds the last change of each key: exactly (texts are compared, not digests of them), and in bounded
memory, for keys that do not fit are divided by a hash into files. What it leaves behind is one bit per position. The second gives the rows
whose bits are set, in position order. Nothing at or before ``upto`` depends on what came later.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.digests import digests
from cdc.log.contract import LogReader
from cdc.model.batch import META_FIELDS, OP, POSITION, Op, first_position, is_truncate, topic_schema
from cdc.model.evolution import TopicChange, topic_change_of
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.barrier import emptied
from sinks.render.rowtext import keys, row_text
from sinks.reshape import rekeyed, reshaped

MEMORY_BYTES: Final = 64 << 20
"""What a look at the past may take by default, batches being read not counted."""
_FILES: Final = 16
_LEVELS: Final = 15
"""How often keys can be divided by ``_FILES``, four bits of their hash at a time."""

_PAIR: Final = pa.schema([("key", pa.utf8()), ("number", pa.int64())])


def live_rows(log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES) -> Iterator[pa.RecordBatch]:
    """The topic's rows as of ``upto``: the last change of each key in (0, upto] that is not a delete, nothing from before the last TRUNCATE
    or SCHEMA record that emptied the topic. In position order, each batch under the definition that it was logged with.

    Where a SCHEMA record changed what tells rows apart, earlier rows count under the key that their values have since.
    Raises PositionGone when the log no longer has the topic's beginning.
    """
    _refuse_gone(log, START)
    with closing(_History(log, topic, memory_bytes)) as history:
        yield from history.live(upto)


def rows_under(
    log: LogReader, shape: TopicSchema, upto: Position, position: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """The batches that a rewrite of the whole topic under ``shape`` writes: its rows as of ``upto`` as reads of ``shape`` that stand at ``position``.

    Each row is taken through every definition that came after its own (``sinks.reshape.reshaped``), so that a column that was dropped gives
    nothing to a later one of the same name.
    """
    _refuse_gone(log, START)
    with closing(_History(log, shape.topic, memory_bytes)) as history:
        for batch in history.live(upto):
            yield _brought_to(batch, [*history.later(batch), shape], position)


def all_keys(
    log: LogReader, topic: str, after: Position, upto: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """Every key that a change in (after, upto] carries, deletes among them, once each: its last change, in position order.

    The batches have our own columns and the key's only; ``topic_schema`` of them is the definition that the change was logged with. A key of
    other columns (by name) is another key. A row of a table without identity is its own key.
    Raises PositionGone when the log no longer has ``after``.
    """
    _refuse_gone(log, after)
    numbers: dict[tuple[str, ...], str] = {}
    with closing(_Newest(memory_bytes)) as newest:
        for batch in _rows_only(log.read(topic, after, upto)):
            schema = topic_schema(batch.schema)
            kind = numbers.setdefault(tuple(column.name for column in schema.key), str(len(numbers)))
            newest.add(pc.binary_join_element_wise(kind, keys(batch, schema), ":"), batch.column(POSITION))
        chosen = _Chosen(after, upto, memory_bytes)
        for found in newest.highest():
            chosen.add(found)
    for batch in chosen.of(_rows_only(log.read(topic, after, upto))):
        yield batch.select([*(field.name for field in META_FIELDS), *(column.name for column in topic_schema(batch.schema).key)])


class _History:
    """One topic from its beginning: where its rows begin to count, and the definitions since then."""

    def __init__(self, log: LogReader, topic: str, memory_bytes: int) -> None:
        self._log = log
        self._topic = topic
        self._memory_bytes = memory_bytes
        self._newest = _Newest(memory_bytes)
        self._start = START
        self._held: TopicSchema | None = None
        self._definitions: list[tuple[int, TopicSchema]] = []

    def live(self, upto: Position) -> Iterator[pa.RecordBatch]:
        for batch in self._log.read(self._topic, START, upto):
            self._take(batch)
        yield from self._living(upto)

    def later(self, batch: pa.RecordBatch) -> list[TopicSchema]:
        """The definitions that came after this batch, in order."""
        at = first_position(batch)
        return [schema for position, schema in self._definitions if position > at]

    def close(self) -> None:
        self._newest.close()

    def _take(self, batch: pa.RecordBatch) -> None:
        schema, change = topic_schema(batch.schema), topic_change_of(batch)
        position = Position(first_position(batch))
        if is_truncate(batch) or (change is not None and emptied(self._held, change)):
            self._again()
            self._start, self._definitions = position, []
        elif change is not None:
            self._change(change, position)
        else:
            deleted = pc.equal(batch.column(OP), int(Op.DELETE)).cast(pa.int64())
            self._newest.add(keys(batch, schema), pc.add(pc.multiply(batch.column(POSITION), 2), deleted))
        self._held = schema

    def _change(self, change: TopicChange, position: Position) -> None:
        self._definitions.append((position, change.schema))
        if self._held is None or not rekeyed(self._held, change.schema):
            return
        living = self._living(Position(position - 1))
        self._again()
        for batch in living:
            moved = _brought_to(batch, self.later(batch), position)
            own = moved.set_column(0, moved.schema.field(0), batch.column(POSITION))
            self._newest.add(keys(own, change.schema), pc.multiply(batch.column(POSITION), 2))

    def _living(self, upto: Position) -> Iterator[pa.RecordBatch]:
        """The rows that are live by what has been taken so far, which may be forgotten once this has been called."""
        chosen = _Chosen(self._start, upto, self._memory_bytes)
        for found in self._newest.highest():
            chosen.add(found[found & 1 == 0] >> 1)
        return chosen.of(_rows_only(self._log.read(self._topic, self._start, upto)))

    def _again(self) -> None:
        self._newest.close()
        self._newest = _Newest(self._memory_bytes)


class _Newest:
    """Of each key the highest number that was added with it. Divides what does not fit into memory among files by a hash of the key."""

    def __init__(self, memory_bytes: int, level: int = 0) -> None:
        self._memory_bytes = memory_bytes
        self._level = level
        self._seed = secrets.randbits(63)  # nobody can choose keys that all come into one file
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._parts: list[_Part] = []

    def add(self, keys: pa.Array, numbers: pa.Array) -> None:
        """keys: utf8 without NULL; numbers: int64, one for each."""
        self._keep(pa.RecordBatch.from_arrays([keys, numbers], schema=_PAIR))

    def highest(self) -> Iterator[npt.NDArray[np.int64]]:
        """The numbers, in pieces; to be asked once."""
        if not self._parts:
            yield from (batch.column(1).to_numpy() for batch in _highest(self._kept))
            return
        self._divide()
        for part in self._parts:
            with closing(_Newest(self._memory_bytes, self._level + 1)) as finer:
                for batch in part.batches():
                    finer._keep(batch)
                yield from finer.highest()

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._parts, self._kept, self._kept_bytes = [], [], 0

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self._kept_bytes += batch.nbytes
        if self._kept_bytes * 4 <= self._memory_bytes:  # grouping takes some three times what it groups
            return
        self._kept = _highest(self._kept)
        self._kept_bytes = sum(one.nbytes for one in self._kept)
        if self._kept_bytes * 8 > self._memory_bytes and self._level < _LEVELS:
            self._divide()

    def _divide(self) -> None:
        if not self._parts:
            self._parts = [_Part() for _ in range(_FILES)]
        for batch in self._kept:
            digest = digests(batch.select([0]), (0,), self._seed).high
            for number, part in enumerate(self._parts):
                mine = batch.filter(pa.array(digest & np.uint64(_FILES - 1) == number))
                if mine.num_rows:
                    part.write(mine)
        self._kept, self._kept_bytes = [], 0


class _Part:
    """One file of pairs, without a name, so that nothing is left behind."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._writer: Any = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), _PAIR)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))

    def close(self) -> None:
        self._file.close()


class _Chosen:
    """A set of positions in (after, upto], one bit each; in a file where that is much."""

    def __init__(self, after: int, upto: int, memory_bytes: int) -> None:
        self._after = after
        size = max(0, upto - after) // 8 + 1
        self._bits: npt.NDArray[np.uint8]
        if size * 4 <= memory_bytes:
            self._bits = np.zeros(size, np.uint8)
        else:
            with tempfile.TemporaryFile() as file:
                self._bits = np.memmap(file, np.uint8, "w+", shape=(size,))

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        at = positions - self._after - 1
        np.bitwise_or.at(self._bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches' rows at these positions."""
        for batch in batches:
            at = batch.column(POSITION).to_numpy() - self._after - 1
            mine = (self._bits[at >> 3] >> (at & 7).astype(np.uint8)) & 1 == 1
            if mine.all():
                yield batch
            elif mine.any():
                yield batch.filter(pa.array(mine))


def _highest(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    grouped = pa.Table.from_batches(batches, _PAIR).group_by("key", use_threads=False).aggregate([("number", "max")])
    return list(grouped.select(["key", "number_max"]).rename_columns(["key", "number"]).to_batches())


def _brought_to(batch: pa.RecordBatch, definitions: Sequence[TopicSchema], position: Position) -> pa.RecordBatch:
    """The rows under each of the definitions in turn; all of them stand at ``position``."""
    held = topic_schema(batch.schema)
    for schema in definitions:
        if schema != held or schema is definitions[-1]:
            batch, held = reshaped(row_text(batch, held), held, schema, position), schema
    return batch


def _rows_only(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows and not is_truncate(batch) and topic_change_of(batch) is None)


def _refuse_gone(log: LogReader, after: Position) -> None:
    log.cut_within(after, 1, 1)
