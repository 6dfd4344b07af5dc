"""Sealed segments: Parquet files, one per definition, that stand for exactly one segment's changes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cdc.errors import LogCorrupt
from cdc.log.embedded.away import TRIES, Cache, read_stub, too_small
from cdc.log.embedded.format import VERSION, check_version, crc32c
from cdc.log.embedded.names import LogPlaces, Sealed, away_of, digest_of, sealed_of
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.topicindex import SegmentRun
from cdc.log.views import clip, joined
from cdc.model.batch import LSN, POSITION, first_position, last_position
from cdc.model.oldrows import without_old_rows

ORIGIN: Final = b"cdc.log"
"""Key of the file's metadata that says which log, topic and segment it stands for."""
ROW_GROUP_ROWS: Final = 65_536
ROW_GROUP_BYTES: Final = 24 * 2**20
"""… or, of wide rows, so many bytes: what waits for its row group stays mapped, so a whole segment would lie in memory."""
LARGE_BYTES: Final = 2**18
"""The size from which Parquet's writer takes a batch as it is; what is smaller costs it more by itself than a copy that joins it with others."""


Only = Callable[[pa.Schema], pa.Schema]
"""Of a batch's columns those that are wanted: the same schema, metadata included, with fewer fields."""


class Encoder:
    """One Parquet file in the making. Columns exactly as the batch's schema; dictionaries are left out because they double the cost
    for columns that mostly differ, and numbers are written as differences, which leaves the compressor little to do; only positions and
    LSNs carry statistics, because only those are searched."""

    def __init__(self, place: SegmentPlace, schema: pa.Schema) -> None:
        self.schema = schema
        self.first = self.last = self.rows = 0
        self._place = place
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=[POSITION, LSN],
            column_encoding=dict.fromkeys(_whole_numbers(schema), "DELTA_BINARY_PACKED"),
            store_decimal_as_integer=True,
            write_page_checksum=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.first = self.first or first_position(batch)
        self.last = last_position(batch)
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self.schema), row_group_size=2 * ROW_GROUP_ROWS)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self, generation: int) -> tuple[Sealed, pa.Buffer]:
        """The file's name and bytes."""
        self._flush()
        self._writer.add_key_value_metadata({ORIGIN: _origin(self._place)})
        self._writer.close()
        data = self._sink.getvalue()
        return Sealed(self.first, self.last, self.rows, crc32c(data), generation), data


def encode(place: SegmentPlace, batches: Iterable[pa.RecordBatch], generation: int = 0) -> Iterator[tuple[Sealed, pa.Buffer]]:
    """A segment's batches, in order, as Parquet files: a new one wherever the schema changes. Pure.

    ``generation``: that of the REPLACED record which the files are written for; ``place`` then begins at the first of its positions.
    """
    encoder: Encoder | None = None
    for batch in joined(batches, LARGE_BYTES):
        if encoder is None or not encoder.schema.equals(batch.schema, check_metadata=True):
            if encoder is not None:
                yield encoder.finish(generation)
            encoder = Encoder(place, batch.schema)
        encoder.add(batch)
    if encoder is not None:
        yield encoder.finish(generation)


_MOST_DIGITS: Final = 18
"""The most digits of a decimal that Parquet stores as an integer."""


def _whole_numbers(schema: pa.Schema) -> Iterator[str]:
    """The columns that Parquet stores as whole numbers, by their paths in the file: a batch's own, and those of the rows in a list."""
    for field in _told_apart(schema):
        if pa.types.is_list(field.type):
            rows = field.type.value_field
            yield from (f"{field.name}.list.{rows.name}.{one.name}" for one in _told_apart(rows.type) if _is_whole(one.type))
        elif _is_whole(field.type):
            yield field.name


