"""The one apply function on Arrow, and the two ways to reach it: here in the driver, or on Spark's workers for large ranges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import AnotherHistory, ConfigError, StoreError
from cdc.follow.failures import carried, counted_apart, recorded
from cdc.follow.rules import Rules
from cdc.follow.survey import Survey, TopicRange
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.log.views import gathered
from cdc.lookup.former import held_log
from cdc.model.batch import LSN, first_position, last_position, topic_schema
from cdc.model.evolution import TopicChange, schema_record, topic_change_of
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks import make_sink
from sinks.contract import NOTHING, DeadLetter, Outcome, Shape, Sink
from sinks.holding import failures_of
from sinks.policy import Action, remaining
from sinks.reshape import conformed

RESULT: Final = pa.schema(
    [
        ("written", pa.int64()),
        ("stale", pa.int64()),
        ("dead", pa.utf8()),
        ("error", pa.utf8()),
        ("hint", pa.utf8()),
        ("retryable", pa.bool_()),
    ]
)
RESULT_DDL: Final = "written long, stale long, dead string, error string, hint string, retryable boolean"
"""What one worker answers, for Arrow and for Spark. ``dead``: JSON of [table, position, reason]; ``error``: a StoreError's line, NULL when all went well."""


@dataclass(frozen=True, slots=True)
class Slices:
    """A micro-batch's range: its DataFrame (``cdc.spark.source.SLICES``), and the position that it begins behind."""

    after: Position
    frame: Any


@dataclass(frozen=True, slots=True)
class StoreWriter:
    """For whom the workers write: the follower's lease, and which opening of the store it is. A worker opens its own sink under them.

    ``history``: the log's when the store was opened (``LogReader.read``)."""

    log_dir: Path
    epoch: int
    opening: int
    history: str | None = None


@dataclass(slots=True)
class Prepared:
    """The state of an opened sink: which definitions it was prepared for, and the shapes that its rows have."""

    schemas: dict[str, TopicSchema] = field(default_factory=dict)
    _shapes: dict[str, Shape | None] = field(default_factory=dict)

    def ensure(self, sink: Sink, schema: TopicSchema) -> None:
        if self.schemas.get(schema.topic) != schema:
            sink.prepare(schema)
            self.schemas[schema.topic] = schema
            if self._shapes.get(schema.topic) is None:
                self._shapes.pop(schema.topic, None)

    def shape(self, sink: Sink, topic: str) -> Shape | None:
        if topic not in self._shapes:
            self._shapes[topic] = sink.shape(topic)
        return self._shapes[topic]

    def reshaped(self, schema: TopicSchema, position: Position) -> None:
        """The sink has applied a SCHEMA record."""
        self._shapes[schema.topic] = Shape(schema, position)
        self.schemas.pop(schema.topic, None)


def apply_range(sink: Sink, reader: LogReader, seen: Survey, prepared: Prepared, rules: Rules) -> Outcome:
    """Applies everything that the survey has seen. Tables are independent of each other; each goes in position order.

    The log gives a TRUNCATE or SCHEMA record alone in its batch, so order makes it the barrier that sinks ask for. Does not commit.
    Raises Stopped at a schema change that has to wait for an operator (ask ``rules`` before, so that nothing behind it is applied).
    """
    outcome = NOTHING
    for found in seen.topics:
        if found.changes and found.first is not None and prepared.shape(sink, found.topic) is None:
            # The shape that the first change starts from, even where rows under it are skipped.
            with _passing(found, Position(0)):
                prepared.ensure(sink, found.first)
        batches = found.batches(reader)
        for batch in gathered(batches) if sink.traits.gathers else batches:
            with _passing(found, Position(first_position(batch))):
                outcome += _apply(sink, reader, batch, prepared, rules)
    return outcome


@contextmanager
def _passing(found: TopicRange, position: Position) -> Iterator[None]:
    """A definition whose rows are gone by the end of the range may be one that the store cannot have, such as one without a key."""
    try:
        yield
    except ConfigError:
        if found.emptied_at is None or position >= found.emptied_at:
            raise


def _apply(sink: Sink, reader: LogReader, batch: pa.RecordBatch, prepared: Prepared, rules: Rules) -> Outcome:
    schema = topic_schema(batch.schema)
    change = topic_change_of(batch)
    if change is not None:
        return _change(sink, reader, batch, change, prepared, rules)
    shape = prepared.shape(sink, schema.topic)
    if shape is not None and last_position(batch) <= shape.position:
        # A replay: a shape is recorded when everything before it was applied. Its place may no longer take such rows.
        return Outcome(0, stale=len(batch))
    failures = failures_of(batch) if schema.holding else {}
    if shape is not None and rules.policy(schema.topic) == "ignore":
        batch, schema = conformed(batch, shape.schema), shape.schema
    prepared.ensure(sink, schema)
    crashpoint("follower.batch.read")
    dead = recorded(sink, batch, failures) if failures else ()
    outcome = sink.apply(batch)
    crashpoint("follower.batch.applied")
    return counted_apart(outcome, dead) if dead else outcome


