"""Rows that are deleted and stay: what a commit writes of them, and what it leaves as it is. Reads the rows that it needs out of the table's files.

A deleted row keeps the last values that were known of it, be they in the table or among the changes that come with its DELETE, and gets the DELETE's position.
One that is marked already stays as it is. So does a row that is read again as it is (``Op.READ``), as in a snapshot: when it was written does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import OP, POSITION, Op
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import SEPARATOR, join_key, row_text
from sinks.warehouse.columns import IcebergField, arrow_schema, to_rows, to_text
from sinks.warehouse.keys import Int64s, Mask, select
from sinks.warehouse.tablefiles import NO, StandingRows, TableFiles
from sinks.warehouse.upserts import Deletions, Final, UpsertGroup, deletions


@dataclass(slots=True)
class Marked:
    """``rows``: to be written beside the others, in the table's shape, and ``keys``: theirs. ``spared``: data file → positions of rows whose keys are
    touched, and which stay. ``last``: without what need not be written."""

    last: Final
    rows: list[pa.RecordBatch] = field(default_factory=list)
    keys: list[Int64s | pa.Array] = field(default_factory=list)
    spared: dict[str, Int64s] = field(default_factory=dict)

    def spare(self, hits: Mapping[str, Int64s]) -> None:
        for path, positions in hits.items():
            self.spared[path] = np.union1d(self.spared.get(path, positions), positions)


class Marking:
    """Over one commit of a table whose rows are told apart. ``fields``: its columns from then on."""

    def __init__(self, files: TableFiles, fields: Sequence[IcebergField], group: UpsertGroup) -> None:
        assert group.plan is not None
        self._files, self._fields, self._group, self._plan = files, fields, group, group.plan
        self._wanted = arrow_schema(fields)
        self._schema: TopicSchema = group.schema

    def planned(self, last: Final, held: int, *, emptied: bool) -> Marked:
        """``held``: the table holds everything up to this position. ``emptied``: no row that is in it stays."""
        found = Marked(last)
        going = None if self._files.own.deleted is None else deletions(self._group, held)
        if going is not None:
            self._of_group(going, found)
            if not emptied:
                self._of_table(going, found)
        if not emptied:
            self._read_again(found)
        return found

    def _of_group(self, going: Deletions, found: Marked) -> None:
        """Rows that the group brings, and takes away."""
        mine = np.flatnonzero(going.rows >= 0)
        if not len(mine):
            return
        beside = {**self._files.own.values(deleted=True), POSITION: pa.array(going.positions[mine])}
        for rows in self._changes(going.rows[mine]):
            found.rows.append(to_rows(rows, self._schema, self._wanted, beside))
        found.keys.append(_taken(going.keys, mine))

    def _of_table(self, going: Deletions, found: Marked) -> None:
        others = np.flatnonzero(going.rows < 0)
        keys = _taken(going.keys, others)
        there = self._standing(keys)
        if not there.rows.num_rows:
            return
        marked = self._marked(there)
        found.spare(there.hits(np.flatnonzero(marked)))
        left = np.flatnonzero(~marked)
        if not len(left):
            return
        rows = there.rows.take(pa.array(left))
        theirs = self._files.keys_of(rows, self._plan, self._schema)
        at = pc.index_in(pa.array(theirs), value_set=pa.array(keys)).to_numpy(zero_copy_only=False)
        found.rows += self.turned(rows, pa.array(going.positions[others][at])).to_batches()
        found.keys.append(theirs)

    def turned(self, rows: pa.Table, positions: pa.Array) -> pa.Table:
        """Rows of the table, marked as deleted at these positions."""
        for name, value in {**self._files.own.values(deleted=True), POSITION: positions}.items():
            column = value if isinstance(value, pa.Array) else pa.repeat(value, rows.num_rows)
            rows = rows.set_column(rows.schema.get_field_index(name), self._wanted.field(name), column)
        return rows.combine_chunks()

    def _read_again(self, found: Marked) -> None:
        """Leaves out what a row in the table says already."""
        ops = np.concatenate([batch.column(OP).to_numpy() for batch in self._group.batches])
        numbers = np.flatnonzero(np.concatenate(found.last.upserts))
        reads = ops[numbers] == Op.READ
        if not np.any(reads) or found.last.written is None:
            return
        keys = select(found.last.written, reads)
        there = self._standing(keys)
        if not there.rows.num_rows:
            return
        theirs = self._files.keys_of(there.rows, self._plan, self._schema)
        at = np.flatnonzero(reads)[pc.index_in(pa.array(theirs), value_set=pa.array(keys)).to_numpy(zero_copy_only=False)]
        came = pa.Table.from_batches([row_text(rows, self._schema) for rows in self._changes(numbers[at])])
        equal = equal_texts(to_text(there.rows, self._schema), came) & ~self._marked(there)
        found.spare(there.hits(np.flatnonzero(equal)))
        kept = np.ones(len(numbers), np.bool_)
        kept[at[equal]] = False
        mask = np.zeros(len(ops), np.bool_)
        mask[numbers[kept]] = True
        ends = np.cumsum([batch.num_rows for batch in self._group.batches])[:-1]
        masks: tuple[Mask, ...] = tuple(np.split(mask, ends))
        found.last = replace(found.last, upserts=masks, written=select(found.last.written, kept))

    def _standing(self, keys: Int64s | pa.Array) -> StandingRows:
        hits = self._files.find(self._plan, self._schema, keys) if len(keys) else {}
        return self._files.standing(hits, self._fields)

    def _marked(self, there: StandingRows) -> Mask:
        name = self._files.own.deleted
        if name is None:
            return np.zeros(there.rows.num_rows, np.bool_)
        said: Mask = there.rows.column(name).fill_null(NO).to_numpy()
        return said

    def _changes(self, numbers: Int64s) -> list[pa.RecordBatch]:
        """The group's changes with these numbers, in this order."""
        taken = pa.Table.from_batches(self._group.batches).take(pa.array(numbers))
        batches: list[pa.RecordBatch] = taken.combine_chunks().to_batches()
        return batches


def _taken(keys: Int64s | pa.Array, rows: Int64s) -> Int64s | pa.Array:
    return keys[rows] if isinstance(keys, np.ndarray) else keys.take(pa.array(rows))


def equal_texts(one: pa.Table, other: pa.Table) -> Mask:
    """Which rows of the two are equal. Both as ``sinks.contract.audit_schema`` of one schema."""
    if not one.column_names:
        return np.ones(one.num_rows, np.bool_)
    texts = [join_key([column.combine_chunks() for column in table.combine_chunks().columns], SEPARATOR) for table in (one, other)]
    found: Mask = pc.equal(*texts).to_numpy(zero_copy_only=False)
    return found
