"""The differences between the databases of kind sql, as one object for each: its transactions, its catalog, its tables, and how rows are staged there.

Everything else in this room is written once, over these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cdc.errors import StoreError
from cdc.model.topic import TopicField, TopicSchema
from sinks.sql.names import TableSign, TargetPlace
from sinks.sql.options import Options

if TYPE_CHECKING:
    from sinks.sql.table import TargetTable


@dataclass(frozen=True, slots=True)
class Occupant:
    """A relation that is at a place: its number, whether it is an ordinary table, and what its comment says of whose it is."""

    number: int
    plain: bool
    sign: TableSign | None


class SqlSession(Protocol):
    """One transaction. Statements are whole texts, with names quoted (``sinks.sql.names``)."""

    @property
    def dialect(self) -> Dialect: ...

    def run(self, statement: str) -> int:
        """Returns the number of rows that it has changed."""
        ...

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        """``:name`` stands for a value. The statement must hold no name that somebody else chose."""
        ...

    def write(self, statement: str, **values: Any) -> None:
        """As ``rows``, without an answer."""
        ...

    def attempt(self) -> AbstractContextManager[None]:
        """Raises RowsRefused where the database refuses a row; what was done inside is then undone, and the transaction goes on. A database that cannot undo a part
        of a transaction raises what it always raises (``TargetTable.foreseen``)."""
        ...

    def check_deferred(self) -> None:
        """Checks what would be checked at the commit, now, and from now on at once."""
        ...


class TargetDatabase(Protocol):
    """The way to a target database. Not thread-safe."""

    def transaction(self, *, reading: bool = False) -> AbstractContextManager[SqlSession]:
        """Commits at its end. ``reading``: nothing is written. Raises StoreError, retryable where waiting can help."""
        ...

    def close(self) -> None: ...


class StagedRows(Protocol):
    """Rows in a temporary table with the types of one table's columns, until ``drop``; beside them columns of the room's own, such as ``names.GONE``."""

    @property
    def sql(self) -> str:
        """The temporary table's name."""
        ...

    def send(self, rows: pa.RecordBatch, beside: Mapping[str, pa.Array]) -> Sequence[str]:
        """rows: changes of the schema. ``beside``: the room's own columns. Returns the columns that have become text for it, here but not yet in the table."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """Name → type, as they are here by now."""
        ...

    def number(self) -> None:
        """From now on ``piece`` and ``leave`` may be asked for. The rows are numbered from 0 in the order in which they came."""
        ...

    def piece(self, begin: int, end: int) -> str:
        """The condition that a row ``r`` is one of begin … end - 1."""
        ...

    def leave(self, numbers: Iterable[int]) -> None:
        """From now on these rows go."""
        ...

    def drop(self) -> None: ...


class Dialect(Protocol):
    """One kind of database."""

    @property
    def text(self) -> str:
        """The type that holds every text."""
        ...

    @property
    def tables(self) -> str:
        """A relation of all ordinary tables: ``number``, ``schema`` and ``name``. A table that is made again has another number."""
        ...

    @property
    def lock(self) -> str:
        """The end of a SELECT that keeps other writers away until the transaction ends."""
        ...

    @property
    def row_id(self) -> str:
        """The column that every table has, and that tells its rows apart within a transaction."""
        ...

    @property
    def readers_hold_up(self) -> bool:
        """Whether nobody can write while somebody reads."""
        ...

    @property
    def has_empty_tables(self) -> bool:
        """Whether a table may have no columns."""
        ...

    def column_type(self, field: TopicField) -> str:
        """The type of the field's column, as the catalog names it."""
        ...

    def refuse(self, schema: TopicSchema) -> None:
        """Raises ConfigError where the database has no such table."""
        ...

    def same_name(self, name: str) -> str:
        """Equal for two names, of places or of columns, that the database takes for one."""
        ...

    def database(self, store: str, options: Options, *, writing: bool = True) -> TargetDatabase:
        """``writing``: its transactions hold locks."""
        ...

    def has_schema(self, session: SqlSession, name: str) -> bool:
        """Whether the schema is there, whoever it belongs to."""
        ...

    def standing(self, session: SqlSession, place: TargetPlace) -> Occupant | None:
        """The relation at the place; None where there is none."""
        ...

    def signed_tables(self, session: SqlSession, store: str) -> Iterator[tuple[TargetPlace, TableSign]]:
        """Every table whose comment says that it is of this store, of whatever log."""
        ...

    def table(self, session: SqlSession, place: TargetPlace) -> TargetTable:
        """The table that stands there."""
        ...

    def missing_rights(self, session: SqlSession, store: str, places: Sequence[TargetPlace]) -> Iterator[StoreError]:
        """Everything that this account may not do and has to, so that its tables, and the ledger, stand at these places."""
        ...

    def index(self, session: SqlSession, place: TargetPlace, schema: TopicSchema, where: str) -> None:
        """Makes an index of the rows for which ``where`` is true by the schema's key, where that helps."""
        ...

    def index_once(self, session: SqlSession, place: TargetPlace, column: str) -> None:
        """Makes an index of the rows that have a value in the column, by it, where there is none and that helps."""
        ...

    def stage(self, session: SqlSession, schema: TopicSchema, columns: Mapping[str, str], beside: Mapping[str, str]) -> StagedRows:
        """``columns``: name → type of each that the schema has; ``beside``: of the room's own."""
        ...
