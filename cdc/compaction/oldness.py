"""How far the changes of a topic are old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.compaction.ages import known
from cdc.log.contract import ClosedRange, LogReader, Topic
from cdc.model.position import Position
from cdc.replay.place import cut_before_time
from cdc.settings.models import Log

_HOUR_US: Final = 3_600_000_000


def old_upto(reader: LogReader, log: Log, topic: Topic, ranges: Sequence[ClosedRange], now_us: int, hours: float) -> int:
    """The topic's changes up to this position are that old; -1 where none is known to be. ``ranges``: those of its closed ones that the answer is for. Raises
    OSError.

    Counted back from the last commit, or from this machine's clock where that is earlier: so no clock that jumps ahead makes anything old by itself. The cuts of
    a derived topic's changes do not say when these came; ``cdc.compaction.ages`` does.
    """
    if topic.table.derived:
        if not hours:
            return reader.head().position
        ages = known(log.dir, reader)
        return -1 if ages is None else ages.upto(hours)
    time_us = min(now_us, reader.head().commit_ts_us) - int(hours * _HOUR_US)
    upto = cut_before_time(reader, time_us)
    # Halving finds one of the places where the time is crossed. Where the source's clock was set back for a while, young changes may stand before that place.
    for closed in ranges:
        if closed.last > upto:
            break
        if any(reader.cut_within(Position(at - 1), 1, 1).commit_ts_us >= time_us for at in (closed.first, closed.last)):
            return closed.first - 1
    return upto
