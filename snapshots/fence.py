"""Which rows of a chunk may enter the stream at its watermark. Pure and columnar; docs/decisions/snapshot-fence.md says why.

A commit stands in the WAL, and so reaches the stream, before it is visible to a new snapshot (for as long as a synchronous
standby takes). LSNs alone therefore cannot order a chunk among the stream's changes; the chunk's own ``pg_current_snapshot()`` can:

1. the chunk is usable only if it sees every transaction that the stream had delivered when its window opened;
2. keys that were changed inside the window by transactions that it does not see are dropped from it, all of them by a TRUNCATE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT, OP, POSITION, Op
from cdc.model.group import Transactions
from cdc.model.table import Table

Xids = npt.NDArray[np.uint32]
FullXids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NO_XIDS: Final = np.empty(0, np.uint32)
_EPOCH_BITS: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``pg_current_snapshot()``. Its transaction ids are 64 bits wide (epoch and xid), the stream's are 32."""

    xmin: int
    xmax: int
    in_progress: FullXids
    """Ascending."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """``xmin:xmax:xid,xid,…``. Raises ValueError on anything else."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), np.array(sorted(int(xid) for xid in running.split(",") if xid), np.int64))

    def widen(self, xids: Xids) -> FullXids:
        """The 64-bit ids: live ids lie within 2^31 of each other, so the nearest to ``xmax`` is meant."""
        distance = (xids - np.uint32(self.xmax & _EPOCH_BITS)).view(np.int32).astype(np.int64)
        return np.asarray(distance + self.xmax)

    def sees(self, xids: Xids) -> Mask:
        """Whether each of these committed transactions is visible."""
        return self.sees_full(self.widen(xids))

    def sees_full(self, xids: FullXids) -> Mask:
        ended = xids < self.xmax
        return np.asarray((xids < self.xmin) | (ended & ~_among(xids, self.in_progress))) if len(self.in_progress) else ended


def _among(xids: FullXids, others: FullXids) -> Mask:
    """Which of them are among the others (ascending, at least one); a group has few, for which ``np.isin`` costs eight times as much."""
    return np.asarray(others[np.minimum(others.searchsorted(xids), len(others) - 1)] == xids)


class Delivered:
    """The transactions that the stream has delivered, as far as a coming snapshot may not see them yet."""

    def __init__(self) -> None:
        self._parts: list[Xids] = []

    def add(self, xids: Xids) -> None:
        if len(xids):
            self._parts.append(xids)

    def so_far(self) -> Xids:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else _NO_XIDS

    def prune(self, snapshot: Snapshot) -> None:
        """Drops what this snapshot sees: all later ones see it, too."""
        xids = self.so_far()
        kept = xids[~snapshot.sees(xids)]
        self._parts = [kept] if len(kept) else []


class Barrier:
    """Transactions that were open when we began, and of which we cannot know whether an earlier process was delivered them.

    An earlier process may have made a commit durable in the log that is still invisible here; it will not be delivered again.
    So a snapshot has to see all of them, but for those that are delivered to this process.
    """

    def __init__(self, snapshot: Snapshot, next_xid: int) -> None:
        """``next_xid``: a 64-bit id assigned after ``snapshot`` was taken; every transaction that had an id before lies below."""
        self._snapshot = snapshot
        self._suspects = np.concatenate([snapshot.in_progress, np.arange(snapshot.xmax, next_xid, dtype=np.int64)])

    def deliver(self, xids: Xids) -> None:
        if len(self._suspects):
            self.exclude(self._snapshot.widen(xids))

    def exclude(self, xids: FullXids) -> None:
        """These are known not to have committed yet."""
        if len(xids):
            self._suspects = self._suspects[~_among(self._suspects, np.sort(xids))]

    def passed_by(self, snapshot: Snapshot) -> bool:
        if len(self._suspects):
            self._suspects = self._suspects[~snapshot.sees_full(self._suspects)]
        return not len(self._suspects)

    @property
    def suspects(self) -> FullXids:
        return self._suspects


Keys = list[pa.Array]
"""The key's columns of some rows (and the exact texts of those that their types cannot hold), all of one length."""


