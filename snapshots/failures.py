"""The server's refusals while rows of one table are read: they concern that table, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Lock
from typing import Final

import psycopg
import structlog

from cdc.errors import SourceError
from cdc.pgvalues.binary import readable
from cdc.source.connection import reason
from snapshots.catalog import SourceTable

_TOO_LARGE: Final = "invalid memory alloc request size"
"""The server's words, in every language, for a value whose text would have more than 1 GB."""
REFUSED_S: Final = 5.0
"""Before the catalog is asked again whether a table can be read."""
FAILED_S: Final = 60.0
"""Before rows are read again that the server has refused to read: it may work for long until it does."""

_log = structlog.get_logger("snapshot")


@dataclass(frozen=True, slots=True)
class _Found:
    problem: SourceError
    again: float
    """When it is tried again."""
    by_catalog: bool


class Unreadable:
    """Why tables (OIDs) cannot be read that are to be. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._found: dict[int, _Found] = {}

    def refused(self, oid: int, problem: SourceError) -> None:
        """The catalog says that it cannot."""
        self._note(oid, _Found(problem, self._clock() + REFUSED_S, by_catalog=True), REFUSED_S)

    def granted(self, oid: int) -> None:
        """The catalog says that it can."""
        with self._lock:
            if (found := self._found.get(oid)) is not None and found.by_catalog:
                del self._found[oid]

    def failed(self, source: SourceTable, error: psycopg.Error) -> None:
        """The server could not read its rows."""
        found = _Found(table_problem(source, error), self._clock() + FAILED_S, by_catalog=False)
        self._note(source.table.oid, found, FAILED_S)

    def _note(self, oid: int, found: _Found, pause_s: float) -> None:
        with self._lock:
            before = self._found.get(oid)
            self._found[oid] = found
        if before is None or before.problem.line() != found.problem.line():
            _log.warning("a table cannot be read", problem=found.problem.line(), again_in_s=pause_s)

    def read(self, oid: int) -> None:
        """Rows of it have been read. While it is not tried yet again they are those of other workers, and say nothing of the rows that cannot be."""
        with self._lock:
            if (found := self._found.get(oid)) is not None and self._clock() >= found.again:
                del self._found[oid]

    def forget(self, oid: int) -> None:
        """It is not to be read."""
        with self._lock:
            self._found.pop(oid, None)

    def keep(self, wanted: Collection[int]) -> None:
        """Forgets all but these."""
        if self._found:
            with self._lock:
                self._found = {oid: found for oid, found in self._found.items() if oid in wanted}

    @property
    def waiting(self) -> set[int]:
        """Tables that are not tried yet again."""
        if not self._found:
            return set()
        now = self._clock()
        with self._lock:
            return {oid for oid, found in self._found.items() if now < found.again}

    @property
    def problems(self) -> list[SourceError]:
        with self._lock:
            return [found.problem for found in self._found.values()]


def ends_connection(error: psycopg.Error) -> bool:
    """Rather than being about what was read: the link, or the server as a whole."""
    return isinstance(error, psycopg.OperationalError) and not _beyond_a_limit(error)


def table_problem(source: SourceTable, error: psycopg.Error) -> SourceError:
    leave_out = f"leave the table out of source.tables (!{source.name})"
    if not _beyond_a_limit(error):
        return SourceError(f"Postgres cannot read table {source.name}: {reason(error)}", hint=f"repair it, or {leave_out}")
    problem = f"a row of table {source.name} is too large for Postgres to send ({reason(error)})"
    if readable(source.table):
        return SourceError(problem, hint=f"make it smaller, or {leave_out}")
    return SourceError(
        f"{problem}: the table is read as text, of which Postgres sends 1 GB (500 MB of bytea)",
        hint=f"make it smaller, publish the table's other columns only (a column list of the publication), or {leave_out}",
    )


def request_problem(source: SourceTable, error: psycopg.Error) -> str:
    """Says what is wrong with a request, which may itself be what the server refuses."""
    return table_problem(source, error).line() if _beyond_a_limit(error) else reason(error)


def _beyond_a_limit(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.errors.ProgramLimitExceeded) or (
        isinstance(error, psycopg.errors.InternalError_) and _TOO_LARGE in str(error)
    )
