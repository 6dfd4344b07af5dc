"""The power goes somewhere in a run with compactions; readers that come before the writer, and those after it, find everything that was promised."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.errors import LogCorrupt
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import table_of
from cdc.model.position import Lsn, Position
from tests.unit.log.compaction.test_merge import SEGMENT_BYTES, TINY, TOPIC, live, until
from tests.unit.log.disks import Crash, CrashDisk, Loss, QuickDisk
from tests.unit.log.test_crash import seal_closed
from tests.unit.sinks.test_past import History, folded

POINTS = 25
"""The number of operations at which the power goes, chosen anew in each run."""


@dataclass
class Course:
    """What happened before the power went."""

    batches: list[pa.RecordBatch]
    head: int = 0
    clean_from: int = 0
    dropped: int = 0
    cuts: list[int] = field(default_factory=list)


def compact_some(writer: EmbeddedLogWriter, reader: EmbeddedLogReader, course: Course, *, forget: bool) -> None:
    topic = next(one for one in reader.topics() if one.name == TOPIC)
    now = TopicPoints(topic.clean_from, topic.floor)
    head = reader.head().position
    points = bounds(writer.upkeep.ranges(TOPIC), Settled(head, head if forget else 0), [], now)
    course.clean_from = max(course.clean_from, points.clean_from)
    done = compact(writer.upkeep, TOPIC, points, writer.commit, at_least=0.0, target_bytes=SEGMENT_BYTES, memory_bytes=TINY)
    course.dropped += done.dropped
    writer.upkeep.remove_replaced()


def script(disk: CrashDisk, course: Course) -> None:
    writer = EmbeddedLogWriter(disk.root, segment_bytes=SEGMENT_BYTES, seal=False, disk=disk)
    try:
        for number, one in enumerate(course.batches, 1):
            writer.append(one)
            course.head = writer.commit(Lsn(number), number).position
            course.cuts.append(course.head)
            if number % (len(course.batches) // 3) == 0:
                seal_closed(disk, SEGMENT_BYTES)
                with closing(EmbeddedLogReader(disk.root)) as reader:
                    compact_some(writer, reader, course, forget=number > len(course.batches) // 2)
    finally:
        writer.close()


def ran_until(crash_at: int, root: Path, chance: random.Random, batches: list[pa.RecordBatch]) -> tuple[CrashDisk, Course]:
    disk, course = CrashDisk(root, crash_at, chance), Course(batches)
    try:
        script(disk, course)
    except Crash:
        pass
    return disk, course


def everything_is_there(root: Path, course: Course) -> None:
    with closing(EmbeddedLogReader(root)) as reader:
        head = reader.head().position
        if not head:
            return
        mine = [one for one in until(course.batches, head) if table_of(one.schema).qualified == TOPIC]
        topic = next((one for one in reader.topics() if one.name == TOPIC), None)
        if topic is None:
            assert not mine
            return
        rows = list(reader.read(TOPIC, Position(0), Position(head)))
        assert folded(rows, head) == folded(mine, head)
        if head >= course.clean_from - 1:
            assert live(reader, head) == folded(mine, head)


@pytest.mark.parametrize("loss", ["lost", "kept", "torn"])
def test_nothing_is_lost_with_the_power(quick_folder: Path, loss: Loss, seed: int) -> None:
    history = History(random.Random(seed), length=200)
    whole, course = ran_until(10**9, quick_folder / "whole", random.Random(0), history.batches)
    everything_is_there(quick_folder / "whole", course)
    assert course.dropped > 0, "nothing was compacted"
    chance = random.Random(f"{seed}:{loss}")
    for crash_at in sorted(chance.sample(range(1, whole.operations + 1), min(POINTS, whole.operations))):
        print(f"seed {seed}, operation {crash_at}")
        disk, course = ran_until(crash_at, quick_folder / f"before-{crash_at}", chance, history.batches)
        root = quick_folder / f"after-{crash_at}"
        disk.after_power_loss(root, loss)
        try:
            everything_is_there(root, course)  # for whoever reads before a writer has been there
        except LogCorrupt as error:
            assert "starting capture writes it again" in str(error)  # noqa: PT017
        with closing(EmbeddedLogWriter(root, segment_bytes=SEGMENT_BYTES, disk=QuickDisk())) as writer:
            assert writer.head.position >= course.head
            everything_is_there(root, course)
            writer.drain_seals()
            with closing(EmbeddedLogReader(root)) as reader:
                if any(topic.name == TOPIC for topic in reader.topics()):
                    compact_some(writer, reader, course, forget=True)
            everything_is_there(root, course)
            assert not list(root.rglob(".aside-*.parquet"))