def _told_apart(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Those whose paths can be no other's. Parquet joins a path's names by dots, and a column's name may hold dots: what is said of one path would
    be taken as said of any that reads the same, whatever its type."""
    fields = list(fields)
    names = {field.name for field in fields}
    alike: set[str] = set()
    for name in names:
        before = [name[:at] for at, letter in enumerate(name) if letter == "." and name[:at] in names]
        alike.update(before, [name] if before else [])
    return [field for field in fields if field.name not in alike]


def _is_whole(kind: pa.DataType) -> bool:
    """Whether Parquet stores it as whole numbers."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _MOST_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def _origin(place: SegmentPlace) -> bytes:
    return json.dumps(
        {"format": VERSION, "log": f"{place.log_id:016x}", "topic": place.topic, "name": place.name, "segment": place.first}
    ).encode()


def covering(sealed: Iterable[Sealed], run: SegmentRun) -> list[Sealed] | None:
    """Those of a topic's sealed files that stand for this segment, or for what has replaced it; None unless they hold all of it."""
    found = sorted(name for name in sealed if name.generation == run.generation and run.segment <= name.first <= run.last)
    if run.generation:
        return found if digest_of(found) == run.chain and sum(name.rows for name in found) == run.rows else None
    if not found or found[0].first != run.segment or found[-1].last != run.last:
        return None
    rising = all(left.last < right.first for left, right in pairwise(found))
    return found if rising and sum(name.rows for name in found) == run.rows else None


def sealed_in(folder: Path) -> list[Sealed]:
    """A topic's sealed files, also those that are away."""
    found = (sealed_of(path.name) or away_of(path.name) for path in folder.iterdir())
    return list({name: None for name in found if name is not None})


class SealedFile:
    """One open Parquet file of ours: checked whole when it is opened, then read by row group."""

    def __init__(self, path: Path, name: Sealed, place: SegmentPlace) -> None:
        """Raises FileNotFoundError, or LogCorrupt when a single byte differs from what was sealed or it stands elsewhere."""
        self.path = path
        self.name = name
        self._bounds: list[tuple[int, int]] | None = None
        with pa.memory_map(str(path)) as file:
            self._data = file.read_buffer()
        if crc32c(self._data) != name.crc:
            raise LogCorrupt(f"{path}: the checksum in its name differs from its content's")
        try:
            self._file = pq.ParquetFile(pa.BufferReader(self._data))
            metadata = self._file.metadata.metadata
            origin = json.loads(metadata[ORIGIN])
            self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata[b"ARROW:schema"])))
            _ = self.schema.names  # Arrow decodes a name only when it is asked for
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            raise LogCorrupt(f"{path}: not a sealed segment ({type(error).__name__})") from None
        check_version(origin.get("format"), str(path))
        if metadata[ORIGIN] != _origin(place):
            raise LogCorrupt(f"{path}: belongs elsewhere (renamed, swapped or of another log)")

    def batches(self, after: int, upto: int, only: Only | None = None) -> Iterator[pa.RecordBatch]:
        """The file's changes in (after, upto]; ``only``: these columns of them. Raises LogCorrupt for what Arrow cannot read under a checksum
        that is right."""
        try:
            yield from self._batches(after, upto, self.schema if only is None else only(self.schema))
        except (pa.ArrowException, OSError) as error:
            raise LogCorrupt(f"{self.path}: not a sealed segment ({type(error).__name__})") from None

    def _batches(self, after: int, upto: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = None if schema is self.schema else schema.names
        wanted = [number for number in range(self._file.num_row_groups) if self._overlaps(number, after, upto)]
        if not wanted:
            return
        for batch in self._file.iter_batches(batch_size=ROW_GROUP_ROWS, row_groups=wanted, columns=names, use_threads=False):
            # A name with a dot in it brings columns of the names before the dot, too.
            columns = batch.columns if names is None else batch.select(names).columns
            clipped = clip(pa.RecordBatch.from_arrays(columns, schema=schema), after, upto)
            if clipped.num_rows:
                yield clipped

    def last_within(self, upto: int) -> int:
        """The last position at or below this one; 0 when there is none. Reads positions only. Raises LogCorrupt as ``batches``."""
        if self.name.last <= upto:
            return self.name.last
        groups = [number for number in range(self._file.num_row_groups) if self._overlaps(number, 0, upto)]
        if not groups:
            return 0
        try:
            positions = self._file.read_row_group(groups[-1], columns=[POSITION], use_threads=False).column(0).to_numpy()
        except (pa.ArrowException, OSError) as error:
            raise LogCorrupt(f"{self.path}: not a sealed segment ({type(error).__name__})") from None
        return int(positions[int(positions.searchsorted(upto, "right")) - 1])

    def row_groups(self) -> list[tuple[int, int]]:
        """The first and the last position of each. Raises LogCorrupt as ``batches``."""
        if self._bounds is None:
            self._bounds = [self._within(number) for number in range(self._file.num_row_groups)]
        return self._bounds

    def row_group(self, number: int) -> pa.RecordBatch:
        """All of one row group, without old rows. Raises LogCorrupt as ``batches``."""
        try:
            table = self._file.read_row_group(number, use_threads=False).combine_chunks()
            return without_old_rows(pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=self.schema))
        except (pa.ArrowException, OSError, IndexError) as error:
            raise LogCorrupt(f"{self.path}: not a sealed segment ({type(error).__name__})") from None

    def _overlaps(self, row_group: int, after: int, upto: int) -> bool:
        first, last = self._within(row_group)
        return last > after and first <= upto

    def _within(self, row_group: int) -> tuple[int, int]:
        column = self._file.metadata.row_group(row_group).column(0)
        # Arrow ends the process when it is asked for statistics whose type is not the schema's.
        statistics = column.statistics if column.physical_type == self._file.schema.column(0).physical_type else None
        if statistics is None or not isinstance(statistics.max, int) or not isinstance(statistics.min, int):
            raise LogCorrupt(f"{self.path}: not a sealed segment (no positions in its statistics)")
        return statistics.min, statistics.max


