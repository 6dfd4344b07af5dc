"""Rows that a kernel keeps between cuts: relations in an embedded ordered store, found by key and by slice, and the engine that computes with tables of them.

- **Two versions.** ``begin`` … ``commit`` is one transaction of the store. Until ``commit`` the file holds the state as of the cut before, whatever happens to
  the process; ``KeptRelation.apply`` gives the rows that it replaces, so that a kernel sees both.
- **A commit does not wait for the disk.** A machine that loses its power may be left with the state of an earlier commit, never with half of one, and what is missing
  is computed again from the log. Whoever cannot do with less asks for ``sync``.
- **Rows that come by the many lie beside the store**, in files of columns (``cdc.views.bulk``); what changes of them by the few lies in the store, which says what counts
  of the files. So the first rows of a view are written once, and the store stays small.
- **What a range costs is by its rows, not by the state's.** The store (SQLite) has an index for the key and one for each slice, and each key that is asked for is
  one way down its tree: a few microseconds. The engine (DuckDB) never sees a relation, only the tables of rows that were found. It keeps nothing itself: it joins
  by reading whole tables, and its indices lie in memory whole.
- **Memory is bounded**: the store's by ``PAGES_KB``, the engine's by what it is given.
- **Answers are in the order of the key**: the same state and the same question give the same table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import duckdb
import numpy as np
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.model.position import Position
from cdc.views.bulk import BulkFacts, BulkRows
from cdc.views.cells import Row, conformed, refuse_unknown, rows_of, table_of
from cdc.views.contract import StateDamaged, StateFull
from cdc.views.enginesql import quoted
from cdc.views.hashes import NOWHERE, HashRun, Places, agreeing, columns_of, hashed, in_turn, once
from cdc.views.roworder import in_order

FILE: Final = "state.sqlite"
BULK: Final = "bulk"
"""The folder of rows that came by the many."""
BULK_ROWS: Final = 4096
"""Rows that are written at once and are that many go to files, as far as there is a folder."""
PAGES_KB: Final = 65_536
"""The store's pages that are held in memory."""

