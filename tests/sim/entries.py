"""The log's changes as the checker compares them: one entry for each, with its row as the source has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import pyarrow as pa

from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import ALONE, EXACT, LSN, OP, POSITION, TABLE_METADATA, Op, table_of
from cdc.model.evolution import Kind, schema_change_of
from cdc.model.oldrows import completed, taken_apart
from cdc.model.position import Position
from cdc.model.table import Table
from tests.sim.tables import Key, Row, first_name, identity_of
from tests.sim.texts import texts

_OPS: Final = {int(op): op.name.lower() for op in Op}


@dataclass(slots=True)
class Entry:
    """One change as the log has it. ``row``: what is not NULL of a whole row; None for a delete or a TRUNCATE."""

    position: int
    op: int
    oid: int
    topic: str
    key: Key
    row: Row | None
    lsn: int
    empties: bool = False
    """A SCHEMA record behind which no earlier row is left."""
    rewritten: bool = False
    """A SCHEMA record behind which the table is read again, so that nothing of its earlier rows is taken for known."""
    table: Table | None = None
    """Its definition, as the log has it."""
    rows: dict[Key, Row] | None = None
    """Of a SCHEMA record: the rows that there were, as they are under the new definition."""
    again: int = 0
    """Where a store that takes every change of its tables has this row: at the SCHEMA record for which it had to write it again."""
    stale: bool = False
    """A value may be missing until the row has been read again: nobody could tell which column had become which."""
    before: Row | None = field(default=None, compare=False)
    """The row that it replaced, where the log has that; compaction drops it."""

    @property
    def at(self) -> int:
        return self.again or self.position

    def __str__(self) -> str:
        return f"{_OPS[self.op]} {self.topic}{list(self.key)} tag {self.row and self.row.get('tag')} at position {self.position}"


Folded = dict[str, dict[Key, Entry]]
"""Topic → its rows."""


def with_old_rows(reader: EmbeddedLogReader, topic: str, after: Position, upto: Position) -> list[pa.RecordBatch]:
    """All with the column, also where compaction has left it out."""
    return [completed(batch, table_of(batch.schema)) for batch in reader.read(topic, after, upto, old_rows=True)]


def merged(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same changes in as few batches as there are versions, so that it does not matter where a read began and ended."""
    versions = groupby(batches, key=lambda batch: batch.schema.metadata[TABLE_METADATA])
    return [_whole(list(version)) for _, version in versions]


def _whole(version: list[pa.RecordBatch]) -> pa.RecordBatch:
    return version[0] if len(version) == 1 else pa.concat_batches(version)


def of_batches(batches: Iterable[pa.RecordBatch], topic: str) -> Iterator[Entry]:
    for batch in batches:
        yield from _of_batch(batch, topic)


def _of_batch(batch: pa.RecordBatch, topic: str) -> Iterator[Entry]:
    table = table_of(batch.schema)
    positions, ops, lsns = (batch.column(name).to_pylist() for name in (POSITION, OP, LSN))
    change = schema_change_of(batch) if Op.SCHEMA in ops else None
    empties, rewritten = change is not None and change.empties, change is not None and change.kind == Kind.REWRITTEN
    keys = [first_name(name) for name in identity_of(table)]
    changes, has, old = taken_apart(batch)
    replaced = iter(() if old is None else _rows(old, table))
    for position, op, lsn, row, has_old in zip(positions, ops, lsns, _rows(changes, table), has.tolist(), strict=True):
        if op in ALONE:
            yield Entry(position, op, table.oid, topic, (), None, lsn, empties, rewritten, table)
        else:
            key = tuple([row.get(name) or "" for name in keys])
            before = next(replaced) if has_old else None
            yield Entry(position, op, table.oid, topic, key, None if op == Op.DELETE else row, lsn, table=table, before=before)


def _rows(batch: pa.RecordBatch, table: Table) -> Iterator[Row]:
    """The rows of a batch as the source has them, without what is NULL. In a change of the table as a whole nothing stands for a column."""
    names = [first_name(name) for name in table.names]
    columns = [texts(batch.column(name)) for name in table.names]
    exact, ops = (batch.column(name).to_pylist() for name in (EXACT, OP))
    for op, instead, values in zip(ops, exact, zip(*columns, strict=True), strict=True):
        row = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if instead and op not in ALONE:
            row.update((first_name(name), text) for name, text in instead)
        yield row
