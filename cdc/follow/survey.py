"""One look at a range of the log before any of it is applied: its changes of tables as a whole, and where its rows begin to matter.

A range is decoded once: what the look has read is kept for the applying, unless the range is larger than memory should hold (one huge
transaction), which is then read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import first_position, is_truncate, topic_schema
from cdc.model.evolution import TopicChange, topic_change_of
from cdc.model.position import Position
from cdc.model.topic import TopicSchema

KEPT_BYTES: Final = 256 * 2**20
"""Decoded batches of a range are kept up to this size, all topics together."""


@dataclass(slots=True)
class TopicRange:
    """One topic's share of the range."""

    topic: str
    after: Position
    """The range begins here; or right before a record that empties the topic, where no definition comes before it: then nothing up to here has
    an effect."""
    upto: Position
    schemas: dict[TopicSchema, None] = field(default_factory=dict)
    """Every definition that rows come under, in order."""
    first: TopicSchema | None = None
    """The definition of the first change that is a row's or a TRUNCATE."""
    changes: list[tuple[Position, TopicChange]] = field(default_factory=list)
    truncated: bool = False
    emptied_at: Position | None = None
    """The last record that empties the topic: a TRUNCATE, or a change of its definition."""
    kept: list[pa.RecordBatch] | None = field(default_factory=list)
    """The batches to apply; None when they are too large to be kept."""
    history: str | None = None
    """See ``LogReader.read``."""

    def batches(self, reader: LogReader) -> Iterator[pa.RecordBatch]:
        """The batches to apply, in position order."""
        yield from reader.read(self.topic, self.after, self.upto, self.history) if self.kept is None else self.kept


@dataclass(frozen=True, slots=True)
class Survey:
    """A batch of work, by topic."""

    topics: tuple[TopicRange, ...]

    @property
    def barriers(self) -> bool:
        """A change of a table as a whole is among them, which several writers must not apply side by side."""
        return any(found.truncated or found.changes for found in self.topics)


def survey(
    reader: LogReader,
    starts: Mapping[str, Position],
    upto: Position,
    *,
    history: str | None = None,
    kept_bytes: int = KEPT_BYTES,
    every: bool = False,
) -> Survey:
    """Looks at what each topic has behind its start and up to ``upto``. ``kept_bytes``: so much of it is kept. ``history``: in which the
    store came to its starts (``LogReader.read``). ``every``: also changes of rows that are gone by the end of the range count (``Traits.events``)."""
    found = []
    for topic, after in starts.items():
        if after >= upto:
            continue
        looked, size = _look(TopicRange(topic, after, upto, history=history), reader, kept_bytes, every=every)
        kept_bytes -= size
        found.append(looked)
    return Survey(tuple(found))


def _look(found: TopicRange, reader: LogReader, kept_bytes: int, *, every: bool) -> tuple[TopicRange, int]:
    """The range and how many bytes of it are kept."""
    size = defined = defined_size = 0  # of what is kept, and of that up to the last SCHEMA record
    for batch in reader.read(found.topic, found.after, found.upto, found.history):
        change = topic_change_of(batch)
        truncates = is_truncate(batch)
        found.truncated |= truncates
        if not every and (truncates or (change is not None and change.empties)):
            # Rows before this one come and go unseen, but for those before a SCHEMA record: what a store keeps of that record says that it has
            # everything before it, and the follower may end between the two.
            found.emptied_at = Position(first_position(batch))
            found.schemas.clear()
            if not found.changes:
                found.after, found.kept, size = Position(found.emptied_at - 1), [], 0
            elif found.kept is not None:
                del found.kept[defined:]
                size = defined_size
        if change is not None:
            found.changes.append((Position(first_position(batch)), change))
        elif found.first is None and not found.changes:
            found.first = topic_schema(batch.schema)
        if change is None and not truncates:
            found.schemas[topic_schema(batch.schema)] = None
        if found.kept is not None:
            found.kept.append(batch)
            # What it holds in memory is told at once; what it shows of that (less, in a part of a batch) takes longer than reading a tiny one.
            held = batch.get_total_buffer_size()
            size += held if size + held <= kept_bytes else batch.nbytes
            if change is not None:
                defined, defined_size = len(found.kept), size
            if size > kept_bytes:
                found.kept = None
    return found, 0 if found.kept is None else size
