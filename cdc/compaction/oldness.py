"""How far the changes of a topic are old."""

from __future__ import annotations

from typing import Final

from cdc.compaction.ages import known
from cdc.log.contract import LogReader, Topic
from cdc.replay.place import cut_before_time
from cdc.settings.models import Log

_HOUR_US: Final = 3_600_000_000


def old_upto(reader: LogReader, log: Log, topic: Topic, now_us: int, hours: float) -> int:
    """The topic's changes up to this position are that old; -1 where none is known to be. Raises OSError.

    Counted back from the last commit, or from this machine's clock where that is earlier: so no clock that jumps ahead makes anything old by itself. The cuts of
    a derived topic's changes do not say when these came; ``cdc.compaction.ages`` does.
    """
    if topic.table.derived:
        if not hours:
            return reader.head().position
        ages = known(log.dir, reader)
        return -1 if ages is None else ages.upto(hours)
    end_us = min(now_us, reader.head().commit_ts_us)
    return cut_before_time(reader, end_us - int(hours * _HOUR_US))
