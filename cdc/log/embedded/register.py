"""The next entry of the timeline, beside where its changes lie: new topics, new producers, marks, and what was dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cdc.log.embedded.disk import Disk
from cdc.log.embedded.producers import Producers
from cdc.log.embedded.records import GroupEntry, GroupPart, NewProducer, NewTopic
from cdc.log.embedded.tail import OpenTopic, Staged
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.upkeep import EmbeddedUpkeep
from cdc.model.position import Cut


class Register:
    def __init__(self, folder: Path, source: str, timeline: Timeline, disk: Disk, check_place: Callable[[], None]) -> None:
        """Raises ConfigError when the log was filled from another source."""
        self.producers = Producers(source, timeline)
        self.upkeep = EmbeddedUpkeep(folder, disk, check_place)

    @property
    def waiting(self) -> bool:
        """Whether there is something to record also without changes."""
        return self.producers.staged or self.upkeep.waiting()

    def entry(self, staged: Staged, first: int, cut: Cut, epoch: int) -> GroupEntry:
        """The entry of the group that begins at position ``first`` and ends at the cut."""
        producers, marks = self.producers.entries([topic.producer for topic in staged.named] if staged.named else ())
        replaced, retired = self.upkeep.handed_over() if self.upkeep.waiting() else ((), ())
        return GroupEntry(
            first=first,
            last=cut.position,
            commit_lsn=cut.commit_lsn,
            commit_ts_us=cut.commit_ts_us,
            epoch=epoch,
            names=self._names(staged.named, producers) if staged.named else (),
            parts=tuple(
                GroupPart(part.topic.number, part.segment, part.start, part.end, part.last, part.rows, part.seed, part.chain)
                for part in staged.parts
            ),
            producers=producers,
            marks=marks,
            replaced=replaced,
            retired=retired,
        )

    def _names(self, topics: Sequence[OpenTopic], new: Sequence[NewProducer]) -> tuple[NewTopic, ...]:
        numbers = {name: number for number, name in new}
        return tuple(
            NewTopic(topic.number, topic.name, numbers.get(topic.producer) or self.producers.number(topic.producer))
            for topic in topics
        )

    def recorded(self, group: GroupEntry) -> None:
        """Takes note that the group is durable."""
        if group.producers or group.marks:
            self.producers.recorded(group.producers)
        if group.replaced or group.retired:
            self.upkeep.recorded(group.replaced, group.retired)
