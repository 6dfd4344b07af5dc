"""Which range of the log a store takes next, and the taking of it: everything between a follower and ``apply_range``.

A range ends at a cut, holds as many rows as the store takes in a few seconds, and ends before a schema change that has to wait for an
operator. A large one may be divided among Spark's workers, which is decided here, too. Nothing here commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc.clock import Clock
from cdc.follow.apply import RESULT_DDL, Prepared, Slices, StoreWriter, apply_range, on_workers, outcome_of
from cdc.follow.rules import Rules, SchemaPause
from cdc.follow.stride import Stride
from cdc.follow.survey import Survey, survey
from cdc.log.contract import LogReader, selected
from cdc.model.position import Cut, Position
from cdc.settings.models import StoreOptions
from sinks.contract import Outcome, Shape, Sink


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that a follower has open, and under which name its workers write to it."""

    sink: Sink
    writer: StoreWriter


@dataclass(frozen=True, slots=True)
class Taken:
    """A range that a store was given, up to ``cut``; to be committed there."""

    cut: Cut
    outcome: Outcome
    rows: int
    seconds: float
    at: float
    """When it was taken, by the clock of its ``Ranges``."""


class ChangeWaits(Exception):
    """The store holds everything before a schema change that has to wait for an operator."""

    def __init__(self, pause: SchemaPause) -> None:
        super().__init__(str(pause.stopped))
        self.pause = pause


class Ranges:
    """One store's. Not thread-safe."""

    def __init__(
        self,
        options: StoreOptions,
        reader: LogReader,
        rules: Rules,
        clock: Clock,
    ) -> None:
        self._options = options
        self._reader = reader
        self._clock = clock
        self._stride = Stride(options.batch_rows)
        self._prepared = Prepared()
        self._rules = rules

    def within(self, after: Position) -> Cut:
        """How far to go from there so that the next commit comes in a few seconds."""
        return self._reader.cut_within(after, self._stride.rows, self._options.batch_bytes)

    def forget(self) -> None:
        """The store was opened again: what was known of it does not count any more."""
        self._prepared = Prepared()

    def failed(self) -> None:
        self._stride.failed()

    def committed(self, taken: Taken) -> None:
        """Notes that what was taken has just been committed."""
        self._stride.took(taken.rows, taken.seconds, self._clock.monotonic() - taken.at)

    def take(self, opened: Opened, after: Position, end: Cut, slices: Slices | None) -> Taken:
        """Applies what comes after ``after``, up to ``end`` or less. slices: a micro-batch that Spark has divided among its workers.

        Raises ChangeWaits when nothing can be taken before an operator has decided; StoreError, ConfigError.
        """
        began = self._clock.monotonic()
        sink, on_workers = opened.sink, self.on_workers(opened.sink)
        # What the workers get is what Spark has divided among them: the whole.
        rows = self._stride.rows if slices is None or not on_workers else self._options.batch_rows
        cut = self._reader.cut_within(after, rows, self._options.batch_bytes)
        if cut.position >= end.position:
            cut = end
        starts = {topic: max(after, sink.held(topic)) for topic in self._topics()}
        seen = survey(self._reader, starts, cut.position, history=opened.writer.history, every=sink.traits.events)
        if (pause := self._pause(sink, seen)) is not None:
            cut = self._cut_before(after, pause)
            seen = survey(self._reader, starts, cut.position, history=opened.writer.history, every=sink.traits.events)
        # Not where the store stands elsewhere than the micro-batch begins: it was set back, or has taken a part of it here.
        exactly = slices is not None and cut is end and all(start == slices.after for start in (after, *starts.values()))
        large = on_workers and cut.position - after >= self._options.workers_from_rows and not seen.barriers
        if slices is not None and exactly and large:
            outcome = self._divided(opened, seen, slices)
        else:
            outcome = apply_range(sink, self._reader, seen, self._prepared, self._rules)
        now = self._clock.monotonic()
        return Taken(cut, outcome, cut.position - after, now - began, now)

    def on_workers(self, sink: Sink) -> bool:
        """Large ranges are for Spark's workers."""
        return sink.traits.parallel and self._options.workers_from_rows > 0

    def _topics(self) -> list[str]:
        return [topic.name for topic in selected(self._reader, self._options.tables)]

    def _divided(self, opened: Opened, seen: Survey, slices: Slices) -> Outcome:
        for found in seen.topics:
            for schema in found.schemas:
                self._prepared.ensure(opened.sink, schema)
        return outcome_of(slices.frame.mapInArrow(on_workers(self._rules, opened.writer), RESULT_DDL).toArrow())

    def _pause(self, sink: Sink, seen: Survey) -> SchemaPause | None:
        changed = [found.topic for found in seen.topics if found.changes]
        shapes = {topic: self._prepared.shape(sink, topic) for topic in changed}
        for found in seen.topics:
            if found.changes and shapes[found.topic] is None and found.first is not None:
                shapes[found.topic] = Shape(found.first, Position(0))
        return self._rules.first_pause(seen, shapes)

    def _cut_before(self, after: Position, pause: SchemaPause) -> Cut:
        """The last cut before the change, so that the store waits with everything that came before."""
        rows = pause.position - 1 - after
        if rows > 0:
            cut = self._reader.cut_within(after, rows, 2**62)
            if cut.position < pause.position:
                return cut
        raise ChangeWaits(pause)