def _change(sink: Sink, reader: LogReader, batch: pa.RecordBatch, change: TopicChange, prepared: Prepared, rules: Rules) -> Outcome:
    position = Position(first_position(batch))
    shape = prepared.shape(sink, change.schema.topic)
    if shape is not None and position <= shape.position:
        return Outcome(0, stale=1)
    verdict = rules.verdict(None if shape is None else shape.schema, change, position)
    if verdict.stops:
        raise rules.stopped(verdict, position)
    if verdict.action is Action.IGNORE:
        return NOTHING
    if shape is not None and rules.keeps_shape(shape.schema, change, position):
        change = replace(change, schema=shape.schema)
        batch = schema_record(change, position, batch.column(LSN)[0].as_py(), 0)
    crashpoint("follower.schema.read")
    if shape is None and remaining(change):
        prepared.ensure(sink, change.schema)  # it is fenced there, as before the first row
    if change.schema.holding:
        carried(sink, reader, None if shape is None else shape.schema, change)
    outcome = sink.apply(batch)
    crashpoint("follower.schema.applied")
    prepared.reshaped(change.schema, position)
    return outcome


def on_workers(rules: Rules, writer: StoreWriter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over slices (``cdc.spark.source.SLICES``): reads them from the log, applies them, answers RESULT.

    It carries the store's options, secrets included, to the workers; Spark's configuration never sees them. The range must hold no
    change of a table as a whole.
    """

    def work(slices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in slices:
            for piece in batch.to_pylist():
                yield _result(rules, writer, piece)

    return work


def outcome_of(results: pa.Table) -> Outcome:
    """The workers' answers together. Raises StoreError when one of them could not write."""
    outcome = NOTHING
    for row in results.to_pylist():
        if row["error"] is not None:
            raise StoreError(row["error"], retryable=row["retryable"], hint=row["hint"])
        dead = tuple(DeadLetter(*letter) for letter in json.loads(row["dead"]))
        outcome += Outcome(row["written"], row["stale"], dead)
    return outcome


class _Worker:
    """A sink and a reader that one Python worker keeps from task to task."""

    def __init__(self, rules: Rules, log_dir: Path) -> None:
        self.rules = rules
        self._sink = make_sink(rules.store, rules.options)
        self._reader = held_log(open_reader(log_dir), rules.store, rules.options, log_dir)
        self._prepared = Prepared()
        self._writer: StoreWriter | None = None
        """Under whom the sink is open; None while it is not."""

    def open_for(self, writer: StoreWriter) -> None:
        """Opens the sink for this writer; what an earlier opening knew of the store may no longer be so."""
        if self._writer != writer:
            self._shut()
            self._reader.opened(self._sink, writer.epoch)
            lineage = self._reader.lineage()
            if writer.history not in (None, lineage and lineage.history):
                raise AnotherHistory(self.rules.store)
            self._writer = writer

    def apply(self, piece: dict[str, Any]) -> Outcome:
        assert self._writer is not None
        try:
            outcome = NOTHING
            for batch in self._reader.read(piece["topic"], Position(piece["after"]), Position(piece["upto"]), self._writer.history):
                outcome += _apply(self._sink, self._reader, batch, self._prepared, self.rules)
            return outcome
        except StoreError:
            self._shut()
            raise

    def close(self) -> None:
        self._shut()
        self._reader.close()

    def _shut(self) -> None:
        if self._writer is not None:
            self._sink.close()
        self._writer, self._prepared = None, Prepared()


_WORKERS: Final[dict[tuple[str, Path], _Worker]] = {}
"""By store and log; a store whose options are others by now gets another one."""


def _worker(rules: Rules, log_dir: Path) -> _Worker:
    known = _WORKERS.get((rules.store, log_dir))
    if known is not None and known.rules.options == rules.options:
        return known
    if known is not None:
        known.close()
    made = _WORKERS[rules.store, log_dir] = _Worker(rules, log_dir)
    return made


def _result(rules: Rules, writer: StoreWriter, piece: dict[str, Any]) -> pa.RecordBatch:
    worker = _worker(rules, writer.log_dir)
    try:
        worker.open_for(writer)
        outcome = worker.apply(piece)
    except StoreError as error:
        return _row(0, 0, "[]", str(error), error.hint, error.retryable)
    dead = json.dumps([[letter.table, letter.position, letter.reason] for letter in outcome.dead])
    return _row(outcome.written, outcome.stale, dead, None, None, None)


def _row(*values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], kind.type) for value, kind in zip(values, RESULT, strict=True)], schema=RESULT
    )
