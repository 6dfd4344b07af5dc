"""The timeline's last group. Its entry and its changes are synced at the same time, so a power loss may leave either without the other.

Only of the last one: a group is entered when all before it are durable.
"""

from __future__ import annotations

from cdc.errors import LogCorrupt
from cdc.log.embedded.format import Damaged
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.records import RECORD_BYTES, GroupEntry, RecordKind, decode_group
from cdc.log.embedded.segment import Segment, SegmentPlace
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.topicindex import SegmentRun


def last_group(data: bytes, timeline: Timeline) -> tuple[int, GroupEntry] | None:
    """(where it begins in the file, what it says). None when the file has no group yet. ``data``: the bytes from which ``timeline`` was read."""
    if timeline.length == timeline.begun:
        return None
    at = timeline.length - RECORD_BYTES
    while at > timeline.begun and int.from_bytes(data[at - RECORD_BYTES : at - RECORD_BYTES + 2], "little") != RecordKind.CUT:
        at -= RECORD_BYTES
    found = decode_group(data[: timeline.length], at, int.from_bytes(data[at - 4 : at], "little"))
    return (at, found[0]) if found is not None else None


def has_changes(places: LogPlaces, timeline: Timeline, group: GroupEntry) -> bool:
    """Whether the segments hold all that the group's entry names, as it was written. A segment that is not there is not looked for: it may have
    been sealed since, and its name was durable before the entry was written."""
    for part in group.parts:
        name = timeline.topics[part.topic].name
        place = SegmentPlace(timeline.log_id, part.topic, name, part.segment)
        try:
            segment = Segment(places.segment(name, part.segment), place)
            try:
                run = SegmentRun(part.segment, part.start, part.end, part.rows, part.last, part.seed, part.chain)
                for _ in segment.frames(run):
                    pass
            finally:
                segment.close()
        except FileNotFoundError:
            continue
        except (Damaged, LogCorrupt):
            return False
    return True
