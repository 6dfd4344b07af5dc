"""The log's side of capture: whatever lasts from one connection to the next, and how it gets back to what is durable between them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cdc.capture.toast import ToastMemory
from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.errors import LogAway, PositionGone
from cdc.inbox.writerside import Inbox
from cdc.ingest.events import Events
from cdc.ingest.ports import Gauge
from cdc.log.contract import LogReader, LogWriter, captured
from cdc.log.home import open_reader
from cdc.model.batch import table_of
from cdc.model.position import START, Position
from cdc.source import identity
from snapshots.feed import SnapshotFeed


@dataclass(frozen=True, slots=True)
class Intake:
    """One for the capture process. ``folder``: the log's. ``memory`` completes unchanged TOAST values, ``feed`` is the snapshot's side."""

    folder: Path
    writer: LogWriter
    memory: ToastMemory
    feed: SnapshotFeed
    gauge: Gauge
    clock: Clock = MACHINE
    inbox: Inbox | None = None
    """What other producers hand over."""
    events: Events | None = None
    """Makes events of the rows of the outbox table, where there is one."""
    rowless: bool = True
    """Tables without rows are made known in the log, too."""

    def rest(self, stop: threading.Event, seconds: float) -> None:
        """Waits, until something is handed over at most; where there is no inbox, until ``stop``."""
        self.clock.wait(stop if self.inbox is None else self.inbox.looks.rung, seconds)

    def serve_inbox(self) -> bool:
        """Takes at most one group of another producer's into the log, between two of the source's; returns whether there may be more. Raises as the
        writer does."""
        if self.inbox is None:
            return False
        before = self.writer.head.position
        more = self.inbox.serve()
        position = self.writer.head.position
        if position != before:
            state = self.gauge.status
            state.position = position
            state.changes += position - before
        return more

    def catch_up(self) -> None:
        """Reads from the log what the memory missed by a crash."""
        memory, head = self.memory, self.writer.head
        if memory.position > head.position:
            memory.clear()
        if memory.position == head.position:
            return
        known = identity.recorded(self.folder)
        if known is not None and memory.position < known.since_position:
            memory.begin_at(known.since_position)
        try:
            self._learn(head.position)
        except LogAway:
            # Capture waits for no tier. A value may have changed in what was not read, under any name that its table has had, so none is
            # believed: the database is asked for them.
            memory.begin_at(head.position)
        crashpoint("capture.toast_caught_up")
        memory.commit(head.position)

    def _learn(self, upto: Position) -> None:
        memory = self.memory
        with closing(open_reader(self.folder)) as reader:
            homes: dict[int, set[str]] = defaultdict(set)
            for topic in [topic for topic in captured(reader) if topic.last > memory.position]:
                if topic.kept_from - 1 > memory.position:
                    memory.forget(topic.table.oid)  # a value may have changed in what is gone
                for batch in _all_behind(reader, topic.name, Position(memory.position), upto):
                    memory.learn(batch)
                    homes[table_of(batch.schema).oid].add(topic.name)
        # Rows that were held back are not in the log: what it has of their keys may be older than what the stream has brought since.
        for oid in filter(self.feed.outdated, memory.relations):
            memory.forget(oid)
        # A table that has changed its name lies in several topics, which were not read in the order of its changes.
        for oid in (oid for oid, topics in homes.items() if len(topics) > 1):
            memory.forget(oid)

    def back_to_durable(self) -> None:
        """Forgets what a stream has brought since the last commit. Raises what the snapshot has failed with meanwhile."""
        self.writer.rollback()
        if self.events is not None:
            self.events.reset()
        self.memory.rollback()
        self.feed.reset()
        self.feed.check()


def _all_behind(reader: LogReader, topic: str, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
    """At least what the log still has of the topic in (after, upto]. From where changes may be gone the log gives nothing; a memory that keeps a value
    of a deleted row takes no harm, so it reads from where the log begins then."""
    try:
        yield from reader.read(topic, after, upto)
    except PositionGone:
        kept_from = next(one.kept_from for one in reader.topics() if one.name == topic)
        yield from reader.read(topic, Position(max(START, kept_from - 1)), upto)
