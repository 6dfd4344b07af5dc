"""The example sink: one JSON document a line on standard output. Copy it to start a new one.

A stream of lines keeps nothing, so the applied cut lives as long as the process and the guard has nothing to compare with but that. For the same reason
it may begin anywhere in the log (``Traits.passing``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, first_position, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.terminal import visible_json
from sinks.contract import NOTHING, Outcome, Shape, TopicAsOf, Traits, audit_schema
from sinks.render.choices import Choices
from sinks.render.jsonrows import lines


class Options(StoreOptions):
    renders = True

    @property
    def keys_apart(self) -> bool:
        return False  # the line of a deleted row has nothing else


class ConsoleSink:
    def __init__(self, name: str, options: Options, out: BinaryIO) -> None:
        self.name = name
        self.traits = traits(options)
        self._choices = Choices(name, options.as_rules)
        self._log: LogReader | None = None
        self._out = out
        self._applied = ZERO_CUT
        self._shapes: dict[str, Shape] = {}

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:  # noqa: ARG002
        self._log = log
        return self._applied

    def finish(self) -> None: ...

    def held(self, topic: str) -> Position:  # noqa: ARG002
        return self._applied.position

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:  # noqa: ARG002
        """Prints all of it."""
        self._log = log
        self.erase()
        outcome = NOTHING
        for topic in topics:
            for came in topic.rows():
                outcome += self.apply(came.rows)
            self._shapes[topic.shape.schema.topic] = topic.shape
        self._applied = cut
        return outcome

    def erase(self) -> None:
        """Does nothing: printed lines are beyond anybody's reach."""
        self._applied = ZERO_CUT
        self._shapes.clear()

    def prepare(self, schema: TopicSchema) -> None:
        self._choices.check(schema, self._log)
        self._shapes.setdefault(schema.topic, Shape(schema, Position(0)))

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError when the configuration says something of a table or column that does not exist."""
        self._choices.foresee(schemas)

    def projected(self) -> str | None:
        """Nothing: printed lines stay as they are."""
        return None

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        for line in lines(rows, schema, self._choices.style(schema)).decode().splitlines():
            yield {"line": line}

    def shape(self, topic: str) -> Shape | None:
        return self._shapes.get(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if (change := topic_change_of(changes)) is not None:
            self._shapes[change.schema.topic] = Shape(change.schema, Position(first_position(changes)))
        fresh = changes.slice(int(np.searchsorted(changes.column(POSITION), self._applied.position, side="right")))
        schema = topic_schema(fresh.schema)
        self._out.write(visible_json(lines(fresh, schema, self._choices.style(schema)).decode()).encode())
        self._out.flush()
        return Outcome(len(fresh), stale=len(changes) - len(fresh))

    def commit(self, cut: Cut) -> None:
        if cut.position >= self._applied.position:
            self._applied = cut

    def applied(self) -> Cut:
        return self._applied

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:  # what was printed cannot be read back
        yield audit_schema(schema).empty_table().to_batches()[0]

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        return pa.RecordBatch.from_pylist([], schema=audit_schema(schema))

    def close(self) -> None: ...


def traits(options: Options) -> Traits:  # noqa: ARG001
    return Traits(passing=True)


def make(name: str, options: Options) -> ConsoleSink:
    return ConsoleSink(name, options, sys.stdout.buffer)
