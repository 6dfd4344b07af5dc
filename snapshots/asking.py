"""Whether a request makes sense, before it is queued. Runs where the request is made, with the source's rights."""

from __future__ import annotations

import psycopg
from psycopg import pq

from cdc.errors import ConfigError
from cdc.source.configured import Publishing
from cdc.source.connection import reason
from snapshots.catalog import SourceTable, load_tables
from snapshots.plan import relation
from snapshots.requests import Request


def check_request(connection: psycopg.Connection, request: Request, source: Publishing) -> None:
    """Raises ConfigError (what was asked is wrong) or SourceError (the table cannot be read)."""
    found = [one for one in load_tables(connection, source.tables, source.publication) if one.name == request.table]
    if not found:
        raise ConfigError(
            f"table {request.table} is not captured", hint="name it as schema.table; cdc status lists the captured ones"
        )
    (table,) = found
    if request.where is not None:
        _check_condition(connection, table, request.where)
    if request.keys is not None:
        if not table.index:
            raise ConfigError(f"table {request.table} has no key", hint="read it by --where, or whole")
        for key in request.keys:
            if len(key) != len(table.index):
                raise ConfigError(f"a key of table {request.table} has {len(table.index)} columns: {', '.join(table.index)}")


def _check_condition(connection: psycopg.Connection, table: SourceTable, condition: str) -> None:
    """The server parses it, twice: between parentheses and between brackets. What closes the one early is no SQL within the other, and
    a semicolon is none in either, so where it is used it stays one condition."""
    connection.execute("BEGIN READ ONLY")
    try:
        for opened, closed in (("(", ")"), ("(ARRAY[", "])[1]")):
            query = f"SELECT FROM {relation(table)} WHERE {opened}\n{condition}\n{closed}"
            result = connection.pgconn.prepare(b"", query.encode())
            if result.status != pq.ExecStatus.COMMAND_OK:
                error = psycopg.errors.error_from_result(result, encoding="utf-8")
                raise ConfigError(f"--where is no condition on table {table.name}: {reason(error)}")
    finally:
        connection.execute("ROLLBACK")
