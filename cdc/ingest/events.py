"""The events that rows of the outbox table are, made where capture takes these rows into the log: in the same commit, behind them.

So what holds of the source's changes holds of events: the log has them exactly once, whatever ends when, in the order of their commits. The table's own topic
stays what it is without this. Rows that cannot be events are counted, and said where the status is shown; they stay in the table, so that
``cdc snapshot`` brings them when the reason is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
from cdc.ingest.eventids import EventIds
from cdc.log.contract import LogReader, LogWriter
from cdc.model.batch import first_position, table_of
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.outbox.router import PRODUCER, Routed, UnfitTable, ids_of, numbered, routed
from cdc.settings.outbox import Outbox

_log = structlog.get_logger("capture")


class Events:
    """One for the capture process. ``open_log``: gives a reader of the log, which is closed again."""

    def __init__(self, outbox: Outbox, writer: LogWriter, open_log: Callable[[], LogReader]) -> None:
        self._outbox = outbox
        self._writer = writer
        self._open_log = open_log
        self._delivered = EventIds(open_log, outbox.topics)
        self._tables: dict[str, Table] | None = None
        self._refused: Counter[str] = Counter()
        self._warned_of_update = False

    def append(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Appends the events of what has just been appended, in the order of its rows. Raises as the writer does, and ConnectionError."""
        own = [batch for batch in batches if table_of(batch.schema).parts == self._outbox.parts]
        for batch in sorted(own, key=first_position):
            try:
                found = routed(batch, self._outbox, self._delivered.known, self._known_tables())
            except UnfitTable as unfit:
                self._count(str(unfit), len(batch))
                continue
            self._note(found)
            if found.events:
                self._take(found, batch)

    def committed(self) -> None:
        """Takes note that all that was appended is durable."""
        self._delivered.settle()

    def reset(self) -> None:
        """Takes note that all that was appended and is not durable is gone."""
        self._delivered.settle()
        self._tables = None

    def problems(self) -> list[str]:
        """The reasons for which rows of the table are no events, one line each with what helps."""
        helps = f"correct the rows, or [outbox] in cdc.toml and restart cdc run; then cdc snapshot {self._outbox.table}"
        return [
            f"{rows} rows of {self._outbox.table} are no events: {why} → {helps}" for why, rows in sorted(self._refused.items())
        ]

    def _take(self, found: Routed, batch: pa.RecordBatch) -> None:
        tables = self._known_tables()
        lsn, ts = batch.column(2)[0].as_py(), batch.column(3)[0].value
        for events in found.batches:
            table = table_of(events.schema)
            known = tables.get(table.qualified, table)
            if known != table:
                change = SchemaChange(table, Kind.ALTERED)
                self._writer.append(schema_record(change, self._writer.next_position, lsn, ts), PRODUCER)
            tables[table.qualified] = table
        crashpoint("outbox.events.begun")
        for events in numbered(found, self._writer.next_position):
            self._writer.append(events, PRODUCER)
            self._delivered.stage(ids_of(events))
        crashpoint("outbox.events.appended")

    def _known_tables(self) -> dict[str, Table]:
        if self._tables is None:
            with closing(self._open_log()) as log:
                self._tables = {topic.name: topic.table for topic in log.topics() if topic.producer == PRODUCER}
        return self._tables

    def _note(self, found: Routed) -> None:
        for why, rows in found.refused:
            self._count(why, rows)
        if found.updated and not self._warned_of_update:
            self._warned_of_update = True
            _log.warning(
                "rows of the outbox table were changed after their events were taken: an UPDATE makes no event",
                table=self._outbox.table,
            )

    def _count(self, why: str, rows: int) -> None:
        if why not in self._refused:
            _log.warning("rows of the outbox table are no events", table=self._outbox.table, problem=why)
        self._refused[why] += rows


_TOPIC_HINT: Final = 'write another topic in [outbox], such as "events.{route}"'


def check_topics(log: LogReader, outbox: Outbox) -> None:
    """Raises ConfigError when the log has topics of these names that somebody else brings."""
    for topic in log.topics():
        if topic.producer != PRODUCER and matches((outbox.topics,), topic.table):
            raise ConfigError(
                f"outbox.topic: the log has a topic {topic.name} already, brought by {topic.producer}", hint=_TOPIC_HINT
            )
