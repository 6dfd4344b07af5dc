"""The thread that deletes rows of the outbox table once their events are durable in the log, so that the table stays small whatever its readers do.

It follows the log like a store, and deletes by id what it reads there: a row is never deleted for its age or its LSN, so one that the log does not have stays.
Nobody who writes events waits for it: it touches rows that are committed, a few at a time, each time in a transaction of its own, and gives up at once
where somebody else holds a row, which is tried again later.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Final

import psycopg
import pyarrow as pa
import structlog
from psycopg import sql

from cdc import source
from cdc.background import BackgroundPart, Interrupted, Notes
from cdc.crashpoint import crashpoint
from cdc.errors import SourceError
from cdc.log.contract import LogReader, left_between, present_history
from cdc.log.home import open_reader
from cdc.model.position import START, Position
from cdc.outbox.router import ids_of
from cdc.replay.place import cut_before_time
from cdc.settings.models import Settings
from cdc.settings.outbox import Outbox
from cdc.source.connection import reason
from cdc.state.outboxremoval import Removed, record, removed_upto

LOOK_S: Final = 1.0
ROWS: Final = 1000
"""The most that one transaction deletes."""
RANGE_ROWS: Final = 50_000
LEFT_ROWS: Final = 10_000
"""While somebody holds more rows than this nothing else is deleted."""
_LOCK_TIMEOUT: Final = "100ms"
"""Less than the server's deadlock_timeout (1 s): where two wait for each other, it is we who give up."""

_log = structlog.get_logger("outbox")


class EventRemoval(BackgroundPart):
    """``start`` and ``join`` from one thread."""

    def __init__(self, settings: Settings, outbox: Outbox, stop: threading.Event) -> None:
        super().__init__("outbox")
        self._settings = settings
        self._outbox = outbox
        self._stop = stop
        self._upto = START
        self._log = ""
        """The id of the log that this is a position of."""
        self._left: list[str] = []
        """Ids of rows that somebody held."""
        self._type = ""
        self._notes = Notes(f"rows of {outbox.table} stay there after their events were taken", "removing rows failed", _log)

    def _run(self) -> None:
        folder = self._settings.log.dir
        while not self._stop.wait(LOOK_S):
            problems: list[str] = []
            with self._notes.noting(problems), closing(open_reader(folder)) as reader:
                self.look(reader)
            self._problem = next(iter(problems), None)

    def look(self, reader: LogReader) -> None:
        """Deletes all rows whose events the log has. Raises SourceError, OSError, and what the log's reader does; Interrupted."""
        lineage = reader.lineage()
        if lineage is None:
            return
        if self._log != lineage.log:
            self._log, self._left = lineage.log, []
            self._upto = Position(removed_upto(self._settings.log.dir, lineage.log, self._outbox.table))
        head = self._due(reader)
        if reader.head().position < self._upto:
            self._upto = START  # an older copy of the log was put back
        if head <= self._upto and not self._left:
            return
        # The topics say at no cost whether there is anything: most cuts hold no event.
        begin = self._upto
        if not self._left and not any(slice.rows for slice in left_between(reader, (self._outbox.topics,), begin, head)):
            self._upto = head
            return
        try:
            with source.connect(self._settings.source.dsn.get_secret_value(), application="headwater outbox") as connection:
                self._delete_left(connection)
                while self._upto < head and len(self._left) < LEFT_ROWS:
                    self._delete_range(connection, reader, min(head, reader.cut_within(self._upto, RANGE_ROWS, 1 << 26).position))
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def _due(self, reader: LogReader) -> Position:
        """The cut up to which rows have been kept for long enough."""
        keep_s = self._outbox.keep_s or 0
        return cut_before_time(reader, _now_us() - keep_s * 10**6) if keep_s else reader.head().position

    def _delete_range(self, connection: psycopg.Connection, reader: LogReader, upto: Position) -> None:
        history = present_history(reader)
        for part in left_between(reader, (self._outbox.topics,), self._upto, upto):
            for batch in reader.read(part.topic, part.after, part.upto, history, keys_only=True):
                self._delete_all(connection, ids_of(batch))
        self._upto = upto
        if not self._left:
            record(self._settings.log.dir, Removed(self._log, self._outbox.table, int(upto)))
            crashpoint("outbox.removal.recorded")

    def _delete_all(self, connection: psycopg.Connection, ids: pa.Array) -> None:
        for at in range(0, len(ids), ROWS):
            if self._stop.is_set():
                raise Interrupted
            self._left += self._delete(connection, [id for id in ids.slice(at, ROWS).to_pylist() if id is not None])
            crashpoint("outbox.removal.deleted")

    def _delete_left(self, connection: psycopg.Connection) -> None:
        left, self._left = self._left, []
        for at in range(0, len(left), ROWS):
            self._left += self._delete(connection, left[at : at + ROWS])

    def _delete(self, connection: psycopg.Connection, ids: list[str]) -> list[str]:
        """Returns the ids of rows that somebody holds. Raises psycopg.Error."""
        table = sql.Identifier(*self._outbox.parts)
        key = sql.Identifier(self._outbox.columns.id)
        self._type = self._type or _type_of(connection, table, self._outbox.columns.id)
        statement = sql.SQL("delete from {} where {} = any (%s::{}[])").format(table, key, sql.SQL(self._type))
        try:
            with connection.transaction():
                connection.execute("select set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
                connection.execute(statement, (ids,))
        except psycopg.errors.LockNotAvailable:
            if len(ids) == 1:
                return ids
            middle = len(ids) // 2
            return [*self._delete(connection, ids[:middle]), *self._delete(connection, ids[middle:])]
        return []

    def _refusal(self, error: psycopg.Error) -> SourceError:
        table = self._outbox.table
        helps = 'cdc outbox init grants the right; or set keep = "" in [outbox]'
        return SourceError(f"cannot delete from {table}: {reason(error)}", hint=helps)


def _now_us() -> int:
    return time.time_ns() // 1000


def _type_of(connection: psycopg.Connection, table: sql.Identifier, column: str) -> str:
    """As Postgres writes it."""
    row = connection.execute(
        "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::regclass and attname = %s and not attisdropped",
        (table.as_string(), column),
    ).fetchone()
    if row is None:
        raise SourceError(
            f"the outbox table has no column {column}", hint="correct outbox.columns in cdc.toml, and restart cdc run"
        )
    return str(row[0])


def removal_for(settings: Settings, stop: threading.Event) -> EventRemoval | None:
    """None where nothing is to be removed."""
    outbox = settings.outbox
    return EventRemoval(settings, outbox, stop) if outbox is not None and outbox.keep_s is not None else None
