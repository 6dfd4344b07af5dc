"""The embedded engine: one DuckDB for each thread of a process, which sees nothing but the batch it is given.

It reads no file, loads no extension and uses one thread; what it may hold in memory is bounded. Nothing changes its settings afterwards.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import duckdb
import pyarrow as pa

MEMORY: Final = "1GB"

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "memory_limit": MEMORY,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}
_ONCE: Final = ("SET TimeZone = 'UTC'", "SET python_enable_replacements = false", "SET lock_configuration = true")


_connections: Final[dict[tuple[int, int], duckdb.DuckDBPyConnection]] = {}
"""By process and thread. A forked child may neither use its parent's connections nor close them, so none is ever let go: what belongs to a thread
(``threading.local``) would be destroyed in every child that another thread forks, and the child would crash."""


def queried(rows: pa.Table, sql: str) -> pa.Table:
    """The query's result over ``rows``, which it calls by that name, in their order."""
    connection = _connection()
    connection.register("rows", rows)
    try:
        return connection.sql(sql).to_arrow_table()
    finally:
        connection.unregister("rows")


def _connection() -> duckdb.DuckDBPyConnection:
    mine = os.getpid(), threading.get_ident()
    found = _connections.get(mine)
    if found is None:
        found = duckdb.connect(":memory:", config=_SETTINGS)
        for statement in _ONCE:
            found.execute(statement)
        _connections[mine] = found
    return found
