"""Updates that cannot be logged yet: Postgres left unchanged TOAST values out, and the log does not have the row. Pure.

They wait here until a chunk brings the row. By then a held row has the newest value of every column that it was sent, and the
chunk has the others, so the row that enters is the chunk's overlaid with the held one. That holds whether or not the chunk's
snapshot sees the update, because a change that sends the whole row, or deletes it, ends the wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import EXACT, META_FIELDS, OP, POSITION, Op, last_position
from cdc.model.table import Table
from snapshots.fence import Keys, Mask, keys_of, number_keys, same_types

_META = frozenset(field.name for field in META_FIELDS)


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows with different keys, in stream order among the pieces."""

    rows: pa.RecordBatch
    missing: Mapping[str, Mask]
    keys: Keys

    def keep(self, mask: Mask) -> _Held:
        chosen = pa.array(mask)
        return _Held(
            self.rows.filter(chosen),
            {name: flags[mask] for name, flags in self.missing.items()},
            [column.filter(chosen) for column in self.keys],
        )


class Holds:
    """One table's held rows. Not thread-safe."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._pieces: list[_Held] = []

    def __len__(self) -> int:
        return sum(piece.rows.num_rows for piece in self._pieces)

    def add(self, rows: pa.RecordBatch, missing: Mapping[str, Mask]) -> None:
        """``rows``: in stream order; ``_cdc_position`` is the position that the change after the row will get.

        ``missing``: column → which rows lack it (their value there means nothing).
        """
        piece = _Held(rows, dict(missing), keys_of(rows, self.table))
        while piece.rows.num_rows:
            numbers, _ = number_keys(piece.keys, piece.keys)
            first = np.zeros(len(numbers), np.bool_)
            first[np.unique(numbers, return_index=True)[1]] = True
            self._pieces.append(piece if first.all() else piece.keep(first))
            piece = piece.keep(~first)

    def concerned(self, changes: pa.RecordBatch) -> bool:
        """Whether any of the changes comes behind a held row. Rows are handed over before the group that they belong to, whose earlier
        changes may even have other columns."""
        first = min(int(piece.rows.column(POSITION).to_numpy().min()) for piece in self._pieces)
        return last_position(changes) >= first

    def forget(self, changes: pa.RecordBatch) -> None:
        """Whole rows and deletes of held keys, as logged: whatever was held of those keys before them is void."""
        positions = changes.column(POSITION).to_numpy()
        truncates = positions[changes.column(OP).to_numpy() == Op.TRUNCATE]
        emptied_at = int(truncates.max()) if len(truncates) else -1
        keys = keys_of(changes, self.table)
        kept = []
        for piece in self._pieces:
            held_at = piece.rows.column(POSITION).to_numpy()
            keep = held_at > emptied_at
            if same_types(piece.keys, keys):
                held, changed = number_keys(piece.keys, keys)
                last: npt.NDArray[np.int64] = np.full(int(max(held.max(), changed.max(initial=0))) + 1, -1, np.int64)
                np.maximum.at(last, changed, positions)
                keep &= last[held] < held_at
            if keep.any():
                kept.append(piece if keep.all() else piece.keep(keep))
        self._pieces = kept

    def settle(self) -> None:
        """After the group that the rows belong to has been looked at: rows of one key become one, so that what is held is bounded by
        the number of keys. Not before, for a whole row in that group may stand between two of them."""
        settled: list[_Held] = []
        for piece in self._pieces:
            settled.append(piece)
            while len(settled) > 1 and settled[-2].rows.num_rows <= 2 * settled[-1].rows.num_rows:
                later = settled.pop()
                settled[-1] = _merged(settled[-1], later)
        self._pieces = settled

    def complete(self, chunk: Sequence[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[Keys]]:
        """The chunk's rows overlaid with what is held of them; those rows are held no longer. And the keys of those that were."""
        completed: list[Keys] = []
        return [self._complete(batch, completed) for batch in chunk], completed

    def without_their_deletes(self, chunk: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The chunk without DELETEs of rows that are held: each says that the row was not there yet, since one that came later would have ended the wait."""
        return [self._without_deletes(batch) for batch in chunk]

    def _without_deletes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        deletes = batch.column(OP).to_numpy() == int(Op.DELETE)
        if not self._pieces or not deletes.any():
            return batch
        keys, waits = keys_of(batch, self.table), np.zeros(len(batch), np.bool_)
        for piece in self._pieces:
            numbers, held = number_keys(keys, piece.keys)
            waits |= np.isin(numbers, held)
        return batch.filter(pa.array(~(deletes & waits)))

    def _complete(self, batch: pa.RecordBatch, completed: list[Keys]) -> pa.RecordBatch:
        if not self._pieces or not len(batch):
            return batch
        keys = keys_of(batch, self.table)
        kept = []
        for piece in self._pieces:
            numbers, held = number_keys(keys, piece.keys)
            row_of = np.full(int(max(numbers.max(), held.max())) + 1, -1, np.int64)
            row_of[held] = np.arange(len(held))
            source = row_of[numbers]
            if (source >= 0).any():
                batch = _overlay(batch, piece, source)
            found = np.isin(held, numbers)
            if found.any():
                completed.append([column.filter(pa.array(found)) for column in piece.keys])
            if not found.all():
                kept.append(piece.keep(~found) if found.any() else piece)
        self._pieces = kept
        return batch

    def keys(self, limit: int) -> pa.RecordBatch | None:
        """At most so many of the held rows (for their keys), or None when there are none."""
        return self._pieces[0].rows.slice(0, limit) if self._pieces else None


def _merged(earlier: _Held, later: _Held) -> _Held:
    """Both as one piece: a key's row has the later's values where it was sent them, and the later's position."""
    numbers, others = number_keys(earlier.keys, later.keys)
    row_of = np.full(int(max(numbers.max(), others.max())) + 1, -1, np.int64)
    row_of[others] = np.arange(len(others))
    source = row_of[numbers]
    again = source >= 0
    rest = ~np.isin(others, numbers)
    rows = _overlay(earlier.rows, later, source)
    positions = np.where(again, later.rows.column(POSITION).to_numpy()[source], rows.column(POSITION).to_numpy())
    rows = rows.set_column(rows.schema.get_field_index(POSITION), rows.schema.field(POSITION), pa.array(positions))
    missing = {}
    for name in {*earlier.missing, *later.missing}:
        before = earlier.missing.get(name, np.zeros(len(numbers), np.bool_))
        after = later.missing.get(name, np.zeros(len(others), np.bool_))
        missing[name] = np.concatenate([np.where(again, before & after[source], before), after[rest]])
    chosen = pa.array(rest)
    keys = [pa.concat_arrays([one, other.filter(chosen)]) for one, other in zip(earlier.keys, later.keys, strict=True)]
    return _Held(pa.concat_batches([rows, later.rows.filter(chosen)]), missing, keys)


def _overlay(batch: pa.RecordBatch, piece: _Held, source: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """``source``: for each row of the batch, the held row that overlays it, or -1."""
    below = batch.num_rows
    columns = {name: batch.column(name) for name in batch.schema.names}
    sent: dict[str, Mask] = {}
    for name in batch.schema.names:
        if name in _META:
            continue
        take = source >= 0
        if name in piece.missing:
            take &= ~piece.missing[name][source]
        sent[name] = take
        rows = np.where(take, below + source, np.arange(below))
        columns[name] = pa.concat_arrays([columns[name], piece.rows.column(name)]).take(pa.array(rows))
    columns[EXACT] = _overlay_exact(columns[EXACT], piece.rows.column(EXACT), source, sent)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _overlay_exact(chunk: pa.Array, held: pa.Array, source: npt.NDArray[np.int64], sent: Mapping[str, Mask]) -> pa.Array:
    """The exact texts go with the values. Row by row: rows that are held and hold such values are rare twice over."""
    if chunk.null_count == len(chunk) and held.null_count == len(held):
        return chunk
    texts = chunk.to_pylist()
    for row in np.flatnonzero(source >= 0):
        below = {name: text for name, text in texts[row] or () if not sent[name][row]}
        above = {name: text for name, text in held[int(source[row])].as_py() or () if sent[name][row]}
        texts[row] = list((below | above).items()) or None
    return pa.array(texts, chunk.type)
