"""One segment's file as readers, recovery and sealing see it: verified frames as Arrow batches, without a copy where possible."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.errors import LogCorrupt
from cdc.log.embedded import plainfile
from cdc.log.embedded.format import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_MAX,
    Damaged,
    FrameKind,
    LogFrame,
    SegmentHeader,
    chain,
    decode_frame,
    decode_segment_header,
    frame_length,
)
from cdc.log.embedded.topicindex import SegmentRun

COPY_BELOW_BYTES: Final = 256 * 2**10
"""Ranges below this are read into memory; larger ones are mapped. Mapping costs a system call and page faults."""


@lru_cache(maxsize=4096)
def _schema(message: bytes) -> pa.Schema:
    """Decoded once: every segment of a topic begins with the same few. Raises ArrowInvalid, OSError."""
    return pa.ipc.read_schema(pa.py_buffer(message))


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """The timeline's facts about a segment, to check its header against."""

    log_id: int
    topic: int
    name: str
    first: int


class Segment:
    """An open segment. It stays readable after its file has been sealed and removed."""

    def __init__(self, path: Path, place: SegmentPlace) -> None:
        """Raises FileNotFoundError when the segment does not exist, LogCorrupt when the file is not the one it should be."""
        self._fd = -1
        self.path = path
        self.place = place
        self._fd = plainfile.opened(path)
        self._map: pa.Buffer | None = None
        self._schemas: dict[int, pa.Schema] = {}
        try:
            self.header, self.header_bytes, self.header_crc = decode_segment_header(os.pread(self._fd, SEGMENT_HEADER_MAX, 0))
            self._check(self.header)
        except Damaged as damage:
            self.close()
            raise self.corrupt(damage) from None
        except BaseException:
            self.close()
            raise

    def _check(self, header: SegmentHeader) -> None:
        if SegmentPlace(header.log_id, header.topic, header.name, header.first) != self.place:
            raise Damaged(0, "the segment belongs elsewhere (renamed, swapped or of another log)")

    def corrupt(self, damage: Damaged) -> LogCorrupt:
        return LogCorrupt(f"{self.path} at byte {damage.offset}: {damage.what}")

    @property
    def length(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Another thread may still read what a reader has pushed out of its cache: the last user closes it.
        self.close()

    def bytes_between(self, start: int, end: int) -> pa.Buffer:
        """Bytes [start, end). Raises Damaged when the file is shorter."""
        if end - start <= COPY_BELOW_BYTES:
            return self._read(start, end)
        if self._map is None or self._map.size < end:
            length = self.length
            if length < end:
                raise Damaged(length, "the segment is cut short")
            self._map = pa.py_buffer(mmap.mmap(self._fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
        return self._map.slice(start, end - start)

    def frames(self, run: SegmentRun) -> Iterator[tuple[LogFrame, pa.Buffer]]:
        """Each frame of the run with its body, checked; and at the end that they are the frames that were committed.

        Raises Damaged.
        """
        data = self.bytes_between(run.start, run.end)
        at, seed = 0, run.seed
        while at < data.size:
            frame = decode_frame(data, at, offset=run.start + at, topic=self.place.topic)
            yield frame, data.slice(at + FRAME_HEADER_BYTES, frame.length)
            seed = chain(seed, frame.crc)
            at = frame.end - run.start
        if seed != run.chain:
            raise Damaged(run.start, "whole frames, but not those that were committed here")

    def scan(self, run: SegmentRun, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """The run's batches one after the other, each lying in a mapping of about ``chunk_bytes`` of the file, which goes with the last
        of its batches. Raises LogCorrupt, for what the chain alone can see only after the last batch."""
        at, seed, rows = run.start, run.seed, 0
        try:
            while at < run.end:
                data = self._whole_frames(at, run.end, chunk_bytes)
                begin, at = at, at + data.size
                done = begin
                while done < at:
                    frame = decode_frame(data, done - begin, offset=done, topic=self.place.topic)
                    body = data.slice(frame.body - begin, frame.length)
                    if frame.kind is FrameKind.SCHEMA:
                        self._schemas[frame.offset] = _schema(body.to_pybytes())
                    else:
                        batch = pa.ipc.read_record_batch(body, self.schema(frame.schema_at))
                        rows += batch.num_rows
                        yield batch
                    seed, done = chain(seed, frame.crc), frame.end
            if seed != run.chain or rows != run.rows:
                raise Damaged(run.start, "whole frames, but not those that were committed here")
        except Damaged as damage:
            raise self.corrupt(damage) from None
        except pa.ArrowInvalid as error:
            raise self.corrupt(Damaged(at, f"Arrow cannot read it: {type(error).__name__}")) from None

    def _whole_frames(self, start: int, end: int, chunk_bytes: int) -> pa.Buffer:
        """Bytes from a frame's beginning on: as many whole frames as fit the chunk, but at least one. Raises Damaged."""
        data = self._window(start, min(end, start + chunk_bytes))
        whole = 0
        while (length := frame_length(data, whole)) is not None and whole + length <= data.size:
            whole += length
        if whole:
            return data.slice(0, whole)
        length = frame_length(data, 0)
        if length is None or start + length > end:
            raise Damaged(start, "not a whole frame")
        return self._window(start, start + length)

    def _window(self, start: int, end: int) -> pa.Buffer:
        """Bytes [start, end), mapped by themselves: reading them would cost fresh pages of memory and a copy. Raises Damaged."""
        if end > (length := self.length):
            raise Damaged(length, "the segment is cut short")
        first = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._fd, end - first, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=first)
        return pa.py_buffer(mapped).slice(start - first, end - start)

    def _read(self, start: int, end: int) -> pa.Buffer:
        data = os.pread(self._fd, end - start, start)
        if len(data) < end - start:
            raise Damaged(start + len(data), "the segment is cut short")
        return pa.py_buffer(data)

    def batches(self, run: SegmentRun) -> list[pa.RecordBatch]:
        """The run's batches, all checked before the first is handed out. Raises LogCorrupt."""
        found: list[pa.RecordBatch] = []
        rows = 0
        try:
            for frame, body in self.frames(run):
                if frame.kind is FrameKind.SCHEMA:
                    self._schemas[frame.offset] = _schema(body.to_pybytes())
                    continue
                batch = pa.ipc.read_record_batch(body, self.schema(frame.schema_at))
                rows += batch.num_rows
                found.append(batch)
            if rows != run.rows:
                raise Damaged(run.start, f"{rows} changes where {run.rows} were committed")
        except Damaged as damage:
            raise self.corrupt(damage) from None
        except (pa.ArrowInvalid, OSError) as error:
            raise self.corrupt(Damaged(run.start, f"Arrow cannot read it: {type(error).__name__}")) from None
        return found

    def schema(self, at: int) -> pa.Schema:
        """The schema whose frame begins at this offset. Raises Damaged."""
        found = self._schemas.get(at)
        if found is None:
            head = self.bytes_between(at, at + FRAME_HEADER_BYTES)
            length = frame_length(head, 0)
            if length is None or at + length > self.length:
                raise Damaged(at, "a schema's frame is cut short")
            data = self.bytes_between(at, at + length)
            frame = decode_frame(data, 0, offset=at, topic=self.place.topic)
            if frame.kind is not FrameKind.SCHEMA:
                raise Damaged(at, "not a schema's frame")
            found = self._schemas[at] = _schema(data.slice(FRAME_HEADER_BYTES).to_pybytes())
        return found

    def newest_schema(self, run: SegmentRun) -> pa.Schema:
        """The schema in force at the end of the run. Raises LogCorrupt."""
        try:
            at = 0
            for frame, _ in self.frames(run):
                at = frame.offset if frame.kind is FrameKind.SCHEMA else frame.schema_at
            return self.schema(at)
        except Damaged as damage:
            raise self.corrupt(damage) from None
