"""The thread that looks at the catalog every few seconds, whatever comes of it (``cdc.source.inspection`` is one look)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event, Thread
from typing import Final

import psycopg

from cdc.errors import ConfigError, SourceError
from cdc.source.absent import Absent
from cdc.source.announcements import Announcements
from cdc.source.connection import connect, reason
from cdc.source.drops import vanished
from cdc.source.excerpt import Reachable
from cdc.source.inspection import Inspection
from cdc.source.kin import Undecided
from cdc.source.problems import Refusal
from cdc.source.sight import Sight
from cdc.source.trigger import SetAside

INTERVAL_S: Final = 3.0
_RETRY_S: Final = 2.0
_LOCK_TIMEOUT: Final = "500ms"
_HELD_S: Final = 10
"""The server ends a look that goes no further for so long. Its locks (ACCESS SHARE) would keep the application's TRUNCATE and ALTER TABLE
waiting: for ever, when the link has died though TCP acknowledges."""


class CatalogWatch:
    """Looks once in full when it starts, and then for what has changed since the look before.

    known: OIDs of the tables that the log has. password: what our messages carry. fail: takes an error that is a fault of ours.
    undecided: what the column policies keep out of the log until somebody decides. out: tables that have left the publication because they
    could not be captured; remember: makes those durable, before one more is taken out.
    """

    def __init__(
        self,
        source: Reachable,
        known: Collection[int],
        password: str,
        stop: Event,
        fail: Callable[[Exception], None],
        undecided: Undecided,
        *,
        out: Mapping[int, SetAside] | None = None,
        remember: Callable[[Mapping[int, SetAside]], None] = lambda _: None,
    ) -> None:
        self._dsn = source.dsn
        self._stop = stop
        self._fail = fail
        self._sight = Sight()
        self._wake = Event()
        self._announcements = Announcements(known, password)
        absent = Absent(out or {}, remember)
        self._inspection = Inspection(source, self._announcements, absent, undecided, soon=self._wake.set, fail=fail)
        self._thread = Thread(target=self._live, name="catalog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look_soon(self) -> None:
        """From any thread."""
        self._wake.set()

    def note(self, oid: int) -> None:
        """From any thread: a table that the stream has shown, or of which it has shown more than the catalog did. It may be gone, or a partition of another,
        before a look finds it. The next look reports it, whether or not it has changed."""
        self._announcements.note(oid)
        self._wake.set()

    @property
    def left_out(self) -> Sequence[str]:
        """From any thread: what of the selected tables does not reach the log, one line each with what helps, as of the last look."""
        return self._inspection.left_out

    @property
    def notes(self) -> Sequence[str]:
        """From any thread: what to know of captured tables, one line each with what helps, as of the last look."""
        return self._inspection.notes

    @property
    def refused(self) -> Mapping[int, Refusal]:
        """From any thread: the selected tables (by OID) that are not captured, and why."""
        return self._inspection.refusals.all

    @property
    def blind(self) -> str | None:
        """From any thread: why the catalog has not been looked at for a while, with what helps."""
        return self._sight.problem

    def join(self) -> None:
        """After ``stop`` was set."""
        self._wake.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._dsn.get_secret_value(), application="headwater catalog") as connection:
                    connection.execute(
                        "select set_config('synchronous_commit', 'local', false), set_config('lock_timeout', %s, false), "
                        "set_config('idle_in_transaction_session_timeout', %s, false)",
                        (_LOCK_TIMEOUT, f"{_HELD_S}s"),
                    )
                    while not self._stop.is_set():
                        self._try(connection)
                        self._wake.wait(INTERVAL_S)
                        self._wake.clear()
            except ConfigError as error:
                self._fail(error)
                return
            except (SourceError, psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
                text = str(error) if isinstance(error, SourceError) else reason(error)
                self._sight.failed(text)
                self._stop.wait(_RETRY_S)
            except psycopg.Error as error:
                if vanished(error):
                    continue  # a table was dropped meanwhile: the next look does not find it
                self._fail(SourceError(f"cannot look at the catalog: {reason(error)}", hint="cdc doctor"))
                return
            except Exception as error:
                self._fail(error)
                return

    def _try(self, connection: psycopg.Connection) -> None:
        try:
            self._look(connection)
        except psycopg.errors.LockNotAvailable:
            self._sight.locked_out(connection)
            raise
        self._sight.clear()

    def _look(self, connection: psycopg.Connection) -> None:
        self._inspection.look(connection)
