"""How far compaction may go in one topic, and whether it is worth it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cdc.log.contract import ClosedRange

NEW_SHARE: Final = 0.5
"""A topic is looked at again when this share of its closed changes has come since the last look. So all looks together read each change about
twice, and write it about twice at most."""
DROPPED_SHARE: Final = 0.2
"""Less than this is not worth writing the rest again."""


class Worth(NamedTuple):
    """When compacting a topic is worth it: the share of its closed changes that has come since it was looked at, and the share that can go."""

    new: float = NEW_SHARE
    dropped: float = DROPPED_SHARE


WHILE_SCARCE: Final = Worth(0.1, 0.02)
"""While the disk has less than the reserve left."""


class TopicPoints(NamedTuple):
    """The clean point and the floor that a topic is to get (``cdc.log.contract.LogUpkeep.retire``)."""

    clean_from: int
    floor: int


class Settled(NamedTuple):
    """Positions behind which changes are too young to be dropped: superseded ones, and DELETEs."""

    changes: int
    deletes: int


def bounds(ranges: Sequence[ClosedRange], settled: Settled, pins: Sequence[int], now: TopicPoints) -> TopicPoints:
    """The clean point and the floor move to where closed ranges end.

    ``pins``: the positions that followers have reached. ``now``: the points as they are; they never fall.
    """
    clean_from = max(now.clean_from, end_within(ranges, min([settled.changes, *pins])) + 1)
    floor = max(now.floor, end_within(ranges, min([settled.deletes, *pins])) + 1)
    return TopicPoints(clean_from, min(floor, clean_from))


def due(ranges: Sequence[ClosedRange], clean_from: int, examined: int, share: float = NEW_SHARE) -> bool:
    """Whether enough has come behind ``examined``, and below ``clean_from``, since the topic was looked at last."""
    below = [closed for closed in ranges if closed.last < clean_from]
    new = sum(closed.rows for closed in below if closed.first > examined)
    return new > 0 and new >= share * sum(closed.rows for closed in below)


def groups(ranges: Sequence[ClosedRange], stay: Sequence[int], target_bytes: int) -> list[tuple[list[ClosedRange], int]]:
    """The stretches that are written again, each with the number of changes that stay: neighbours of which something goes, together while what
    stays of them is about ``target_bytes``. Of where nothing goes nothing is written."""
    found: list[tuple[list[ClosedRange], int]] = []
    size = 0.0
    joins = False
    for closed, rows in zip(ranges, stay, strict=True):
        if rows == closed.rows:
            joins = False
            continue
        own = closed.bytes * rows / closed.rows
        if joins and size + own <= target_bytes:
            together, before = found.pop()
            found.append(([*together, closed], before + rows))
            size += own
        else:
            found.append(([closed], rows))
            size = own
        joins = True
    return found


def end_within(ranges: Sequence[ClosedRange], upto: int) -> int:
    """The end of the last range that ends at or before a position; -1 when none does."""
    return max((closed.last for closed in ranges if closed.last <= upto), default=-1)
