"""The timeline's records: pure encoders and decoders. ``docs/log-format.md`` gives the same byte by byte. All numbers are little-endian.

A group's records stand in this order: PRODUCER, NAME, MARK, PART, REPLACED, RETIRED, and CUT, which closes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.log.embedded.format import VERSION, Damaged, check_version, crc32c

RECORD_BYTES: Final = 48


class RecordKind(IntEnum):
    HEADER = 1
    """The file's first record."""
    NAME = 2
    """A piece of a new topic's name; the pieces stand one after the other before the topic's first PART."""
    PART = 3
    """One group's share of one segment."""
    CUT = 4
    """Closes the group: with it, and not before, the group exists."""
    PRODUCER = 5
    """A piece of a new producer's name; the pieces stand one after the other before whatever names its number."""
    MARK = 6
    """A piece of a producer's new mark."""
    REPLACED = 7
    """Sealed files of another generation hold a topic's changes in a range of positions from here on."""
    RETIRED = 8
    """A topic's older changes are no longer kept, or no longer all of them."""
    VOLUME = 9
    """Where one of the timeline's earlier files ends. This and the following stand in checkpoints only."""
    COMMIT = 10
    """The source's last commit that brought changes."""
    COUNTS = 11
    """How much came before the checkpoint."""
    CHECKPOINT = 12
    """Closes a checkpoint."""


TIMELINE_MAGIC: Final = b"HWTIMELN"
PIECE_BYTES: Final = 32
MAX_PRODUCER_BYTES: Final = 255
MAX_MARK_BYTES: Final = 4096
MAX_PRODUCERS: Final = 2**16 - 1
SOURCE: Final = 1
"""The number of the producer whose commit LSN the cuts carry: the database. It is named in the log's first group."""
_HEADER: Final = struct.Struct(
    "<HH8sQIII12xI"
)  # kind, version, magic, log id, number, bytes and checksum of the file before, checksum
_PIECE: Final = struct.Struct(
    "<HHIHH32sI"
)  # kind, bytes in this piece, number, pieces that follow, a topic's producer, piece, checksum
_PART: Final = struct.Struct("<HHIqIIqIIII")  # kind, 0, topic, segment, start, end, last, rows, seed, chain, checksum
_CUT: Final = struct.Struct("<HHIqqqqII")  # kind, 0, parts, first, last, commit LSN, commit ts, epoch, checksum
_REPLACED: Final = struct.Struct("<HHIqqqIIII")  # kind, 0, topic, first, last, bytes, rows, generation, digest, checksum
_RETIRED: Final = struct.Struct(
    "<HHIqqqIqI"
)  # kind, whole, topic, kept from, floor, clean from, newest generation, raising, checksum
assert {one.size for one in (_HEADER, _PIECE, _PART, _CUT, _REPLACED, _RETIRED)} == {RECORD_BYTES}

