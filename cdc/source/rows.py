"""The source's rows as text columns at one snapshot, for the audit: COPY in big blocks, parsed by ``copytext``.

Columns are selected as they are, never ``::text``: COPY writes what the type's output function gives, which is the canonical text,
while a cast strips char(n)'s blanks, spells booleans out and adds masks to addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql

from cdc.errors import SourceError
from cdc.kernels.memory import Reused
from cdc.model.position import Lsn, parse_lsn
from cdc.model.table import Table
from cdc.pgvalues.copytext import parse
from cdc.source.catalog import PARTITIONED
from cdc.source.connection import reason
from cdc.source.copyout import Block, copy_blocks
from cdc.source.coverage import PUBLISHED

VERSION: Final = "_cdc_xmin"
"""The extra column of ``fetch``: changes whenever the row was written again, even with equal values."""

_LSN: Final = "select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end)::text"
_FILTER: Final = (
    "select c.relkind::text, (select pg_get_expr(p.qual, p.oid) from "
    + PUBLISHED
    + " p where p.oid = c.oid) from (select to_regclass(%(table)s)::oid) named(oid) left join pg_class c on c.oid = named.oid"
)
_MEMORY_BYTES: Final = 8 << 20
"""Kept of each size for the next blocks."""
LOCK_TIMEOUT_S: Final = 30
"""Whoever keeps a table locked is not waited for without an end, as the snapshot would keep the server from cleaning up."""
_PAGE_BYTES: Final = 8192
_PAGE_HEADER_BYTES: Final = 40


@contextmanager
def snapshot(connection: psycopg.Connection) -> Iterator[Lsn]:
    """One read-only REPEATABLE READ transaction; gives an LSN at or after every commit that it sees.

    The order matters: the first statement takes the snapshot, and the LSN is read after it.
    """
    connection.execute("begin isolation level repeatable read, read only")
    try:
        # A policy must make the audit fail, not hide rows from it.
        connection.execute("set local row_security = off")
        connection.execute("select set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_S}s",))
        connection.execute("select pg_current_snapshot()")
        row = connection.execute(_LSN).fetchone()
        assert row is not None
        yield _reachable(parse_lsn(row[0]))
    finally:
        if not connection.broken:
            connection.execute("rollback")


def _reachable(lsn: Lsn) -> Lsn:
    """The insert position stands behind a page's header where the last record ended with the page before; no commit ends in
    a header, and an idle stream would never reach that position."""
    into_page = lsn % _PAGE_BYTES
    return Lsn(lsn - into_page) if into_page <= _PAGE_HEADER_BYTES else lsn


class SourceRows:
    """One table's rows, as far as the publication publishes them. Every method runs inside a ``snapshot``."""

    def __init__(
        self,
        connection: psycopg.Connection,
        table: Table,
        publication: str,
        protect: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
    ) -> None:
        """``table``: as the log has it; ``protect`` gives its protected columns the values that the log has. Raises SourceError when the
        source no longer has the table."""
        self._protect = protect
        self._memory = Reused(_MEMORY_BYTES)
        self._connection = connection
        self._table = table
        self._name = sql.Identifier(table.schema, table.name)
        self._schema = pa.schema([pa.field(name, pa.utf8()) for name in table.names])
        found = connection.execute(_FILTER, {"table": self._name.as_string(connection), "publication": publication}).fetchone()
        assert found is not None
        if not found[0]:
            raise SourceError(f"the source has no table {table.qualified}", hint="remove it from the stores, or create it again")
        # A partitioned table's rows lie in its partitions; those of children by INHERITS are the children's own.
        self._from = self._name if found[0] == PARTITIONED else sql.SQL("only {}").format(self._name)
        # Deparsed by the server itself from its catalog, with qualified names.
        self._filter = sql.SQL(found[1]) if found[1] else sql.SQL("true")

    def scan(self, keep_going: Callable[[], bool] = lambda: True) -> Iterator[pa.RecordBatch]:
        """Every published row; schema as ``sinks.contract.audit_schema``. Ends early when ``keep_going`` says no."""
        query = sql.SQL("copy (select {} from {} t where {}) to stdout").format(self._columns(), self._from, self._filter)
        try:
            yield from self._copy(query, self._schema, keep_going)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise self._unreadable(error) from None

    def fetch(self, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The published rows with these keys (columns named as the key's), with their xmin as one column more.

        Keys that are equal to Postgres but other text (numeric 1.0 and 1.00) find each other's rows.
        """
        if any(column.protected for column in self._table.columns if column.name in keys.schema.names):
            return self.fetch_meant(keys, lambda rows: rows)
        try:
            with self._connection.transaction():
                return list(self._fetch(self._typed_match(keys)))
        except (psycopg.DataError, psycopg.IntegrityError):
            # A store can hold a key that is not a value of the key's type (or not of its domain); only text compares with it.
            return list(self._fetch(self._text_match(keys)))

    def _fetch(self, condition: sql.Composable) -> Iterator[pa.RecordBatch]:
        query = sql.SQL("copy (select {}, t.xmin from {} t where ({}) and {}) to stdout").format(
            self._columns(), self._from, self._filter, condition
        )
        return self._copy(query, self._schema.append(pa.field(VERSION, pa.utf8())))

    def fetch_meant(self, keys: pa.RecordBatch, meant: Callable[[pa.RecordBatch], pa.RecordBatch]) -> list[pa.RecordBatch]:
        """As ``fetch``, where only the rows as ``meant`` gives them show which of them have these keys: reads the whole table."""
        wanted = set(zip(*(column.to_pylist() for column in keys.columns), strict=True))
        found = []
        for rows in map(meant, self._fetch(sql.SQL("true"))):
            texts = zip(*(rows.column(name).to_pylist() for name in keys.schema.names), strict=True)
            found.append(rows.filter(pa.array([key in wanted for key in texts], pa.bool_())))
        return found

    def _columns(self) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier("t", name) for name in self._table.names)

    def _typed_match(self, keys: pa.RecordBatch) -> sql.Composed:
        """Uses the key's index; NULLs would never match, so it is for real keys only."""
        if not self._table.key or any(column.null_count for column in keys.columns):
            return self._text_match(keys)
        types: dict[str, LiteralString] = dict(
            self._connection.execute(
                # -1: a type of any length. Of NULL it makes "character" and "bit", which are of length 1 and cut what is cast to them.
                "select attname, format_type(atttypid, -1) from pg_attribute where attrelid = to_regclass(%s) and attname = any(%s)",
                (self._name.as_string(self._connection), keys.schema.names),
            ).fetchall()
        )
        names = keys.schema.names
        return sql.SQL("({}) in (select {} from {})").format(
            sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
            sql.SQL(", ").join(
                sql.SQL("u.{}::{}").format(sql.Identifier(f"k{i}"), sql.SQL(types[name])) for i, name in enumerate(names)
            ),
            _unnested(keys),
        )

    def _text_match(self, keys: pa.RecordBatch) -> sql.Composed:
        """Compares the output functions' text, NULLs included; reads the whole table once."""
        return sql.SQL("row({})::text in (select row({})::text from {})").format(
            sql.SQL(", ").join(sql.Identifier("t", name) for name in keys.schema.names),
            sql.SQL(", ").join(sql.SQL("u.{}").format(sql.Identifier(f"k{i}")) for i in range(keys.num_columns)),
            _unnested(keys),
        )

    def _copy(
        self, query: sql.Composed, schema: pa.Schema, keep_going: Callable[[], bool] = lambda: True
    ) -> Iterator[pa.RecordBatch]:
        blocks, ended = copy_blocks(self._connection, query.as_string(self._connection), Event(), take=self._memory.take), False
        try:
            for block in blocks:
                yield self._protect(parse(block.data, schema, block.rows, block.skip))
                if not keep_going():
                    return
            ended = True
        except psycopg.Error as error:
            ended = True
            if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
                raise
            raise self._unreadable(error) from None
        finally:
            if not ended:
                self._end(blocks)

    def _end(self, blocks: Iterator[Block]) -> None:
        """Reads a reply to its end, so that the connection can be used again."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe()
            for _ in blocks:
                pass

    def _unreadable(self, error: psycopg.Error) -> SourceError:
        return SourceError(f"cannot read {self._table.qualified} at the source: {reason(error)}", hint="cdc doctor")


def _unnested(keys: pa.RecordBatch) -> sql.Composed:
    columns: Sequence[pa.Array] = keys.columns
    return sql.SQL("unnest({}) u({})").format(
        sql.SQL(", ").join(sql.SQL("{}::text[]").format(sql.Literal(column.to_pylist())) for column in columns),
        sql.SQL(", ").join(sql.Identifier(f"k{i}") for i in range(len(columns))),
    )
