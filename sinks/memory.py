"""The in-memory twin of the stores: the contract's rules and nothing else. Serves tests as the specification.

A store lives as long as its process and is shared by every sink of that name, so that a test can hold an old sink beside a new one.
``staged`` makes it a twin of stores that commit as a whole (the warehouse): rows show only after ``commit``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.table import Table
from cdc.settings import StoreOptions
from sinks.contract import Outcome, Shape, audit_schema
from sinks.policy import emptied
from sinks.reshape import reshaped, rewrites
from sinks.rowtext import join_key, row_keys, row_text, rows_of_nothing

Row = dict[str, str | None]


class Options(StoreOptions):
    staged: bool = False


@dataclass(slots=True)
class Store:
    """What is durable. ``rows``: table → key → (position, row; None for a tombstone)."""

    rows: dict[str, dict[str, tuple[int, Row | None]]] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    applied: Cut = ZERO_CUT

    def write(self, batch: pa.RecordBatch) -> Outcome:
        table = table_of(batch.schema)
        if (change := schema_change_of(batch)) is not None:
            return Outcome(1) if self._reshape(change, Position(first_position(batch))) else Outcome(0, stale=1)
        texts = row_text(batch, table)
        keys = row_keys(texts, batch, table).to_pylist()
        changes = zip(batch.column(POSITION).to_pylist(), batch.column(OP).to_pylist(), keys, texts.to_pylist(), strict=True)
        applied = sum(self._change(table.qualified, position, op, key, row) for position, op, key, row in changes)
        return Outcome(applied, stale=len(batch) - applied)

    def _change(self, table: str, position: int, op: int, key: str, row: Row) -> bool:
        """Whether the change took effect: not covered by a commit or a truncate, and the newest of its key."""
        rows = self.rows.setdefault(table, {})
        if position <= self.applied.position or position <= self.floors.get(table, 0):
            return False
        if op == Op.TRUNCATE:
            self.floors[table] = position
            self.rows[table] = {k: kept for k, kept in rows.items() if kept[0] > position}
            return True
        if key in rows and rows[key][0] >= position:
            return False
        rows[key] = (position, None if op == Op.DELETE else row)
        return True

    def _reshape(self, change: SchemaChange, position: Position) -> bool:
        """Rows before the change become rows at its position, under the new definition; or they go."""
        topic, table = change.table.qualified, change.table
        held = self.shapes.get(topic)
        if position <= self.applied.position or (held is not None and position <= held.position):
            return False
        if emptied(None if held is None else held.table, change):
            self._change(topic, position, Op.TRUNCATE, "", {})
        elif held is not None and rewrites(held.table, table):
            before = {key: row for key, (at, row) in self.rows.get(topic, {}).items() if at < position and row is not None}
            batch = reshaped(_batch(list(before.values()), held.table), held.table, table, position)
            texts = row_text(batch, table)
            keys = row_keys(texts, batch, table).to_pylist()
            again = keys if table.key else [f"\\={key}" if held.table.key else key for key in before]
            for key, row in zip(again, texts.to_pylist(), strict=True):
                self._change(topic, position, Op.READ, key, row)
            self.floors[topic] = position
            self.rows[topic] = {key: kept for key, kept in self.rows.get(topic, {}).items() if kept[0] >= position}
        self.shapes[topic] = Shape(table, position)
        return True

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self.applied.position, self.applied.commit_lsn):
            return
        self.applied = cut
        for name, rows in self.rows.items():
            self.rows[name] = {k: kept for k, kept in rows.items() if kept[1] is not None or kept[0] > cut.position}


STORES: dict[str, Store] = {}


class MemorySink:
    parallel = False

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._staged: list[pa.RecordBatch] | None = [] if options.staged else None
        self._store = STORES.setdefault(name, Store())

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:  # noqa: ARG002
        return self._store.applied

    def prepare(self, table: Table) -> None:
        self._store.rows.setdefault(table.qualified, {})
        self._store.shapes.setdefault(table.qualified, Shape(table, Position(0)))

    def shape(self, topic: str) -> Shape | None:
        return self._store.shapes.get(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if self._staged is None:
            return self._store.write(changes)
        self._staged.append(changes)
        return Outcome(len(changes))

    def commit(self, cut: Cut) -> None:
        for batch in self._staged or ():
            self._store.write(batch)
        if self._staged:
            self._staged.clear()
        self._store.commit(cut)

    def applied(self) -> Cut:
        return self._store.applied

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        rows = self._store.rows.get(table.qualified, {})
        yield _batch([row for _, row in rows.values() if row is not None], table)

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._store.rows.get(table.qualified, {})
        parts = [keys.column(column.name) for column in table.key]
        wanted = join_key(parts, ":" if len(parts) > 1 else "").to_pylist()
        return _batch([row for key in wanted if (row := rows.get(key, (0, None))[1]) is not None], table)

    def close(self) -> None: ...


def make(name: str, options: Options) -> MemorySink:
    return MemorySink(name, options)


def _batch(rows: list[Row], table: Table) -> pa.RecordBatch:
    if not table.names:
        return rows_of_nothing(len(rows))
    columns = [pa.array([row.get(name) for row in rows], pa.utf8()) for name in table.names]
    return pa.RecordBatch.from_arrays(columns, schema=audit_schema(table))
