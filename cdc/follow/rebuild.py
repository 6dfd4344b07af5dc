"""A store built from the log: its rows as of one cut, under the rules by which it follows.

The rows that a store would hold had it followed the log up to the cut are computed from the log alone (``sinks.past``), and the store puts them in the
place of whatever it has (``Sink.rebuild``). So it is never empty meanwhile, and nothing of the way to the cut shows: no row that was deleted and came
again, no TRUNCATE. From the cut on the store is followed as ever.

An operator asks for it, or the follower of a store that holds nothing, where states of its topics (``LogReader.state``) stand for most of what it
would read otherwise (``saves_most``).

A row of which an expression of the store has no value is not among them. It is named once the store is open again (``name_failed``), and a store that
keeps no dead letters is not built to its end.

A change of definition that has to wait for an operator stops all this before anything is touched, and the store stays as it is until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from cdc.errors import StoreError
from cdc.follow.failures import kept_by_none, named_again, too_many
from cdc.follow.ranges import ChangeWaits
from cdc.follow.rules import Rules, SchemaPause
from cdc.log.contract import present_history, selected
from cdc.model.batch import POSITION, last_position, topic_schema
from cdc.model.evolution import Kind
from cdc.model.position import START, Cut, Position
from sinks.contract import CameRows, DeadLetter, Outcome, Shape, Sink, TopicAsOf
from sinks.deadletters import LETTERS_MAX, box_of
from sinks.heldlog import HeldLog
from sinks.holding import failures_of
from sinks.past import Defined, definitions, live_rows
from sinks.policy import Action
from sinks.render.rowtext import row_text
from sinks.reshape import conformed, reshaped, rewrites


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """One store's. ``began``: called before the store is touched; ``stop``: ends it, with a retryable StoreError."""

    rules: Rules
    reader: HeldLog
    stop: threading.Event
    began: Callable[[], None]
    failed: dict[str, set[int]] = field(default_factory=dict, init=False)
    """The positions of rows that an expression fails for, by topic."""

    def saves_most(self) -> bool:
        """Whether states stand for more than half of the changes that a store which holds nothing would be given. Reads the states once."""
        topics, head = selected(self.reader, self.rules.options.tables), self.reader.head().position
        saved = 0
        for topic in topics:
            state = self.reader.state(topic.name, head)
            if state is not None:
                pieces = self.reader.slices([topic.name], START, state.cut, 1 << 62, present_history(self.reader))
                saved += sum(piece.rows for piece in pieces)
        return 2 * saved > sum(topic.rows for topic in topics)

    def carry_out(self, sink: Sink, epoch: int) -> Outcome:
        """Builds it as of the log's head. Raises ChangeWaits, ConfigError before anything was touched; StoreError, Stopped, EpochPassed."""
        self.began()
        cut = self.reader.head()
        return sink.rebuild(self.reader, epoch, cut, self.topics(sink, cut))

    def topics(self, sink: Sink, cut: Cut) -> list[TopicAsOf]:
        """The topics as a store holds them that has followed the log up to the cut; whoever reads their rows to the end knows by ``name_failed`` which are
        missing among them. Raises ChangeWaits, ConfigError, Stopped."""
        self.reader.check()
        topics = selected(self.reader, self.rules.options.tables)
        self.failed.clear()
        found = [self._as_of(sink, topic.name, cut.position) for topic in topics if topic.first and topic.first <= cut.position]
        return [one for one in found if one is not None]

    def name_failed(self, sink: Sink) -> None:
        """Records the dead letters of what was left out of the store, which has been opened since. Raises StoreError."""
        for topic, positions in self.failed.items() if box_of(sink) is not None else ():
            for changes in self.reader.changes_at(topic, np.array(sorted(positions), np.int64)):
                named_again(sink, changes)

    def _as_of(self, sink: Sink, topic: str, upto: Position) -> TopicAsOf | None:
        found = definitions(self.reader, topic, upto, go_on=self._go_on)
        shapes = shapes_of(self.rules, found)
        if not shapes:
            return None
        last = found[-1].change
        gone = last is not None and last.kind in (Kind.DROPPED, Kind.RENAMED)
        earlier = dict.fromkeys(shape.schema for shape in shapes if shape.schema != shapes[-1].schema)
        return TopicAsOf(shapes[-1], partial(self._rows, sink, topic, upto, shapes), gone, tuple(earlier))

    def _rows(self, sink: Sink, topic: str, upto: Position, shapes: Sequence[Shape]) -> Iterator[CameRows]:
        keeps = self.rules.policy(topic) == "ignore"
        failed = self.failed[topic] = set()
        for own in live_rows(self.reader.with_failures(), topic, upto, go_on=self._go_on):
            failures = failures_of(own)
            if failures:
                positions = own.column(POSITION).take(pa.array(sorted(failures))).to_pylist()
                failed.update(positions)
                self._refuse(sink, DeadLetter(topic, Position(positions[0]), failures[min(failures)]))
            kept = own.filter(pa.array([row not in failures for row in range(len(own))])) if failures else own
            if len(kept):
                yield as_held(kept, shapes, keeps_shape=keeps)

    def _refuse(self, sink: Sink, first: DeadLetter) -> None:
        """Raises StoreError where the store cannot be built without these rows."""
        if box_of(sink) is None and not sink.traits.passing:
            raise kept_by_none(sink.name, first)
        if sum(map(len, self.failed.values())) > LETTERS_MAX:
            raise too_many(sink.name, first)

    def _go_on(self) -> None:
        if self.stop.is_set():
            raise StoreError(f"store {self.rules.store} was not built to its end: its follower was asked to stop", retryable=True)


def shapes_of(rules: Rules, found: Sequence[Defined]) -> list[Shape]:
    """The shapes that a store's rows of one topic stand under, one after the other, when it follows the log by these rules. Raises ChangeWaits."""
    shapes: list[Shape] = []
    for one in found:
        held = shapes[-1] if shapes else None
        if one.change is None:
            shapes.append(Shape(one.schema, START))
            continue
        verdict = rules.verdict(None if held is None else held.schema, one.change, one.position)
        if verdict.stops:
            raise ChangeWaits(SchemaPause(one.schema.topic, one.position, rules.stopped(verdict, one.position)))
        if verdict.action is Action.IGNORE:
            continue
        keeps = held is not None and rules.keeps_shape(held.schema, one.change, one.position)
        shapes.append(Shape(held.schema if keeps and held is not None else one.schema, one.position))
    return shapes


def as_held(own: pa.RecordBatch, shapes: Sequence[Shape], *, keeps_shape: bool) -> CameRows:
    """The rows of a batch, as it was logged, as a store has them whose shapes were these. ``keeps_shape``: rows take on the store's shape when they come."""
    at = last_position(own)
    came = own.column(POSITION)
    before = [shape for shape in shapes if shape.position < at]
    batch = conformed(own, before[-1].schema) if keeps_shape and before else own
    schema, positions = topic_schema(batch.schema), came
    held = before[-1].schema if before else schema
    for shape in shapes[len(before) :]:
        if shape.schema != schema:
            batch = reshaped(row_text(batch, schema), schema, shape.schema, shape.position)
            if held.key and rewrites(held, shape.schema):
                positions = batch.column(POSITION)
        schema = held = shape.schema
    final = shapes[-1].schema
    if schema != final:  # rows that came under a definition of which no record tells
        batch = reshaped(row_text(batch, schema), schema, final, at)
    return CameRows(batch.set_column(0, batch.schema.field(0), positions), came)
