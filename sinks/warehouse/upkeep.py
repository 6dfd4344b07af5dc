"""Small files become large ones, old snapshots go, and what failed commits have left. Bounded work after a commit; correctness never depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.clock import MACHINE, SteadyTime
from sinks.warehouse import datafiles
from sinks.warehouse.columns import LAST_UPDATED, ROW_ID
from sinks.warehouse.failures import CommitConflict, CommitUnknown, Vanished
from sinks.warehouse.leftovers import Leftovers
from sinks.warehouse.marks import Signed
from sinks.warehouse.options import MB, Options
from sinks.warehouse.place import TablePlace
from sinks.warehouse.tablefiles import Live

_TIERS_BYTES: Final = (MB, 8 * MB, 64 * MB)
_EXPIRE_EVERY_S: Final = 60.0


def choose(live: Mapping[str, Live], options: Options) -> list[Live]:
    """The files to merge now: the smallest tier that has gathered enough of them, or a file that is mostly deleted. Pure."""
    files = sorted(live.values(), key=lambda one: one.file.bytes)
    low = 0
    for high in _TIERS_BYTES:
        tier = [one for one in files if low <= one.file.bytes < min(high, options.file_bytes)]
        if len(tier) >= options.compact_files:
            return _within(tier, options.file_bytes)
        low = high
    return [
        one
        for one in files
        if one.gone is not None and 2 * len(one.gone) > one.file.rows and one.file.bytes < 2 * options.file_bytes
    ][:1]


def _within(tier: Sequence[Live], limit_bytes: int) -> list[Live]:
    taken: list[Live] = []
    total = 0
    for one in tier:
        total += one.file.bytes
        if taken and total > limit_bytes:
            break
        taken.append(one)
    return taken


class Upkeep:
    """One place's upkeep."""

    def __init__(self, place: TablePlace, options: Options, leftovers: Leftovers, kept: Callable[[], Set[int]]) -> None:
        """``kept``: gives the snapshots that somebody reads, whatever their age."""
        self._place = place
        self._kept = kept
        self._leftovers = leftovers
        self._options = options
        self._expired_at = MACHINE.monotonic()
        self._time = SteadyTime()

    def after_commit(self, signed: Signed) -> None:
        """``signed``: as the commit before it was. Whoever else changes the table meanwhile has the right of way: then this is left to a later commit."""
        with self._giving_way():
            chosen = next((found for shelf in self._place.shelves() if (found := choose(shelf, self._options))), None)
            if chosen is not None:
                self._place.merge([one.file.path for one in chosen], merged, signed)
            if MACHINE.monotonic() - self._expired_at > _EXPIRE_EVERY_S:
                self._expired_at = MACHINE.monotonic()
                self._place.iceberg.expire(int((self._time.now_s() - self._options.keep_snapshots_s) * 1000), self._kept())
            self._leftovers.remove(signed.epoch)

    @contextmanager
    def _giving_way(self) -> Iterator[None]:
        try:
            yield
        except (CommitConflict, CommitUnknown, Vanished, FileNotFoundError):
            # The table is whole either way; the next commit looks at it afresh.
            self._place.look_again()


def merged(place: TablePlace, chosen: Sequence[Live]) -> datafiles.WrittenData:
    """The live rows of these files in one new file, each with its lineage."""
    path, storage = place.folder.fresh("parquet"), place.folder.storage
    writer: pq.ParquetWriter | None = None
    rows = 0
    with storage.written(path) as file:
        try:
            for live in chosen:
                piece = datafiles.without(_with_lineage(live, place), place.gone(live))
                if writer is None:
                    writer = pq.ParquetWriter(file, piece.schema, **datafiles.WRITER_OPTIONS)
                writer.write_table(piece)
                rows += piece.num_rows
        finally:
            if writer is not None:
                writer.close()
    storage.settle(place.folder.location)
    return datafiles.WrittenData(path, 0, rows)


def _with_lineage(live: Live, place: TablePlace) -> pa.Table:
    """The file's rows; ``_row_id`` and ``_last_updated_sequence_number`` are written out where they were implied."""
    rows = datafiles.read(live.file.path, place.iceberg.fields, (ROW_ID, LAST_UPDATED), place.folder.storage)
    if live.file.first_row_id is not None:
        implied = pa.array(np.arange(live.file.first_row_id, live.file.first_row_id + rows.num_rows, dtype=np.int64))
        rows = _filled(rows, ROW_ID, implied)
    if live.file.sequence is not None:
        rows = _filled(rows, LAST_UPDATED, pa.array(np.full(rows.num_rows, live.file.sequence, np.int64)))
    return rows


def _filled(rows: pa.Table, field: pa.Field, implied: pa.Array) -> pa.Table:
    index = rows.schema.get_field_index(field.name)
    return rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(index), implied))
