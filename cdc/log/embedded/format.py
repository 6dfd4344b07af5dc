"""The log's bytes: pure encoders and decoders. ``docs/log-format.md`` gives the same byte by byte. All numbers are little-endian.

Segments (``SegmentHeader``, then frames) and the head (one record); the timeline's are in ``cdc.log.embedded.records``.
A decoder returns ``None`` for "not whole yet" and raises ``Damaged`` for bytes that no writer wrote; no length is believed
before it is bounded by what is there. Checksums are CRC32C (``google_crc32c``, several GB/s).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import google_crc32c
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.model.position import Cut, Lsn, Position

VERSION: Final = 3

Bytes: TypeAlias = bytes | pa.Buffer
"""Bytes that the checksum and the decoders take without a copy."""


class Damaged(Exception):
    """Bytes that no writer wrote; carries the offset within what was decoded. Callers turn it into LogCorrupt with the file's name."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what


def crc32c(data: Bytes, seed: int = 0) -> int:
    return int(google_crc32c.extend(seed, data))


def padding(length: int, alignment: int = 8) -> int:
    """How many bytes bring this length to the alignment."""
    return -length % alignment


def check_version(found: int, what: str) -> None:
    """Raises HeadwaterError for another version: a reader refuses such a log with a message, not with a checksum error."""
    if found != VERSION:
        raise HeadwaterError(
            f"{what} is written in log format {found}; this Headwater reads format {VERSION}",
            hint="use the Headwater version that wrote this log, or give [log] dir an empty folder, into which every table is read again",
        )


# --- segments -------------------------------------------------------------------------------------------------------------

SEGMENT_MAGIC: Final = b"HWSEGMNT"
_SEGMENT: Final = struct.Struct("<8sHHIQqqqII")
# magic, version, name length, topic, log id, first position, previous segment, previous last position, previous chain, checksum
MAX_NAME_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """How a segment begins: whose it is and what came before it, so that missing, swapped and renamed files are seen.

    ``first`` is the position of its first change and its file's name. ``previous``, ``previous_last`` and ``previous_chain``
    describe the topic's segment before it (its first and last position, its chain); all 0 for a topic's first segment.
    """

    log_id: int
    topic: int
    name: str
    first: int
    previous: int = 0
    previous_last: int = 0
    previous_chain: int = 0

    def encode(self) -> tuple[bytes, int]:
        """The header's bytes (padded to 8) and its checksum, with which the segment's chain begins. Raises ValueError when the topic's name
        is too long."""
        name = self.name.encode()
        if len(name) > MAX_NAME_BYTES:
            raise ValueError("a topic's name is at most 1024 bytes long")
        fixed = _SEGMENT.pack(
            SEGMENT_MAGIC, VERSION, len(name), self.topic, self.log_id, self.first,
            self.previous, self.previous_last, self.previous_chain, 0,
        )  # fmt: skip
        body = fixed[:-4], name + bytes(padding(len(name)))
        crc = crc32c(body[1], crc32c(body[0]))
        return body[0] + struct.pack("<I", crc) + body[1], crc


def decode_segment_header(data: bytes) -> tuple[SegmentHeader, int, int]:
    """(header, its length, its checksum) from a segment's first bytes. Raises Damaged."""
    if len(data) < _SEGMENT.size:
        raise Damaged(0, "the segment's header is cut short")
    magic, version, name_length, topic, log_id, first, previous, previous_last, previous_chain, crc = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise Damaged(0, "not a segment")
    length = _SEGMENT.size + name_length + padding(name_length)
    if name_length > MAX_NAME_BYTES or length > len(data):
        raise Damaged(10, "the segment's header is cut short")
    if crc32c(data[_SEGMENT.size : length], crc32c(data[: _SEGMENT.size - 4])) != crc:
        raise Damaged(_SEGMENT.size - 4, "the segment header's checksum differs")
    check_version(version, "a segment")
    try:
        name = data[_SEGMENT.size : _SEGMENT.size + name_length].decode()
    except UnicodeDecodeError:
        raise Damaged(_SEGMENT.size, "the topic's name is not text") from None
    return SegmentHeader(log_id, topic, name, first, previous, previous_last, previous_chain), length, crc


SEGMENT_HEADER_MAX: Final = _SEGMENT.size + MAX_NAME_BYTES


class FrameKind(IntEnum):
    SCHEMA = 1
    """The body is an Arrow IPC schema message; it holds for the batches that name its offset."""
    BATCH = 2
    """The body is an Arrow IPC record batch message."""


FRAME_MAGIC: Final = b"HWFR"
_FRAME: Final = struct.Struct("<4sBBHIIIIqqII")
# magic, version, kind, 0, body length, own offset, schema's offset, topic, first, last, rows, checksum
FRAME_HEADER_BYTES: Final = _FRAME.size
MAX_BODY_BYTES: Final = 2**31 - 64
"""Arrow's own offsets are 32 bits; a batch that comes near is split before it is written."""
MAX_SEGMENT_BYTES: Final = 2**32 - 1
"""Offsets within a segment are 32 bits in frames and timeline."""