def keys_of(batch: pa.RecordBatch, table: Table) -> Keys:
    """Two rows are the same row iff all of these are equal, NULL being equal to NULL."""
    keys = [batch.column(column.name) for column in table.key]
    exact = batch.column(EXACT)
    for column in table.key:
        if exact.null_count == len(exact):
            keys.append(pa.nulls(len(exact), pa.utf8()))
        else:
            keys.append(pc.map_lookup(exact, pa.scalar(column.name), "last"))
    return keys


def join_keys(parts: Sequence[Keys]) -> Keys:
    """Rows below rows. ``parts`` is not empty."""
    return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]


def same_types(left: Keys, right: Keys) -> bool:
    return [column.type for column in left] == [column.type for column in right]


def number_keys(left: Keys, right: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """One number per row on either side; equal numbers iff equal keys. The numbers are dense from 0."""
    count = len(left[0])
    codes: npt.NDArray[np.int64] = np.zeros(count + len(right[0]), np.int64)
    for ours, theirs in zip(left, right, strict=True):
        if ours.null_count == len(ours) and theirs.null_count == len(theirs):
            continue
        column = pa.concat_arrays([ours, theirs]).dictionary_encode(null_encoding="encode")
        combined = pa.array(codes * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False))
        codes = combined.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[:count], codes[count:]


@dataclass(slots=True, eq=False)
class Window:
    """The changes that the stream delivered of one table between the moment before a snapshot was taken and a chunk's watermark.

    It may serve several chunks that were read in the same snapshot. ``before``: what had been delivered when it opened.
    """

    table: Table
    before: Xids
    snapshot: Snapshot | None = None
    mixed: bool = False
    """None of its chunks may enter: a change in it stood under another definition, or it is closed and gets no more changes."""
    barred: bool = False
    """A barrier stood when it opened."""
    _changes: list[tuple[pa.RecordBatch, Transactions]] = field(default_factory=list)
    _hidden: Keys | None = None
    _emptied: bool = False

    def meet(self, table: Table) -> bool:
        """The table, as changes that the stream delivered have it: whether they and the chunks' rows can be put together."""
        self.mixed |= (table.columns, table.identity) != (self.table.columns, self.table.identity)
        return not self.mixed

    def add(self, batch: pa.RecordBatch, table: Table, transactions: Transactions) -> None:
        """A batch of this table's changes, as the stream delivered it."""
        if not self.meet(table):
            return
        slim = batch.select([POSITION, OP, EXACT, *(column.name for column in table.key)])
        self._changes.append((slim, transactions))

    def cover(self, keys: Keys, table: Table) -> None:
        """These rows have just become whole in the log, with changes that were held back and so never came through ``add``: what this
        window's snapshot has of them may be older, and is not needed."""
        if table.columns != self.table.columns:
            self.mixed = True
            return
        self._hidden = keys if self._hidden is None else join_keys([self._hidden, keys])

    def admit(self, snapshot: Snapshot) -> bool:
        """Rule 1. The snapshot was taken after the window had opened."""
        self.snapshot = snapshot
        return bool(snapshot.sees(self.before).all())

    def survivors(self, chunk: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Rule 2: the chunk's rows that may enter the stream now."""
        self._fold()
        if self._emptied:
            return []
        if self._hidden is None:
            return list(chunk)
        kept = []
        for batch in chunk:
            numbers, hidden = number_keys(keys_of(batch, self.table), self._hidden)
            keep = ~np.isin(numbers, hidden)
            kept.append(batch if keep.all() else batch.filter(pa.array(keep)))
        return [batch for batch in kept if batch.num_rows]

    def _fold(self) -> None:
        """Reduces the changes to what matters: the keys changed by transactions that the snapshot does not see."""
        assert self.snapshot is not None, "admit comes first"
        parts: list[Keys] = [] if self._hidden is None else [self._hidden]
        for batch, transactions in self._changes:
            unseen = ~self.snapshot.sees(transactions.xid_of(batch.column(POSITION).to_numpy()))
            if not unseen.any():
                continue
            self._emptied |= bool((batch.column(OP).to_numpy()[unseen] == int(Op.TRUNCATE)).any())
            parts.append(keys_of(batch.filter(pa.array(unseen)), self.table))
        self._changes.clear()
        self._hidden = join_keys(parts) if parts else None
