"""The latest wide row of each key, so that an update that leaves unchanged TOAST values out can be completed.

Postgres moves values out of line only in wide tuples (manual, "TOAST"), so only rows that may be wide are remembered, and of them
only the columns that can be TOASTed. The memory is derived from the log and lives beside it in one SQLite file; its own position
says how far it has come, and what it lacks is read from the log again at the start. docs/decisions/toast-memory.md says why this is not
the keyed look-up's task.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.capture import tuples
from cdc.crashpoint import crashpoint
from cdc.model.batch import ALONE, EXACT, OP, Op, table_of
from cdc.model.evolution import Kind, schema_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.table import Column, Table
from cdc.pgvalues.values import Bytes, Flags

MIN_TOAST_BYTES: Final = 8
"""A TOAST pointer takes 18 bytes on disk, so shorter values are never moved; half of it leaves room for denser types. Values of types whose
text says little about their size on disk (an int[] of one element: 3 and 28 bytes) are remembered at any length."""

_DELETED: Final = int(Op.DELETE)
_UPDATED: Final = int(Op.UPDATE)
"""Numpy compares a number with a number ten times as fast as with a member of an enumeration."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS wide (
    relation INTEGER NOT NULL, key BLOB NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (relation, key, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS done (one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL, crc INTEGER NOT NULL);
"""


MOST_BYTES: Final = 2**28
"""A larger value is not remembered: an update that leaves it out is completed from the database, as one is of which nothing is known. SQLite
itself takes none of more than 10**9 bytes."""
_DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
"""The errors that a damaged file gives; SQLite's message may quote its bytes, and those need not be text."""


class _Database(sqlite3.Connection):
    """A disk that is full is one here too: an OSError that names the file. SQLite's own error says neither."""

    path = Path()

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*arguments)
        except sqlite3.OperationalError as error:
            raise self._located(error) from None

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().executemany(*arguments)
        except sqlite3.OperationalError as error:
            raise self._located(error) from None

    def commit(self) -> None:
        try:
            super().commit()
        except sqlite3.OperationalError as error:
            raise self._located(error) from None

    def _located(self, error: sqlite3.OperationalError) -> Exception:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            return error
        no_space = os.strerror(errno.ENOSPC)
        return OSError(errno.ENOSPC, f"cannot write what is remembered of wide rows in {self.path}: {no_space}")