_JOURNAL_PAGES: Final = 8192
"""Pages of 4 KiB that are written to the journal before they are written to the file: what changes often meanwhile is written once."""
_AT_ONCE: Final = 20
"""Keys that are looked up by one statement."""
_PIECE: Final = 50_000
"""Rows that are read at once."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE: Final = 0xFF
"""Of an extended result code."""

_META: Final = "_state"
_FILES: Final = "_files"
_PRAGMAS: Final[dict[str, str | int]] = {
    "locking_mode": "EXCLUSIVE",
    "journal_mode": "WAL",
    "synchronous": "NORMAL",
    "wal_autocheckpoint": _JOURNAL_PAGES,
    "journal_size_limit": _JOURNAL_PAGES * 4096,
    "cache_size": -PAGES_KB,
    "temp_store": "MEMORY",
}
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_COUNT: Final = pa.schema([("n", pa.int64())])
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
        """``folder``: exists; None keeps everything in memory. ``identity``: whose state it is; one of another is refused. ``memory``: the most that the engine
        holds in memory; what needs more goes to the folder. Raises HeadwaterError."""
        self._relations: list[KeptRelation] = []
        self._path = None if folder is None else folder / FILE
        self.bulk = None if folder is None else folder / BULK
        """The folder of rows that came by the many; None: everything is in memory."""
        spill = "" if folder is None else str(folder / "spill")
        self._engine = duckdb.connect(":memory:", config={**_SETTINGS, "memory_limit": memory, "temp_directory": spill})
        for statement in _ONCE:
            self._engine.execute(statement)
        try:
            self._store = sqlite3.connect(self._path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False)
            for name, value in _PRAGMAS.items():
                self._store.execute(f"PRAGMA {name} = {value}").close()
            self._cut = self._opened(f"{duckdb.__version__} {identity}")
        except sqlite3.Error as error:
            raise HeadwaterError(
                f"the state in {self._path} cannot be read ({type(error).__name__})",
                hint="remove the file: it is made again from the log",
            ) from error

    def _opened(self, identity: str) -> Position:
        if self.bulk is not None:
            self.bulk.mkdir(mode=0o700, exist_ok=True)
        self._store.execute(f"CREATE TABLE IF NOT EXISTS {_META} (identity, cut)")
        self._store.execute(f"CREATE TABLE IF NOT EXISTS {_FILES} (relation PRIMARY KEY, facts)")
        found = self._store.execute(f"SELECT identity, cut FROM {_META}").fetchone()
        if found is None:
            self._store.execute(f"INSERT INTO {_META} VALUES (?, 0)", [identity])
            return Position(0)
        if found[0] != identity:
            self.close()
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
        self._relations.append(made)
        return made

    @property
    def kept_rows(self) -> int:
        """The rows of all relations."""
        return sum(one.kept_rows for one in self._relations)

    @property
    def changing(self) -> bool:
        """Within a transaction."""
        return self._store.in_transaction

    def begin(self) -> None:
        """Changes from here on are forgotten by ``rollback``. Raises ValueError within a transaction."""
        if self._store.in_transaction:
            raise ValueError("a transaction is open: commit or roll back first")
        with _whole():
            self._store.execute("BEGIN IMMEDIATE")

    def commit(self, cut: Position) -> None:
        """Everything since ``begin`` is there, as of this cut, whatever happens to the process."""
        with _whole():
            for one in self._relations:
                one.settle()
            self._store.execute(f"UPDATE {_META} SET cut = ?", [cut])
            self._store.execute("COMMIT")
        self._cut = cut
        if any(one.files_changed for one in self._relations):
            self.sync()  # files that an earlier commit counts go now
        for one in self._relations:
            one.settled()

    def sync(self) -> None:
        """Every commit so far is durable on return. Raises StateFull, StateDamaged."""
        with _whole():
            self._store.execute("PRAGMA wal_checkpoint(PASSIVE)").close()

    def rollback(self) -> None:
        """Nothing since ``begin`` has happened. Does nothing outside of a transaction, which the store has ended itself where its disk is full."""
        if self._store.in_transaction:
            self._store.execute("ROLLBACK")
        for one in self._relations:
            one.forget()

    def close(self) -> None:
        if self._store.in_transaction:
            self._store.execute("ROLLBACK")
        self._store.close()
        self._engine.close()

    def queried(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The query's result over these tables, by their names."""
        for name, table in tables.items():
            self._engine.register(name, table)
        try:
            return self._engine.sql(sql).to_arrow_table()
        finally:
            for name in tables:
                self._engine.unregister(name)

    def found(self, sql: str, keys: Iterable[Row], schema: pa.Schema) -> pa.Table:
        """The rows that the store's query has for each of these keys, one after another. ``schema``: of the query's columns. Raises StateDamaged."""
        pieces: list[pa.Table] = []
        rows: list[Row] = []
        with _whole():
            for key in keys:
                cursor = self._store.execute(sql, key)
                rows += cursor.fetchmany(_PIECE)
                while len(rows) >= _PIECE:
                    pieces.append(table_of(rows, schema))
                    rows = cursor.fetchmany(_PIECE)
        return pa.concat_tables([*pieces, table_of(rows, schema)])

    def facts(self, relation: str) -> BulkFacts:
        """The facts of a relation's files that count, as of the last ``commit``."""
        with _whole():
            found = self._store.execute(f"SELECT facts FROM {_FILES} WHERE relation = ?", [relation]).fetchone()
        return BulkFacts() if found is None else BulkFacts.read(found[0])

    def save_facts(self, relation: str, facts: BulkFacts) -> None:
        self.executed(f"INSERT OR REPLACE INTO {_FILES} VALUES (?, ?)", [(relation, facts.text)])

    def executed(self, sql: str, rows: Iterable[Row] = ((),)) -> None:
        """A statement of the store's without a result, once for each of these rows of values. Raises StateDamaged."""
        with _whole():
            self._store.executemany(sql, rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _whole() -> Iterator[None]:
    """Raises StateDamaged where the store finds that its file is not as it wrote it: it looks at a page only when it reads it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
        if code in _DAMAGED:
            raise StateDamaged(f"the state is damaged ({error.sqlite_errorname})") from error
        if code == sqlite3.SQLITE_FULL:
            raise StateFull("the state does not fit on its disk", hint="free space there: the view goes on where it was") from error
        raise


class KeptRelation:
    """Rows of one schema, of which no two have one key. NULL is a key's value like any other.

    Its columns may have any type of the kernel's own (``cdc.views.held``). ``slices``: name → columns by which rows are looked up together.
    """

    def __init__(
        self, state: KernelState, name: str, schema: pa.Schema, key: tuple[str, ...], slices: Mapping[str, Sequence[str]]
    ) -> None:
        self._state, self.schema, self.key = state, schema, key
        for one in schema:
            refuse_unknown(one.type)
        self._name, self._table = name, quoted(name)
        self._slices = {"": key} | {one: tuple(columns) for one, columns in slices.items()}
        state.executed(f"CREATE TABLE IF NOT EXISTS {self._table} ({self._columns})")
        state.executed(f"CREATE TABLE IF NOT EXISTS {self._dead} (place INTEGER PRIMARY KEY)")
        for number, columns in enumerate(self._indices):
            index = ", ".join(map(quoted, columns))
            state.executed(f"CREATE INDEX IF NOT EXISTS {quoted(f'{name}_{number}')} ON {self._table} ({index})")
        self._few = self._few_before = int(state.found(f"SELECT count(*) AS n FROM {self._table}", [()], _COUNT)["n"][0].as_py())
        self._bulk = self._opened()
        if self._bulk is not None:
            self._bulk.check()
        self._appended = self._buried = False
        self._sweep()

    @property
    def _columns(self) -> str:
        return ", ".join(map(quoted, self.schema.names))

    @property
    def _dead(self) -> str:
        """The table of places that were buried."""
        return quoted(f"{self._name}_buried")

    @property
    def _indices(self) -> list[tuple[str, ...]]:
        """The columns of each index."""
        return list(filter(None, dict.fromkeys(self._slices.values())))

    def _opened(self) -> BulkRows | None:
        """As of the last commit."""
        if self._state.bulk is None or not self.key:
            return None
        made = BulkRows(self._state.bulk, self._name, self.schema, self._indices, self._state.facts(self._name))
        made.bury(self._state.found(f"SELECT place AS n FROM {self._dead}", [()], _COUNT).column(0).to_numpy())
        return made

    @property
    def kept_rows(self) -> int:
        return self._few + (0 if self._bulk is None else self._bulk.rows)

    # --- a transaction's end

    @property
    def files_changed(self) -> bool:
        """Since the last commit others count."""
        return self._appended

    def settle(self) -> None:
        """Makes everything durable that the commit to come is to count."""
        if self._bulk is None:
            return
        if self._buried and self._bulk.wasteful:
            self._bulk, self._appended = self._bulk.rewritten(), True
            self._state.executed(f"DELETE FROM {self._dead}")
        if self._appended:
            self._bulk.sync()
            self._state.save_facts(self._name, self._bulk.facts)

    def settled(self) -> None:
        """The commit is done."""
        self._few_before = self._few
        if self._appended:
            self._sweep()
        self._appended = self._buried = False

    def forget(self) -> None:
        """Nothing has happened since the last commit."""
        self._few = self._few_before
        if self._appended or self._buried:
            self._bulk = self._opened()
        self._appended = self._buried = False

    def _sweep(self) -> None:
        """Removes files that do not count."""
        if self._bulk is None or self._state.bulk is None:
            return
        names = self._bulk.names
        for path in self._state.bulk.iterdir():
            if path.name.startswith(f"{self._name}.") and path.name not in names:
                path.unlink(missing_ok=True)

    # --- changes

    def apply(self, rows: pa.Table, gone: pa.Table | None = None, emptied: bool = False) -> Replacement:
        """Writes ``rows``, in which each key occurs once, deletes the keys ``gone`` as far as they are there, and if ``emptied`` all other rows first.

        Returns the rows that were there of these keys (of all, if emptied), and those that are there now.
        """
        before = self.before(rows, gone, emptied)
        self.replace(before, rows)
        return Replacement(before, in_order(conformed(rows, self.schema), self.key))

    def before(self, rows: pa.Table, gone: pa.Table | None = None, emptied: bool = False) -> pa.Table:
        """The rows that ``apply`` would replace."""
        if emptied:
            return self.rows()
        keys = conformed(rows, self._key_schema)
        if gone is not None and gone.num_rows:
            keys = pa.concat_tables([keys, conformed(gone, keys.schema)])
        return self.of("", keys)

    def replace(self, before: pa.Table, after: pa.Table) -> None:
        """Deletes the rows ``before``, which are there, and writes ``after``. A row whose key stays is written in its place."""
        after = conformed(after, self.schema)
        if not self.key:
            self._few += after.num_rows - before.num_rows
            self._state.executed(f"DELETE FROM {self._table}", [()] * bool(before.num_rows))
            self._write(rows_of(after, self.schema.names))
            return
        keys = self._bury(conformed(before, self._key_schema))
        there = set(rows_of(keys, self.key))
        if self._bulk is not None and after.num_rows >= BULK_ROWS and self._state.changing:
            self._delete(there)
            self._appended = True  # in part, where it fails
            self._bulk.append(after)
            return
        new, changed, kept = [], [], set()
        others = [name for name in self.schema.names if name not in self.key]
        for key, row in zip(rows_of(after, self.key), rows_of(after, [*others, *self.key]), strict=True):
            if key in there:
                kept.add(key)
                changed.append(row)
            else:
                new.append(row)
        self._delete(there - kept)
        if others:
            places = ", ".join(f"{quoted(one)} = ?" for one in others)
            self._state.executed(f"UPDATE {self._table} SET {places} WHERE {_is(self.key)}", changed)
        self._few += len(new)
        self._write(new, [*others, *self.key])

    def _bury(self, keys: pa.Table) -> pa.Table:
        """Buries the rows of these keys that came by the many, and returns the other keys."""
        if self._bulk is None or not (self._bulk.rows and keys.num_rows):
            return keys
        which, places = self._bulk.found(self.key, keys)
        if not len(places):
            return keys
        self._buried = True
        self._bulk.bury(places)
        self._state.executed(f"INSERT INTO {self._dead} VALUES (?)", zip(np.sort(places).tolist(), strict=True))
        others = np.ones(keys.num_rows, np.bool_)
        others[which] = False
        return keys.filter(pa.array(others))

    def _delete(self, keys: Collection[Row]) -> None:
        self._few -= len(keys)
        self._state.executed(f"DELETE FROM {self._table} WHERE {_is(self.key)}", keys)

    def _write(self, rows: Iterable[Row], names: Sequence[str] = ()) -> None:
        columns = ", ".join(map(quoted, names)) or self._columns
        self._state.executed(f"INSERT INTO {self._table} ({columns}) VALUES ({', '.join('?' * len(self.schema))})", rows)

    @property
    def _key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(one) for one in self.key])

    # --- questions

    def of(self, slice: str, values: pa.Table) -> pa.Table:
        """All rows whose columns of this slice (``""``: of the key) are equal to one of ``values``, which are distinct or not, in the columns' types."""
        names = self._slices[slice]
        if not names:
            return self.rows()
        values = conformed(values, pa.schema([self.schema.field(one) for one in names]))
        if not values.num_rows:
            return self.schema.empty_table()
        found = [self._of_few(names, values)]
        if self._bulk is not None and self._bulk.rows:
            found.append(self._bulk.taken(once(self._bulk.found(names, values)[1])))
        return in_order(pa.concat_tables(found), self.key)

    def partners(self, slice: str, values: pa.Table) -> tuple[Places, pa.Table]:
        """Pairs of one of ``values``, by its place, and a row of its slice; in the order of the places. The values are distinct or not."""
        names = self._slices[slice]
        values = conformed(values, pa.schema([self.schema.field(one) for one in names]))
        which, rows = self._few_partners(names, values)
        if self._bulk is None or not (self._bulk.rows and values.num_rows):
            return which, rows
        others, places = self._bulk.found(names, values)
        if not len(which):
            order = in_turn(others)
            return others[order], self._bulk.taken(places[order])
        which, rows = np.concatenate([which, others]), pa.concat_tables([rows, self._bulk.taken(places)])
        order = in_turn(which)
        return which[order], rows.take(pa.array(order))

    def _few_partners(self, names: Sequence[str], values: pa.Table) -> tuple[Places, pa.Table]:
        """Those that the store has."""
        few = self._of_few(names, values) if values.num_rows else self.schema.empty_table()
        if not few.num_rows:
            return NOWHERE, few
        which, places = self._agreeing(few, names, values)
        order = in_turn(which)
        return which[order], few.take(pa.array(places[order]))

    def _agreeing(self, few: pa.Table, names: Sequence[str], values: pa.Table) -> tuple[Places, Places]:
        """The places of values and rows that agree in these columns."""
        columns = columns_of(few, names)
        run = HashRun.of(hashed(columns, few.num_rows))
        return agreeing(
            [run], columns_of(values, names), values.num_rows, lambda some: [one.take(pa.array(some)) for one in columns]
        )

    def _of_few(self, names: Sequence[str], values: pa.Table) -> pa.Table:
        """Those that the store has."""
        if self._few > values.num_rows:
            return self._looked_up(names, dict.fromkeys(rows_of(values, names)))
        few = self._all_few()
        if not few.num_rows:
            return few
        return few.take(pa.array(once(self._agreeing(few, names, values)[1])))

    def _looked_up(self, names: Sequence[str], keys: Collection[Row]) -> pa.Table:
        """Through the index: some keys at once where that can be said, as NULL is equal to NULL here."""
        sql = f"SELECT {self._columns} FROM {self._table} WHERE"
        some = [key[0] for key in keys if key[0] is not None] if len(names) == 1 else []
        whole = len(some) - len(some) % _AT_ONCE
        groups = [tuple(some[at : at + _AT_ONCE]) for at in range(0, whole, _AT_ONCE)]
        found = (
            [self._state.found(f"{sql} {quoted(names[0])} IN ({', '.join('?' * _AT_ONCE)})", groups, self.schema)] if groups else []
        )
        alone = [key for key in keys if key[0] is None] + [(one,) for one in some[whole:]] if groups else keys
        return pa.concat_tables([*found, self._state.found(f"{sql} {_is(names)}", alone, self.schema)])

    def _all_few(self) -> pa.Table:
        return self._state.found(f"SELECT {self._columns} FROM {self._table}", [()] * bool(self._few), self.schema)

    def rows(self) -> pa.Table:
        """Everything."""
        bulk = () if self._bulk is None else self._bulk.pieces()
        return in_order(pa.concat_tables([self._all_few(), *bulk]), self.key)


def _is(names: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(one)} IS ?" for one in names)
