"""The writer of a Kafka store is killed, sleeps and wakes, or the broker is killed, at any step: whoever reads what was committed sees each event once, and those of a key in
order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.crashpoint import KILLED, armed, decided_by
from cdc.embedded.kafka import Kafka
from cdc.model.batch import Op
from sinks.contract import EpochPassed
from tests import counters
from tests.contract.rows import ORDERS, batch, order
from tests.faults import points
from tests.faults.points import EVERYTHING, killed
from tests.integration.test_event_messages import Stage
from tests.logs import cut

POINTS = points.of("kafka")
CHANGES = 60
KEYS = 7
REPLACED = 7
"""The exit code of a writer that was told that it was replaced."""


@pytest.fixture(scope="module")
def crashing(server_folder: Path) -> Iterator[Kafka]:
    server = Kafka(server_folder / "kafka-crashing")
    server.start()
    yield server
    server.stop()


def fill(stage: Stage, first: int, count: int) -> None:
    for at in range(first, first + count, 5):
        stage.put(batch(ORDERS, [(Op.UPDATE, one, order(one % KEYS, str(one))) for one in range(at, at + 5)]))


def check(stage: Stage, count: int) -> None:
    """Each change once, and those of a key in order."""
    found = stage.statuses()
    assert sorted(position for position, _ in found) == list(range(1, count + 1))
    assert all(status == str(position) for position, status in found)
    by_key: dict[int, list[int]] = defaultdict(list)
    for position, _ in found:  # partition by partition, as they stand there
        by_key[position % KEYS].append(position)
    assert all(positions == sorted(positions) for positions in by_key.values())


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_the_writer_is_killed(point: str, kafka: Kafka, tmp_path: Path) -> None:
    stage = Stage(kafka, tmp_path)
    fill(stage, 1, CHANGES)
    for nth in (1, 2) if EVERYTHING and point != "kafka.begun" else (1,):
        assert killed(lambda: stage.follow(partitions=3, batch_rows=10), f"{point}=kill:{nth}") == KILLED
        counters.add("crash points", "kill")
    assert stage.follow(partitions=3).applied == stage.log.head
    check(stage, CHANGES)


@pytest.mark.faults
@pytest.mark.parametrize("point", [one for one in POINTS if one != "kafka.committed"] if EVERYTHING else ["kafka.before_commit"])
def test_the_writer_sleeps_while_another_takes_over(point: str, kafka: Kafka, tmp_path: Path) -> None:
    stage = Stage(kafka, tmp_path)
    rows = batch(ORDERS, [(Op.UPDATE, one, order(one % KEYS, str(one))) for one in range(1, 11)])
    stage.put(rows)
    mark = tmp_path / "asleep"

    def write() -> None:
        code = 0
        with armed(f"{point}=stop:{2 if point == 'kafka.before_commit' else 1}@{mark}"):
            try:
                sink = stage.opened(1, partitions=3)
                sink.apply(rows)
                sink.commit(cut(10))
            except EpochPassed:
                code = REPLACED
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    try:
        while not mark.exists():
            assert process.is_alive()
            time.sleep(0.01)
        later = stage.opened(2, partitions=3)
        later.apply(rows)
        later.commit(cut(10))
        os.kill(process.pid or 0, signal.SIGCONT)
        process.join(120)
        assert process.exitcode == REPLACED
        assert later.applied() == cut(10)
        later.close()
    finally:
        process.kill()
        process.join()
    check(stage, 10)


class CrashingBroker:
    """Kills the broker when a point is reached for the nth time, and starts it again a moment later."""

    def __init__(self, broker: Kafka, point: str, nth: int) -> None:
        self._broker = broker
        self._point = point
        self._left = nth
        self._starting: threading.Thread | None = None

    def reach(self, name: str) -> None:
        if name != self._point:
            return
        self._left -= 1
        if self._left == 0:
            self._broker.crash()
            self._starting = threading.Thread(target=self._broker.start)
            self._starting.start()

    def join(self) -> None:
        assert self._starting is not None, f"{self._point} was not reached"
        self._starting.join()


@pytest.mark.faults
@pytest.mark.skipif(not EVERYTHING, reason="make faults")
@pytest.mark.parametrize(
    "point", [one for one in POINTS if one != "kafka.begun"]
)  # a follower that could not open waits for its next turn
def test_the_broker_is_killed(point: str, crashing: Kafka, tmp_path: Path) -> None:
    stage = Stage(crashing, tmp_path)
    fill(stage, 1, CHANGES)
    crash = CrashingBroker(crashing, point, 2)
    with decided_by(crash):
        assert stage.follow(partitions=3, batch_rows=10, timeout_s=5).applied == stage.log.head
        crash.join()
    check(stage, CHANGES)
