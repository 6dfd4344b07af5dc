"""A table as of a cut: its rows, all under the definition that was in force there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc.errors import PositionGone
from cdc.log.contract import LogReader, Topic, retired_before
from cdc.model.batch import last_position, topic_schema
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.past import MEMORY_BYTES, live_in_steps
from sinks.reshape import conformed


def rows_as_of(log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES) -> Iterator[pa.RecordBatch]:
    """The topic's rows as of ``upto``, each as its last change at or before that (``cdc.model.batch``), in the order of these.

    In bounded memory, whatever the table's size (``sinks.past``, of ``memory_bytes``). Raises PositionGone when the log no longer has the topic's beginning, or no longer all
    that it had at ``upto``.
    """
    return (batch for batch in rows_in_steps(log, topic, upto, memory_bytes=memory_bytes) if batch is not None)


def rows_in_steps(
    log: LogReader, topic: str, upto: Position, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch | None]:
    """The same, and None now and then before the first ones, for which all of the topic is read: whoever takes them has time for something else then."""
    refuse_compacted(log, topic, upto)
    shape = definition_at(log, topic, upto)
    if shape is not None:
        for batch in live_in_steps(log, topic, upto, memory_bytes=memory_bytes):
            yield None if batch is None else conformed(batch, shape)
        refuse_compacted(log, topic, upto)  # it may have been meanwhile, and then rows were missing


def clean_from(log: LogReader, topic: str) -> Position:
    """From where on the log shows the topic as it was; the log's beginning for a topic that it does not have."""
    return next((one.clean_from for one in log.topics() if one.name == topic), START)


def refuse_compacted(log: LogReader, topic: str, upto: Position) -> None:
    """Raises PositionGone where changes at or before ``upto`` may be missing that were superseded only later, or were not at all."""
    refuse_compacted_topic(next((one for one in log.topics() if one.name == topic), None), upto)


def refuse_compacted_topic(found: Topic | None, upto: Position) -> None:
    """The same of a topic as the log has said it is; None: the log has none of this name."""
    if found is None:
        return
    if found.kept_from > START + 1:
        raise retired_before(found.name, START, found.kept_from)
    refuse_superseded(found, upto)


def refuse_superseded(topic: Topic, upto: Position) -> None:
    """Raises PositionGone where changes at or before ``upto`` may be missing whose place later ones have taken: also whoever has come to a cut before that by
    the changes themselves comes to no cut at ``upto``."""
    clean = topic.clean_from
    if 0 < upto < clean - 1:
        raise PositionGone(
            f"the log no longer shows {topic.name} as it was at position {upto}: changes before position {clean} that were superseded are gone",
            hint="ask for a later moment; [log] history_hours says how long every change is kept",
        )


def definition_at(log: LogReader, topic: str, upto: Position) -> TopicSchema | None:
    """The topic's definition as of ``upto``: that of the last change there that the log still has; None where it has none. Reads one change, or
    where DELETEs behind that may be gone everything up to it. Raises PositionGone when the log no longer has the topic's beginning, either."""
    before, found = START, None
    # A change may be dropped between the two questions; then the log has an earlier one.
    while found is None and (last := last_change(log, topic, upto)) not in (START, before):
        before = last
        for batch in _one_change(log, topic, last):
            found = topic_schema(batch.schema)
    return found


def last_change(log: LogReader, topic: str, upto: Position) -> Position:
    """The position of the topic's last change at or below ``upto``, which may lie between two commits of a group."""
    last = log.last_change(topic, upto)
    if last < upto and log.cut_within(Position(upto - 1), 1, 1).position != upto:
        for batch in log.read(topic, last, upto):  # no more than one group's
            last = Position(last_position(batch))
    return last


def _one_change(log: LogReader, topic: str, position: Position) -> Iterator[pa.RecordBatch]:
    """The change at a position, and perhaps some before it."""
    try:
        yield from log.read(topic, Position(position - 1), position)
    except PositionGone:
        # Nobody may go on from there. From the beginning everybody may read.
        yield from log.read(topic, START, position)
