"""The connection to the target database: one session with pinned settings, transactions, COPY in and out, and what its errors mean.

After any error the session is given up: the server rolls back what it had begun, and the next transaction connects again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from cdc.errors import ConfigError, StoreError, presentable
from cdc.model.pgtypes import PINNED_SETTINGS
from sinks.sql.dialect import Dialect
from sinks.sql.names import literal
from sinks.sql.options import Options
from sinks.sql.postgres.copylines import copy_lines, rows_of
from sinks.sql.refusals import RowsRefused, refused

_RAW: Final = {"no_parameters": True}
"""The statement is all there is: a ``%`` in it is one."""
_LASTING: Final = ("28", "3D", "3F", "42", "2B", "0A", "22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that waiting does not change."""
_RIGHTS: Final = "42501"
_TABLE_IS_NEEDED: Final = "2BP01"


class PostgresSession:
    """See ``SqlSession``; and COPY, and what is undone where the database refuses it."""

    def __init__(self, dialect: Dialect, connection: Connection, errors: type[Exception]) -> None:
        self.dialect = dialect
        self._connection = connection
        self._errors = errors

    def run(self, statement: str) -> int:
        return int(self._connection.exec_driver_sql(statement, execution_options=_RAW).rowcount)

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        return self._connection.execute(text(statement), values).all()

    def write(self, statement: str, **values: Any) -> None:
        self._connection.execute(text(statement), values)

    def copy_in(self, statement: str, rows: Iterable[pa.RecordBatch]) -> None:
        """rows: utf8 columns, as the statement names them. Raises RowsRefused, after which the transaction goes on as if nothing had been asked."""
        with self.attempt(), self._driver().cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows:
                for lines in copy_lines(batch):
                    copy.write(lines)

    def copy_out(self, statement: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows as the database writes them: canonical text."""
        with self._driver().cursor() as cursor, cursor.copy(statement) as copy:
            yield from rows_of(copy, schema)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        try:
            with self._connection.begin_nested():
                yield
        except (self._errors, SQLAlchemyError) as error:
            diagnosis = _cause(error, "diag")
            names = (None if _raised(diagnosis) else getattr(diagnosis, f"{what}_name", None) for what in ("column", "constraint"))
            found = refused(_cause(error, "sqlstate"), *names)
            if found is not None:
                raise found from None
            raise

    def check_deferred(self, *, from_now_on: bool = False) -> None:  # noqa: ARG002
        self.run("set constraints all immediate")

    def _driver(self) -> Any:
        return self._connection.connection.driver_connection


class PostgresDatabase:
    """See ``TargetDatabase``."""

    def __init__(self, dialect: Dialect, store: str, options: Options, *, writing: bool = True) -> None:
        """``writing``: its transactions hold locks, so the database ends one that stands still."""
        self._dialect = dialect
        self._writing = writing
        self._store = store
        self._options = options
        self._engine: Engine | None = None
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[PostgresSession]:  # noqa: ARG002
        if self._connection is None or self._connection.invalidated or self._connection.closed:
            self._connection, self._engine = None, self._made()  # again: the password may have been rotated
        engine = self._engine
        assert engine is not None
        errors: type[Exception] = engine.dialect.loaded_dbapi.Error
        try:
            if self._connection is None:
                self._connection = self._connected(engine)
            with self._connection.begin():
                yield PostgresSession(self._dialect, self._connection, errors)
        except (errors, SQLAlchemyError) as error:
            self.close()
            raise self._told(error) from None
        except RowsRefused as error:
            self.close()
            what = f"the database of store {self._store} refuses rows: {error.refusal.reason}"
            raise StoreError(what, retryable=False, hint="see the database's own log, which says more") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.invalidate()  # the server rolls back what is left
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def _made(self) -> Engine:
        try:
            url = make_url(self._options.url.get_secret_value()).set(drivername="postgresql+psycopg")
            if self._options.password is not None and url.password is None:
                url = url.set(password=self._options.password.get_secret_value())
        except (ArgumentError, ValueError):
            raise ConfigError(
                f"stores.{self._store}.url is not an address of a database", hint="write postgresql://user@host:5432/database"
            ) from None
        wait_s = max(2, round(self._options.timeout_s))
        given = {
            "application_name": f"headwater {self._store}"[:63],
            "connect_timeout": wait_s,
            "tcp_user_timeout": wait_s * 1000,
            "prepare_threshold": None,  # a pooler may stand between
        }
        return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args={**given, **url.query})

    def _connected(self, engine: Engine) -> Connection:
        connection = engine.connect()
        wait_ms = round(self._options.timeout_s * 1000)
        settings = {**PINNED_SETTINGS, "lock_timeout": str(wait_ms), "standard_conforming_strings": "on"}
        if self._writing:
            settings["idle_in_transaction_session_timeout"] = str(wait_ms)
        with connection.begin():
            for name, value in settings.items():
                connection.exec_driver_sql(f"set {name} = {literal(value)}", execution_options=_RAW)
        return connection

    def _told(self, error: Exception) -> StoreError:
        """Names what the database says without a row's values."""
        state = _cause(error, "sqlstate")
        diagnosis = _cause(error, "diag")
        said = getattr(diagnosis, "message_primary", None) or _first_line(error)
        where = "".join(
            f", {word} {name}" for word in ("table", "column", "constraint") if (name := getattr(diagnosis, f"{word}_name", None))
        )
        if _raised(diagnosis) or (state or "").startswith("P0"):
            said, where = f"an error that a trigger or a function raises (SQLSTATE {state})", ""
        hint = f"see that stores.{self._store}.url is right and that the database answers there"
        if state == _RIGHTS:
            hint = (
                "let the store's role own its tables: as the database's owner, GRANT CREATE, CONNECT, TEMPORARY ON DATABASE … TO the role, "
                "and GRANT CREATE, USAGE ON SCHEMA … where the schema is there already"
            )
        elif state == _TABLE_IS_NEEDED:
            hint = "something that is not the store's, such as a view, depends on it: drop that, and make it again afterwards"
        elif state is not None:
            hint = "see the database's own log, which says more"
        retryable = state is None or not state.startswith(_LASTING)
        what = presentable(state, said)
        return StoreError(f"the database of store {self._store} says: {what}{where}", retryable=retryable, hint=hint)


def _cause(error: BaseException, name: str) -> Any:
    """An attribute of the driver's own error."""
    own = error.orig if isinstance(error, DBAPIError) else error
    return getattr(own, name, None)


def _raised(diagnosis: Any) -> bool:
    """Whether a function of the user's has made up the error: any part of it may be a row's value."""
    return getattr(diagnosis, "source_function", None) == "exec_stmt_raise"


def _first_line(error: Exception) -> str:
    own = error.orig if isinstance(error, DBAPIError) else error
    return (str(own).strip().splitlines() or [type(own).__name__])[0]
