"""Messages of plain rows → one Arrow batch per table, complete. Pure but for what it is handed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import tuples, values
from cdc.capture.messages import Index
from cdc.capture.relations import Relations
from cdc.capture.values import Bytes, Flags
from cdc.errors import ProtocolError
from cdc.model.batch import META_FIELDS, batch_schema
from cdc.model.table import Table

_ROWS: Final = np.zeros(256, np.bool_)
_ROWS[[ord("I"), ord("U"), ord("D")]] = True


class Memory(Protocol):
    """What fills unchanged TOAST values in: it remembers the latest wide rows."""

    def knows(self, table: Table) -> bool:
        """Whether it remembers any row of the table."""
        ...

    def fill(self, table: Table, block: Bytes, rows: tuples.Rows) -> tuple[Bytes, Flags | None]:
        """Completes ``rows`` in place and remembers the wide ones.

        Returns the block, longer by the bytes that were filled in, and the flags of rows that stay partial (None: none do).
        """
        ...

    def forget(self, relation: int) -> None:
        """Every row of the table (OID) is gone, or no longer what it was."""
        ...


Hold = Callable[[pa.RecordBatch, Mapping[str, Flags]], None]
"""Takes updates that cannot be completed yet: the rows, each with the position that the next logged change after it gets, and per column
the flags of the missing values."""


@dataclass(slots=True)
class _Piece:
    """Rows of one table, before they have positions."""

    table: Table
    arrays: list[pa.Array]
    exact: pa.Array
    op: npt.NDArray[np.int8]
    order: npt.NDArray[np.int64]


class Rows:
    """The rows of one connection's stream. ``durable_lsn``: transactions that end at or before it are in the log already."""

    def __init__(self, relations: Relations, memory: Memory, hold: Hold, durable_lsn: int) -> None:
        self._relations = relations
        self._memory = memory
        self._hold = hold
        self._durable_lsn = durable_lsn

    def wanted(self, index: Index, transaction: int) -> bool:
        """Where the commit's end is not there yet, its beginning tells (known from BEGIN on): at or behind the durable end of another."""
        end, begin = int(index.end_lsn[transaction]), int(index.commit_lsn[transaction])
        return end > self._durable_lsn if end else begin >= self._durable_lsn

    def run(
        self, block: Bytes, index: Index, begin: int, end: int, position: int, changed: npt.NDArray[np.int64]
    ) -> list[pa.RecordBatch]:
        """Rows of messages [begin, end), a batch per table; no table changes its definition in between."""
        mask = _ROWS[index.kind[begin:end]]
        if len(index.commit_lsn) and index.commit_lsn[0] < self._durable_lsn:
            transaction = index.transaction[begin:end]
            ends = index.end_lsn[transaction]
            mask &= np.where(ends > 0, ends > self._durable_lsn, index.commit_lsn[transaction] >= self._durable_lsn)
        at = begin + np.flatnonzero(mask)
        if not len(at):
            return []
        relations = index.relation[at]
        present = relations[:1] if (relations == relations[0]).all() else np.unique(relations)
        pieces: list[_Piece] = []
        held: list[tuple[_Piece, Mapping[str, Flags]]] = []
        for oid in present:
            mine = at if len(present) == 1 else at[relations == oid]
            pieces.append(self._piece(block, index, mine, self._relations.table(int(oid)), held))
        orders = pieces[0].order if len(pieces) == 1 else np.sort(np.concatenate([piece.order for piece in pieces]))
        for piece, missing in held:
            self._hold(_batch(piece, position + np.searchsorted(orders, piece.order), index), missing)
        changed += np.bincount(index.transaction[orders >> 1], minlength=len(changed))
        return [_batch(piece, position + np.searchsorted(orders, piece.order), index) for piece in pieces if len(piece.op)]

    def _piece(
        self,
        block: Bytes,
        index: Index,
        at: npt.NDArray[np.int64],
        table: Table,
        held: list[tuple[_Piece, Mapping[str, Flags]]],
    ) -> _Piece:
        """One table's rows; those that stay partial go to ``held``."""
        rows = tuples.rows(block, index.kind[at], index.body[at], index.end[at], at, tuples.shape_of(table))
        partial: Flags | None = None
        if rows.wide.any() or rows.partial.any() or self._memory.knows(table):
            block, partial = self._memory.fill(table, block, rows)
        arrays, exact = values.columns(block, rows.offsets, rows.lengths, table)
        piece = _Piece(table, arrays, exact, rows.op, rows.order)
        if partial is None:
            return piece
        missing = {column.name: rows.lengths[c][partial] == tuples.UNCHANGED for c, column in enumerate(table.columns)}
        held.append((_select(piece, partial), missing))
        return _select(piece, ~partial)


def _select(piece: _Piece, flags: Flags) -> _Piece:
    mask = pa.array(flags)
    return _Piece(
        piece.table,
        [array.filter(mask) for array in piece.arrays],
        piece.exact.filter(mask),
        piece.op[flags],
        piece.order[flags],
    )


def _batch(piece: _Piece, positions: npt.NDArray[np.int64], index: Index) -> pa.RecordBatch:
    transactions = index.transaction[piece.order >> 1]
    arrays = [
        pa.array(positions),
        pa.array(piece.op),
        pa.array(index.commit_lsn[transactions]),
        pa.array(index.commit_ts_us[transactions]).view(META_FIELDS[3].type),
        piece.exact,
        *piece.arrays,
    ]
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(piece.table))
    except pa.ArrowInvalid as error:  # pragma: no cover - the columns were made from the same table
        raise ProtocolError(f"rows of {piece.table.qualified} do not fit its RELATION message") from error
