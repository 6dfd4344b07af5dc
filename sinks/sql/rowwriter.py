"""Rows into one table, within one transaction: COPY of canonical text into a temporary table, then one DELETE and one INSERT.

The temporary table has the types of the table's own columns, so the database reads each text once. A text that its column's type does not take turns the
column, there and in the table, into text, and the rows are sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model.batch import OP, POSITION, Op, first_position, last_position, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of
from sinks.contract import Shape
from sinks.render.rowtext import keys, row_text
from sinks.reshape import same_origin
from sinks.sql.database import DataRefused, SqlSession
from sinks.sql.kinds import TEXT
from sinks.sql.names import GONE, IDENTITY, quoted
from sinks.sql.table import TargetTable, digest, digested, key_columns

_STAGED: Final = "pg_temp.headwater_rows"
_TEXTS: Final = "pg_temp.headwater_texts"
_GROUP_BYTES: Final = 64 * 2**20
"""So much goes in with one INSERT."""


class SqlRowWriter:
    """Over one table. ``shape``: the definition that its rows stand under, and afterwards stand under."""

    def __init__(self, session: SqlSession, table: TargetTable, shape: Shape) -> None:
        self.shape = shape
        self._session = session
        self._table = table

    def write(self, batches: Iterable[pa.RecordBatch], held: Position) -> None:
        """batches: of the topic, in position order; what stands at or below ``held`` is left out."""
        for group in _groups(batches, held):
            barrier = barrier_of(group[0], self.shape.schema)
            if barrier is not None:
                self._pass(barrier)
                continue
            schema = topic_schema(group[0].schema)
            if not same_origin(self.shape.schema, schema):
                self._pass(TableBarrier(schema, Position(first_position(group[0]) - 1), RowsBefore.GONE, True))
            self._merge(schema, group)

    def replace_all(self, schema: TopicSchema, known: Sequence[str], rows: Iterable[pa.RecordBatch]) -> int:
        """Replaces every row by these, one a key. ``known``: the columns that were the store's before. Returns how many there are."""
        fits = self._table.fits(schema)
        count, wanted = 0, dict(self._table.columns)
        if not fits:
            from sinks.sql.kinds import column_type

            wanted = {field.name: column_type(field) for field in schema.fields}
        self._stage({name: wanted[name] for name in schema.names})
        for batch in rows:
            texts = _with(row_text(batch, schema), np.zeros(len(batch), np.bool_))
            wanted.update(dict.fromkeys(self._send(texts, wanted, schema.names), TEXT))
            count += len(batch)
        if fits and key_columns(schema):
            self._session.run(
                f"delete from {self._table.place.sql} t where not exists (select from {_STAGED} r where {self._match(schema)})"
            )
        else:
            self._table.empty()
        if not fits:
            self._table.replace_columns(known, schema)
        self._turn(wanted, schema.names)
        self._insert(schema)
        self._session.run(f"drop table {_STAGED}")
        return count

    def _pass(self, barrier: TableBarrier) -> None:
        gone = barrier.rows is RowsBefore.GONE
        if gone:
            self._table.empty()
        if barrier.defines:
            self._table.evolve(self.shape.schema, barrier.schema, emptied=gone)
            self.shape = barrier.shape

    def _merge(self, schema: TopicSchema, group: Sequence[pa.RecordBatch]) -> None:
        self._table.admit(schema)
        batch = group[0] if len(group) == 1 else pa.Table.from_batches(group).combine_chunks().to_batches()[0]
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        last = _last_of_each(keys(batch, schema)) if schema.key else np.flatnonzero(~gone)
        chosen = batch if len(last) == len(batch) else batch.take(pa.array(last))
        gone = gone[last]
        columns = {name: self._table.columns[name] for name in schema.names}
        self._stage(columns)
        changed = self._send(_with(row_text(chosen, schema), gone), columns, schema.names)
        self._turn(dict.fromkeys(changed, TEXT), changed)
        if gone.any():
            self._session.run(f"delete from {self._table.place.sql} t using {_STAGED} r where r.{GONE} and {self._match(schema)}")
        if not gone.all():
            self._insert(schema)
        self._session.run(f"drop table {_STAGED}")

    def _stage(self, columns: dict[str, str]) -> None:
        made = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self._session.run(
            f"create temporary table {_STAGED.split('.')[1]} ({made}{', ' if made else ''}{GONE} boolean) on commit drop"
        )

    def _send(self, rows: pa.RecordBatch, columns: dict[str, str], names: Sequence[str]) -> Sequence[str]:
        """Returns the columns that have become text for it."""
        listed = ", ".join(map(quoted, (*names, GONE)))
        statement = f"copy {_STAGED} ({listed}) from stdin"
        try:
            self._session.copy_in(statement, [rows])
        except DataRefused:
            odd = [name for name in self._unfit(rows, columns, names) if columns[name] != TEXT]
            for name in odd:
                turned = f"left({quoted(name)}::text, 1)" if columns[name] == "boolean" else f"{quoted(name)}::text"
                self._session.run(f"alter table {_STAGED} alter column {quoted(name)} type text using {turned}")
            self._session.copy_in(statement, [rows])
            return odd
        return ()

    def _unfit(self, rows: pa.RecordBatch, columns: dict[str, str], names: Sequence[str]) -> Iterator[str]:
        """The columns with a text that is no value of their type."""
        made = ", ".join(f"{quoted(name)} text" for name in (*names, GONE))
        self._session.run(f"create temporary table {_TEXTS.split('.')[1]} ({made}) on commit drop")
        self._session.copy_in(f"copy {_TEXTS} from stdin", [rows])
        for name in names:
            try:
                with self._session.attempt():
                    self._session.run(
                        f"create temporary table headwater_probe on commit drop as select {quoted(name)}::{columns[name]} from {_TEXTS}"
                    )
                    self._session.run("drop table pg_temp.headwater_probe")
            except DataRefused:
                yield name
        self._session.run(f"drop table {_TEXTS}")

    def _turn(self, wanted: dict[str, str], names: Sequence[str]) -> None:
        for name in names:
            if wanted[name] == TEXT and self._table.columns[name] != TEXT:
                self._table.become_text(name)

    def _insert(self, schema: TopicSchema) -> None:
        names = list(schema.names)
        columns, values = list(map(quoted, names)), [f"r.{quoted(name)}" for name in names]
        if digested(schema):
            columns.append(IDENTITY)
            values.append(digest(schema, "r"))
        key = key_columns(schema)
        others = [quoted(name) for name in names if name not in key and not digested(schema)]
        conflict = ""
        if key:
            done = f"update set {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "nothing"
            conflict = f" on conflict ({', '.join(map(quoted, key))}) do {done}"
        into = f"({', '.join(columns)}) " if columns else ""
        self._session.run(
            f"insert into {self._table.place.sql} {into}select {', '.join(values)} from {_STAGED} r where not r.{GONE}{conflict}"
        )

    def _match(self, schema: TopicSchema) -> str:
        if digested(schema):
            return f"t.{IDENTITY} = {digest(schema, 'r')}"
        return " and ".join(f"t.{quoted(name)} = r.{quoted(name)}" for name in key_columns(schema))


