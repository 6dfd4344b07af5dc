"""A topic's past, computed from the log alone: its live rows at a position, and the keys that it ever had.

What a TRUNCATE, a re-read or a schema change removes from a store or rewrites in it is computed here, never from what the store holds: below
a prefix of ours there may be other people's keys, and a rewrite repeated over its own result would turn a renamed column into NULL.

Two passes over the topic. The first finds the last change of each key: exactly (texts are compared, not digests of them), and in bounded
memory, for keys that do not fit are divided by a hash into files. What it leaves behind is one bit per position. The second gives the rows
whose bits are set, in position order. Nothing at or before ``upto`` depends on what came later.

Where the log has a state of the topic (``LogReader.state``), both passes take it in place of everything up to its cut, and come to the same: ``condensed`` makes
it, of the rows that are live at the cut and the SCHEMA records through which they have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import PositionGone
from cdc.log.contract import LogReader, TopicState
from cdc.log.views import clip
from cdc.model.batch import META_FIELDS, OP, POSITION, Op, first_position, is_truncate, last_position, topic_schema
from cdc.model.evolution import TopicChange, topic_change_of
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.barrier import emptied
from sinks.newest import Newest, PositionSet
from sinks.render.rowtext import keys, row_text
from sinks.reshape import rekeyed, reshaped

MEMORY_BYTES: Final = 64 << 20
"""What a look at the past may take by default, batches being read not counted."""
Read = Callable[[str, Position, Position], Iterator[pa.RecordBatch]]
"""Topic, after, upto → its changes there."""


def live_rows(
    log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES, go_on: Callable[[], None] = lambda: None
) -> Iterator[pa.RecordBatch]:
    """The topic's rows as of ``upto``: the last change of each key in (0, upto] that is not a delete, nothing from before the last TRUNCATE
    or SCHEMA record that emptied the topic. In position order, each batch under the definition that it was logged with.

    Where a SCHEMA record changed what tells rows apart, earlier rows count under the key that their values have since.
    ``go_on``: called often; it may raise whatever is to end this. Raises PositionGone when the log no longer has the topic's beginning.
    """
    _refuse_gone(log, START)
    with closing(_History(log, topic, memory_bytes, go_on)) as history:
        yield from history.live(upto)


def live_in_steps(
    log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch | None]:
    """The same, and None for every batch that brings none: so whoever takes them has time for something else all along."""
    _refuse_gone(log, START)
    with closing(_History(log, topic, memory_bytes)) as history:
        yield from history.folding(upto)
        chosen = yield from history.choosing(upto)
        for batch in history.since_then(upto):
            rows = list(history.chosen_of(chosen, [batch]))
            yield from rows or [None]


@dataclass(frozen=True, slots=True)
class Condensed:
    """A number of changes, as batches in position order."""

    rows: int
    batches: Iterator[pa.RecordBatch]


@contextmanager
def condensed(
    log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES, go_on: Callable[[], None] = lambda: None
) -> Iterator[Condensed]:
    """The topic's changes in (0, upto] without those that make no difference any longer: what a state is made of. ``go_on``: asked for every batch that is
    read; it may raise whatever is to end this. Raises PositionGone as ``live_rows``."""
    _refuse_gone(log, START)
    with closing(_History(log, topic, memory_bytes, go_on)) as history:
        yield history.condensed(upto)


def rows_under(
    log: LogReader, shape: TopicSchema, upto: Position, position: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """The batches that a rewrite of the whole topic under ``shape`` writes: its rows as of ``upto`` as reads of ``shape`` that stand at ``position``.

    Each row is taken through every definition that came after its own (``sinks.reshape.reshaped``), so that a column that was dropped gives
    nothing to a later one of the same name.
    """
    return (batch for _, batch in rows_and_under(log, shape, upto, position, memory_bytes=memory_bytes))


def rows_and_under(
    log: LogReader,
    shape: TopicSchema,
    upto: Position,
    position: Position,
    *,
    memory_bytes: int = MEMORY_BYTES,
    go_on: Callable[[], None] = lambda: None,
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The same, each batch behind the rows as they were logged. ``go_on``: called often; it may raise whatever is to end this."""
    _refuse_gone(log, START)
    with closing(_History(log, shape.topic, memory_bytes, go_on)) as history:
        for batch in history.live(upto):
            yield batch, brought_to(batch, [*history.later(batch), shape], position)


