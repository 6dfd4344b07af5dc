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
from cdc.model.batch import OP, Op, first_position, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.position import Position
from cdc.model.table import Table

KEPT_BYTES: Final = 256 * 2**20
"""Decoded batches of a range are kept up to this size, all topics together."""


@dataclass(slots=True)
class TopicRange:
    """One topic's share of the range."""

    topic: str
    after: Position
    """Rows at or below this position have no effect: the range begins here, or something empties the topic behind it."""
    upto: Position
    tables: dict[Table, None] = field(default_factory=dict)
    """Every definition that rows come under, in order."""
    first: Table | None = None
    """The definition of the first change that is a row's or a TRUNCATE."""
    changes: list[tuple[Position, SchemaChange]] = field(default_factory=list)
    truncated: bool = False
    emptied: bool = False
    """Something in the range empties the topic: a TRUNCATE, or a change of its definition."""
    before: list[pa.RecordBatch] = field(default_factory=list)
    """The SCHEMA records at or below ``after``."""
    kept: list[pa.RecordBatch] | None = field(default_factory=list)
    """The batches after ``after``; None when they are too large to be kept."""

    def batches(self, reader: LogReader) -> Iterator[pa.RecordBatch]:
        """The batches to apply after ``before``, in position order."""
        yield from reader.read(self.topic, self.after, self.upto) if self.kept is None else self.kept


@dataclass(frozen=True, slots=True)
class Survey:
    """A batch of work, by topic."""

    topics: tuple[TopicRange, ...]

    @property
    def barriers(self) -> bool:
        """A change of a table as a whole is among them, which several writers must not apply side by side."""
        return any(found.truncated or found.changes for found in self.topics)


def survey(reader: LogReader, starts: Mapping[str, Position], upto: Position, *, kept_bytes: int = KEPT_BYTES) -> Survey:
    """Looks at what each topic has behind its start and up to ``upto``. ``kept_bytes``: so much of it is kept."""
    found = []
    for topic, after in starts.items():
        if after >= upto:
            continue
        looked, size = _look(TopicRange(topic, after, upto), reader, kept_bytes)
        kept_bytes -= size
        found.append(looked)
    return Survey(tuple(found))


def _look(found: TopicRange, reader: LogReader, kept_bytes: int) -> tuple[TopicRange, int]:
    """The range and how many bytes of it are kept."""
    schemas: list[pa.RecordBatch] = []
    size = 0
    for batch in reader.read(found.topic, found.after, found.upto):
        change = schema_change_of(batch)
        truncates = len(batch) == 1 and batch.column(OP)[0].as_py() == Op.TRUNCATE
        found.truncated |= truncates
        if truncates or (change is not None and change.empties):
            found.emptied = True
            # Rows before this one come and go unseen; the definitions among them still lead from one shape to the next.
            found.before = list(schemas)
            found.after, found.kept, size = Position(first_position(batch) - 1), [], 0
            found.tables.clear()
        if change is not None:
            found.changes.append((Position(first_position(batch)), change))
            schemas.append(batch)
        elif found.first is None and not found.changes:
            found.first = table_of(batch.schema)
        if change is None and not truncates:
            found.tables[table_of(batch.schema)] = None
        if found.kept is not None:
            found.kept.append(batch)
            # What it holds in memory is told at once; what it shows of that (less, in a part of a batch) takes longer than reading a tiny one.
            held = batch.get_total_buffer_size()
            size += held if size + held <= kept_bytes else batch.nbytes
            if size > kept_bytes:
                found.kept = None
    return found, 0 if found.kept is None else size
