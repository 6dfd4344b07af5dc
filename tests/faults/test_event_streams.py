"""Whoever hands events on is killed, fails, or sleeps and wakes, at any step: each event stands in its stream exactly once, in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from cdc.crashpoint import CrashKind, armed
from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from sinks.events.redisstream import Options, channel
from tests import counters
from tests.conftest import Cache
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.faults import points
from tests.faults.points import EVERYTHING, broken_off

COMMITS: Final = 40
WITHIN_S: Final = 60.0


def write(folder: Path) -> list[str]:
    """A log of some transactions over two tables, one of which is emptied in between. Returns the ids that its events get."""
    with closing(EmbeddedLogWriter(folder / "log")) as log:
        for number in range(COMMITS):
            at = log.next_position
            log.append(batch(ORDERS, [(Op.INSERT, at, order(number)), (Op.UPDATE, at + 2, order(number, "paid"))]))
            log.append(batch(PAIRS, [(Op.INSERT, at + 1, {"a": str(number), "b": "é:", "v": None})]))
            if number % 10 == 5:
                log.append(batch(PAIRS, [(Op.TRUNCATE, at + 3, {})]))
            log.commit(Lsn(int(at) * 8 + 8), 0)
        return [f"{position}-0" for position in range(1, log.head.position + 1)]


def follow(folder: Path, options: Options) -> str | None:
    """To the log's head, in ranges of a few transactions. Returns what stopped it."""
    with closing(EmbeddedLogReader(folder / "log")) as reader:
        follower = Follower("bus", options, folder / "log", reader, folder / "run", threading.Event())
        try:
            follower.start()
            follower.follow_to(reader.head())
            return follower.status.stop
        finally:
            follower.close()
            follower.release_lease()


@pytest.fixture
def options(valkey: Cache, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(channel, "CALL_EVENTS", 4)
    return Options.model_validate({"kind": "redis-stream", "url": valkey.url, "begin": "start", "batch_rows": 30, "stream": "all"})


def stands(valkey: Cache) -> list[str]:
    with valkey.client(decode_responses=True) as client:
        return [place for place, _ in client.xrange("all")]


@pytest.mark.faults
@pytest.mark.parametrize("nth", [1, 2, 5] if EVERYTHING else [2])
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("events"))
def test_each_event_once(point: str, kind: CrashKind, nth: int, valkey: Cache, options: Options, tmp_path: Path) -> None:
    expected = write(tmp_path)
    nth = 1 if point.startswith("events.open") else nth
    broken_off(lambda: follow(tmp_path, options), point, kind, nth)
    assert follow(tmp_path, options) is None
    assert stands(valkey) == expected


@pytest.mark.faults
@pytest.mark.parametrize("point", ["events.deliver", "redisstream.sent", "events.before_cut"])
def test_a_writer_that_sleeps_adds_nothing_when_it_wakes(point: str, valkey: Cache, options: Options, tmp_path: Path) -> None:
    expected = write(tmp_path)
    mark = tmp_path / "asleep"
    pid = os.fork()
    if pid == 0:
        with armed(f"{point}=stop:3@{mark}"):
            follow(tmp_path, options)
        os._exit(0)
    try:
        deadline = time.monotonic() + WITHIN_S
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, f"{point} was not reached"
            time.sleep(0.02)
        assert mark.exists()
        before = stands(valkey)
        assert before != expected
        assert follow(tmp_path, options) is None
        assert stands(valkey) == expected
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        assert stands(valkey) == expected
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    counters.add("crash points", "stop")