@dataclass(frozen=True, slots=True)
class Defined:
    """A definition that the topic's changes came under: that of its first rows, or one that a SCHEMA record (``change``) brought."""

    position: Position
    schema: TopicSchema
    change: TopicChange | None


def definitions(log: LogReader, topic: str, upto: Position, *, go_on: Callable[[], None] = lambda: None) -> Sequence[Defined]:
    """Every definition of the topic up to ``upto``, in order, those before it was last emptied among them. Raises PositionGone as ``live_rows``."""
    _refuse_gone(log, START)
    with closing(_History(log, topic, MEMORY_BYTES, go_on, counts=False)) as history:
        return history.definitions(upto)


def all_keys(
    log: LogReader, topic: str, after: Position, upto: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """Every key that a change in (after, upto] carries, deletes among them, once each: its last change, in position order.

    The batches have our own columns and the key's only; ``topic_schema`` of them is the definition that the change was logged with. A key of
    other columns (by name) is another key. A row of a table without identity is its own key.
    Raises PositionGone when the log no longer has the topic's beginning.
    """
    _refuse_gone(log, START)
    numbers: dict[tuple[str, ...], str] = {}
    with closing(Newest(memory_bytes)) as newest:
        for batch in rows_only(behind(log, topic, after, upto)):
            schema = topic_schema(batch.schema)
            kind = numbers.setdefault(tuple(column.name for column in schema.key), str(len(numbers)))
            newest.add(pc.binary_join_element_wise(kind, keys(batch, schema), ":"), batch.column(POSITION))
        chosen = PositionSet(after, upto, memory_bytes)
        for found in newest.highest():
            chosen.add(found)
    for batch in chosen.of(rows_only(behind(log, topic, after, upto))):
        yield batch.select([*(field.name for field in META_FIELDS), *(column.name for column in topic_schema(batch.schema).key)])


class _History:
    """One topic from its beginning: where its rows begin to count, and the definitions since then."""

    def __init__(
        self, log: LogReader, topic: str, memory_bytes: int, go_on: Callable[[], None] = lambda: None, *, counts: bool = True
    ) -> None:
        """``counts``: which rows are live is wanted, too, and not the definitions alone."""
        self._log = log
        self._topic = topic
        self._memory_bytes = memory_bytes
        self._go_on = go_on
        self._state: TopicState | None = None
        """Stands for everything up to its cut."""
        self._newest = Newest(memory_bytes)
        self._start = START
        self._held: TopicSchema | None = None
        self._definitions: list[tuple[int, TopicSchema]] = []
        self._all: list[Defined] = []
        self._counts = counts

    def definitions(self, upto: Position) -> Sequence[Defined]:
        self._fold(upto)
        return self._all

    def live(self, upto: Position) -> Iterator[pa.RecordBatch]:
        self._fold(upto)
        yield from self.living(upto)

    def condensed(self, upto: Position) -> Condensed:
        """Where the topic's rows were last emptied is left out: nothing comes before it."""
        self._fold(upto)
        chosen = self._chosen(upto)
        chosen.add(np.array([position for position, _ in self._definitions], np.int64))
        return Condensed(chosen.count(self._start + 1, upto), chosen.of(batch for batch in self.since_then(upto) if batch.num_rows))

    def _fold(self, upto: Position) -> None:
        for _ in self.folding(upto):
            pass

    def folding(self, upto: Position) -> Iterator[None]:
        """The first pass, a batch at a time; ``choosing`` or ``living`` follows."""
        while True:
            try:
                self._state = self._log.state(self._topic, upto)
                for batch in self._read(START, upto, self._log.read):
                    self._take(batch)
                    yield
            except PositionGone:
                # The log was compacted before the look had come that far. Whoever begins again finds all that is left; unless the beginning is gone.
                if any(one.kept_from > 1 for one in self._log.topics() if one.name == self._topic):
                    raise
                _refuse_gone(self._log, START)
                self._again()
                self._start, self._held, self._definitions, self._all = START, None, [], []
            else:
                break

    def _read(self, after: Position, upto: Position, read: Read) -> Iterator[pa.RecordBatch]:
        """The changes in (after, upto], of which the state stands for those up to its cut. ``read``: reads the others."""
        if self._state is not None and after < self._state.cut:
            for batch in self._state.batches(after, upto):
                self._go_on()
                yield batch
            after = self._state.cut
        if after < upto:
            for batch in read(self._topic, after, upto):
                self._go_on()
                yield batch

    def since_then(self, upto: Position) -> Iterator[pa.RecordBatch]:
        """The changes since the topic was last emptied."""
        return self._read(self._start, upto, lambda topic, after, upto: behind(self._log, topic, after, upto))

    def later(self, batch: pa.RecordBatch) -> list[TopicSchema]:
        """The definitions that came after this batch, in order."""
        at = first_position(batch)
        return [schema for position, schema in self._definitions if position > at]

    def close(self) -> None:
        self._newest.close()

    def _take(self, batch: pa.RecordBatch) -> None:
        schema, change = topic_schema(batch.schema), topic_change_of(batch)
        position = Position(first_position(batch))
        if change is not None or not self._all:
            self._all.append(Defined(position, schema, change))
        if is_truncate(batch) or (change is not None and emptied(self._held, change)):
            self._again()
            self._start, self._definitions = position, []
        elif change is not None:
            self._change(change, position)
        elif self._counts:
            deleted = pc.equal(batch.column(OP), int(Op.DELETE)).cast(pa.int64())
            self._newest.add(keys(batch, schema), pc.add(pc.multiply(batch.column(POSITION), 2), deleted))
        self._held = schema

    def _change(self, change: TopicChange, position: Position) -> None:
        self._definitions.append((position, change.schema))
        if self._held is None or not self._counts or not rekeyed(self._held, change.schema):
            return
        living = self.living(Position(position - 1))
        self._again()
        for batch in living:
            moved = brought_to(batch, self.later(batch), position)
            own = moved.set_column(0, moved.schema.field(0), batch.column(POSITION))
            self._newest.add(keys(own, change.schema), pc.multiply(batch.column(POSITION), 2))

    def living(self, upto: Position) -> Iterator[pa.RecordBatch]:
        """The rows that are live by what has been taken so far, which may be forgotten once this has been called."""
        return self.chosen_of(self._chosen(upto), self.since_then(upto))

    def chosen_of(self, chosen: PositionSet, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows at these positions."""
        return without_deletes(chosen.of(rows_only(batches)))

    def _chosen(self, upto: Position) -> PositionSet:
        choosing = self.choosing(upto)
        while True:
            try:
                next(choosing)
            except StopIteration as chosen:
                found: PositionSet = chosen.value
                return found

    def choosing(self, upto: Position) -> Generator[None, None, PositionSet]:
        """The positions of the rows that are live by what has been taken so far, one piece of memory after another."""
        chosen = PositionSet(self._start, upto, self._memory_bytes)
        for found in self._newest.highest():
            chosen.add(found[found & 1 == 0] >> 1)
            yield
        return chosen

    def _again(self) -> None:
        self._newest.close()
        self._newest = Newest(self._memory_bytes)


def brought_to(batch: pa.RecordBatch, definitions: Sequence[TopicSchema], position: Position) -> pa.RecordBatch:
    """The rows under each of the definitions in turn; all of them stand at ``position``."""
    held = topic_schema(batch.schema)
    for schema in definitions:
        if schema != held or schema is definitions[-1]:
            batch, held = reshaped(row_text(batch, held), held, schema, position), schema
    return batch


def behind(log: LogReader, topic: str, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
    """The changes in (after, upto]. Where DELETEs behind ``after`` may be gone nobody can go on from there; what is left there can
    be read from the beginning."""
    try:
        for batch in log.read(topic, after, upto):
            yield batch
            after = Position(last_position(batch))
    except PositionGone:
        for batch in log.read(topic, START, upto):
            if len(rest := clip(batch, after, upto)):
                yield rest


def rows_only(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows and not is_truncate(batch) and topic_change_of(batch) is None)


def without_deletes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As a store sees the log, a row may stand behind the DELETE of the place that it has left, at the same position (``sinks.places``)."""
    for batch in batches:
        rows = pc.not_equal(batch.column(OP), int(Op.DELETE))
        yield batch if pc.all(rows).as_py() else batch.filter(rows)


def _refuse_gone(log: LogReader, after: Position) -> None:
    log.cut_within(after, 1, 1)
