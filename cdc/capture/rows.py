"""Messages of plain rows → one Arrow batch per table, complete. Pure but for what it is handed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import letters, tuples
from cdc.capture.messages import Index
from cdc.capture.oldrows import old_rows
from cdc.capture.relations import Relations
from cdc.errors import ProtocolError
from cdc.kernels.memory import Reused
from cdc.model.batch import META_FIELDS, batch_schema
from cdc.model.oldrows import completed, without_old_rows
from cdc.model.table import Table
from cdc.pgvalues import columns
from cdc.pgvalues.values import Bytes, Flags

_ROWS: Final = np.zeros(256, np.bool_)
_ROWS[[letters.INSERT, letters.UPDATE, letters.DELETE]] = True


class Memory(Protocol):
    """The memory that fills in unchanged TOAST values: it remembers the latest wide rows."""

    def knows(self, table: Table) -> bool:
        """Whether it remembers any row of the table."""
        ...

    def fill(self, table: Table, block: Bytes, rows: tuples.RowFields) -> tuple[Bytes, Flags | None]:
        """Completes ``rows`` in place and remembers the wide ones.

        Returns the block, longer by the bytes that were filled in, and the flags of rows that stay partial (None: none do).
        """
        ...

    def weigh(self, table: Table, block: Bytes, rows: tuples.RowFields) -> npt.NDArray[np.int64]:
        """How many bytes ``fill`` would at most add for each row. Changes nothing."""
        ...

    def forget(self, relation: int) -> None:
        """Every row of the table (OID) is gone, or no longer what it was."""
        ...


Hold = Callable[[pa.RecordBatch, Mapping[str, Flags]], None]
"""Takes updates that cannot be completed yet: the rows, each with the position that the next logged change after it gets, and per column
the flags of the missing values."""


COLUMNS_BYTES: Final = 8 * 2**20
"""So much memory is kept for the next group's columns, of each size: enough for a block of wide rows."""


