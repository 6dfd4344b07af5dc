"""What the threads that compact the log and make states of its topics do, between two steps of everybody else; commits are the writer's."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.log.contract import Topic
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import EmbeddedStates, whole
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Position
from sinks.past import condensed
from tests.sim.checker import Checker
from tests.sim.course import Course
from tests.sim.disk import ModelDisk

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


class StateMaker:
    def __init__(self, course: Course, log: EmbeddedLogReader, disk: ModelDisk) -> None:
        self._course = course
        self._log = log
        self._states = EmbeddedStates(disk.root, log, disk, file_bytes=2_000)

    def step(self) -> None:
        """Makes a state of one of the topics that have lost nothing, whether or not it is worth its room. Raises OSError, Died."""
        topics = [topic for topic in self._log.topics() if whole(topic)]
        if not topics:
            return
        topic, cut = self._course.chance.choice(topics).name, self._log.head().position
        self._states.tidy(topic)
        with condensed(self._log, topic, cut, memory_bytes=MEMORY_BYTES) as found:
            made = self._states.keep(topic, cut, found.rows, found.batches)
        self._course.counts["states made"] += 1
        self._course.say(f"made a state of {topic} at {cut}: {made.rows} changes")
