"""A block of the walsender's bytes → groups of whole transactions as Arrow batches. Pure but for what it is handed.

One block usually holds many small transactions, which become one group; a transaction larger than ``OPEN_BYTES`` comes out in
several groups of which only the last is ``complete``. The caller appends each group to the log before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import tuples, values
from cdc.capture.group import Group, Transactions, Watermark
from cdc.capture.messages import Index, Open, scan
from cdc.capture.relations import Keys, Relations, parse_message, parse_truncate
from cdc.capture.values import Bytes, Flags
from cdc.errors import ProtocolError
from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema
from cdc.model.table import Table

OPEN_BYTES: Final = 8 * 2**20
"""An unfinished transaction is kept as bytes up to this size; beyond it, its rows go to the log's staging as they come."""

WATERMARK_PREFIX: Final = "headwater"

_INSERT, _UPDATE, _DELETE = ord("I"), ord("U"), ord("D")
_BEGIN, _COMMIT = ord("B"), ord("C")
_ROWS: Final = np.zeros(256, np.bool_)
_ROWS[[_INSERT, _UPDATE, _DELETE]] = True
_RARE: Final = np.ones(256, np.bool_)
_RARE[[_INSERT, _UPDATE, _DELETE, _BEGIN, _COMMIT]] = False


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


