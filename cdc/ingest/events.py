"""The events that rows of the outbox table are, and messages under its prefix, made where capture takes these into the log: in the same commit, behind its rows.

So what holds of the source's changes holds of events: the log has them exactly once, whatever ends when, in the order of their commits. The table's own topic
stays what it is without this. Rows that cannot be events are counted, and said where the status is shown; they stay in the table, so that
``cdc snapshot`` brings them when the reason is gone. Messages that cannot be are counted and said as well, and are nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, Stopped, StopState
from cdc.ingest.eventids import EventIds, Flags
from cdc.log.contract import LogReader, LogWriter
from cdc.model.batch import first_position, table_of
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.group import EmittedMessages
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.outbox import messagerows
from cdc.outbox.router import PRODUCER, Routed, UnfitTable, ids_of, numbered, routed
from cdc.settings.outbox import Outbox

_log = structlog.get_logger("capture")


class Events:
    """One for the capture process. ``open_log``: gives a reader of the log, which is closed again."""

    def __init__(self, outbox: Outbox, writer: LogWriter, open_log: Callable[[], LogReader]) -> None:
        self._outbox = outbox
        self._of_messages = outbox.model_copy(update={"columns": messagerows.COLUMNS, "headers": {}})
        self._writer = writer
        self._open_log = open_log
        self._delivered = EventIds(open_log, outbox.topics)
        self._tables: dict[str, Table] | None = None
        self._refused: Counter[tuple[str, str]] = Counter()
        """By what cannot be an event, and why."""
        self._warned_of_update = False

    @property
    def prefix(self) -> str:
        """The prefix of the messages that are events; empty where none are."""
        return self._outbox.prefix

    def append(self, batches: Sequence[pa.RecordBatch], messages: EmittedMessages | None = None) -> None:
        """Appends the events of what has just been appended, in the order of its rows, and of messages that came with it; commit by commit.

        Raises as the writer does, ConnectionError, and Stopped (OUTBOX_UPDATED).
        """
        own = [batch for batch in batches if table_of(batch.schema).parts == self._outbox.parts]
        for part in by_commits(sorted(own, key=first_position), messages):
            if isinstance(part, EmittedMessages):
                self._append_messages(part)
            else:
                self._append_rows(part)

    def refuse(self, why: str) -> None:
        """Takes note of a message that cannot be an event, by what is seen of its beginning."""
        self._count(self._messages, why, 1)

    def _append_rows(self, batch: pa.RecordBatch) -> None:
        try:
            found = routed(batch, self._outbox, self._delivered.known, self._known_tables())
        except UnfitTable as unfit:
            self._count(self._rows, str(unfit), len(batch))
            return
        self._note(found, self._rows)
        if found.events:
            self._take(found, batch)

    def _append_messages(self, messages: EmittedMessages) -> None:
        rows, refused = messagerows.rows_of(messages)
        for why, count in refused:
            self._count(self._messages, why, count)
        found = routed(rows, self._of_messages, _never, self._known_tables())
        self._note(found, self._messages)
        if found.events:
            self._take(messagerows.under(self._known_tables(), found), rows)

    def committed(self) -> None:
        """Takes note that all that was appended is durable."""
        self._delivered.settle()

    def reset(self) -> None:
        """Takes note that all that was appended and is not durable is gone."""
        self._delivered.settle()
        self._tables = None

    def problems(self) -> list[str]:
        """The reasons for which rows of the table, and messages, are no events, one line each with what helps."""
        helps = {
            self._rows: f"correct the rows, or [outbox] in cdc.toml and restart cdc run; then cdc snapshot {self._outbox.table}",
            self._messages: "correct whoever emits them, and emit them again: they are not in the log (docs/outbox.md)",
        }
        return [f"{count} {what} are no events: {why} → {helps[what]}" for (what, why), count in sorted(self._refused.items())]

    @property
    def _rows(self) -> str:
        return f"rows of {self._outbox.table}"

    @property
    def _messages(self) -> str:
        return f"messages under {self._outbox.prefix}"

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

    def _note(self, found: Routed, what: str) -> None:
        for why, count in found.refused:
            self._count(what, why, count)
        if found.updated and self._outbox.on_update == "stop":
            raise Stopped(
                StopState.OUTBOX_UPDATED,
                f"a row of {self._outbox.table} was changed after its event was taken",
                hint=f'deploy/runbook.md, {StopState.OUTBOX_UPDATED}; or on_update = "warn" in [outbox], then cdc resume {StopState.OUTBOX_UPDATED}',
            )
        if found.updated and self._outbox.on_update == "warn" and not self._warned_of_update:
            self._warned_of_update = True
            _log.warning(
                "rows of the outbox table were changed after their events were taken: an UPDATE makes no event",
                table=self._outbox.table,
            )

    def _count(self, what: str, why: str, count: int) -> None:
        if (what, why) not in self._refused:
            _log.warning(f"{what} are no events", problem=why)
        self._refused[what, why] += count


def by_commits(rows: Sequence[pa.RecordBatch], messages: EmittedMessages | None) -> Iterator[pa.RecordBatch | EmittedMessages]:
    """The rows and the messages, each in its own order, in the order of their commits; of one transaction the rows come first."""
    lsns = np.empty(0, np.int64) if messages is None else messages.commit_lsn
    begin = 0
    for batch in rows:
        own = batch.column(2).to_numpy()
        at = 0
        while at < len(batch):
            upto = int(lsns.searchsorted(own[at], "left"))
            if messages is not None and upto > begin:
                yield messages.slice(begin, upto)
                begin = upto
            end = int(own.searchsorted(lsns[begin], "right")) if begin < len(lsns) else len(batch)
            yield batch.slice(at, end - at)
            at = end
    if messages is not None and begin < len(lsns):
        yield messages.slice(begin, len(lsns))


def _never(ids: pa.Array) -> Flags:
    """The stream brings each message once."""
    return np.zeros(len(ids), np.bool_)


_TOPIC_HINT: Final = 'write another topic in [outbox], such as "events.{route}"'


def check_topics(log: LogReader, outbox: Outbox) -> None:
    """Raises ConfigError when the log has topics of these names that somebody else brings."""
    for topic in log.topics():
        if topic.producer != PRODUCER and matches((outbox.topics,), topic.table):
            raise ConfigError(
                f"outbox.topic: the log has a topic {topic.name} already, brought by {topic.producer}", hint=_TOPIC_HINT
            )
