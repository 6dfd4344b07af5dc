"""What a follower says of itself before its store has been opened, and how far one request takes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc import status
from cdc.errors import StopState
from cdc.log.memory import MemoryLog
from cdc.log.names import Places
from cdc.log.reader import EmbeddedLogReader
from cdc.log.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn, Position
from cdc.spark.follower import Follower
from sinks import options_model
from sinks.memory import STORES, Options, Store
from tests.contract.rows import ORDERS, batch, order


@pytest.mark.parametrize(("kind", "position"), [("memory", 7), ("redis", 0)])
def test_until_the_store_is_opened_it_is_where_it_was_last_seen(tmp_path: Path, kind: str, position: int) -> None:
    status.write(
        tmp_path, "follow-twin", status.FollowerStatus("twin", kind, 1, "exited", position=7, commit_lsn=70, commit_ts_us=9)
    )
    options = options_model("memory").model_validate({"kind": "memory"})
    follower = Follower("twin", options, tmp_path, MemoryLog().reader(), tmp_path, threading.Event())
    follower.report()
    told = status.read_follower(tmp_path, "twin")
    assert told is not None
    assert (told.position, told.commit_lsn, told.state, told.written) == (position, position * 10, "starting", 0)


class _Gathering(Options):
    """Options of a store that likes few commits."""

    commit_interval_ms: int = 1000


@pytest.mark.parametrize(("gathers", "reached"), [(False, 2), (True, 1)])
def test_a_request_goes_on_with_what_comes_next_unless_the_store_gathers(tmp_path: Path, gathers: bool, reached: int) -> None:
    log = MemoryLog()
    writer = log.writer()
    cuts = []
    for position in (1, 2):
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        cuts.append(writer.commit(Lsn(position), position))
    options = _Gathering(kind="memory") if gathers else Options(kind="memory")
    follower = Follower(tmp_path.name.lower(), options, tmp_path, log.reader(), tmp_path, threading.Event())
    follower.follow_to(cuts[0])
    assert follower.applied == cuts[reached - 1]


def _log_with_an_old_head(folder: Path) -> list[Cut]:
    """As a power loss leaves it: the timeline is synced with each commit, the head is not."""
    writer, head, cuts = EmbeddedLogWriter(folder), Places(folder).head, []
    for position in (1, 2):
        older = head.read_bytes()
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position, "new"))]))
        cuts.append(writer.commit(Lsn(position), position))
    writer.close()
    head.write_bytes(older)
    return cuts


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_after_a_power_loss_a_follower_waits_until_the_head_is_what_the_timeline_says(tmp_path: Path) -> None:
    cuts = _log_with_an_old_head(tmp_path / "log")
    STORES["ahead"] = Store(applied=cuts[1])
    stop = threading.Event()
    follower = Follower("ahead", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path, stop)
    starting = threading.Thread(target=follower.start)
    starting.start()
    try:
        _until(lambda: follower.status.state in {"waiting", "stopped"})
        assert follower.status.state == "waiting"
        EmbeddedLogWriter(tmp_path / "log").close()
        _until(lambda: follower.applied == cuts[1])
    finally:
        stop.set()
        starting.join()
    assert not follower.stopped


def test_a_store_that_knows_more_than_the_log_stops_its_follower(tmp_path: Path) -> None:
    _log_with_an_old_head(tmp_path / "log")
    STORES["beyond"] = Store(applied=Cut(Position(3), Lsn(3)))
    follower = Follower(
        "beyond", Options(kind="memory"), tmp_path / "log", EmbeddedLogReader(tmp_path / "log"), tmp_path, threading.Event()
    )
    assert not follower.start()
    assert follower.status.stop == StopState.DIVERGED
