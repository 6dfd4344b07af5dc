"""Row messages (I, U, D) as fields: where each column's text lies, for every row the log will hold. Pure.

A TupleData column is ``n`` (NULL, or "not sent" in a key tuple), ``u`` (unchanged TOAST, not sent) or ``t`` with its text.
An update whose key changed becomes two rows, delete(old) and upsert(new), side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cdc.capture import letters
from cdc.capture.messages import Index
from cdc.errors import ProtocolError
from cdc.kernels.jit import kernel
from cdc.model.batch import Op
from cdc.model.pgtypes import BPCHAR, BYTEA, INTERVAL, JSON, NAME, TEXT, TIMETZ, UUID, VARCHAR, XML, arrow_type
from cdc.model.table import Table
from cdc.pgvalues.integers import read_u16, read_u32
from cdc.pgvalues.values import Bytes, Flags, Lengths, Offsets, running

NULL: Final = -1
"""Length of a field without a value."""
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

FIELD_HEADER_BYTES: Final = 24
"""On disk beside a value's bytes: its header, and its alignment."""

_FINE, _TOO_SHORT, _OTHER_WIDTH, _UNKNOWN_FIELD, _NO_TUPLE = range(5)
_ERRORS: Final = {
    _TOO_SHORT: "a row message is too short",
    _OTHER_WIDTH: "a row has another number of columns than its RELATION message said",
    _UNKNOWN_FIELD: "a column value of an unknown kind",
    _NO_TUPLE: "a row message without the tuple that its kind needs",
}
_INSERTED, _UPDATED, _DELETED = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)


class RowFields(NamedTuple):
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
class TupleShape:
    """A table as the kernel needs it: per column, whether it is in the key, and how its text bounds its size on disk."""

    key: Flags
    weight: npt.NDArray[np.int64]
    """0 or less: takes so many bytes on disk (with the sign turned) and never moves. 1: as long on disk as its text. More: at most so many
    times as long."""

    @classmethod
    def of(cls, table: Table) -> TupleShape:
        return cls(
            np.array([column.key for column in table.columns], np.bool_),
            np.array([_weight(column.type_oid, arrow_type(column)) for column in table.columns], np.int64),
        )


@lru_cache(maxsize=4096)
def shape_of(table: Table) -> TupleShape:
    return TupleShape.of(table)


def _weight(type_oid: int, arrow: object) -> int:
    if type_oid in (TEXT, VARCHAR, BPCHAR, BYTEA, JSON, XML):
        return 1
    if type_oid in _FIXED:
        return -_FIXED[type_oid]
    if str(arrow) == "string":
        return 8
    return -LONGEST_DECIMAL_BYTES if str(arrow).startswith("decimal") else -8