class RowBatches:
    """The rows of one connection's stream. ``durable_lsn``: transactions that end at or before it are in the log already."""

    def __init__(self, relations: Relations, memory: Memory, hold: Hold, durable_lsn: int) -> None:
        self._relations = relations
        self._memory = memory
        self._hold = hold
        self._durable_lsn = durable_lsn
        self._buffers = Reused(COLUMNS_BYTES)

    def wanted(self, index: Index, transaction: int) -> bool:
        """Whether the log lacks the transaction."""
        return not index.ends_by(transaction, self._durable_lsn)

    def forget(self, oid: int) -> None:
        """Every row of the table is gone, or no longer what it was."""
        self._memory.forget(oid)

    def run(
        self, block: Bytes, index: Index, begin: int, end: int, position: int, changed: npt.NDArray[np.int64]
    ) -> list[pa.RecordBatch]:
        """Rows of messages [begin, end), a batch per table; no table changes its definition in between."""
        at = self._of_rows(index, begin, end)
        if not len(at):
            return []
        at, tables, starts = self._by_table(index, at)
        parsed = tuples.parse(block, index, at, [tuples.shape_of(t) for t in tables], starts)
        found, partial = self._columns(block, tables, parsed)
        order = parsed.whole(parsed.order)
        logged = order
        if partial:
            stays = [~partial[t] if t in partial else np.ones(count, np.bool_) for t, count in enumerate(parsed.counts)]
            logged = order[np.concatenate(stays)]
        logged = np.sort(logged) if len(tables) > 1 else logged
        changed += np.bincount(index.transaction[logged >> 1], minlength=len(changed))
        meta = _Meta.of(position + np.searchsorted(logged, order), parsed.whole(parsed.op), index, order >> 1)
        batches = []
        begin = 0
        for t, (table, count) in enumerate(zip(tables, parsed.counts, strict=True)):
            batch = _batch(table, meta.arrays(begin, count), found[t])
            begin += count
            if table.keeps_old_rows:
                sent = self._relations.sends_whole_rows(table)
                old = old_rows(block, index, table, parsed.rows(t), self._buffers.take) if sent else None
                batch = completed(batch, table, old)
            if t in partial:
                missing = _missing(table, parsed.rows(t), partial[t])
                self._hold(without_old_rows(batch.filter(pa.array(partial[t]))), missing)
                batch = batch.filter(pa.array(~partial[t]))
            if len(batch):
                batches.append(batch)
        return batches

    def weigh(self, block: Bytes, index: Index, begin: int, end: int, room_bytes: int, *, some: bool) -> tuple[int, int]:
        """How far the rows of messages [begin, end) can be taken in before more than ``room_bytes`` is filled in, and how much is.

        The definitions are those that are in force. some: the first row that is filled in may be larger.
        """
        if letters.UPDATE not in index.kind[begin:end].tobytes():
            return end, 0
        at = self._of_rows(index, begin, end)
        if not (index.kind[at] == letters.UPDATE).any():
            return end, 0
        at, tables, starts = self._by_table(index, at)
        filled: npt.NDArray[np.int64] = np.zeros(end - begin, np.int64)
        for t, table in enumerate(tables):
            mine = at[starts[t] : starts[t + 1]]
            wide = (index.end[mine] - index.body[mine]).max() >= tuples.TOAST_TUPLE_BYTES
            if not (wide or self._memory.knows(table)) or not (index.kind[mine] == letters.UPDATE).any():
                continue
            ends = np.array([0, len(mine)], np.int64)
            parsed = tuples.parse(block, index, mine, [tuples.shape_of(table)], ends)
            rows = parsed.rows(0)
            if rows.partial.any():
                np.add.at(filled, (rows.order >> 1) - begin, self._memory.weigh(table, block, rows))
        ends_at = np.cumsum(filled)
        fits = int(np.searchsorted(ends_at, room_bytes, side="right"))
        if some and fits < end - begin and (fits == 0 or ends_at[fits - 1] == 0):
            fits += 1
        return begin + fits, int(ends_at[fits - 1]) if fits else 0

    def _of_rows(self, index: Index, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The messages of rows among [begin, end) that the log does not have."""
        mask = _ROWS[index.kind[begin:end]]
        if passed_over := self._relations.passed_over:
            mask &= ~np.isin(index.relation[begin:end], list(passed_over))
        if len(index.commit_lsn) and index.commit_lsn[0] < self._durable_lsn:
            transaction = index.transaction[begin:end]
            ends = index.end_lsn[transaction]
            mask &= np.where(ends > 0, ends > self._durable_lsn, index.commit_lsn[transaction] >= self._durable_lsn)
        found: npt.NDArray[np.int64] = begin + mask.nonzero()[0]
        return found

    def _by_table(
        self, index: Index, at: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], list[Table], npt.NDArray[np.int64]]:
        """The messages one table after the other (by OID), those tables, and where each one's messages begin, and all end."""
        relations = index.relation[at]
        if (relations == relations[0]).all():
            return at, [self._relations.table(int(relations[0]))], np.array([0, len(at)], np.int64)
        by_table = np.argsort(relations, kind="stable")
        relations = relations[by_table]
        starts = np.append(0, (relations[1:] != relations[:-1]).nonzero()[0] + 1)
        tables = [self._relations.table(oid) for oid in relations[starts].tolist()]
        return at[by_table], tables, np.append(starts, len(at))

    def _columns(
        self, block: Bytes, tables: Sequence[Table], parsed: tuples.Parsed
    ) -> tuple[dict[int, columns.Columns], dict[int, Flags]]:
        """By the table's place: its columns, and where some rows stay partial, which."""
        plain: list[int] = []
        found: dict[int, columns.Columns] = {}
        partial: dict[int, Flags] = {}
        fields = [columns.Fields(table, parsed.fields_at[t], parsed.room(t), parsed.counts[t]) for t, table in enumerate(tables)]
        for t, table in enumerate(tables):
            if not parsed.odd[t] and not self._memory.knows(table):
                plain.append(t)
                continue
            filled, flags = self._memory.fill(table, block, parsed.rows(t))
            (found[t],) = columns.columns_of(filled, parsed.offsets, parsed.lengths, [fields[t]], self._buffers.take)
            if flags is not None:
                partial[t] = flags
        if plain:
            mine = [fields[t] for t in plain]
            found |= zip(plain, columns.columns_of(block, parsed.offsets, parsed.lengths, mine, self._buffers.take), strict=True)
        return found, partial


@dataclass(frozen=True, slots=True)
class _Meta:
    """The columns that every batch begins with, of all tables' rows one behind the other."""

    positions: pa.Buffer
    ops: pa.Buffer
    lsns: pa.Buffer
    times: pa.Buffer

    @classmethod
    def of(cls, positions: npt.NDArray[np.int64], op: npt.NDArray[np.int8], index: Index, messages: npt.NDArray[np.int64]) -> Self:
        transactions = index.transaction[messages]
        times = index.commit_ts_us[transactions]
        return cls(pa.py_buffer(positions), pa.py_buffer(op), pa.py_buffer(index.commit_lsn[transactions]), pa.py_buffer(times))

    def arrays(self, begin: int, count: int) -> list[pa.Array]:
        """Those of rows [begin, begin + count)."""
        parts = ((self.positions, 8), (self.ops, 1), (self.lsns, 8), (self.times, 8))
        return [
            pa.Array.from_buffers(kind, count, [None, buffer.slice(begin * size, count * size)], 0)
            for kind, (buffer, size) in zip(_META_TYPES, parts, strict=True)
        ]


_META_TYPES: Final = tuple(field.type for field in META_FIELDS[:4])


def _missing(table: Table, rows: tuples.RowFields, partial: Flags) -> Mapping[str, Flags]:
    return {column.name: rows.lengths[c][partial] == tuples.UNCHANGED for c, column in enumerate(table.columns)}


def _batch(table: Table, meta: list[pa.Array], found: columns.Columns) -> pa.RecordBatch:
    arrays, exact = found
    try:
        return pa.RecordBatch.from_arrays([*meta, exact, *arrays], schema=batch_schema(table))
    except pa.ArrowInvalid as error:  # pragma: no cover - the columns were made from the same table
        raise ProtocolError(f"rows of {table.qualified} do not fit its RELATION message") from error