class LogFrame(NamedTuple):
    """One frame's header. The body (``length`` bytes, a multiple of 8) follows it; ``end`` is where the next frame begins."""

    kind: FrameKind
    offset: int
    length: int
    schema_at: int
    topic: int
    first: int
    last: int
    rows: int
    crc: int

    @property
    def body(self) -> int:
        return self.offset + FRAME_HEADER_BYTES

    @property
    def end(self) -> int:
        return self.offset + FRAME_HEADER_BYTES + self.length


def encode_frame(
    kind: FrameKind, body: Sequence[Bytes], *, offset: int, schema_at: int, topic: int, first: int = 0, last: int = 0, rows: int = 0
) -> tuple[bytes, int]:
    """(header bytes, checksum). The body, in pieces, is written right behind the header, as it is: it is never copied. Raises ValueError
    when the body is not a multiple of 8 bytes, or too long."""
    length = sum(map(len, body))
    if length % 8 or length > MAX_BODY_BYTES:
        raise ValueError("a frame's body is a multiple of 8 bytes and at most 2 GiB")
    head = _FRAME.pack(FRAME_MAGIC, VERSION, kind, 0, length, offset, schema_at, topic, first, last, rows, 0)[:-4]
    crc = crc32c(head)
    for piece in body:
        crc = crc32c(piece, crc)
    return head + crc.to_bytes(4, "little"), crc


_KINDS: Final = {int(kind): kind for kind in FrameKind}


def decode_frame(data: pa.Buffer, at: int, *, offset: int, topic: int) -> LogFrame:
    """The frame at ``data[at:]``, which is the segment's ``offset``; whole and checked. Raises Damaged (offset in the segment)."""
    available = data.size - at
    if available < FRAME_HEADER_BYTES:
        raise Damaged(offset, "a frame's header is cut short")
    magic, version, kind, zero, length, own, schema_at, of_topic, first, last, rows, crc = _FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or length % 8 or length > available - FRAME_HEADER_BYTES:
        raise Damaged(offset, "not a whole frame")
    head = data.slice(at, FRAME_HEADER_BYTES - 4)
    if crc32c(data.slice(at + FRAME_HEADER_BYTES, length), crc32c(head)) != crc:
        raise Damaged(offset, "the frame's checksum differs")
    check_version(version, "a frame")
    if own != offset or of_topic != topic or kind not in _KINDS or zero:
        raise Damaged(offset, "the frame belongs elsewhere")
    return LogFrame(_KINDS[kind], own, length, schema_at, of_topic, first, last, rows, crc)


def frame_length(data: pa.Buffer, at: int) -> int | None:
    """How long the frame at ``data[at:]`` says it is, header included; None when its header is not whole there, or no frame's."""
    if data.size - at < FRAME_HEADER_BYTES:
        return None
    magic, _, _, _, length, *_ = _FRAME.unpack_from(data, at)
    return FRAME_HEADER_BYTES + int(length) if magic == FRAME_MAGIC else None


def chain(previous: int, frame_crc: int) -> int:
    """A segment's running checksum after one more frame; it starts as the segment header's checksum."""
    return crc32c(frame_crc.to_bytes(4, "little"), previous)


# --- head -----------------------------------------------------------------------------------------------------------------

HEAD_MAGIC: Final = b"HWHEAD\r\n"
_HEAD: Final = struct.Struct("<8sHHIQqqqIIII")
# magic, version, 0, epoch, log id, position, commit LSN, commit ts, timeline's file, its length, its last checksum, checksum
HEAD_BYTES: Final = _HEAD.size
MAX_EPOCH: Final = 2**32 - 1


@dataclass(frozen=True)
class Head:
    """The writer's statement of what is durable: the only thing that readers believe."""

    log_id: int
    epoch: int
    position: int
    commit_lsn: int
    commit_ts_us: int
    timeline: int
    """The number of the timeline's newest file."""
    timeline_bytes: int
    timeline_crc: int

    @cached_property
    def cut(self) -> Cut:
        """Asked for in every round of ingest."""
        return Cut(Position(self.position), Lsn(self.commit_lsn), self.commit_ts_us)

    def encode(self) -> bytes:
        raw = _HEAD.pack(
            HEAD_MAGIC, VERSION, 0, self.epoch, self.log_id, self.position, self.commit_lsn, self.commit_ts_us,
            self.timeline, self.timeline_bytes, self.timeline_crc, 0,
        )[:-4]  # fmt: skip
        return raw + crc32c(raw).to_bytes(4, "little")


def decode_head(data: bytes) -> Head | None:
    """The head; None when the bytes are not (yet) a whole head: it is overwritten in place, so a reader tries again."""
    if len(data) != HEAD_BYTES:
        return None
    magic, version, _, epoch, log_id, position, lsn, ts, timeline, length, timeline_crc, crc = _HEAD.unpack(data)
    if magic != HEAD_MAGIC or crc32c(data[:-4]) != crc:
        return None
    check_version(version, "the log's head")
    return Head(log_id, epoch, position, lsn, ts, timeline, length, timeline_crc)
