"""Rows that a kernel keeps between cuts: relations in an embedded database, found by key and by slice.

- **Two versions.** ``begin`` … ``commit`` is one transaction of the database. Until ``commit`` the file holds the state as of the cut before, whatever happens to
  the process; ``KeptRelation.apply`` gives the rows that it replaces, so that a kernel sees both.
- **Keys and slices are found by a hash of their columns**, which is a column of its own with an index (ART). The database joins by reading whole tables, and uses
  an index only for a list of constants in the query's text: so few keys are asked for as such a list, and many by a join. Either way the columns themselves are
  compared, NULL equal to NULL.
- **Answers are in the order of the key**: the same state and the same question give the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import duckdb
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.model.position import Position

FILE: Final = "state.duckdb"
MOST_CONSTANTS: Final = 300
"""Keys that are asked for one by one. Of more the whole relation is read."""

MOST_WRITTEN: Final = 1000
"""Values of a table that a statement's text has."""

_META: Final = "_state"
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_ONCE: Final = ("SET TimeZone = 'UTC'", "SET python_enable_replacements = false")


@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows of one relation that were replaced: all of the keys that were written, as they were and as they are. Equal rows may be in both."""

    before: pa.Table
    after: pa.Table

    @property
    def empty(self) -> bool:
        """Nothing was written."""
        return not (self.before.num_rows or self.after.num_rows)


class KernelState:
    """A database of relations as of one cut. For one thread."""

    def __init__(self, folder: Path | None, identity: str, memory: str = "1GB") -> None:
        """``folder``: exists; None keeps everything in memory. ``identity``: whose state it is; one of another is refused. ``memory``: the most that is held
        in memory; what needs more goes to the folder. Raises HeadwaterError."""
        self._path = None if folder is None else folder / FILE
        spill = "" if folder is None else str(folder / "spill")
        try:
            self._connection = duckdb.connect(
                str(self._path or ":memory:"), config={**_SETTINGS, "memory_limit": memory, "temp_directory": spill}
            )
            for statement in _ONCE:
                self._connection.execute(statement)
            self._cut = self._opened(f"{duckdb.__version__} {identity}")
        except duckdb.Error as error:
            raise HeadwaterError(
                f"the state in {self._path} cannot be read ({type(error).__name__})",
                hint="remove the file: it is made again from the log",
            ) from error
        self._in_transaction = False
        self._relations: list[str] = []

    def _opened(self, identity: str) -> Position:
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {_META} (identity VARCHAR, cut BIGINT)")
        found = self._connection.execute(f"SELECT identity, cut FROM {_META}").fetchone()
        if found is None:
            self._connection.execute(f"INSERT INTO {_META} VALUES (?, 0)", [identity])
            return Position(0)
        if found[0] != identity:
            self._connection.close()
            raise HeadwaterError(
                f"the state in {self._path} is of another definition or another version of the engine",
                hint="remove the file: it is made again from the log",
            )
        return Position(found[1])

    @property
    def cut(self) -> Position:
        """As of the last ``commit``; 0 when there was none."""
        return self._cut

    def relation(
        self, name: str, schema: pa.Schema, key: Sequence[str], slices: Mapping[str, Sequence[str]] | None = None
    ) -> KeptRelation:
        """The relation of this name, made if it is not there. Call it outside of a transaction."""
        made = KeptRelation(self, name, schema, tuple(key), {} if slices is None else slices)
        self._relations.append(name)
        return made

    def kept_rows(self) -> int:
        """The rows of all relations."""
        counts = " UNION ALL ".join(f"SELECT count(*) AS n FROM {quoted(name)}" for name in self._relations)
        found = self._connection.execute(f"SELECT sum(n) FROM ({counts})").fetchone() if counts else None
        return 0 if found is None else int(found[0])

    def begin(self) -> None:
        """Changes from here on are forgotten by ``rollback``. Raises ValueError within a transaction."""
        if self._in_transaction:
            raise ValueError("a transaction is open: commit or roll back first")
        self._connection.execute("BEGIN TRANSACTION")
        self._in_transaction = True

    def commit(self, cut: Position) -> None:
        """Everything since ``begin`` is there durably, as of this cut."""
        self._connection.execute(f"UPDATE {_META} SET cut = ?", [cut])
        self._connection.execute("COMMIT")
        self._in_transaction = False
        self._cut = cut

    def rollback(self) -> None:
        """Nothing since ``begin`` has happened. Does nothing outside of a transaction."""
        if self._in_transaction:
            self._in_transaction = False
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self.rollback()
        self._connection.close()

    def queried(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The query's result over these tables, by their names. What it says of the relations' own tables is not promised."""
        with self._seen(sql, tables) as whole:
            return self._connection.sql(whole).to_arrow_table()

    def executed(self, sql: str, tables: Mapping[str, pa.Table] | None = None) -> None:
        """A statement without a result."""
        with self._seen(sql, tables or {}) as whole:
            self._connection.execute(whole)

    @contextmanager
    def _seen(self, sql: str, tables: Mapping[str, pa.Table]) -> Iterator[str]:
        """The statement, which sees the tables. To read a table of Arrow's costs the engine tens of milliseconds on a busy machine: a small one is written into
        the statement's text."""
        written = {name: values for name, table in tables.items() if (values := _written(table)) is not None}
        registered = [name for name in tables if name not in written]
        for name in registered:
            self._connection.register(name, tables[name])
        try:
            named = ", ".join(f"{name} AS ({values})" for name, values in written.items())
            yield f"WITH {named} {sql}" if named else sql
        finally:
            for name in registered:
                self._connection.unregister(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeptRelation:
    """Rows of one schema, of which no two have one key. NULL is a key's value like any other.

    Its columns may have any type of a topic's fields, and ``_cdc_exact``'s. ``slices``: name → columns by which rows are looked up together.
    """

    def __init__(
        self, state: KernelState, name: str, schema: pa.Schema, key: tuple[str, ...], slices: Mapping[str, Sequence[str]]
    ) -> None:
        self._state, self.schema, self.key = state, schema, key
        self._table = quoted(name)
        self._hashes = {"": (self._hash(0), key)} | {
            one: (self._hash(number), tuple(columns)) for number, (one, columns) in enumerate(slices.items(), 1)
        }
        self._columns = ", ".join(quoted(one) for one in schema.names)
        types = [f"{quoted(one.name)} {engine_type(one.type)}" for one in schema]
        hashes = [column for column, _ in self._hashes.values()]
        state.executed(f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join([*(f'{one} UBIGINT' for one in hashes), *types])})")
        for one in hashes:
            state.executed(f"CREATE INDEX IF NOT EXISTS {quoted(f'{name}{one}')} ON {self._table} ({one})")

    @staticmethod
    def _hash(number: int) -> str:
        return f"_hash{number}"

    # --- changes

    def apply(self, rows: pa.Table, gone: pa.Table | None = None, emptied: bool = False) -> Replacement:
        """Writes ``rows``, in which each key occurs once, deletes the keys ``gone`` as far as they are there, and if ``emptied`` all other rows first.

        Returns the rows that were there of these keys (of all, if emptied), and those that are there now.
        """
        before = self.before(rows, gone, emptied)
        self.replace(before, rows)
        return Replacement(before, self._in_order(conformed(rows, self.schema)))

    def before(self, rows: pa.Table, gone: pa.Table | None = None, emptied: bool = False) -> pa.Table:
        """The rows that ``apply`` would replace."""
        if emptied:
            return self.rows()
        keys = conformed(rows, pa.schema([self.schema.field(one) for one in self.key]))
        if gone is not None and gone.num_rows:
            keys = pa.concat_tables([keys, conformed(gone, keys.schema)])
        return self.of("", keys)

    def replace(self, before: pa.Table, after: pa.Table) -> None:
        """Deletes the rows ``before``, which are there, and writes ``after``."""
        self._delete(conformed(before, pa.schema([self.schema.field(one) for one in self.key])))
        self._insert(conformed(after, self.schema))

    def _delete(self, keys: pa.Table) -> None:
        if keys.num_rows:
            column, names = self._hashes[""]
            found = self._constants(names, keys)
            near = f"{column} IN ({found}) AND " if found else ""
            self._state.executed(
                f"DELETE FROM {self._table} AS r WHERE {near}EXISTS (SELECT 1 FROM asked a WHERE {_same(names)})", {"asked": keys}
            )

    def _insert(self, rows: pa.Table) -> None:
        if rows.num_rows:
            hashes = [f"hash({_listed(names)})" for _, names in self._hashes.values()]
            self._state.executed(
                f"INSERT INTO {self._table} SELECT {', '.join([*hashes, self._columns])} FROM given", {"given": rows}
            )

    # --- questions

    def of(self, slice: str, values: pa.Table) -> pa.Table:
        """All rows whose columns of this slice (``""``: of the key) are equal to one of ``values``, which are distinct or not, in the columns' types."""
        column, names = self._hashes[slice]
        if values.num_rows == 0:
            return self.schema.empty_table()
        values = conformed(values, pa.schema([self.schema.field(one) for one in names]))
        found = self._constants(names, values)
        near = f"SELECT * FROM {self._table} WHERE {column} IN ({found})" if found else f"SELECT * FROM {self._table}"
        sql = f"SELECT {self._columns} FROM ({near}) r SEMI JOIN asked a ON {_same(names)} {self._order}"
        return conformed(self._state.queried(sql, {"asked": values}), self.schema)

    def rows(self) -> pa.Table:
        """Everything."""
        return conformed(self._state.queried(f"SELECT {self._columns} FROM {self._table} {self._order}", {}), self.schema)

    def _in_order(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by([(name, "ascending") for name in self.key]) if rows.num_rows > 1 and self.key else rows

    @property
    def _order(self) -> str:
        return f"ORDER BY {', '.join(f'{quoted(one)} NULLS LAST' for one in self.key)}" if self.key else ""

    def _constants(self, names: Sequence[str], values: pa.Table) -> str:
        """The hashes of these values as a list in SQL; empty where they are too many."""
        if values.num_rows > MOST_CONSTANTS:
            return ""
        found = self._state.queried(f"SELECT DISTINCT hash({_listed(names)}) AS h FROM asked ORDER BY h", {"asked": values})
        return ", ".join(map(str, found.column(0).to_pylist()))


def quoted(name: str) -> str:
    """A name in the engine's SQL."""
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(quoted(one) for one in names) or "0"


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f"r.{quoted(one)} IS NOT DISTINCT FROM a.{quoted(one)}" for one in names) or "true"


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns of this schema, in its types. Raises KeyError for a missing column, and Arrow's error for a value that has no room."""
    if table.schema.equals(schema):
        return table
    columns = [
        table.column(one.name) if table.schema.field(one.name).type == one.type else table.column(one.name).cast(one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _written(table: pa.Table) -> str | None:
    """The table as a query of constants; None where it is too large or has values that have no text."""
    if table.num_rows * max(table.num_columns, 1) > MOST_WRITTEN or not table.num_columns:
        return None
    texts = []
    for number, one in enumerate(table.schema):
        values = _texts(table.column(number), one.type)
        if values is None:
            return None
        texts.append(values)
    kinds = [engine_type(one.type) for one in table.schema]
    made = ", ".join(
        f"CAST(c{number} AS {kind}) AS {quoted(name)}"
        for number, (kind, name) in enumerate(zip(kinds, table.schema.names, strict=True))
    )
    names = ", ".join(f"c{number}" for number in range(table.num_columns))
    if not table.num_rows:
        nulls = ", ".join(f"NULL AS c{number}" for number in range(table.num_columns))
        return f"SELECT {made} FROM (SELECT {nulls}) WHERE false"
    rows = ", ".join(f"({', '.join(row)})" for row in zip(*texts, strict=True))
    return f"SELECT {made} FROM (VALUES {rows}) v({names})"


def _texts(values: pa.ChunkedArray, kind: pa.DataType) -> list[str] | None:
    """Each value as a quoted text."""
    if pa.types.is_string(kind):
        return ["NULL" if one is None else "'" + one.replace("'", "''") + "'" for one in values.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return ["NULL" if one is None else f"'{one!r}'" for one in values.to_pylist()]
    if pa.types.is_decimal(kind):
        return ["NULL" if one is None else f"'{one:f}'" for one in values.to_pylist()]
    if pa.types.is_binary(kind):
        return ["NULL" if one is None else "'" + "".join(f"\\x{byte:02X}" for byte in one) + "'" for one in values.to_pylist()]
    return None


_ENGINE: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.binary(): "BLOB",
    pa.utf8(): "VARCHAR",
    pa.map_(pa.utf8(), pa.utf8()): "MAP(VARCHAR, VARCHAR)",
}


def engine_type(kind: pa.DataType) -> str:
    """The engine's type that holds this Arrow type's values. Raises KeyError."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _ENGINE[kind]