class Parsed(NamedTuple):
    """The rows of several tables. Arrays of rows have room for more than there are, table by table."""

    offsets: Offsets
    """Flat; each table's lie there as ``fields`` says."""
    lengths: Lengths
    op: npt.NDArray[np.int8]
    order: npt.NDArray[np.int64]
    partial: Flags
    wide: Flags
    fields_at: tuple[int, ...]
    """The beginning of each table's fields."""
    rows_at: tuple[int, ...]
    """The beginning of each table's rows, and the end of all."""
    counts: tuple[int, ...]
    """The number of each table's rows."""
    odd: tuple[bool, ...]
    """Whether some row of each table is partial or wide."""

    def room(self, table: int) -> int:
        return self.rows_at[table + 1] - self.rows_at[table]

    def rows(self, table: int) -> RowFields:
        """One table's rows; what is changed in them is changed here."""
        begin, count, room = self.rows_at[table], self.counts[table], self.room(table)
        fields = slice(self.fields_at[table], self.fields_at[table + 1])
        of_rows = slice(begin, begin + count)
        return RowFields(
            self.offsets[fields].reshape(-1, room)[:, :count],
            self.lengths[fields].reshape(-1, room)[:, :count],
            self.op[of_rows],
            self.order[of_rows],
            self.partial[of_rows],
            self.wide[of_rows],
        )

    def whole(self, of_rows: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """Joins the tables' rows of ``op`` or ``order``, without the room between."""
        if sum(self.counts) == self.rows_at[-1]:
            return of_rows
        return np.concatenate([of_rows[at : at + count] for at, count in zip(self.rows_at, self.counts, strict=False)])


class _Read(NamedTuple):
    end: int
    """Offset after the tuple."""
    error: int


class _Counted(NamedTuple):
    rows: int
    error: int


_Messages = tuple[Bytes, Offsets, Offsets, Offsets]
"""Those of a block, as in ``Index``: kind, body, end; and which of them to take, table by table."""
_Places = tuple[Offsets, Offsets, Offsets, Offsets]
"""Where each table's part begins, and the last one's ends: of the messages to take, of the columns, the rows and the fields."""
_Columns = tuple[Flags, Offsets]
"""Key and weight, as in ``TupleShape``."""
_Room = tuple[Offsets, Lengths, npt.NDArray[np.int8], npt.NDArray[np.int64], Flags, Flags]
"""To be filled in, as in ``RowFields``."""


def parse(block: Bytes, index: Index, order: Offsets, shapes: Sequence[TupleShape], starts: Offsets) -> Parsed:
    """Parses the messages that ``order`` names table by table: ``shapes[t]``'s are [starts[t], starts[t + 1]) of them.

    Raises ProtocolError on bytes that pgoutput does not send.
    """
    widths = np.array([len(shape.key) for shape in shapes], np.int64)
    updated = running(index.kind[order] == letters.UPDATE)
    rows_at = running(np.diff(starts) + np.diff(updated[starts]))  # an update may become two rows
    fields_at = running(np.diff(rows_at) * widths)
    room, fields = int(rows_at[-1]), int(fields_at[-1])
    rows = (
        np.empty(fields, np.int64),
        np.empty(fields, np.int32),
        np.empty(room, np.int8),
        np.empty(room, np.int64),
        np.zeros(room, np.bool_),
        np.zeros(room, np.bool_),
    )
    columns = np.concatenate([shape.key for shape in shapes]), np.concatenate([shape.weight for shape in shapes])
    messages = index.kind, index.body, index.end, order
    counts = np.zeros(len(shapes), np.int64)
    odd = np.zeros(len(shapes), np.bool_)
    error = _parse(block, messages, (starts, running(widths), rows_at, fields_at), columns, rows, counts, odd)
    if error:
        raise ProtocolError(_ERRORS[error])
    return Parsed(*rows, tuple(fields_at.tolist()), tuple(rows_at.tolist()), tuple(counts.tolist()), tuple(odd.tolist()))


@kernel
def _tuple(block: Bytes, at: int, end: int, row: int, offsets: Offsets, lengths: Lengths) -> _Read:
    """One TupleData into column ``row`` of the matrices."""
    width = offsets.shape[0]
    if at + 2 > end:
        return _Read(at, _TOO_SHORT)
    if read_u16(block, at) != width:
        return _Read(at, _OTHER_WIDTH)
    at += 2
    for c in range(width):
        if at >= end:
            return _Read(at, _TOO_SHORT)
        letter = block[at]
        at += 1
        if letter == letters.TEXT_FIELD:
            if at + 4 > end:
                return _Read(at, _TOO_SHORT)
            length = read_u32(block, at)
            at += 4
            if length > end - at:
                return _Read(at, _TOO_SHORT)
            offsets[c, row] = at
            lengths[c, row] = np.int32(length)
            at += length
        elif letter == letters.NULL_FIELD:
            offsets[c, row] = at
            lengths[c, row] = np.int32(NULL)
        elif letter == letters.UNCHANGED_FIELD:
            offsets[c, row] = at
            lengths[c, row] = np.int32(UNCHANGED)
        else:
            return _Read(at, _UNKNOWN_FIELD)
    return _Read(at, _FINE)


@kernel
def _rows(block: Bytes, messages: _Messages, columns: _Columns, rows: _Room) -> _Counted:
    """The messages of one table."""
    kind, body, end, order = messages
    key, weight = columns
    offsets, lengths, op, placed, partial, wide = rows
    width = offsets.shape[0]
    old_offsets = np.empty((width, 1), np.int64)
    old_lengths = np.empty((width, 1), np.int32)
    count = 0
    for m in order:
        at = body[m] + letters.OID_BYTES
        stop = end[m]
        letter = block[at]
        at += 1
        has_old = letter == letters.KEY_TUPLE or letter == letters.OLD_TUPLE
        if has_old:
            if kind[m] == letters.INSERT:
                return _Counted(count, _NO_TUPLE)
            old = _tuple(block, at, stop, 0, old_offsets, old_lengths)
            at = old.end
            if old.error:
                return _Counted(count, old.error)
            if kind[m] == letters.UPDATE:
                if at >= stop:
                    return _Counted(count, _TOO_SHORT)
                letter = block[at]
                at += 1
        if kind[m] == letters.DELETE:
            if not has_old:
                return _Counted(count, _NO_TUPLE)
            for c in range(width):
                offsets[c, count] = old_offsets[c, 0]
                lengths[c, count] = old_lengths[c, 0] if key[c] else np.int32(NULL)
            op[count] = _DELETED
            placed[count] = m * 2
            count += 1
            continue
        if letter != letters.NEW_TUPLE:
            return _Counted(count, _NO_TUPLE)
        new = _tuple(block, at, stop, count, offsets, lengths)
        if new.error:
            return _Counted(count, new.error)
        moved = False
        if has_old:
            for c in range(width):
                if lengths[c, count] == UNCHANGED and old_lengths[c, 0] >= 0:
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
                lengths[c, count] = old_lengths[c, 0] if key[c] else np.int32(NULL)
            op[count] = _DELETED
            placed[count] = m * 2
            count += 1
        disk = ROW_HEADER_BYTES + width // 8
        for c in range(width):
            length = lengths[c, count]
            if length == UNCHANGED:
                partial[count] = True
                disk += TOAST_TUPLE_BYTES
            elif length >= 0:
                disk += -weight[c] if weight[c] <= 0 else length * weight[c] + FIELD_HEADER_BYTES
        wide[count] = disk >= TOAST_TUPLE_BYTES
        op[count] = _INSERTED if kind[m] == letters.INSERT else _UPDATED
        placed[count] = m * 2 + (1 if moved else 0)
        count += 1
    return _Counted(count, _FINE)


def old_tuples(block: Bytes, index: Index, messages: Offsets, width: int) -> tuple[Offsets, Lengths, Flags]:
    """The rows of so many columns that updates and deletes replaced, where the server sent them whole.

    Returns offsets and lengths, of shape (columns, rows), and of which messages they are. Raises ProtocolError as ``parse``.
    """
    offsets, lengths = np.empty((width, len(messages)), np.int64), np.empty((width, len(messages)), np.int32)
    whole = np.zeros(len(messages), np.bool_)
    error = _old_tuples(block, (index.body, index.end, messages), offsets, lengths, whole)
    if error:
        raise ProtocolError(_ERRORS[error])
    return (offsets, lengths, whole) if whole.all() else (offsets[:, whole], lengths[:, whole], whole)


@kernel
def _old_tuples(block: Bytes, messages: tuple[Offsets, Offsets, Offsets], offsets: Offsets, lengths: Lengths, whole: Flags) -> int:
    """messages: body and end of a block's, and which of them to take. Returns an error."""
    body, end, wanted = messages
    for row in range(wanted.shape[0]):
        m = wanted[row]
        at = body[m] + letters.OID_BYTES
        if block[at] != letters.OLD_TUPLE:
            continue
        old = _tuple(block, at + 1, end[m], row, offsets, lengths)
        if old.error:
            return old.error
        whole[row] = True
        for c in range(lengths.shape[0]):
            if lengths[c, row] == UNCHANGED:
                whole[row] = False
    return _FINE


@kernel
def _parse(block: Bytes, messages: _Messages, places: _Places, columns: _Columns, rows: _Room, counts: Offsets, odd: Flags) -> int:
    """The messages of all tables; returns an error. counts, odd: filled in, see ``Parsed``."""
    kind, body, end, order = messages
    messages_at, columns_at, rows_at, fields_at = places
    key, weight = columns
    offsets, lengths, op, placed, partial, wide = rows
    for t in range(counts.shape[0]):
        mine = order[messages_at[t] : messages_at[t + 1]]
        first, last = columns_at[t], columns_at[t + 1]
        low, high = rows_at[t], rows_at[t + 1]
        shape = (last - first, high - low)
        begin, stop = fields_at[t], fields_at[t + 1]
        found = _rows(
            block,
            (kind, body, end, mine),
            (key[first:last], weight[first:last]),
            (
                offsets[begin:stop].reshape(shape),
                lengths[begin:stop].reshape(shape),
                op[low:high],
                placed[low:high],
                partial[low:high],
                wide[low:high],
            ),
        )
        if found.error:
            return found.error
        counts[t] = found.rows
        for row in range(low, low + found.rows):
            odd[t] |= partial[row] | wide[row]
    return _FINE