class ToastMemory:
    """One writer. What it learns between two ``commit`` calls is dropped by ``rollback``, like the log's staging."""

    def __init__(self, path: Path, kept_back: Callable[[Table], Mapping[str, bool]] = lambda _: {}) -> None:
        """``kept_back``: the columns of a table (as the stream has it) whose values must not be written to this file, each with whether
        anything of them reaches the log. What was left out of such a column has to come from the database."""
        self._db = _open(path)
        self._kept_back = kept_back
        self._relations = {relation for (relation,) in self._db.execute("SELECT DISTINCT relation FROM wide")}
        (position,) = self._db.execute("SELECT position FROM done").fetchone()
        self._position = self._noted = int(position)

    @property
    def position(self) -> int:
        """The log's position up to which this memory is complete; what the file says may be less, but lacks nothing wide."""
        return self._position

    def knows(self, table: Table) -> bool:
        """Whether it remembers any row of the table, so that it has to hear of deletes and updates."""
        return table.oid in self._relations

    @property
    def relations(self) -> frozenset[int]:
        """The tables (OIDs) of which it may remember rows."""
        return frozenset(self._relations)

    def fill(self, table: Table, block: Bytes, rows: tuples.RowFields) -> tuple[Bytes, Flags | None]:
        """See ``cdc.capture.decoder.Memory``."""
        shape = tuples.shape_of(table)
        kept_back = self._kept_back(table)
        nameless = any(column.name in kept_back for column in table.key)
        keys = np.flatnonzero(shape.key)
        added: list[bytes] = []
        end = len(block)
        unresolved = np.zeros(len(rows.op), np.bool_)
        shortest = {c: least for c, least in _shortest(table).items() if table.columns[c].name not in kept_back}
        fresh: dict[int, bytes] = {}

        def field(column: int, row: int) -> bytes:
            at, length = int(rows.offsets[column, row]), int(rows.lengths[column, row])
            return fresh[at] if at in fresh else block[at : at + length].tobytes()

        chosen = rows.partial | rows.wide | (rows.op == _DELETED)
        if table.oid in self._relations or rows.wide.any():
            chosen = chosen | (rows.op == _UPDATED)
        for row in map(int, np.flatnonzero(chosen)):
            key = _key([field(int(c), row) for c in keys]) if not nameless else b""
            if rows.op[row] == _DELETED:
                # The second row of a changed key may still need what the first one's key knew.
                moved = row + 1 < len(rows.op) and rows.order[row + 1] == rows.order[row] + 1
                if not moved or not rows.partial[row + 1]:
                    self._forget(table.oid, key)
                continue
            if rows.partial[row]:
                old = key if not rows.order[row] & 1 else _key([field(int(c), row - 1) for c in keys])
                known = self._latest(table.oid, old)
                for column in map(int, np.flatnonzero(rows.lengths[:, row] == tuples.UNCHANGED)):
                    if not kept_back.get(table.columns[column].name, True):
                        rows.lengths[column, row] = -1  # dropped before the log
                        continue
                    value = known.get(_label(table.columns[column]))
                    if value is None:
                        unresolved[row] = True
                        continue
                    rows.offsets[column, row] = end
                    rows.lengths[column, row] = len(value)
                    fresh[end] = value
                    added.append(value)
                    end += len(value)
                if old != key:
                    self._forget(table.oid, old)
                    self._forget(table.oid, key)  # what it knows is another row's
            # A narrow row replaces what is remembered of its key: a value of it may be out of line all the same, as what is not published (a
            # generated column, say) makes the stored row wider. A row that stays unresolved does, too: what it brought is newer.
            if not nameless and (rows.partial[row] or rows.wide[row] or self._forget(table.oid, key)):
                self._remember(
                    table.oid,
                    key,
                    {
                        _label(table.columns[c]): field(c, row)
                        for c, least in shortest.items()
                        if least <= rows.lengths[c, row] <= MOST_BYTES
                    },
                )
        if added:
            block = np.concatenate([block, np.frombuffer(b"".join(added), np.uint8)])
        return block, (unresolved if unresolved.any() else None)

    def weigh(self, table: Table, block: Bytes, rows: tuples.RowFields) -> npt.NDArray[np.int64]:
        """See ``cdc.capture.rows.Memory``."""
        sizes: npt.NDArray[np.int64] = np.zeros(len(rows.op), np.int64)
        if any(column.name in self._kept_back(table) for column in table.key):
            return sizes  # nothing of it is remembered
        keys = np.flatnonzero(tuples.shape_of(table).key)
        sent = np.maximum(rows.lengths, 0).sum(axis=0, dtype=np.int64)
        seen: dict[bytes, int] = {}

        def key(row: int) -> bytes:
            fields = ((int(rows.offsets[c, row]), int(rows.lengths[c, row])) for c in keys)
            return _key([block[at : at + length].tobytes() for at, length in fields])

        for row in map(int, np.flatnonzero(rows.partial | rows.wide)):
            mine = key(row)
            if rows.partial[row]:
                old = key(row - 1) if rows.order[row] & 1 else mine
                if old not in seen:
                    found = self._db.execute(
                        "SELECT total(length(value)) FROM wide WHERE relation = ? AND key = ?", (table.oid, old)
                    )
                    seen[old] = int(found.fetchone()[0])
                sizes[row] = seen[old]
            seen[mine] = int(sizes[row] + sent[row])
        return sizes

    def learn(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch that did not come through ``fill``: a snapshot chunk, or the log's own past."""
        table = table_of(batch.schema)
        if batch.column(OP)[0].as_py() in ALONE:
            change = schema_change_of(batch)
            if change is None or change.kind is not Kind.ALTERED:
                self.forget(table.oid)
            return
        kept_back = {*self._kept_back(table), *(column.name for column in table.columns if column.protected)}
        if any(column.name in kept_back for column in table.key):
            return
        shape = tuples.shape_of(table)
        shortest = {table.columns[c].name: least for c, least in _shortest(table).items() if table.columns[c].name not in kept_back}
        if not shortest:
            return
        op = batch.column(OP).to_numpy()
        deleted = op == _DELETED
        # A row that was read is as new as what is remembered of its key; one that was updated is newer.
        newer = deleted | (op == _UPDATED)
        if not (table.oid in self._relations and newer.any()) and _none_is_wide(batch, table, shape):
            return
        width = np.full(len(batch), tuples.ROW_HEADER_BYTES + len(table.columns) // 8, np.int64)
        for column, weight in zip(table.columns, shape.weight, strict=True):
            if weight > 0:
                length = pc.fill_null(pc.binary_length(batch.column(column.name)), 0).to_numpy(zero_copy_only=False)
                width += length.astype(np.int64) * int(weight) * _text_ratio(batch.column(column.name).type) + 24
            else:
                width -= int(weight)
        if batch.column(EXACT).null_count < len(batch):
            width[np.asarray(pc.is_valid(batch.column(EXACT)))] += tuples.TOAST_TUPLE_BYTES
        wide = (width >= tuples.TOAST_TUPLE_BYTES) & ~deleted
        if not wide.any() and table.oid not in self._relations:
            return
        chosen = wide | newer
        rows = batch if chosen.all() else batch.filter(pa.array(chosen))
        keys = [canonical_text(rows.column(column.name)).to_pylist() for column in table.key]
        values = {name: canonical_text(_not_too_large(rows.column(name))).to_pylist() for name in shortest}
        labels = {column.name: _label(column) for column in table.columns}
        exact = rows.column(EXACT).to_pylist()
        for row, (gone, narrow) in enumerate(zip(deleted[chosen], ~wide[chosen], strict=True)):
            odd = dict(exact[row] or ())
            # As in ``fill``, NULL is no bytes: only without a primary key, under FULL, where nothing is ever asked for.
            key = _key([(odd.get(c.name) or column[row] or "").encode() for c, column in zip(table.key, keys, strict=True)])
            if gone:
                self._forget(table.oid, key)
                continue
            if narrow and not self._forget(table.oid, key):
                continue
            found = {name: (odd.get(name) or column[row] or "").encode() for name, column in values.items()}
            self._remember(table.oid, key, {labels[name]: value for name, value in found.items() if len(value) >= shortest[name]})

    def forget(self, relation: int) -> None:
        """Every row of the table (OID) is gone, or no longer what it was."""
        if relation in self._relations:
            self._db.execute("DELETE FROM wide WHERE relation = ?", (relation,))

    def commit(self, position: int) -> None:
        """Everything up to the log's ``position`` has been taken in and is durable in the log."""
        if self._db.in_transaction:
            _set_position(self._db, position)
            crashpoint("toast.commit.begun")
            self._db.commit()
            self._position = self._noted = position
            crashpoint("toast.commit.done")
        elif position - self._noted >= 100_000:
            # Nothing wide for a while: move on anyway, so that a restart has little to read again.
            self._move_to(position)
        else:
            self._position = position

    def rollback(self) -> None:
        self._db.rollback()

    def clear(self) -> None:
        """Forgets everything; position 0."""
        self.begin_at(0)

    def begin_at(self, position: int) -> None:
        """Forgets everything; what stands in the log up to this position is not to be learnt again, for rows may have changed unseen."""
        self._db.execute("DELETE FROM wide")
        self._move_to(position)
        self._relations.clear()

    def close(self) -> None:
        self._db.close()

    def _move_to(self, position: int) -> None:
        _set_position(self._db, position)
        self._db.commit()
        self._position = self._noted = position

    def _latest(self, relation: int, key: bytes) -> Mapping[str, bytes]:
        """SQLite's pages carry no checksum, so each value does: a damaged one is not known, and the database is asked for it."""
        found = self._db.execute("SELECT name, value, crc FROM wide WHERE relation = ? AND key = ?", (relation, key))
        return {name: value for name, value, crc in found if crc == _crc(relation, key, name, value)}

    def _remember(self, relation: int, key: bytes, found: Mapping[str, bytes]) -> None:
        self._forget(relation, key)
        self._relations.add(relation)
        small = ((name, value) for name, value in found.items() if len(value) <= MOST_BYTES)
        rows = ((relation, key, name, value, _crc(relation, key, name, value)) for name, value in small)
        self._db.executemany("INSERT INTO wide VALUES (?, ?, ?, ?, ?)", rows)

    def _forget(self, relation: int, key: bytes) -> bool:
        """Whether anything was remembered."""
        return self._db.execute("DELETE FROM wide WHERE relation = ? AND key = ?", (relation, key)).rowcount > 0


def _not_too_large(column: pa.Array) -> pa.Array:
    """NULL in place of values that are not remembered, before they are written out as text."""
    if column.get_total_buffer_size() <= MOST_BYTES // _text_ratio(column.type):
        return column  # no value is larger than all of them
    large = pc.greater(pc.binary_length(column), MOST_BYTES // _text_ratio(column.type)).fill_null(False)
    return pc.if_else(large, pa.scalar(None, column.type), column) if pc.any(large).as_py() else column


def _open(path: Path) -> sqlite3.Connection:
    """The memory's file; one that is damaged is dropped, since the log holds all that it knew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connect(path)
    except _DAMAGE:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).unlink()
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite gives its other files the mode that this one has.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    # The ingest thread owns it after the start; it may be closed by another.
    db = sqlite3.connect(path, check_same_thread=False, factory=_Database)
    db.path = path
    db.text_factory = lambda raw: raw.decode(errors="replace")  # damage is found by checksum, it need not be text
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # Of a power loss nothing is left but an earlier commit, from where the log goes on; without any sync pages of several ages would be.
        db.execute("PRAGMA synchronous = NORMAL")
        _check(db)
    except _DAMAGE:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    tables = _tables(db)
    if not tables:
        db.executescript(_SCHEMA)
        tables = _tables(db)
    if tables != _sound_tables():
        raise sqlite3.DatabaseError("the tables are not ours")
    (fine,) = db.execute("PRAGMA quick_check").fetchone()
    if fine != "ok":
        raise sqlite3.DatabaseError(fine)
    done = db.execute("SELECT position, crc FROM done").fetchone()
    if done is None:
        _set_position(db, 0)
        db.commit()
    elif done[1] != _crc(0, b"", "position", str(done[0]).encode()):
        raise sqlite3.DatabaseError("the position's checksum differs")


@cache
def _sound_tables() -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as sound:
        sound.executescript(_SCHEMA)
        return _tables(sound)


def _tables(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def _set_position(db: sqlite3.Connection, position: int) -> None:
    db.execute("INSERT OR REPLACE INTO done VALUES (1, ?, ?)", (position, _crc(0, b"", "position", str(position).encode())))


def _crc(relation: int, key: bytes, name: str, value: bytes) -> int:
    """Over the lengths, too: bytes cannot wander from one to the other."""
    if not isinstance(name, str) or not isinstance(value, bytes):
        return -1  # SQLite's types are per value, so damage may change them
    head = b"%d %d %d %s" % (relation, len(key), len(name), name.encode())
    return int(google_crc32c.extend(google_crc32c.extend(google_crc32c.value(head), key), value))


def _label(column: Column) -> str:
    """Under another name a column keeps its values; with another type it does not."""
    return f"{column.attnum} {column.type_oid} {column.typmod}" if column.attnum else column.name


def _key(fields: Iterable[bytes]) -> bytes:
    """Injective: each field with its length in front."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def _none_is_wide(batch: pa.RecordBatch, table: Table, shape: tuples.TupleShape) -> bool:
    """Whether a row that had each column's longest value would still not be wide: that decides most tables, without a sum per row."""
    if batch.column(EXACT).null_count < len(batch):
        return False
    # Of a few narrow rows all that the batch holds is less than the longest value may be.
    return any(_widest(batch, table, shape, longest) < tuples.TOAST_TUPLE_BYTES for longest in (_all_bytes, _longest))


def _widest(batch: pa.RecordBatch, table: Table, shape: tuples.TupleShape, longest: Callable[[pa.Array], int]) -> int:
    width = tuples.ROW_HEADER_BYTES + len(table.columns) // 8
    for column, weight in zip(table.columns, shape.weight.tolist(), strict=True):
        if weight > 0:
            values = batch.column(column.name)
            width += longest(values) * weight * _text_ratio(values.type) + 24
        else:
            width -= weight
    return width


def _all_bytes(values: pa.Array) -> int:
    return int(values.get_total_buffer_size())


def _longest(values: pa.Array) -> int:
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


@lru_cache(maxsize=4096)
def _shortest(table: Table) -> Mapping[int, int]:
    """The columns that can be TOASTed, each with the shortest text worth remembering."""
    shape = tuples.shape_of(table)
    return {int(c): MIN_TOAST_BYTES if shape.weight[c] == 1 else 1 for c in np.flatnonzero(shape.weight > 0)}


def _text_ratio(kind: pa.DataType) -> int:
    """Bytes of wire text per byte held: bytea travels as two digits a byte, and the threshold is meant for the wire's text."""
    return 2 if pa.types.is_binary(kind) else 1