PART_DTYPE: Final = np.dtype(
    [
        ("kind", "<u2"), ("zero", "<u2"), ("topic", "<u4"), ("segment", "<i8"), ("start", "<u4"), ("end", "<u4"),
        ("last", "<i8"), ("rows", "<u4"), ("seed", "<u4"), ("chain", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip
CUT_DTYPE: Final = np.dtype(
    [
        ("kind", "<u2"), ("zero", "<u2"), ("parts", "<u4"), ("first", "<i8"), ("last", "<i8"), ("lsn", "<i8"),
        ("ts", "<i8"), ("epoch", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip


class NewTopic(NamedTuple):
    """A topic that appears for the first time. ``producer``: the number of the one that brings its changes."""

    number: int
    name: str
    producer: int = SOURCE


class NewProducer(NamedTuple):
    number: int
    name: str


class NewMark(NamedTuple):
    """``producer``: its number."""

    producer: int
    value: bytes


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group's share of one segment: its bytes [start, end), ``rows`` changes, the last at position ``last``.

    ``seed`` and ``chain`` are the segment's running checksum before and after them, so that the range can be checked alone.
    """

    topic: int
    segment: int
    start: int
    end: int
    last: int
    rows: int
    seed: int
    chain: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """The topic's changes at positions [first, last] are from now on what the sealed files of ``generation`` hold.

    The range is that of whole closed segments, or of what replaced such before. Generations rise within a topic. ``rows`` and ``bytes`` are
    the files' together, ``digest`` is that of their names (``cdc.log.embedded.names.digest_of``): so the timeline vouches for their content.
    """

    topic: int
    first: int
    last: int
    bytes: int
    rows: int
    generation: int
    digest: int


@dataclass(frozen=True, slots=True)
class Retired:
    """From where on a topic can still be read, and how completely. Each number only ever rises; kept_from <= floor <= clean_from <= the first position
    of the topic's newest segment, which is never dropped."""

    topic: int
    kept_from: int
    """Changes at positions below this are gone."""
    floor: int
    """The tombstone floor: DELETEs at positions below this may be gone, so a reader that is below it, but not at 0, may not go on."""
    clean_from: int
    """The clean point: at positions from here on nothing has been dropped, so that a cut there shows the topic as it was."""
    generation: int = 0
    """The newest one of the topic's sealed files: what is retired may have been the last that names it, and none is given twice."""
    raised: int = 0
    """The raising that made the floor what it is (``cdc.model.lineage``); 0 where it is 0."""
    whole: bool = False
    """The topic was emptied at or behind kept_from and below clean_from: so whoever begins at 0 lacks nothing once he is at clean_from."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group commit: positions [first, last] (empty when last == first - 1), its commit, what it put where."""

    first: int
    last: int
    commit_lsn: int
    commit_ts_us: int
    epoch: int
    names: tuple[NewTopic, ...]
    parts: tuple[GroupPart, ...]
    producers: tuple[NewProducer, ...] = ()
    marks: tuple[NewMark, ...] = ()
    """Of the producers whose mark has changed."""
    replaced: tuple[Replaced, ...] = ()
    retired: tuple[Retired, ...] = ()


def sealed(record: bytes, previous: int) -> tuple[bytes, int]:
    """The record with its checksum, which is chained to the record before."""
    crc = crc32c(record[:-4], previous)
    return record[:-4] + crc.to_bytes(4, "little"), crc


class TimelineHeader(NamedTuple):
    """``number``: the file's, from 1; ``previous_bytes`` and ``previous_crc``: how the file before it ends."""

    log_id: int
    number: int = 1
    previous_bytes: int = 0
    previous_crc: int = 0


def encode_timeline_header(header: TimelineHeader) -> tuple[bytes, int]:
    return sealed(_HEADER.pack(RecordKind.HEADER, VERSION, TIMELINE_MAGIC, *header, 0), 0)


def decode_timeline_header(data: bytes) -> tuple[TimelineHeader, int]:
    """(header, checksum) of a timeline file's first record. Where its version stands never changes, so that any version can refuse any other.
    Raises Damaged, and HeadwaterError for another version."""
    if len(data) < RECORD_BYTES:
        raise Damaged(0, "the timeline's header is cut short")
    kind, version, magic, log_id, number, previous_bytes, previous_crc, crc = _HEADER.unpack_from(data)
    if magic != TIMELINE_MAGIC or kind != RecordKind.HEADER or crc32c(data[: RECORD_BYTES - 4]) != crc:
        raise Damaged(0, "not a timeline, or its header is damaged")
    check_version(version, "the timeline")
    return TimelineHeader(log_id, number, previous_bytes, previous_crc), crc


def text_records(kind: RecordKind, number: int, value: bytes, producer: int = 0) -> Iterable[bytes]:
    count = max(1, -(-len(value) // PIECE_BYTES))
    for at in range(count):
        piece = value[at * PIECE_BYTES : (at + 1) * PIECE_BYTES]
        yield _PIECE.pack(kind, len(piece), number, count - 1 - at, producer, piece, 0)


def part_record(part: GroupPart) -> bytes:
    return _PART.pack(
        RecordKind.PART, 0, part.topic, part.segment, part.start, part.end, part.last, part.rows, part.seed, part.chain, 0
    )


def replaced_record(new: Replaced) -> bytes:
    return _REPLACED.pack(
        RecordKind.REPLACED, 0, new.topic, new.first, new.last, new.bytes, new.rows, new.generation, new.digest, 0
    )


def retired_record(old: Retired) -> bytes:
    return _RETIRED.pack(
        RecordKind.RETIRED, old.whole, old.topic, old.kept_from, old.floor, old.clean_from, old.generation, old.raised, 0
    )


def _records(group: GroupEntry) -> Iterable[bytes]:
    for number, name in group.producers:
        yield from text_records(RecordKind.PRODUCER, number, name.encode())
    for topic, name, producer in group.names:
        yield from text_records(RecordKind.NAME, topic, name.encode(), producer)
    for producer, value in group.marks:
        yield from text_records(RecordKind.MARK, producer, value)
    for part in group.parts:
        yield part_record(part)
    for new in group.replaced:
        yield replaced_record(new)
    for old in group.retired:
        yield retired_record(old)
    yield _CUT.pack(
        RecordKind.CUT, 0, len(group.parts), group.first, group.last, group.commit_lsn, group.commit_ts_us, group.epoch, 0
    )


def encode_group(group: GroupEntry, previous: int) -> tuple[bytes, int]:
    """(the group's records, the last one's checksum). ``previous`` is the checksum of the record before."""
    return chained(_records(group), previous)


def chained(records: Iterable[bytes], previous: int) -> tuple[bytes, int]:
    """(the records with their checksums, the last one)."""
    found: list[bytes] = []
    for record in records:
        whole, previous = sealed(record, previous)
        found.append(whole)
    return b"".join(found), previous


class Text(NamedTuple):
    """The pieces of a PRODUCER, NAME or MARK, put together."""

    kind: int
    number: int
    producer: int
    value: bytes
    at: int
    """Offset behind the last piece."""

    def name(self) -> str:
        """Raises Damaged."""
        try:
            return self.value.decode()
        except UnicodeDecodeError:
            raise Damaged(self.at - RECORD_BYTES, "a name is not text") from None


TEXTS: Final = frozenset((RecordKind.PRODUCER, RecordKind.NAME, RecordKind.MARK))


def text_at(data: bytes, at: int, end: int) -> Text:
    """The text whose first piece stands at this offset; none of them beyond ``end``. Raises Damaged when the pieces that it announces do not follow it."""
    kind, length, number, follow, producer, piece, _ = _PIECE.unpack_from(data, at)
    value, start = piece[: min(length, PIECE_BYTES)], at
    for left in range(follow - 1, -1, -1):
        at += RECORD_BYTES
        if at + RECORD_BYTES > end:
            raise Damaged(start, "a piece of a name or a mark is missing")
        *found, piece, _ = _PIECE.unpack_from(data, at)
        if (found[0], *found[2:]) != (kind, number, left, producer):
            raise Damaged(at, "a piece of a name or a mark is missing")
        value += piece[: min(found[1], PIECE_BYTES)]
    return Text(kind, number, producer, value, at + RECORD_BYTES)


def decode_group(data: bytes, at: int, previous: int) -> tuple[GroupEntry, int, int] | None:
    """Reads back what ``encode_group`` put at this offset: the group, where it ends, and the last record's checksum.

    ``previous`` is the checksum of the record before. None when no whole group stands there. Raises Damaged (its offset is one within
    ``data``) for whole records that no writer wrote.
    """
    begin, kind = at, int(RecordKind.HEADER)
    while kind != RecordKind.CUT:
        record = data[at : at + RECORD_BYTES]
        if len(record) < RECORD_BYTES:
            return None
        previous = crc32c(record[:-4], previous)
        if previous != int.from_bytes(record[-4:], "little"):
            return None
        kind = record[0] | record[1] << 8
        at += RECORD_BYTES
    _, _, count, first, last, lsn, ts, epoch, _ = _CUT.unpack_from(data, at - RECORD_BYTES)
    if count == 1 and at - begin == 2 * RECORD_BYTES and data[begin] | data[begin + 1] << 8 == RecordKind.PART:
        # Nearly always.
        return GroupEntry(first, last, lsn, ts, epoch, (), (_part(data, begin),)), at, previous
    found = listed(data, begin, at - RECORD_BYTES)
    if count != len(found.parts):
        raise Damaged(at - RECORD_BYTES, "a group's positions are not dense")
    group = GroupEntry(
        first, last, lsn, ts, epoch, tuple(found.names), tuple(found.parts),
        tuple(found.producers), tuple(found.marks), tuple(found.replaced), tuple(found.retired),
    )  # fmt: skip
    return group, at, previous


def _part(data: bytes, at: int) -> GroupPart:
    _, _, topic, segment, start, end, last, rows, seed, running, _ = _PART.unpack_from(data, at)
    return GroupPart(topic, segment, start, end, last, rows, seed, running)


class Listed:
    """Records of a stretch, by kind."""

    __slots__ = ("marks", "names", "parts", "producers", "replaced", "retired")

    def __init__(self) -> None:
        self.producers: list[NewProducer] = []
        self.names: list[NewTopic] = []
        self.marks: list[NewMark] = []
        self.parts: list[GroupPart] = []
        self.replaced: list[Replaced] = []
        self.retired: list[Retired] = []

    def kept(self) -> list[GroupPart | Replaced]:
        """The segments of a checkpoint, and what has replaced such."""
        return [*self.parts, *self.replaced]

    def take_text(self, text: Text) -> None:
        match text.kind:
            case RecordKind.PRODUCER:
                self.producers.append(NewProducer(text.number, text.name()))
            case RecordKind.NAME:
                self.names.append(NewTopic(text.number, text.name(), text.producer))
            case _:
                self.marks.append(NewMark(text.number, text.value))


def listed(data: bytes, at: int, end: int) -> Listed:
    """The records between these offsets, which are whole. Raises Damaged for one of another kind."""
    found = Listed()
    while at < end:
        match data[at] | data[at + 1] << 8:
            case RecordKind.PART:
                found.parts.append(_part(data, at))
            case RecordKind.PRODUCER | RecordKind.NAME | RecordKind.MARK:
                text = text_at(data, at, end)
                found.take_text(text)
                at = text.at
                continue
            case RecordKind.REPLACED:
                _, _, topic, first, last, size, rows, generation, digest, _ = _REPLACED.unpack_from(data, at)
                found.replaced.append(Replaced(topic, first, last, size, rows, generation, digest))
            case RecordKind.RETIRED:
                _, whole, topic, kept_from, floor, clean_from, generation, raised, _ = _RETIRED.unpack_from(data, at)
                if whole > 1:
                    raise Damaged(at, "a RETIRED that says what no writer of this format says")
                found.retired.append(Retired(topic, kept_from, floor, clean_from, generation, raised, bool(whole)))
            case _:
                raise Damaged(at, "a record of unknown kind")
        at += RECORD_BYTES
    return found


def whole_records(records: npt.NDArray[np.uint8], previous: int) -> int:
    """How many of these records (n × 48 bytes) from the first on are whole, given the checksum of the record before them.

    Checks all in one pass over their bytes; only when that fails, one by one to find the place.
    """
    count = len(records)
    if count == 0:
        return 0
    if count > 16 and crc32c(records[:, :-4].tobytes(), previous) == int.from_bytes(records[-1, -4:].tobytes(), "little"):
        return count
    raw = records.tobytes()
    for number in range(count):
        at = number * RECORD_BYTES
        previous = crc32c(raw[at : at + RECORD_BYTES - 4], previous)
        if previous != int.from_bytes(raw[at + RECORD_BYTES - 4 : at + RECORD_BYTES], "little"):
            return number
    return count
