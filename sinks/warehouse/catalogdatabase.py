"""The database of a SQL catalog, by the driver with which Iceberg itself goes there: in Spark's JVM, by the address that its catalog has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from cdc.errors import StoreError
from sinks.warehouse.failures import java_name

_OPTION: Final = "jdbc."
_WAIT_MS: Final = 5000
"""For so long somebody else's lock is waited for."""
_NO_RIGHT: Final = "42501"
_PASSING: Final = ("08", "23505", "40", "53", "55P03", "57", "58")
"""States of errors that waiting can help with: the connection, somebody else's row of that name, locks, a server that ends or has no room."""


class CatalogSession:
    """One transaction. Every value is text; ``?`` stands for one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: str) -> Sequence[Mapping[str, str]]:
        """By column. In one round trip, however many there are."""
        asked = f"select coalesce(json_agg(one)::text, '[]') from ({statement}) one"
        with self._prepared(asked, values) as prepared:
            result = prepared.executeQuery()
            result.next()
            found: list[Mapping[str, str]] = json.loads(result.getString(1))
            return found

    def run(self, statement: str, *values: str) -> int:
        """Returns the number of rows that it has changed."""
        with self._prepared(statement, values) as prepared:
            return int(prepared.executeUpdate())

    @contextmanager
    def _prepared(self, statement: str, values: Sequence[str]) -> Iterator[Any]:
        prepared = self._connection.prepareStatement(statement)
        try:
            for number, value in enumerate(values, start=1):
                prepared.setString(number, value)
            yield prepared
        finally:
            with suppress(Py4JError):
                prepared.close()


@dataclass(frozen=True, slots=True)
class CatalogDatabase:
    """``properties``: those of Iceberg's JDBC catalog, which hold secrets."""

    jvm: Any
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return "CatalogDatabase()"

    @contextmanager
    def transaction(self, doing: str) -> Iterator[CatalogSession]:
        """Commits at its end. Raises StoreError: the catalog's database could not do so."""
        try:
            with self._connected() as connection:
                connection.setAutoCommit(False)
                session = CatalogSession(connection)
                session.run(f"set local lock_timeout = {_WAIT_MS}")
                yield session
                connection.commit()
        except Py4JJavaError as error:
            raise _refused(doing, error) from None  # the message of a driver may hold the address
        except (Py4JError, OSError) as error:
            raise StoreError(f"the warehouse's catalog could not {doing}: {type(error).__name__}", retryable=True) from error

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """What was not committed when it is closed has not happened."""
        given = self.jvm.java.util.Properties()
        for key, value in self.properties.items():
            if key.startswith(_OPTION):
                given.setProperty(key.removeprefix(_OPTION), value)
        connection = self.jvm.org.postgresql.Driver().connect(self.properties["uri"], given)
        try:
            yield connection
        finally:
            with suppress(Py4JError, OSError):
                connection.close()


def _refused(doing: str, error: Py4JJavaError) -> StoreError:
    try:
        state = str(error.java_exception.getSQLState())
    except (Py4JError, OSError):
        return StoreError(f"the warehouse's catalog could not {doing}: {java_name(error)}", retryable=True)
    what = f"the database of the warehouse's catalog could not {doing}: {state}"
    if state == _NO_RIGHT:
        tables = "iceberg_tables, iceberg_namespace_properties"
        hint = f"as the owner of these tables: GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO the store's role"
        return StoreError(what, retryable=False, hint=hint)
    return StoreError(what, retryable=state.startswith(_PASSING))
