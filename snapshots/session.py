"""A connection that the snapshot reads or emits with, under settings that nothing set on the role or database can undo."""

from __future__ import annotations

from typing import Final

import psycopg

from cdc.errors import ConfigError, SourceError
from cdc.source.connection import connect

_SESSION: Final = {
    "synchronous_commit": "local",
    "row_security": "off",
    # Pages in their order, whatever the planner thinks of it.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "synchronize_seqscans": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}


class Unreachable(Exception):
    """No connection now; maybe later."""


def open_session(dsn: str) -> psycopg.Connection:
    """Autocommit, pinned text formats, no timeouts. Raises Unreachable, or ConfigError when the DSN itself is wrong."""
    try:
        connection = connect(dsn, application="headwater snapshot")
    except ConfigError:
        raise
    except SourceError as error:
        raise Unreachable(str(error)) from None
    for name, value in _SESSION.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    return connection
