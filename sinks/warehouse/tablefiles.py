"""The live files of one table, read: which they are at its snapshot, where a key stands in them, and rows out of them.

The live files and their vectors are remembered for one snapshot of the table (``_live_at``): under another they are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import EXACT
from cdc.model.topic import TopicSchema
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import DataFile, IcebergTable, Vector, name_of
from sinks.warehouse.columns import IcebergField, arrow_schema, labels, to_text
from sinks.warehouse.disk import reading
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.keys import FileKeys, Int64s, KeyPlan, encode
from sinks.warehouse.owncolumns import OwnFields
from sinks.warehouse.storage import Storage
from sinks.warehouse.vectors import decode

_NONE_GONE: Final = np.empty(0, np.int64)
NO: Final = pa.scalar(False)


@dataclass(frozen=True, slots=True)
class Live:
    """A live data file, its vector in the table, and the positions that the vector names."""

    file: DataFile
    vector: Vector | None = None
    gone: Int64s | None = None

    @property
    def path(self) -> str:
        return self.file.path


@dataclass(frozen=True, slots=True)
class StandingRows:
    """Rows of a table, and where each stands. ``files``: the number, in ``paths``, of the file that it is in."""

    rows: pa.Table
    paths: tuple[str, ...]
    files: Int64s
    positions: Int64s

    def hits(self, chosen: Int64s) -> dict[str, Int64s]:
        """Where these rows stand, by their numbers here: data file → row positions, rising."""
        found = {}
        for number in np.unique(self.files[chosen]).tolist():
            found[self.paths[number]] = np.sort(self.positions[chosen[self.files[chosen] == number]])
        return found


class TableFiles:
    """Not thread-safe."""

    def __init__(self, table: IcebergTable, cache: KeyCache, writer: str = "", own: OwnFields = OwnFields()) -> None:  # noqa: B008  # frozen
        """``writer``: whose name new files carry; whoever only reads needs none. ``own``: the columns that the table has beside the source's."""
        self.iceberg = table
        self.own = own
        self.folder = datafiles.Folder(f"{table.place}/data", writer, table.storage)
        self._cache = cache
        self._live: dict[str, Live] = {}
        self._live_at: int | None = None
        self._bounds: dict[tuple[str, KeyPlan], tuple[int, int] | None] = {}
        self._fields = table.fields
        self._files_seen: tuple[object, int | None] | None = None

    @property
    def _writes(self) -> bool:
        """An audit, which only reads, keeps to its own thread: its time is counted."""
        return bool(self.folder.writer)

    @property
    def listed(self) -> bool:
        """Whether it is known which files are live, so that nobody has to be asked."""
        return self._live_at is not None and self._live_at == self.iceberg.snapshot

    def missing(self) -> str | None:
        """The name of a file that the table needs and that is not there, if any. Looks only where files came or went since the last time."""
        storage = self.folder.storage
        now = storage.stamp(self.folder.location), self.iceberg.snapshot
        if now == self._files_seen:
            return None
        present = storage.names(self.folder.location)
        needed = [path for live in self.live().values() for path in (live.path, live.vector and live.vector.path) if path]
        for path in needed:
            if name_of(path) not in present and not storage.exists(path):
                return name_of(path)
        self._files_seen = now
        return None

    def live(self) -> Mapping[str, Live]:
        """The live files at the table's current snapshot."""
        if self._live_at is None or self._live_at != self.iceberg.snapshot:
            self._live = {file.path: Live(file, vector) for file, vector in self.iceberg.files()}
            self._live_at = self.iceberg.snapshot
        return self._live

    def gone(self, live: Live) -> Int64s:
        if live.gone is not None:
            return live.gone
        gone = positions_of(live.vector, self.folder.storage)
        if live.vector is None:
            return gone
        self._live[live.file.path] = Live(live.file, live.vector, gone)
        return gone

    def find(self, plan: KeyPlan, schema: TopicSchema, wanted: Int64s | pa.Array) -> dict[str, Int64s]:
        """Where these keys stand: data file → row positions, rising. Deleted rows are found too."""
        found: dict[str, Int64s] = {}
        for path in list(self.live()):
            if self._may_hold(path, plan, schema, wanted):
                positions = self._file_keys(path, plan, schema).find(wanted)
                if len(positions):
                    found[path] = positions
        return found

    def _may_hold(self, path: str, plan: KeyPlan, schema: TopicSchema, wanted: Int64s | pa.Array) -> bool:
        """False when the file's own statistics rule all of these keys out."""
        if not plan.numeric or not len(wanted):
            return bool(len(wanted))
        if (path, plan) not in self._bounds:
            self._bounds[path, plan] = datafiles.bounds(path, self._key_field(plan.names[0], schema).id, self.folder.storage)
        limits = self._bounds[path, plan]
        return limits is None or bool(np.any((wanted >= limits[0]) & (wanted <= limits[1])))

    def _key_field(self, name: str, schema: TopicSchema) -> IcebergField:
        label = labels(schema)[name]
        return next(field for field in self._fields if field.name == label)

    def _file_keys(self, path: str, plan: KeyPlan, schema: TopicSchema) -> FileKeys:
        cached = self._cache.get(path, plan)
        if cached is not None:
            return cached
        fields = {name: self._key_field(name, schema) for name in plan.names}
        exact = next(field for field in self._fields if field.name == EXACT)
        rows = self._read(path, [*fields.values(), *(() if plan.numeric or plan.plain else (exact,))])

        def column(name: str) -> pa.Array:
            return joined(rows.column(EXACT if name == EXACT else fields[name].name))

        keys = FileKeys(encode(plan, column, rows.num_rows))
        self._cache.put(path, plan, keys)
        return keys

    def _read(self, path: str, fields: Sequence[IcebergField]) -> pa.Table:
        return datafiles.read(path, fields, storage=self.folder.storage, threads=self._writes)

    def rows(self, path: str, positions: Int64s, schema: TopicSchema) -> pa.Table:
        """These rows of a file, those deleted left out, as ``sinks.contract.audit_schema(schema)``."""
        mark = self.own.mark_of(self.iceberg.fields)
        names = {*labels(schema).values(), EXACT, *(() if mark is None else (mark.name,))}
        kept = np.setdiff1d(positions, self.gone(self.live()[path]))
        rows = self._read(path, [field for field in self._fields if field.name in names])
        return to_text(unmarked(rows.take(pa.array(kept)), mark), schema)

    def standing(self, hits: Mapping[str, Int64s], fields: Sequence[IcebergField]) -> StandingRows:
        """The live rows at these positions, with these columns. Reads the row groups that they stand in, and no others."""
        paths, tables, files, positions = tuple(hits), [], [_NONE_GONE], [_NONE_GONE]
        for number, path in enumerate(paths):
            there = np.setdiff1d(hits[path], self.gone(self.live()[path]))
            tables.append(datafiles.taken(path, fields, there, self.folder.storage))
            files.append(np.full(len(there), number, np.int64))
            positions.append(there)
        schema = arrow_schema(fields)
        return StandingRows(
            pa.concat_tables([schema.empty_table(), *tables]), paths, np.concatenate(files), np.concatenate(positions)
        )

    def keys_of(self, rows: pa.Table, plan: KeyPlan, schema: TopicSchema) -> Int64s | pa.Array:
        """The keys of rows that have all of the table's columns."""
        named = labels(schema)
        return encode(plan, lambda name: joined(rows.column(EXACT if name == EXACT else named[name])), rows.num_rows)

    def marked(self, live: Live) -> Int64s:
        """Where rows of the file stand that are marked as deleted, rising."""
        field = self.own.mark_of(self.iceberg.fields)
        if field is None:
            return _NONE_GONE
        said = joined(self._read(live.path, [field]).column(field.name)).fill_null(NO)
        return np.setdiff1d(np.flatnonzero(said.to_numpy(zero_copy_only=False)), self.gone(live))


def unmarked(rows: pa.Table, mark: IcebergField | None) -> pa.Table:
    """The rows without those that are marked as deleted. ``mark``: the column that says so (``OwnFields.mark_of``)."""
    return rows if mark is None else rows.filter(pc.invert(rows.column(mark.name).fill_null(NO)))


def joined(values: pa.ChunkedArray) -> pa.Array:
    """The same in one piece."""
    found = values.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def positions_of(vector: Vector | None, storage: Storage) -> Int64s:
    """The positions of the rows that are gone, rising."""
    if vector is None:
        return _NONE_GONE
    with reading(vector.path), storage.opened(vector.path) as file:
        file.seek(vector.offset)
        return decode(file.read(vector.length))
