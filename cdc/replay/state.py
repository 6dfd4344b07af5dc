"""A table as of a cut: its rows, all under the definition that was in force there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import topic_schema
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.past import live_rows
from sinks.reshape import conformed


def rows_as_of(log: LogReader, topic: str, upto: Position) -> Iterator[pa.RecordBatch]:
    """The topic's rows as of ``upto``, each as its last change at or before that (``cdc.model.batch``), in the order of these.

    In bounded memory, whatever the table's size (``sinks.past``). Raises PositionGone when the log no longer has the topic's beginning.
    """
    shape = definition_at(log, topic, upto)
    if shape is not None:
        for batch in live_rows(log, topic, upto):
            yield conformed(batch, shape)


def definition_at(log: LogReader, topic: str, upto: Position) -> TopicSchema | None:
    """The topic's definition as of ``upto``; None where it has no change yet. Reads one change."""
    last = log.last_change(topic, upto)
    if last == START:
        return None
    found = None
    for batch in log.read(topic, Position(last - 1), upto):
        found = topic_schema(batch.schema)
    return found
