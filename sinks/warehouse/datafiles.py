"""Parquet data files: written with Iceberg's field ids, read back by them whatever the columns were called then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinks.warehouse.columns import FIELD_ID, IcebergField, arrow_schema
from sinks.warehouse.disk import reading
from sinks.warehouse.keys import Int64s, Mask
from sinks.warehouse.storage import LOCAL, Storage

_ROW_GROUP_ROWS: Final = 256 * 1024
_ROWS_WORTH_A_THREAD: Final = 100_000
_WRITERS: Final = 2
_PIECE_ROWS: Final = 8192
_PIECE_BYTES: Final = 4 << 20
"""What is read of a file at once, about, as it stands there before it is compressed."""

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a table's data files and deletion vectors lie. A new one's name begins with its writer's (``leftovers``)."""

    location: str
    writer: str
    storage: Storage = LOCAL

    def fresh(self, ending: str) -> str:
        """The location of a file that is to be written."""
        return f"{self.location}/{self.writer}-{uuid4().hex}.{ending}"


@dataclass(frozen=True, slots=True)
class WrittenData:
    """One data file that ``write`` has written and synced."""

    path: str
    first: int
    """The first of the written rows (counted over all files of the call) that lies in this file."""
    rows: int


def write(
    folder: Folder, schema: pa.Schema, batches: Sequence[pa.RecordBatch], masks: Sequence[Mask], convert: Convert, file_bytes: int
) -> list[WrittenData]:
    """Writes the rows that the masks select, converted to ``schema``, in order, and syncs every file. Two files at a time."""
    counts = [int(np.count_nonzero(mask)) for mask in masks]
    total = sum(counts)
    if not total:
        return []
    folder.storage.make(folder.location)
    # Arrow's own size of a row is about three times the compressed one.
    bytes_in = sum(batch.nbytes * count // max(batch.num_rows, 1) for batch, count in zip(batches, counts, strict=True))
    parts = max(1, min(_WRITERS, total // _ROWS_WORTH_A_THREAD), -(-bytes_in // (3 * file_bytes)))
    edges = [total * part // parts for part in range(parts + 1)]
    jobs = [(folder.fresh("parquet"), first, after) for first, after in pairwise(edges)]

    def one(job: tuple[str, int, int]) -> WrittenData:
        path, first, after = job
        with folder.storage.written(path) as file, pq.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
            for batch in _selected(batches, masks, counts, first, after):
                writer.write_batch(convert(batch), row_group_size=_ROW_GROUP_ROWS)
        return WrittenData(path, first, after - first)

    if len(jobs) == 1:
        written = [one(jobs[0])]
    else:
        with ThreadPoolExecutor(_WRITERS) as pool:
            written = list(pool.map(one, jobs))
    folder.storage.settle(folder.location)
    return written


def write_table(folder: Folder, rows: pa.Table) -> WrittenData:
    """Writes rows that are in the table's shape as one file, and syncs it. Without rows there is no file."""
    path = folder.fresh("parquet")
    if rows.num_rows:
        with folder.storage.written(path) as file:
            pq.write_table(rows, file, row_group_size=_ROW_GROUP_ROWS, **WRITER_OPTIONS)
        folder.storage.settle(folder.location)
    return WrittenData(path, 0, rows.num_rows)


WRITER_OPTIONS: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 1, "store_decimal_as_integer": True}


def _selected(
    batches: Sequence[pa.RecordBatch], masks: Sequence[Mask], counts: Sequence[int], first: int, after: int
) -> Iterator[pa.RecordBatch]:
    """The selected rows with numbers in [first, after)."""
    number = 0
    for batch, mask, count in zip(batches, masks, counts, strict=True):
        low, high = max(first - number, 0), min(after - number, count)
        number += count
        if low >= high:
            continue
        if count == batch.num_rows:
            yield batch.slice(low, high - low)
        else:
            yield batch.take(pa.array(np.flatnonzero(mask)[low:high]))


def read(
    path: str,
    fields: Sequence[IcebergField],
    lineage: Sequence[pa.Field] = (),
    storage: Storage = LOCAL,
    *,
    threads: bool = True,
) -> pa.Table:
    """The file's rows with these columns, found by field id; a column that the file does not have is NULL. ``threads``: of Arrow's pool, whose time is
    nobody's, help with it."""
    with reading(path), storage.opened(path) as source:
        file = _OpenedFile.at(source, [*arrow_schema(fields), *lineage])
        return file.shaped(file.parquet.read(columns=file.present, use_threads=threads))


def taken(path: str, fields: Sequence[IcebergField], positions: Int64s, storage: Storage = LOCAL) -> pa.Table:
    """The rows at these positions, which rise. Only the row groups that they are in are read."""
    with reading(path), storage.opened(path) as source:
        file, first, found = _OpenedFile.at(source, arrow_schema(fields)), 0, []
        for number in range(file.parquet.metadata.num_row_groups):
            after = first + file.parquet.metadata.row_group(number).num_rows
            inside = positions[slice(*np.searchsorted(positions, (first, after)))] - first
            if len(inside):
                found.append(file.shaped(file.parquet.read_row_group(number, columns=file.present)).take(pa.array(inside)))
            first = after
        return pa.concat_tables([arrow_schema(fields).empty_table(), *found])


def pieces(path: str, fields: Sequence[IcebergField], rows: int, storage: Storage = LOCAL) -> Iterator[pa.Table]:
    """The same, some rows at a time and in order. ``rows``: how many the table says that the file has.

    Not more than ``_PIECE_ROWS`` at a time, as of a text that repeats the file has one, and every row one of its own once it is read.
    """
    with reading(path), storage.opened(path) as source:
        file, found = _OpenedFile.at(source, arrow_schema(fields)), 0
        described = file.parquet.metadata
        for number in range(described.num_row_groups):
            group = described.row_group(number)
            at_once = _PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)
            for piece in file.parquet.iter_batches(
                min(max(at_once, 1), _PIECE_ROWS), row_groups=[number], columns=file.present, use_threads=False
            ):
                found += piece.num_rows
                yield file.shaped(piece)
        if found != rows or described.num_rows != rows:
            raise ValueError("another number of rows")


@dataclass(frozen=True, slots=True)
class _OpenedFile:
    """``names``: of the file's columns, by field id. ``wanted``: columns, each with its field id."""

    parquet: pq.ParquetFile
    names: Mapping[bytes, str]
    wanted: Sequence[pa.Field]

    @classmethod
    def at(cls, source: pa.NativeFile, wanted: Iterable[pa.Field]) -> _OpenedFile:
        file = pq.ParquetFile(source)
        fields = [field for field in file.schema_arrow if field.metadata and FIELD_ID in field.metadata]
        return cls(file, {field.metadata[FIELD_ID]: field.name for field in fields}, list(wanted))

    @property
    def present(self) -> list[str]:
        """Those of the wanted columns that the file has, as it calls them."""
        return [self.names[field.metadata[FIELD_ID]] for field in self.wanted if field.metadata[FIELD_ID] in self.names]

    def shaped(self, found: pa.Table | pa.RecordBatch) -> pa.Table:
        """The wanted columns of what was read of ``present``."""
        arrays = []
        for field in self.wanted:
            name = self.names.get(field.metadata[FIELD_ID])
            if name is None:
                arrays.append(pa.nulls(found.num_rows, field.type))
            else:
                values = found.column(name)
                arrays.append(values if values.type == field.type else values.cast(field.type))
        return pa.table(arrays, schema=pa.schema(self.wanted))


def bounds(path: str, field_id: int, storage: Storage = LOCAL, *, nulls_apart: bool = False) -> tuple[Any, Any] | None:
    """The column's least and greatest value by the file's own statistics; None when it has none. ``nulls_apart``: what holds nothing but NULL counts for
    nothing."""
    with reading(path), storage.opened(path) as source:
        file = pq.ParquetFile(source)
    index = next(
        (i for i, f in enumerate(file.schema_arrow) if f.metadata and f.metadata.get(FIELD_ID) == str(field_id).encode()), None
    )
    if index is None:
        return None
    name = file.schema_arrow.field(index).name
    lows, highs = [], []
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        column = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == name)
        statistics = column.statistics
        if nulls_apart and statistics is not None and statistics.has_null_count and statistics.null_count == column.num_values:
            continue
        if statistics is None or not statistics.has_min_max:
            return None
        lows.append(statistics.min)
        highs.append(statistics.max)
    return (min(lows), max(highs)) if lows else None


def has_nulls(path: str, field_id: int, storage: Storage = LOCAL) -> bool:
    """Whether the column may be NULL somewhere in the file, by its own statistics."""
    with reading(path), storage.opened(path) as source:
        file = pq.ParquetFile(source)
    found = [i for i, one in enumerate(file.schema_arrow) if one.metadata and one.metadata.get(FIELD_ID) == str(field_id).encode()]
    if not found:
        return True
    name = file.schema_arrow.field(found[0]).name
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    columns = (
        next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == name) for group in groups
    )
    return any((said := column.statistics) is None or not said.has_null_count or said.null_count for column in columns)


def without(rows: pa.Table, gone: Int64s) -> pa.Table:
    """The rows but those at these positions."""
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, bool)
    kept[gone] = False
    return rows.filter(pa.array(kept))
