"""The contract of a log, whichever home it has. tests/contract/test_log.py holds the embedded log and the in-memory twin to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from cdc.model.lineage import Lineage
from cdc.model.position import Cut, Lsn, Position
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.model.topic import TopicSchema


@dataclass(frozen=True, slots=True)
class Topic:
    """One table's changes in the log, as far as they are durable. ``table`` is its newest schema version."""

    name: str
    table: Table
    rows: int
    bytes: int
    first: Position
    last: Position

    @property
    def schema(self) -> TopicSchema:
        """The same, as stores know it."""
        return TopicSchema.of(self.table)


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of one topic that one task reads: positions in (after, upto]. ``rows`` is an upper bound."""

    topic: str
    after: Position
    upto: Position
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A file of one topic's changes, all of one schema version, with positions in [first, last]. It never changes, and may be removed once the
    log no longer needs it. ``schema`` is that of its batches (``cdc.model.batch``)."""

    path: Path
    first: Position
    last: Position
    rows: int
    schema: pa.Schema


class LogWriter(Protocol):
    """The only writer. Appends are staged and invisible until ``commit`` has made them durable."""

    @property
    def head(self) -> Cut:
        """The last durable cut."""
        ...

    @property
    def next_position(self) -> Position:
        """The position that the next appended change must carry."""
        ...

    def append(self, batch: pa.RecordBatch) -> None:
        """Stages one batch. Its positions rise strictly, within the batch and within its topic; batches of different tables may
        interleave. Between two commits the appended positions together are dense from ``head.position + 1``.

        Raises ValueError for a batch that can never fit (what was staged before stays), OSError when the disk refuses
        (everything staged is then dropped). An empty batch is ignored.
        """
        ...

    def commit(self, commit_lsn: Lsn, commit_ts_us: int) -> Cut:
        """Makes everything staged durable and visible as one cut (group commit), and returns that cut.

        With nothing staged it records the LSN alone, as a cut at the same position, unless the head already has that LSN.
        Raises ValueError when the staged positions are not dense, OSError when the disk refuses: nothing is then visible.
        """
        ...

    def begin_history(self) -> None:
        """A new history (``cdc.model.lineage``) begins behind the head, durably: what stores hold of the former one beyond it is not this
        log's. To be called with nothing staged. Raises OSError when the disk refuses."""
        ...

    def rollback(self) -> None:
        """Drops everything staged; the next position is again ``head.position + 1``."""
        ...

    def alarm(self) -> str | None:
        """Says what the disk refuses, and what helps, while the log goes on without it; else None."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """Any number of readers, in any process. Sees durable cuts only."""

    def head(self) -> Cut:
        """The last durable cut (``ZERO_CUT`` when the log is empty or does not exist yet)."""
        ...

    def written(self) -> Cut:
        """The last whole cut that stands in the log, whether or not a reader may see it yet. Beyond the head while a group is being written,
        and after a power loss until a writer has opened the log: then the head may be older than what was durable."""
        ...

    def wait(self, after: Position, timeout_s: float) -> Cut:
        """Returns the head as soon as its position is > ``after``, or after the timeout (long poll)."""
        ...

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        """The furthest cut such that (after, cut] holds at most so many rows and bytes, but at least the next cut.

        The head when ``after`` is at or beyond it. Raises PositionGone when ``after`` lies before what the log still keeps.
        """
        ...

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        """The first cut whose commit LSN is >= ``lsn``; None when the log has not come that far. Where LSNs have fallen (the source was
        restored, or is another cluster), only the cuts since then count."""
        ...

    def last_commit(self) -> Cut:
        """The last cut that brought changes together with a new LSN (``ZERO_CUT``: none has), so that it is one of the source's commits."""
        ...

    def lineage(self) -> Lineage | None:
        """The log's id and its histories; None when there is no log yet. Asked again, it knows of histories begun meanwhile."""
        ...

    def topics(self) -> Sequence[Topic]: ...

    def last_change(self, topic: str, upto: Position) -> Position:
        """The position of the topic's last change at or below ``upto``, which is a cut; 0 when there is none. Costs no reading of rows."""
        ...

    def read(self, topic: str, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        """The topic's changes in (after, upto], in position order; each batch has one schema version and holds either rows or
        exactly one TRUNCATE. Nothing for a topic that the log does not have (yet), nor beyond the head."""
        ...

    def slices(self, topics: Sequence[str], after: Position, upto: Position, target_bytes: int) -> Sequence[Slice]:
        """Covers (after, upto] of these topics with slices of about ``target_bytes`` each; empty pieces are left out."""
        ...

    def close(self) -> None: ...


def selected(log: LogReader, patterns: Sequence[str]) -> list[Topic]:
    """The topics whose tables the patterns select. Asked of the tables, not of the topics' names: one name may read as several tables'."""
    return [topic for topic in log.topics() if matches(patterns, topic.table)]
