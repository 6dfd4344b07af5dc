"""Retention: of a topic only the changes within an age and a size are kept, whether or not anything has superseded them. Whole files go, the oldest first.

From then on nobody can begin before what is left, so whoever needs the whole table is refused by name (POSITION_GONE).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc.compaction.oldness import old_upto
from cdc.log.contract import ClosedRange, LogReader, LogUpkeep, Topic
from cdc.settings.models import Log


@dataclass(frozen=True, slots=True)
class Old:
    """The limits of a topic: ``upto`` this position changes are too old, and beyond so many bytes (None: no matter how many) there are too many."""

    upto: int
    most_bytes: int | None = None


def old(reader: LogReader, log: Log, topic: Topic, ranges: Sequence[ClosedRange], now_us: int) -> Old:
    """The table's limits as they stand now. ``ranges``: its closed ones. Raises OSError."""
    limits = log.limits_of(topic.table)
    return Old(
        -1 if limits.hours is None else old_upto(reader, log, topic, ranges, now_us, limits.hours),
        None if limits.mb is None else limits.mb * 10**6,
    )


def kept_from(topic: Topic, ranges: Sequence[ClosedRange], old: Old, pins: Sequence[int]) -> int:
    """From where on the topic is to be kept; never less than it is now.

    ``pins``: the positions that followers have reached. One who is behind what is kept already can never go on, and holds nothing; unless he may begin at 0.
    """
    held = min((pin for pin in pins if topic.whole or pin + 1 >= topic.kept_from), default=topic.last)
    found, left = int(topic.kept_from), topic.bytes
    for closed in ranges:
        too_many = old.most_bytes is not None and left > old.most_bytes
        if closed.last > held or not (too_many or closed.last <= old.upto):
            break
        found, left = closed.last + 1, left - closed.bytes
    return found


def retire(upkeep: LogUpkeep, topic: Topic, begin: int, recorded: Callable[[], None]) -> int:
    """Keeps the topic from ``begin`` on, where one of its ranges begins. Returns how many changes went; 0 when there is nothing to do. ``recorded``:
    see ``cdc.compaction.merge.compact``. The files go with ``LogUpkeep.remove_replaced``."""
    if begin <= topic.kept_from:
        return 0
    gone = sum(closed.rows for closed in upkeep.ranges(topic.name) if closed.last < begin)
    upkeep.retire(topic.name, kept_from=begin, floor=max(begin, topic.floor), clean_from=max(begin, topic.clean_from))
    recorded()
    return gone
