"""What the compacting thread does, between two steps of everybody else; its commits are the writer's."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.log.contract import Topic
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Position
from tests.sim.checker import Checker
from tests.sim.course import Course

MEMORY_BYTES = 2_000


class Compactor:
    def __init__(self, course: Course, log: EmbeddedLogReader, checker: Checker) -> None:
        self._course = course
        self._log = log
        self._checker = checker

    def step(self, writer: EmbeddedLogWriter, pins: Sequence[int]) -> None:
        """Compacts every topic as far as the stores at ``pins`` allow, unless a transaction is half appended. Raises OSError, Died."""
        if writer.next_position != writer.head.position + 1:
            return
        chance = self._course.chance
        _record(writer)  # what a refused commit has left waiting
        for topic in self._log.topics():
            head = writer.head.position
            settled = Settled(*(chance.choice((head, chance.randrange(head + 1))) for _ in range(2)))
            self._compact(writer, topic, settled, pins)
        if chance.random() < 0.7:
            writer.upkeep.remove_replaced()
        self._checker.reread(self._log)

    def _compact(self, writer: EmbeddedLogWriter, topic: Topic, settled: Settled, pins: Sequence[int]) -> None:
        holding = [self._log.last_change(topic.name, Position(pin)) if pin else 0 for pin in pins]
        now = TopicPoints(topic.clean_from, topic.floor)
        points = bounds(writer.upkeep.ranges(topic.name), settled, holding, now)
        clean, floors = self._checker.clean, self._checker.floors
        clean[topic.name] = max(points.clean_from, clean.get(topic.name, 0))
        floors[topic.name] = max(points.floor, floors.get(topic.name, 0))
        done = compact(
            writer.upkeep,
            topic.name,
            points,
            lambda: _record(writer),
            at_least=0.0,
            target_bytes=self._course.ways.segment_bytes,
            memory_bytes=MEMORY_BYTES,
        )
        if done.dropped:
            self._course.counts["changes compacted away"] += done.dropped
            self._course.say(f"compacted {topic.name} below {points.clean_from}: {done.dropped} of {done.read} went")


def _record(writer: EmbeddedLogWriter) -> None:
    writer.commit()
