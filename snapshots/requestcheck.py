"""Whether a request makes sense, before it is queued. Runs where the request is made, with the source's rights."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Sequence
from typing import Final

import psycopg
from psycopg import pq

from cdc.errors import ConfigError
from cdc.model.selection import matches
from cdc.source.connection import reason
from cdc.source.excerpt import PublicationSource
from cdc.terminal import counted
from snapshots.catalog import SourceTable, key_types, load_tables
from snapshots.plan import relation
from snapshots.requests import Request

_ROOT: Final = """
select case when c.relispartition then (
         select rn.nspname || '.' || r.relname from pg_class r join pg_namespace rn on rn.oid = r.relnamespace
         where r.oid = pg_partition_root(c.oid)) end
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = %s and c.relkind in ('r', 'p')
"""


class WrongKey(ConfigError):
    """One of the keys that were asked for cannot be a key of the table."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(f"key {place + 1}: {problem}")
        self.place = place
        """Among the request's keys, from 0."""
        self.problem = problem


def check_request(connection: psycopg.Connection, request: Request, source: PublicationSource) -> None:
    """Raises ConfigError (what was asked is wrong; WrongKey for one of the keys) or SourceError (the table cannot be read)."""
    captured = {table.name: table for table in load_tables(connection, source.tables, source.publication)}
    if request.table not in captured:
        raise _not_captured(connection, request.table, captured, source)
    table = captured[request.table]
    if request.where is not None:
        _check_condition(connection, table, request.where)
    if request.keys is not None:
        if not table.index:
            raise ConfigError(f"table {request.table} has no key", hint="read it by --where, or whole")
        for place, key in enumerate(request.keys):
            if len(key) != len(table.index):
                raise WrongKey(
                    place, f"a key of table {request.table} has {counted(len(table.index), 'column')}: {', '.join(table.index)}"
                )
        for name, kind, texts in zip(table.index, key_types(connection, table), zip(*request.keys, strict=True), strict=True):
            wrong = _not_of_type(connection, kind, texts)
            if wrong is not None:
                raise WrongKey(wrong, f"the value for column {name} is not of type {kind}")


def _not_captured(connection: psycopg.Connection, name: str, captured: Collection[str], source: PublicationSource) -> ConfigError:
    """Why the table is none of those that are captured, and what to do."""
    if connection.execute("select from pg_publication where pubname = %s", (source.publication,)).fetchone() is None:
        return ConfigError(
            f"there is no publication {source.publication!r} yet, so no table is captured",
            hint="cdc run makes it and reads every table",
        )
    row = connection.execute(_ROOT, (name,)).fetchone()
    if row is None:
        close = [one for one in captured if one.endswith(f".{name}")] or difflib.get_close_matches(name, captured, 1, 0.8)
        hint = f"did you mean {close[0]}?" if close else "cdc log ls lists the captured ones, as schema.table"
        return ConfigError(f"there is no table {name}" if "." in name else f"table {name} is not captured", hint=hint)
    if row[0] is not None and row[0] in captured:
        return ConfigError(
            f"table {name} is a partition, captured as a part of {row[0]}", hint=f"cdc snapshot {shlex.quote(row[0])} --where …"
        )
    if not matches(source.tables, name):
        return ConfigError(f"source.tables does not select table {name}", hint="add it there, in cdc.toml; cdc run then reads it")
    return ConfigError(
        f"table {name} is not in the publication {source.publication!r}",
        hint="cdc run adds it and reads it, as soon as it can be captured; cdc status says what keeps it out",
    )


def _not_of_type(connection: psycopg.Connection, kind: str, texts: Sequence[str]) -> int | None:
    """The place of the first text that the type does not take. ``kind``: as SQL, from the catalog."""
    if not _refused(connection, kind, texts):
        return None
    first, end = 0, len(texts)
    while end - first > 1:
        middle = (first + end) // 2
        if _refused(connection, kind, texts[first:middle]):
            end = middle
        else:
            first = middle
    return first


def _refused(connection: psycopg.Connection, kind: str, texts: Sequence[str]) -> bool:
    query = f"select count(wanted::{kind.replace('%', '%%')}) from unnest(%s::text[]) wanted"
    try:
        connection.execute(query.encode(), (list(texts),))
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return True
    return False


def _check_condition(connection: psycopg.Connection, table: SourceTable, condition: str) -> None:
    """The server parses it, twice: between parentheses and between brackets. A text that closes the one early is not SQL within the other, and
    a semicolon is none in either, so where it is used it stays one condition."""
    connection.execute("BEGIN READ ONLY")
    try:
        for opened, closed in (("(", ")"), ("(ARRAY[", "])[1]")):
            query = f"SELECT FROM {relation(table)} WHERE {opened}\n{condition}\n{closed}"
            result = connection.pgconn.prepare(b"", query.encode())
            if result.status != pq.ExecStatus.COMMAND_OK:
                error = psycopg.errors.error_from_result(result, encoding="utf-8")
                raise ConfigError(f"--where is not a condition on table {table.name}: {reason(error)}")
    finally:
        connection.execute("ROLLBACK")