def _groups(batches: Iterable[pa.RecordBatch], held: Position) -> Iterator[list[pa.RecordBatch]]:
    """What goes in at once: a barrier alone, else rows under one definition."""
    run: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not len(batch) or last_position(batch) <= held:
            continue
        fresh = (
            batch
            if first_position(batch) > held
            else batch.slice(int(np.searchsorted(batch.column(POSITION).to_numpy(), held, "right")))
        )
        alone = barrier_of(fresh, None) is not None
        if run and (alone or size > _GROUP_BYTES or not run[-1].schema.equals(fresh.schema, check_metadata=True)):
            yield run
            run, size = [], 0
        if alone:
            yield [fresh]
            continue
        run.append(fresh)
        size += fresh.nbytes
    if run:
        yield run


def _last_of_each(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows' numbers, rising."""
    numbers = pa.array(np.arange(len(texts), dtype=np.int64))
    grouped = pa.table({"key": texts, "number": numbers}).group_by("key", use_threads=False).aggregate([("number", "max")])
    return np.sort(grouped.column("number_max").to_numpy())


def _with(texts: pa.RecordBatch, gone: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.RecordBatch:
    flags = pa.DictionaryArray.from_arrays(pa.array(gone.astype(np.int8)), pa.array(["f", "t"])).cast(pa.utf8())
    return pa.RecordBatch.from_arrays([*texts.columns, flags], names=[*texts.schema.names, GONE])
