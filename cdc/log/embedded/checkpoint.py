"""How each of the timeline's files but the first begins: with everything that its readers have to know of the files before it. Pure.

A checkpoint names the producers with their marks, the topics, and every segment that is still kept: one PART for each, however many groups it
was written by. So a reader opens the newest file only, and goes back to earlier ones when it is asked about their cuts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from cdc.log.embedded.format import Damaged, crc32c
from cdc.log.embedded.records import (
    RECORD_BYTES,
    GroupPart,
    Listed,
    RecordKind,
    Replaced,
    TimelineHeader,
    chained,
    encode_timeline_header,
    listed,
    part_record,
    replaced_record,
    retired_record,
    text_records,
)
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position

if TYPE_CHECKING:
    from cdc.log.embedded.timeline import Timeline

_COMMIT: Final = struct.Struct("<HHIqqq12xI")  # kind, 0, 0, position, commit LSN, commit ts, checksum
_COUNTS: Final = struct.Struct("<HHIqqq12xI")  # kind, 0, 0, groups, first group of the present LSNs, bytes, checksum
_CHECKPOINT: Final = struct.Struct("<HHIqqq8xII")  # kind, 0, records, position, commit LSN, commit ts, epoch, checksum
VOLUMES: Final = np.dtype(
    [
        ("kind", "<u2"), ("zero", "<u2"), ("length", "<u4"), ("last", "<i8"), ("lsn", "<i8"), ("groups", "<i8"),
        ("bytes", "<i8"), ("end_crc", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip
"""Where an earlier file ends: its length, its last cut, the groups and the bytes of changes up to there, and its last record's checksum."""
assert {_COMMIT.size, _COUNTS.size, _CHECKPOINT.size, VOLUMES.itemsize} == {RECORD_BYTES}


@dataclass(frozen=True)
class Before:
    """The part of the log that a timeline's file follows."""

    head: Cut = ZERO_CUT
    last_commit: Cut = ZERO_CUT
    groups: int = 0
    lsns_rise_from: int = 0
    """The number of the first group of the source's present history: an LSN of an earlier one (the database was restored, or is another) says
    nothing."""
    appended: int = 0
    """Bytes of changes."""
    epoch: int = 0
    volumes: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, VOLUMES))
    """The earlier files; the last one's number is one less than this one's."""


NOTHING: Final = Before()


def encode(timeline: Timeline) -> tuple[bytes, int]:
    """The beginning of the file behind this one, which is whole: (its bytes, the last record's checksum)."""
    header = TimelineHeader(timeline.log_id, timeline.number + 1, timeline.length, timeline.crc)
    first, crc = encode_timeline_header(header)
    records = list(_records(timeline))
    cut = timeline.head
    closing = _CHECKPOINT.pack(
        RecordKind.CHECKPOINT, 0, len(records), cut.position, cut.commit_lsn, cut.commit_ts_us, timeline.epoch, 0
    )
    rest, crc = chained([*records, closing], crc)
    return first + rest, crc


def _records(timeline: Timeline) -> Iterable[bytes]:
    numbers = {name: number for number, name in enumerate(timeline.producers, 1)}
    for name, number in numbers.items():
        yield from text_records(RecordKind.PRODUCER, number, name.encode())
    for topic in timeline.topics.values():
        yield from text_records(RecordKind.NAME, topic.number, topic.name.encode(), numbers[topic.producer])
    for producer, value in timeline.stored_marks().items():
        yield from text_records(RecordKind.MARK, numbers[producer], value)
    for topic in timeline.topics.values():
        for run in topic.segments():
            if run.generation:
                yield replaced_record(Replaced(topic.number, run.segment, run.last, run.end, run.rows, run.generation, run.chain))
            else:
                yield part_record(GroupPart(topic.number, run.segment, run.start, run.end, run.last, run.rows, run.seed, run.chain))
        if topic.generation or topic.retired.clean_from:
            yield retired_record(topic.retired_now())
    for volume in (*timeline.before.volumes, *_volume(timeline)):
        yield volume.tobytes()
    commit = timeline.last_commit()
    yield _COMMIT.pack(RecordKind.COMMIT, 0, 0, commit.position, commit.commit_lsn, commit.commit_ts_us, 0)
    yield _COUNTS.pack(RecordKind.COUNTS, 0, 0, timeline.groups, timeline.lsns_rise_from, timeline.appended, 0)


def _volume(timeline: Timeline) -> npt.NDArray[np.void]:
    one = np.zeros(1, VOLUMES)
    head = timeline.head
    one[0] = (
        RecordKind.VOLUME, 0, timeline.length, head.position, head.commit_lsn, timeline.groups, timeline.appended, timeline.crc, 0
    )  # fmt: skip
    return one


def decode(data: bytes, previous: int) -> tuple[Before, Listed, int, int]:
    """(what came before, the records of producers, topics and segments, where the checkpoint ends, the last checksum) of what ``encode`` put
    behind the header, whose checksum is ``previous``. Raises Damaged: a checkpoint is never torn."""
    at, kind, numbers = RECORD_BYTES, int(RecordKind.HEADER), list[int]()
    while kind != RecordKind.CHECKPOINT:
        record = data[at : at + RECORD_BYTES]
        previous = crc32c(record[:-4], previous)
        if len(record) < RECORD_BYTES or previous != int.from_bytes(record[-4:], "little"):
            raise Damaged(at, "the checkpoint is damaged")
        kind = record[0] | record[1] << 8
        numbers.append(kind)
        at += RECORD_BYTES
    # VOLUMEs, a COMMIT and a COUNTS stand behind all others.
    count = numbers.count(RecordKind.VOLUME)
    begin = at - (count + 3) * RECORD_BYTES
    expected = [RecordKind.VOLUME] * count + [RecordKind.COMMIT, RecordKind.COUNTS, RecordKind.CHECKPOINT]
    if begin < RECORD_BYTES or numbers[-len(expected) :] != expected:
        raise Damaged(RECORD_BYTES, "the checkpoint's records are not in order")
    volumes = np.frombuffer(data, VOLUMES, count, begin)
    _, _, _, position, lsn, ts, _ = _COMMIT.unpack_from(data, at - 3 * RECORD_BYTES)
    _, _, _, groups, rise, size, _ = _COUNTS.unpack_from(data, at - 2 * RECORD_BYTES)
    _, _, records, *head, epoch, _ = _CHECKPOINT.unpack_from(data, at - RECORD_BYTES)
    before = Before(_cut(*head), _cut(position, lsn, ts), groups, rise, size, epoch, volumes)
    _check(before, records == len(numbers) - 1, at - RECORD_BYTES)
    return before, listed(data, RECORD_BYTES, begin), at, previous


def _cut(position: int, lsn: int, ts_us: int) -> Cut:
    return Cut(Position(position), Lsn(lsn), ts_us)


def _check(before: Before, counted: bool, at: int) -> None:
    """Raises Damaged for what contradicts itself."""
    volumes, head = before.volumes, before.head
    rising = all((np.diff(volumes[name]) >= 0).all() for name in ("last", "groups", "bytes"))
    if not counted or not len(volumes) or not rising or not 0 <= before.lsns_rise_from <= before.groups:
        raise Damaged(at, "the checkpoint contradicts itself")
    end = volumes[-1]
    if (end["last"], end["lsn"], end["groups"], end["bytes"]) != (head.position, head.commit_lsn, before.groups, before.appended):
        raise Damaged(at, "the checkpoint contradicts itself")
    if int(volumes["last"][0]) < 0 or before.last_commit.position > head.position:
        raise Damaged(at, "the checkpoint contradicts itself")