class AwayFile:
    """A sealed file that is in the tier. It is fetched when its changes are asked for, and opened again each time, so that a reader that stands
    still keeps no space from the cache."""

    def __init__(self, folder: Path, name: Sealed, place: SegmentPlace) -> None:
        """Raises FileNotFoundError when it is not away, LogCorrupt for a stub that is damaged."""
        self.name = name
        self._path = folder / name.away
        self._place = place
        self._stub = read_stub(self._path, name, place.log_id)
        self._cache = Cache(LogPlaces(folder.parents[1]))

    def opened(self) -> SealedFile:
        """Raises as ``Cache.fetched``."""
        for _ in range(TRIES - 1):
            copy = self._cache.fetched(self._path, self._stub)
            try:
                return SealedFile(copy, self.name, self._place)
            except FileNotFoundError:
                continue  # others needed the room
            except LogCorrupt:
                self._cache.forget(copy)
        copy = self._cache.fetched(self._path, self._stub)
        try:
            return SealedFile(copy, self.name, self._place)
        except FileNotFoundError:
            raise too_small(self._path) from None

    def batches(self, after: int, upto: int, only: Only | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.opened().batches(after, upto, only)

    def last_within(self, upto: int) -> int:
        return self.name.last if self.name.last <= upto else self.opened().last_within(upto)

    def row_groups(self) -> list[tuple[int, int]]:
        return self.opened().row_groups()

    def row_group(self, number: int) -> pa.RecordBatch:
        return self.opened().row_group(number)

    @property
    def schema(self) -> pa.Schema:
        return self.opened().schema


def opened(folder: Path, name: Sealed, place: SegmentPlace) -> SealedFile | AwayFile:
    """The file, or what stands for it. Raises FileNotFoundError, LogCorrupt."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):
            return SealedFile(folder / name.file, name, place)
        with suppress(FileNotFoundError):  # it may be brought back at this moment
            return AwayFile(folder, name, place)
    raise FileNotFoundError(folder / name.file)


class SealedSegment:
    """All Parquet files that stand for one segment."""

    def __init__(self, folder: Path, run: SegmentRun, place: SegmentPlace) -> None:
        """Raises FileNotFoundError when the files there do not hold the whole segment."""
        # Listed again, because a listing may miss both the file and the stub that takes its place meanwhile.
        names = covering(sealed_in(folder), run) or covering(sealed_in(folder), run)
        if names is None:
            raise FileNotFoundError(folder)
        self.last = run.last
        self._files = [opened(folder, name, place) for name in names]

    def batches(self, after: int, upto: int, only: Only | None = None) -> Iterator[pa.RecordBatch]:
        """The segment's changes in (after, upto]; ``only``: these columns of them."""
        for file in self._files:
            if file.name.last > after and file.name.first <= upto:
                yield from file.batches(after, upto, only)

    def row_groups(self, positions: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
        """Each row group of the files that may hold one of the positions (rising): the number of its file, its own there, its first and its last position."""
        for number, file in enumerate(self._files):
            if positions.searchsorted(file.name.first) < positions.searchsorted(file.name.last, "right"):
                for group, (first, last) in enumerate(file.row_groups()):
                    yield number, group, first, last

    def row_group(self, file: int, number: int) -> pa.RecordBatch:
        """All of one row group, without old rows."""
        return self._files[file].row_group(number)

    def last_within(self, upto: int) -> int:
        """The last position at or below this one; 0 when there is none."""
        return next((file.last_within(upto) for file in reversed(self._files) if file.name.first <= upto), 0)

    @property
    def newest_schema(self) -> pa.Schema:
        return self._files[-1].schema

    def close(self) -> None:
        """The mapping goes with the last batch that lies in it."""
