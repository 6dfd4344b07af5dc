"""A DuckDB file as a target: opened for each transaction, and closed again, so that others can read it in between.

DuckDB lets one process have a file open to write, or any number to read. A writer here therefore waits until nobody has the file open, and a reader until
nobody writes; both give up after ``timeout_s`` and name who has it. Within this process, writers take turns.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from cdc.errors import StoreError
from sinks.sql.dialect import Dialect
from sinks.sql.options import Options

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_ONCE: Final = ("set TimeZone = 'UTC'", "set python_enable_replacements = false", "set preserve_insertion_order = false")
_AGAIN_S: Final = 0.02
_PRIVATE: Final = 0o600
_HOLDER: Final = re.compile(r"held in (\S+) \(PID (\d+)\)")
_VALUE: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_QUOTING: Final = (duckdb.ConversionException, duckdb.ConstraintException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""Errors whose messages quote values."""
_WAITING_HELPS: Final = (duckdb.IOException, duckdb.TransactionException, duckdb.OutOfMemoryException, duckdb.ConnectionException)
_writing: Final[defaultdict[Path, threading.Lock]] = defaultdict(threading.Lock)


class DuckSession:
    """See ``SqlSession``; and Arrow in and out."""

    def __init__(self, dialect: Dialect, file: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self.dialect = dialect
        self.file = file
        self._connection = connection

    def run(self, statement: str) -> int:
        found = self._connection.execute(statement).fetchall()
        return int(found[0][0]) if found and isinstance(found[0][0], int) else -1

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        return self._connection.execute(_VALUE.sub(r"$\1", statement), values).fetchall()

    def write(self, statement: str, **values: Any) -> None:
        self.rows(statement, **values)

    def read(self, statement: str) -> pa.Table:
        """All rows at once."""
        found: pa.Table = self._connection.sql(statement).to_arrow_table()
        return found

    def stream(self, statement: str, rows_at_once: int) -> Iterator[pa.RecordBatch]:
        """All rows; no other statement meanwhile."""
        yield from self._connection.sql(statement).to_arrow_reader(rows_at_once)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """DuckDB has no savepoints."""
        yield

    def check_deferred(self) -> None:
        """It defers nothing."""

    @contextmanager
    def given(self, name: str, rows: pa.Table | pa.RecordBatch) -> Iterator[None]:
        """Statements inside know ``rows`` by that name."""
        self._connection.register(name, rows)
        try:
            yield
        finally:
            self._connection.unregister(name)


class DuckDatabase:
    """See ``TargetDatabase``."""

    def __init__(self, dialect: Dialect, store: str, options: Options) -> None:
        assert options.file is not None
        self._dialect = dialect
        self._store = store
        self._path = options.file
        self._timeout_s = options.timeout_s

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[DuckSession]:
        until = time.monotonic() + self._timeout_s
        turn = None if reading else _writing[self._path]
        if turn is not None and not turn.acquire(timeout=self._timeout_s):
            raise self._in_use("this process")
        try:
            connection = self._opened(until, reading=reading)
            try:
                for statement in _ONCE:
                    connection.execute(statement)
                connection.begin()
                yield DuckSession(self._dialect, self._path, connection)
                connection.commit()
            finally:
                with suppress(duckdb.Error):
                    connection.close()  # what was not committed is rolled back
        except duckdb.Error as error:
            raise self._told(error) from None
        finally:
            if turn is not None:
                turn.release()

    def close(self) -> None:
        """Nothing is open between transactions."""

    def _opened(self, until: float, *, reading: bool) -> duckdb.DuckDBPyConnection:
        """Waits for whoever has the file open. A file that is not there reads like an empty one."""
        fresh = not self._path.exists()
        if reading and fresh:
            return duckdb.connect(":memory:", config=_SETTINGS)
        while True:
            try:
                connection = duckdb.connect(str(self._path), read_only=reading, config=_SETTINGS)
            except (duckdb.IOException, duckdb.ConnectionException) as error:
                holder = _holder(error)
                if holder is None:
                    raise
                if time.monotonic() > until:
                    raise self._in_use(holder) from None
                time.sleep(_AGAIN_S)
                continue
            if fresh:
                self._path.chmod(_PRIVATE)
            return connection

    def _in_use(self, holder: str) -> StoreError:
        return StoreError(
            f"the file {self._path.name} of store {self._store} is held open by {holder}",
            retryable=True,
            hint="DuckDB lets one process write, or several read: close it there, and open it to read, for as long as a query takes",
        )

    def _told(self, error: duckdb.Error) -> StoreError:
        """Names what the database says without a row's values."""
        said = (
            type(error).__name__ if isinstance(error, _QUOTING) else (str(error).strip().splitlines() or [type(error).__name__])[0]
        )
        hint = f"see that the folder of stores.{self._store}.url is there, that this account may write there, and that its disk has room"
        if "replaying WAL" in said:
            hint = f"the file was put back, and {self._path.name}.wal beside it belongs to another copy: move that one away"
        if isinstance(error, duckdb.ConstraintException):
            hint = "a unique index or a key of yours on one of its tables refuses a row, and DuckDB cannot go on without that row: drop it"
        return StoreError(
            f"the database of store {self._store} says: {said}", retryable=isinstance(error, _WAITING_HELPS), hint=hint
        )


def _holder(error: Exception) -> str | None:
    """Who has the file open; None where that is not the reason."""
    text = str(error)
    found = _HOLDER.search(text)
    if found is not None:
        return f"another process ({Path(found[1]).name}, PID {found[2]})"
    if "Could not set lock" in text:
        return "another process"
    return "this process" if "different configuration" in text else None
