"""A log of any length, made up: a timeline as the writer would have left it, and sealed segments of which there are only the names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from cdc.log.embedded import checkpoint
from cdc.log.embedded.format import SegmentHeader, crc32c
from cdc.log.embedded.groupfiles import FILE_BYTES
from cdc.log.embedded.names import LogPlaces, Sealed
from cdc.log.embedded.records import (
    CUT_DTYPE,
    PART_DTYPE,
    RECORD_BYTES,
    GroupEntry,
    GroupPart,
    NewProducer,
    NewTopic,
    RecordKind,
    TimelineHeader,
    encode_group,
    encode_timeline_header,
)
from cdc.log.embedded.timeline import Timeline

TOPIC: Final = "public.made_up"
GROUP_BYTES: Final = 10_000
"""Of one row, so that ten million groups are 100 GB."""
SEGMENT_GROUPS: Final = 2**26 // GROUP_BYTES
LOG_ID: Final = 77


def make_up(root: Path, groups: int) -> None:
    """``groups``: cuts of one change each, the nth at LSN 10 n."""
    places = LogPlaces(root)
    places.folder(TOPIC).mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    begin, _ = SegmentHeader(LOG_ID, 1, TOPIC, 1).encode()
    header, crc = encode_timeline_header(TimelineHeader(LOG_ID))
    first = GroupEntry(
        1, 1, 10, 0, 1, (NewTopic(1, TOPIC),), (GroupPart(1, 1, len(begin), len(begin) + GROUP_BYTES, 1, 1, 0, 0),),
        (NewProducer(1, "postgres"),),
    )  # fmt: skip
    data = header + encode_group(first, crc)[0]
    done, number = 1, 1
    each = FILE_BYTES // (2 * RECORD_BYTES)
    while True:
        timeline = Timeline.whole(data)
        count = min(each, groups - done)
        data += _groups(done, count, len(begin), timeline.crc)
        places.timeline(number).write_bytes(data)
        done, number = done + count, number + 1
        if done >= groups:
            break
        data, _ = checkpoint.encode(Timeline.whole(data))
    for start in range(0, groups, SEGMENT_GROUPS):
        last = min(start + SEGMENT_GROUPS, groups)
        (places.folder(TOPIC) / Sealed(start + 1, last, last - start, 0).file).touch(mode=0o600)


def _groups(done: int, count: int, begin: int, crc: int) -> bytes:
    """The records of so many groups behind those that are done. Only the last checksum is right: it vouches for all."""
    positions = np.arange(done + 1, done + count + 1)
    at = (positions - 1) % SEGMENT_GROUPS
    parts, cuts = np.zeros(count, PART_DTYPE), np.zeros(count, CUT_DTYPE)
    parts["kind"], parts["topic"], parts["rows"] = RecordKind.PART, 1, 1
    parts["segment"], parts["last"] = positions - at, positions
    parts["start"] = begin + at * GROUP_BYTES
    parts["end"] = parts["start"] + GROUP_BYTES
    cuts["kind"], cuts["parts"], cuts["epoch"] = RecordKind.CUT, 1, 1
    cuts["first"] = cuts["last"] = positions
    cuts["lsn"] = positions * 10
    records = np.stack([parts.view(np.uint8).reshape(count, -1), cuts.view(np.uint8).reshape(count, -1)], axis=1)
    records = records.reshape(2 * count, RECORD_BYTES)
    end = crc32c(records[:, :-4].tobytes(), crc)
    records[-1, -4:] = np.frombuffer(end.to_bytes(4, "little"), np.uint8)
    return records.tobytes()
