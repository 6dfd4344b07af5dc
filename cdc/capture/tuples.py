"""Row messages (I, U, D) as fields: where each column's text lies, for every row the log will hold. Pure.

A TupleData column is ``n`` (NULL, or "not sent" in a key tuple), ``u`` (unchanged TOAST, not sent) or ``t`` with its text.
An update whose key changed becomes two rows, delete(old) and upsert(new), side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from cdc.errors import ProtocolError
from cdc.kernels.jit import kernel
from cdc.model.pgtypes import BPCHAR, BYTEA, INTERVAL, JSON, NAME, TEXT, TIMETZ, UUID, VARCHAR, XML, arrow_type
from cdc.model.table import Table
from cdc.pgvalues.integers import read_u16, read_u32
from cdc.pgvalues.values import Bytes, Flags, Lengths, Offsets, running

NULL: Final = -1
UNCHANGED: Final = -2
"""Length of a field that the server left out because its TOASTed value did not change."""

_Number = TypeVar("_Number", np.int8, np.int64)

_FIXED: Final = {NAME: 64, UUID: 16, INTERVAL: 16, TIMETZ: 16}
LONGEST_DECIMAL_BYTES: Final = 28
"""A numeric of 38 digits."""

ROW_HEADER_BYTES: Final = 32
"""HeapTupleHeader with its padding; the bitmap of NULLs comes on top (a bit a column)."""

TOAST_TUPLE_BYTES: Final = 2000
"""Postgres moves values out of line only in tuples wider than about 2 kB (TOAST_TUPLE_THRESHOLD, 2032 by default)."""

_ERRORS: Final = (
    "",
    "a row message is too short",
    "a row has another number of columns than its RELATION message said",
    "a column value of an unknown kind",
    "a row message without the tuple that its kind needs",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one table, in stream order. ``offsets`` and ``lengths`` have shape (columns, rows)."""

    offsets: Offsets
    lengths: Lengths
    op: npt.NDArray[np.int8]
    order: npt.NDArray[np.int64]
    """Index of the row's message, times two, plus one for the second row of a changed key."""
    partial: Flags
    """Some column of the row is still UNCHANGED."""
    wide: Flags
    """The row may have TOASTed values, so a later update may leave them out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as the kernel needs it: per column, whether it is in the key, and how its text bounds its size on disk."""

    key: Flags
    weight: npt.NDArray[np.int64]
    """0 or less: takes so many bytes on disk (with the sign turned) and never moves. 1: as long on disk as its text. More: at most so many
    times as long."""

    @classmethod
    def of(cls, table: Table) -> Shape:
        return cls(
            np.array([column.key for column in table.columns], np.bool_),
            np.array([_weight(column.type_oid, arrow_type(column)) for column in table.columns], np.int64),
        )


@lru_cache(maxsize=4096)
def shape_of(table: Table) -> Shape:
    return Shape.of(table)


