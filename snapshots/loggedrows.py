"""The log's rows of a table, for whoever reads it again in place of that: a port, as the log's past is for others to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from cdc.errors import LogAway, LogCorrupt, PositionGone
from cdc.model.position import Position
from cdc.model.table import Table
from snapshots.plan import Key

log = structlog.get_logger("snapshot")


class LoggedRows(Protocol):
    """May be asked from any thread."""

    def since(self, table: Table, index: Sequence[str]) -> Position | None:
        """The log's end now. None where the rows that it has of the table may be another table's, stand under another key, or cannot be looked for
        in the source by the ``index``: then nobody could tell which of them are gone."""
        ...

    def unread(self, table: Table, index: Sequence[str], since: int, go_on: Callable[[], None]) -> Iterator[Sequence[Key]]:
        """The keys of those rows whose last change stands at or before ``since``, as far as they are there at the log's end now: some at a time.

        go_on: called often; what it raises ends this. Raises PositionGone where the log no longer tells.
        """
        ...


class NothingLogged:
    """A log of which nothing is known, so that each that is read again is emptied first."""

    def since(self, table: Table, index: Sequence[str]) -> Position | None:  # noqa: ARG002
        return None

    def unread(self, table: Table, index: Sequence[str], since: int, go_on: Callable[[], None]) -> Iterator[Sequence[Key]]:  # noqa: ARG002
        return iter(())


NOTHING_LOGGED: Final[LoggedRows] = NothingLogged()


def next_keys(keys: Iterator[Sequence[Key]]) -> Sequence[Key] | None:
    """The answer to ``steps.NextKeys``. Whatever keeps the log's past from being read ends neither capture nor the re-read."""
    try:
        return next(keys, ())
    except (PositionGone, LogCorrupt, LogAway, OSError) as error:
        log.warning("what the log has of the table cannot be read", why=str(error))
        return None
