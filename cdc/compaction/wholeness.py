"""Topics of which the beginning is gone, and that were read again as a whole, or truncated, since: all that is there stands behind the record that emptied them.

Whoever begins at 0 may then read such a topic again. Until he has come behind that record he is loading, so the clean point moves there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from cdc.compaction.survivors import only_keys
from cdc.log.contract import ClosedRange, LogReader, LogUpkeep, Topic, present_history
from cdc.log.views import alone
from cdc.model.batch import first_position, is_truncate
from cdc.model.evolution import topic_change_of
from cdc.model.position import Position


class Emptied:
    """Where topics were emptied last, as far as that was looked for: in what is closed while this process runs, and in all that is left where somebody
    needs it."""

    def __init__(self, upkeep: LogUpkeep) -> None:
        self._upkeep = upkeep
        self._at: dict[str, int] = {}
        self._looked: dict[str, tuple[int, int]] = {}
        """Topic → in which ranges was looked: from the one that begins here, up to this position."""
        self._read: dict[str, int] = {}
        """Topic → up to where what is not closed was looked at."""

    def at(self, topic: str, *, everywhere: bool, go_on: Callable[[], None]) -> int:
        """The position of the last record that emptied the topic, in its closed ranges; 0 where none is known. ``go_on`` may raise whatever is to end this.
        Raises LogCorrupt, LogAway, OSError."""
        ranges = self._upkeep.ranges(topic)
        if not ranges:
            return 0
        begun, upto = self._looked.setdefault(topic, (ranges[-1].last + 1, ranges[-1].last))
        new = [one for one in ranges if one.last > upto]
        old = [one for one in ranges if one.first < begun] if everywhere and begun > ranges[0].first else []
        for closed in (*old, *new):
            self._at[topic] = max(self._at.get(topic, 0), self._last_in(closed, go_on))
        self._looked[topic] = (ranges[0].first if old else begun), ranges[-1].last
        return self._at.get(topic, 0)

    def in_newest(self, reader: LogReader, topic: Topic) -> bool:
        """Whether it was emptied in what is being written, since the last question. Raises LogCorrupt."""
        ranges = self._upkeep.ranges(topic.name)
        after = max(self._read.get(topic.name, 0), ranges[-1].last if ranges else topic.kept_from - 1)
        found = any(_empties(one) for one in reader.read(topic.name, Position(after), topic.last, present_history(reader)))
        self._read[topic.name] = topic.last
        return found

    def _last_in(self, closed: ClosedRange, go_on: Callable[[], None]) -> int:
        found = 0
        for batch in self._upkeep.batches(closed, only_keys):
            go_on()
            for one in alone(batch):
                if _empties(one):
                    found = first_position(one)
        return found


def _empties(batch: pa.RecordBatch) -> bool:
    change = topic_change_of(batch)
    return is_truncate(batch) or (change is not None and change.empties)


def made_whole(upkeep: LogUpkeep, topic: Topic, at: int, pins: Sequence[int], recorded: Callable[[], None]) -> bool:
    """Notes that the topic was emptied ``at`` this position, so that it can be read from 0 on, unless a store has yet to come there. ``pins``, ``recorded``: as in
    ``cdc.compaction.retention``."""
    behind = min((pin for pin in pins if pin + 1 >= topic.kept_from), default=at)
    if topic.whole or topic.kept_from <= 1 or not topic.kept_from <= at <= behind:
        return False
    upkeep.retire(topic.name, floor=topic.floor, clean_from=max(topic.clean_from, at + 1), whole=True)
    recorded()
    return True