def _weight(type_oid: int, arrow: object) -> int:
    if type_oid in (TEXT, VARCHAR, BPCHAR, BYTEA, JSON, XML):
        return 1
    if type_oid in _FIXED:
        return -_FIXED[type_oid]
    if str(arrow) == "string":
        return 8
    return -LONGEST_DECIMAL_BYTES if str(arrow).startswith("decimal") else -8


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of several tables. Arrays of rows have room for more than there are, table by table."""

    offsets: Offsets
    """Flat; each table's lie there as ``fields`` says."""
    lengths: Lengths
    op: npt.NDArray[np.int8]
    order: npt.NDArray[np.int64]
    partial: Flags
    wide: Flags
    fields_at: tuple[int, ...]
    """Of each table: where its fields begin."""
    rows_at: tuple[int, ...]
    """Of each table, and of all: where its rows begin."""
    counts: tuple[int, ...]
    """Of each table: how many rows it has."""
    odd: tuple[bool, ...]
    """Of each table: whether some row is partial or wide."""

    def room(self, table: int) -> int:
        return self.rows_at[table + 1] - self.rows_at[table]

    def rows(self, table: int) -> Rows:
        """One table's rows; what is changed in them is changed here."""
        begin, count, room = self.rows_at[table], self.counts[table], self.room(table)
        fields = slice(self.fields_at[table], self.fields_at[table + 1])
        of_rows = slice(begin, begin + count)
        return Rows(
            self.offsets[fields].reshape(-1, room)[:, :count],
            self.lengths[fields].reshape(-1, room)[:, :count],
            self.op[of_rows],
            self.order[of_rows],
            self.partial[of_rows],
            self.wide[of_rows],
        )

    def whole(self, of_rows: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """Of ``op`` and ``order``: the tables' rows one behind the other, without the room between."""
        if sum(self.counts) == self.rows_at[-1]:
            return of_rows
        return np.concatenate([of_rows[at : at + count] for at, count in zip(self.rows_at, self.counts, strict=False)])


def parse(
    block: Bytes, kind: Bytes, body: Offsets, end: Offsets, order: npt.NDArray[np.int64], shapes: Sequence[Shape], starts: Offsets
) -> Parsed:
    """Parses these messages, which stand table by table: ``shapes[t]``'s are [starts[t], starts[t + 1]).

    Raises ProtocolError on bytes that pgoutput does not send.
    """
    widths = np.array([len(shape.key) for shape in shapes], np.int64)
    columns_at = running(widths)
    changed = running(kind == 85)
    rows_at = running(np.diff(starts) + np.diff(changed[starts]))
    fields_at = running(np.diff(rows_at) * widths)
    room = int(rows_at[-1])
    offsets = np.empty(fields_at[-1], np.int64)
    lengths = np.empty(fields_at[-1], np.int32)
    op = np.empty(room, np.int8)
    placed = np.empty(room, np.int64)
    partial = np.zeros(room, np.bool_)
    wide = np.zeros(room, np.bool_)
    counts = np.zeros(len(shapes), np.int64)
    odd = np.zeros(len(shapes), np.bool_)
    error = _parse(
        block, kind, body, end, order, starts, columns_at, rows_at, fields_at,
        np.concatenate([shape.key for shape in shapes]), np.concatenate([shape.weight for shape in shapes]), TOAST_TUPLE_BYTES,
        offsets, lengths, op, placed, partial, wide, counts, odd,
    )  # fmt: skip
    if error:
        raise ProtocolError(_ERRORS[error])
    return Parsed(
        offsets, lengths, op, placed, partial, wide,
        tuple(fields_at.tolist()), tuple(rows_at.tolist()), tuple(counts.tolist()), tuple(odd.tolist()),
    )  # fmt: skip


@kernel
def _tuple(block: Bytes, at: int, end: int, row: int, offsets: Offsets, lengths: Lengths) -> tuple[int, int]:
    """One TupleData into column ``row`` of the matrices; returns (offset after it, error)."""
    width = offsets.shape[0]
    if at + 2 > end:
        return at, 1
    if read_u16(block, at) != width:
        return at, 2
    at += 2
    for c in range(width):
        if at >= end:
            return at, 1
        letter = block[at]
        at += 1
        if letter == 116:  # t
            if at + 4 > end:
                return at, 1
            length = read_u32(block, at)
            at += 4
            if length > end - at:
                return at, 1
            offsets[c, row] = at
            lengths[c, row] = np.int32(length)
            at += length
        elif letter == 110:  # n
            offsets[c, row] = at
            lengths[c, row] = np.int32(-1)
        elif letter == 117:  # u
            offsets[c, row] = at
            lengths[c, row] = np.int32(-2)
        else:
            return at, 3
    return at, 0


@kernel
def _rows(
    block: Bytes,
    kind: Bytes,
    body: Offsets,
    end: Offsets,
    order: npt.NDArray[np.int64],
    key: Flags,
    weight: npt.NDArray[np.int64],
    threshold: int,
    offsets: Offsets,
    lengths: Lengths,
    op: npt.NDArray[np.int8],
    placed: npt.NDArray[np.int64],
    partial: Flags,
    wide: Flags,
) -> tuple[int, int]:
    width = offsets.shape[0]
    old_offsets = np.empty((width, 1), np.int64)
    old_lengths = np.empty((width, 1), np.int32)
    count = 0
    for m in range(kind.shape[0]):
        at = body[m] + 4
        stop = end[m]
        letter = block[at]
        at += 1
        has_old = letter == 75 or letter == 79  # K O
        if has_old:
            if kind[m] == 73:
                return count, 4
            at, error = _tuple(block, at, stop, 0, old_offsets, old_lengths)
            if error:
                return count, error
            if kind[m] == 85:
                if at >= stop:
                    return count, 1
                letter = block[at]
                at += 1
        if kind[m] == 68:  # D
            if not has_old:
                return count, 4
            for c in range(width):
                offsets[c, count] = old_offsets[c, 0]
                lengths[c, count] = old_lengths[c, 0] if key[c] else np.int32(-1)
            op[count] = 100
            placed[count] = order[m] * 2
            count += 1
            continue
        if letter != 78:  # N
            return count, 4
        at, error = _tuple(block, at, stop, count, offsets, lengths)
        if error:
            return count, error
        moved = False
        if has_old:
            for c in range(width):
                if lengths[c, count] == -2 and old_lengths[c, 0] >= 0:
                    offsets[c, count] = old_offsets[c, 0]
                    lengths[c, count] = old_lengths[c, 0]
                if key[c] and not moved:
                    if lengths[c, count] != old_lengths[c, 0]:
                        moved = True
                    else:
                        for k in range(lengths[c, count]):
                            if block[offsets[c, count] + k] != block[old_offsets[c, 0] + k]:
                                moved = True
                                break
        if moved:
            for c in range(width):
                offsets[c, count + 1] = offsets[c, count]
                lengths[c, count + 1] = lengths[c, count]
                offsets[c, count] = old_offsets[c, 0]
                lengths[c, count] = old_lengths[c, 0] if key[c] else np.int32(-1)
            op[count] = 100
            placed[count] = order[m] * 2
            count += 1
        disk = 32 + width // 8  # ROW_HEADER_BYTES
        for c in range(width):
            length = lengths[c, count]
            if length == -2:
                partial[count] = True
                disk += threshold
            elif length >= 0:
                disk += -weight[c] if weight[c] <= 0 else length * weight[c] + 24
        wide[count] = disk >= threshold
        op[count] = 99 if kind[m] == 73 else 117
        placed[count] = order[m] * 2 + (1 if moved else 0)
        count += 1
    return count, 0


@kernel
def _parse(
    block: Bytes,
    kind: Bytes,
    body: Offsets,
    end: Offsets,
    order: npt.NDArray[np.int64],
    starts: Offsets,
    columns_at: Offsets,
    rows_at: Offsets,
    fields_at: Offsets,
    key: Flags,
    weight: npt.NDArray[np.int64],
    threshold: int,
    offsets: Offsets,
    lengths: Lengths,
    op: npt.NDArray[np.int8],
    placed: npt.NDArray[np.int64],
    partial: Flags,
    wide: Flags,
    counts: npt.NDArray[np.int64],
    odd: Flags,
) -> int:
    for t in range(counts.shape[0]):
        low, high = starts[t], starts[t + 1]
        width = columns_at[t + 1] - columns_at[t]
        first, last = rows_at[t], rows_at[t + 1]
        count, error = _rows(
            block,
            kind[low:high],
            body[low:high],
            end[low:high],
            order[low:high],
            key[columns_at[t] : columns_at[t + 1]],
            weight[columns_at[t] : columns_at[t + 1]],
            threshold,
            offsets[fields_at[t] : fields_at[t + 1]].reshape((width, last - first)),
            lengths[fields_at[t] : fields_at[t + 1]].reshape((width, last - first)),
            op[first:last],
            placed[first:last],
            partial[first:last],
            wide[first:last],
        )
        if error:
            return error
        counts[t] = count
        for row in range(first, first + count):
            odd[t] |= partial[row] | wide[row]
    return 0