class Decoder:
    """Decodes one connection's stream. ``durable_lsn``: transactions that end at or before it are in the log already."""

    def __init__(self, primary_keys: Keys, memory: Memory, hold: Hold, durable_lsn: int) -> None:
        self._relations = Relations(primary_keys)
        self._memory = memory
        self._hold = hold
        self._durable_lsn = durable_lsn
        self._open: Open | None = None
        self.consumed = 0
        """Offset up to which the last block was used up; what follows must come again, with more bytes behind it."""
        self.lacks = 0
        """With fewer bytes than this behind what follows ``consumed``, coming again is in vain: a message is torn."""
        self.keepalive_lsn = 0
        """Everything before this LSN has been sent, as far as keepalives told; 0 while a transaction is open."""
        self.reply_requested = False
        self.notices: list[bytes] = []
        """The fields of each notice and warning that the last block brought, and no earlier one."""
        self._heard = 0
        """How much of the next block was in the last one and has been looked at."""
        self.ended = -1
        """Offset of the message that ended the stream, or -1."""

    def groups(self, block: Bytes, start: int, stop: int, next_position: Callable[[], int]) -> Iterator[Group]:
        """Decodes ``block[start:stop]``. ``next_position`` is asked at the beginning of each group.

        What the decoder tells beside groups is known before the first of them, but for ``keepalive_lsn``, which is after the last.
        Raises ProtocolError, and nothing else, on bytes that the protocol does not allow.
        """
        index = scan(block, start, stop, self._open)
        count = len(index.kind)
        commits = np.flatnonzero(index.kind == _COMMIT)
        whole = int(commits[-1]) + 1 if len(commits) else 0
        self.reply_requested = index.reply_requested
        self.ended, self.lacks = index.ended, index.lacks
        self.notices = [_fields(block, int(at)) for at in index.notices if at >= start + self._heard]
        used = int(index.end[whole - 1]) if whole else start
        partial = whole < count and index.scanned - used >= OPEN_BYTES
        self.consumed = index.scanned if partial or whole == count else used
        self._heard = index.scanned - self.consumed
        return self._groups(block, index, whole, next_position, partial=partial)

    def _groups(
        self, block: Bytes, index: Index, whole: int, next_position: Callable[[], int], *, partial: bool
    ) -> Iterator[Group]:
        """Messages [0, whole) are whole transactions; ``partial``: what follows of the last one is a group, too."""
        count = len(index.kind)
        begin = 0
        for end in (*self._cuts(block, index, whole), whole):
            if end > begin:
                yield self._group(block, index, begin, end, next_position(), complete=True)
                self._open = None
            begin = end
        if partial:
            last = len(index.xid) - 1
            yield self._group(block, index, whole, count, next_position(), complete=False)
            self._open = Open(int(index.xid[last]), int(index.commit_lsn[last]), int(index.commit_ts_us[last]))
        self.keepalive_lsn = index.keepalive_lsn if self._open is None else 0

    def _cuts(self, block: Bytes, index: Index, whole: int) -> list[int]:
        """A group ends behind each transaction that carries one of our watermarks."""
        cuts = []
        for at in np.flatnonzero(index.kind[:whole] == ord("M")):
            message = parse_message(_body(block, index, at))
            if message.prefix == WATERMARK_PREFIX:
                cuts.append(int(at) + int(np.argmax(index.kind[at:whole] == _COMMIT)) + 1)
        return cuts

    def _group(self, block: Bytes, index: Index, begin: int, end: int, position: int, *, complete: bool) -> Group:
        """Messages [begin, end) as one group; RELATION and TRUNCATE messages divide them into runs of plain rows."""
        batches: list[pa.RecordBatch] = []
        changed = np.zeros(len(index.xid), np.int64)
        watermark = None
        run = begin

        def flush(until: int) -> None:
            nonlocal run, position
            for batch in self._run(block, index, run, until, position, changed):
                batches.append(batch)
                position += len(batch)
            run = until + 1

        for at in map(int, begin + np.flatnonzero(_RARE[index.kind[begin:end]])):
            body = _body(block, index, at)
            match chr(index.kind[at]):
                case "Y":
                    self._relations.on_type(body)
                case "R":
                    table = self._relations.parse_relation(body)
                    if not self._relations.known(table):
                        flush(at)
                        self._relations.put(table)
                case "T":
                    flush(at)
                    transaction = int(index.transaction[at])
                    for oid in parse_truncate(body).relations if self._wanted(index, transaction) else ():
                        batches.append(_truncate(self._relations.table(oid), position, index, transaction))
                        position += 1
                        changed[transaction] += 1
                case "M":
                    message = parse_message(body)
                    if message.prefix == WATERMARK_PREFIX:
                        watermark = Watermark(message.content, message.lsn)
                case _:  # O: where a forwarded transaction came from; nothing of ours depends on it
                    pass
        flush(end)
        first, last = int(index.transaction[begin]), int(index.transaction[end - 1]) + 1
        base = position - int(changed.sum()) - 1
        transactions = Transactions(
            index.xid[first:last].astype(np.uint32),
            index.end_lsn[first:last],
            index.commit_ts_us[first:last],
            base + np.cumsum(changed[first:last]),
        )
        return Group(tuple(batches), transactions, watermark, complete)

    def _wanted(self, index: Index, transaction: int) -> bool:
        """Where the commit's end is not there yet, its beginning tells (known from BEGIN on): at or behind the durable end of another."""
        end, begin = int(index.end_lsn[transaction]), int(index.commit_lsn[transaction])
        return end > self._durable_lsn if end else begin >= self._durable_lsn

    def _run(
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


def _body(block: Bytes, index: Index, at: np.int64 | int) -> bytes:
    return block[index.body[at] : index.end[at]].tobytes()


def _fields(block: Bytes, at: int) -> bytes:
    """The body of the frame at this offset."""
    length = int.from_bytes(block[at + 1 : at + 5].tobytes(), "big")
    return block[at + 5 : at + 1 + length].tobytes()


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


def _truncate(table: Table, position: int, index: Index, transaction: int) -> pa.RecordBatch:
    schema = batch_schema(table)
    arrays = [
        pa.array([position], pa.int64()),
        pa.array([Op.TRUNCATE], pa.int8()),
        pa.array([int(index.commit_lsn[transaction])], pa.int64()),
        pa.array([int(index.commit_ts_us[transaction])], pa.int64()).view(META_FIELDS[3].type),
        pa.nulls(1, EXACT_TYPE),
        *(pa.nulls(1, field.type) for field in list(schema)[len(META_FIELDS) :]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
