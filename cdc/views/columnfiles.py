"""Columns in files that only grow at their end, read through the system's page cache: rows are taken from them by their places.

How long a file is, its owner says: what lies beyond is of a transaction that was forgotten, and is written over. So nothing here has to be undone, and a file that is
shorter than that is damaged. So is one whose bytes have another checksum (CRC32C): a bit that turned, or a file of another state, would be other rows. What was appended
is durable after ``sync``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from cdc.diskspace import FULL
from cdc.views.contract import StateDamaged, StateFull
from cdc.views.hashes import Places

_EMPTY: Final = pa.py_buffer(b"")
_CHECKED_BYTES: Final = 16 << 20
"""So many at once: other threads go on in between."""


class FileExtent(NamedTuple):
    """The bytes of a file that count: how many, and their CRC32C."""

    bytes: int = 0
    crc: int = 0


@contextmanager
def _room() -> Iterator[None]:
    """Raises StateFull where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StateFull("the state does not fit on its disk", hint="free space there: the view goes on where it was") from error
        raise


class GrowingFile:
    """Bytes that are appended. ``size``: in bytes, of what counts."""

    def __init__(self, path: Path, extent: FileExtent | None = None) -> None:
        """Raises StateDamaged where there is less than that; ``check`` looks at the bytes themselves."""
        self.path = path
        self.size, self._crc = extent or FileExtent()
        self._seen: pa.Buffer | None = None
        self._written = False
        if self.size and (not path.exists() or path.stat().st_size < self.size):
            raise StateDamaged(f"the state is damaged ({path.name} is not whole)")

    @property
    def extent(self) -> FileExtent:
        return FileExtent(self.size, self._crc)

    def check(self) -> None:
        """Reads all bytes that count. Raises StateDamaged where they are not those that were appended."""
        found, whole = 0, self.buffer
        for at in range(0, self.size, _CHECKED_BYTES):
            found = google_crc32c.extend(found, whole.slice(at, min(_CHECKED_BYTES, self.size - at)))
        if found != self._crc:
            raise StateDamaged(f"the state is damaged ({self.path.name} is not as it was written)")

    def append(self, *pieces: Any) -> None:
        """``pieces``: arrays or buffers, one after another. Raises StateFull."""
        with _room():
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                for piece in pieces:
                    left = memoryview(piece).cast("B")
                    while len(left):
                        written = os.pwrite(fd, left, self.size)
                        self.size += written
                        left = left[written:]
                    self._crc = google_crc32c.extend(self._crc, pa.py_buffer(piece))
            finally:
                os.close(fd)
        self._seen, self._written = None, True

    def sync(self) -> None:
        """Everything is durable, but for the file's name in its folder. Raises StateFull."""
        if not self._written:
            return
        with _room():
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._written = False

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes that count."""
        if not self.size:
            return _EMPTY
        if self._seen is None:
            with self.path.open("rb") as file:
                self._seen = pa.py_buffer(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ))
        return self._seen

    def array(self, kind: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """The bytes that count, as numbers."""
        return np.frombuffer(self.buffer, kind)


class ColumnFiles:
    """One column's values."""

    def __init__(self, folder: Path, name: str, kind: pa.DataType, extents: Mapping[str, FileExtent]) -> None:
        """``extents``: what counts of each file, by its name. Raises StateDamaged."""

        def growing(part: str) -> GrowingFile:
            return GrowingFile(folder / f"{name}.{part}", extents.get(f"{name}.{part}"))

        self.kind = kind
        self._varies = pa.types.is_string(kind) or pa.types.is_binary(kind)
        self._stored = pa.int8() if pa.types.is_boolean(kind) else kind
        self._number = np.dtype(
            "V16" if pa.types.is_decimal128(kind) else "u1" if self._varies else f"i{self._stored.bit_width // 8}"
        )
        self._values, self._nulls = growing("values"), growing("nulls")
        self._ends = growing("ends") if self._varies else None

    @property
    def files(self) -> list[GrowingFile]:
        return [self._values, self._nulls, *([self._ends] if self._ends is not None else [])]

    def append(self, values: pa.Array, rows: int) -> None:
        """Behind ``rows`` rows that are there. Raises StateFull."""
        if values.null_count:
            # Rows that the file of nulls does not reach to are none.
            lacking = rows - self._nulls.size
            self._nulls.append(np.zeros(lacking, np.uint8), values.is_null().cast(pa.uint8()).to_numpy(zero_copy_only=False))
        if self._ends is not None:
            offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
            start = self._values.size
            self._values.append(*([] if offsets[0] == offsets[-1] else [values.buffers()[2][int(offsets[0]) : int(offsets[-1])]]))
            ends = offsets[1:].astype(np.int64) + (start - int(offsets[0]))
            self._ends.append(*([] if rows else [np.zeros(1, np.int64)]), ends)
            return
        values = values.cast(self._stored)
        width = self._stored.bit_width // 8
        self._values.append(values.buffers()[1][values.offset * width : (values.offset + len(values)) * width])

    def taken(self, places: Places, rows: int) -> pa.Array:
        """The values at these places, of ``rows``."""
        bitmap, nulls = self._bitmap(places)
        if self._ends is not None:
            values = self._texts(places, rows)
            if bitmap is None:
                return values
            return pa.Array.from_buffers(self.kind, len(values), [bitmap, *values.buffers()[1:]], nulls, values.offset)
        found = pa.py_buffer(self._values.array(self._number).take(places))
        values = pa.Array.from_buffers(self._stored, len(places), [bitmap, found], nulls)
        return values if self._stored == self.kind else values.cast(self.kind)

    def _texts(self, places: Places, rows: int) -> pa.Array:
        """Without NULLs. Raises StateDamaged for a text that does not lie within the file: nobody looks again behind this."""
        assert self._ends is not None
        ends = self._ends.array(np.int64)
        starts, stops = ends.take(places), ends.take(places + 1)
        if len(places) and not (starts.min() >= 0 and stops.max() <= self._values.size and (starts <= stops).all()):
            raise StateDamaged(f"the state is damaged ({self._ends.path.name})")
        large = pa.large_binary() if pa.types.is_binary(self.kind) else pa.large_utf8()
        whole = pa.Array.from_buffers(large, rows, [None, self._ends.buffer, self._values.buffer])
        return whole.take(pa.array(places)).cast(self.kind)

    def _bitmap(self, places: Places) -> tuple[pa.Buffer | None, int]:
        """Arrow's bits of what is there, and the number of NULLs."""
        flags = self._nulls.array(np.uint8)
        if not len(flags):
            return None, 0
        nulls = (flags.take(places, mode="clip") != 0) & (places < len(flags))
        count = int(nulls.sum())
        return (pa.py_buffer(np.packbits(~nulls, bitorder="little")), count) if count else (None, 0)
