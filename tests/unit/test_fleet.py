"""The stores of one process, as their threads and their common reader see them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from cdc.errors import ConfigError, LogCorrupt, LogReplaced
from cdc.follow.fleet import Fleet
from cdc.follow.follower import Follower
from cdc.follow.storelog import StoreLog
from cdc.log.contract import LogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.position import Cut, Lsn, Position
from cdc.state import status, stops
from cdc.state.lease import Beat, Lease, LeaseHeld, path_of
from sinks import options_model
from tests.unit.log.changes import USERS, changes
from tests.unit.log.disks import QuickDisk

STORES = {name: options_model("console").model_validate({"kind": "console"}) for name in ("one", "two")}


started: list[str] = []
"""The stores whose threads were."""


class Thread:
    """A store's, which ends when a test says so."""

    made: ClassVar[list[Thread]] = []

    def __init__(self, follower: Follower, halt: threading.Event) -> None:
        self.store = follower.store
        self.halt = halt
        self.ended = False
        Thread.made.append(self)

    def start(self) -> None:
        started.append(self.store)

    def join(self) -> None: ...

    def check(self) -> None: ...


@pytest.fixture(autouse=True)
def _nothing_started() -> None:
    started.clear()
    Thread.made = []


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[LogReader]:
    with closing(EmbeddedLogWriter(tmp_path / "log", seal=False, disk=QuickDisk())) as writer:
        writer.append(changes(USERS, range(1, 100), width=1))
        writer.commit(Lsn(99), 0)
    with closing(open_reader(tmp_path / "log")) as made:
        yield made


def rows(reader: LogReader) -> int:
    return sum(len(batch) for batch in reader.read("public.users", Position(0), reader.head().position))


def put(path: Path, content: bytes) -> None:
    aside = path.with_suffix(".aside")
    aside.write_bytes(content)
    aside.replace(path)


def test_a_file_of_the_log_that_was_put_back_is_read_after_resume(tmp_path: Path, reader: LogReader) -> None:
    """No store may read while the reader lets go of the files that it holds open: the others pause for a moment."""
    [segment] = (tmp_path / "log").glob("topics/*/*.seg")
    whole = segment.read_bytes()
    put(segment, whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
    fleet.begin(STORES)
    try:
        one, two = Thread.made
        with pytest.raises(LogCorrupt) as damage:
            rows(reader)
        next(follower for follower in fleet.followers if follower.store == "one").fail(damage.value)
        fleet.adapt(STORES)
        assert not one.halt.is_set()
        put(segment, whole)
        stops.clear(tmp_path, "LOG_CORRUPT:follow-one")
        fleet.adapt(STORES)
        assert one.halt.is_set()
        assert two.halt.is_set()
        one.ended = True
        fleet.adapt(STORES)
        assert Thread.made == [one, two], "the other may still read"
        two.ended = True
        fleet.adapt(STORES)
        assert [thread.store for thread in Thread.made] == ["one", "two", "one", "two"]
        assert rows(reader) == 99
    finally:
        fleet.close()


def test_a_store_that_is_resumed_from_anything_else_is_opened_alone(tmp_path: Path, reader: LogReader) -> None:
    fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
    fleet.begin(STORES)
    try:
        one, two = Thread.made
        next(follower for follower in fleet.followers if follower.store == "one").fail(
            ConfigError("the key names a column that is gone")
        )
        stops.clear(tmp_path, "STORE_REFUSES")
        fleet.adapt(STORES)
        one.ended = True
        fleet.adapt(STORES)
        assert [thread.store for thread in Thread.made] == ["one", "two", "one"]
        assert not two.halt.is_set()
    finally:
        fleet.close()


def test_a_log_that_was_replaced_does_not_end_the_process(tmp_path: Path) -> None:
    """The process that follows all stores looks here, and an error would end it; each follower goes on with the other log by itself."""

    class Replaced(MemoryReader):
        def head(self) -> Cut:
            raise LogReplaced(tmp_path)

    reader = Replaced(MemoryLog())
    follower = Follower("twin", STORES["one"], tmp_path / "log", reader, tmp_path / "run", threading.Event())
    follower.status.state = "following"
    StoreLog(follower, reader).look(lambda: None)


def test_how_much_is_left_is_counted_once_the_store_has_said_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that it would be the whole log."""
    monkeypatch.setattr("cdc.follow.storelog.LOADING_ROWS", 10**9)  # positions are counted, not rows

    class Long(MemoryReader):
        def head(self) -> Cut:
            return Cut(Position(24_003), Lsn(1), 0)

    told = status.FollowerStatus("twin", state="starting")
    follower: Any = SimpleNamespace(
        store="twin", status=told, applied=Cut(Position(0), Lsn(0), 0), options=STORES["one"], history=""
    )
    lines = StoreLog(follower, Long(MemoryLog()))
    with capture_logs() as said:
        lines.look(lambda: None)
        told.state, follower.applied = "following", Cut(Position(24_002), Lsn(1), 0)
        lines.look(lambda: None)
    assert [line["event"] for line in said] == ["opened; follows"]


def test_it_stands_by_for_a_store_that_another_process_follows(tmp_path: Path, reader: LogReader) -> None:
    """What that one says of the store stays as it is; once it is gone, the store is followed here."""
    theirs = Lease(tmp_path / "log", "two")
    status.write(tmp_path, "follow-two", status.FollowerStatus("two", state="following", pid=1))
    said = (tmp_path / "status" / "follow-two.json").read_bytes()
    fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
    fleet.begin(STORES)
    try:
        fleet.adapt(STORES)
        fleet.look()
        fleet.report()
        assert [follower.store for follower in fleet.followers] == ["one"]
        assert (tmp_path / "status" / "follow-two.json").read_bytes() == said
        assert started == ["one"]
        theirs.close()
        fleet.adapt(STORES)
        assert [follower.store for follower in fleet.followers] == ["one", "two"]
        assert started == ["one", "two"]
    finally:
        fleet.close()


def test_nobody_stands_by_who_is_to_end(tmp_path: Path, reader: LogReader) -> None:
    with closing(Lease(tmp_path / "log", "two")):
        fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
        with pytest.raises(LeaseHeld, match="already follows store two"):
            fleet.begin(STORES, stand_by=False)
        Lease(tmp_path / "log", "one").close()


def test_one_that_was_replaced_stands_by(tmp_path: Path, reader: LogReader) -> None:
    fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
    fleet.begin(STORES)
    try:
        theirs = Lease(tmp_path / "log", "one", over=Beat.of(path_of(tmp_path / "log", "one")))
        one = next(follower for follower in fleet.followers if follower.store == "one")
        assert not one.start()
        assert one.lost
        assert Thread.made[0].halt.is_set(), "its thread ends"
        fleet.adapt(STORES)
        Thread.made[0].ended = True
        fleet.adapt(STORES)
        assert [follower.store for follower in fleet.followers] == ["two"]
        theirs.close()
        fleet.adapt(STORES)
        assert sorted(follower.store for follower in fleet.followers) == ["one", "two"]
    finally:
        fleet.close()


def test_a_store_that_is_taken_out_of_the_configuration_is_no_longer_stood_by_for(tmp_path: Path, reader: LogReader) -> None:
    fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, Thread)
    theirs = Lease(tmp_path / "log", "two")
    fleet.begin(STORES)
    try:
        left = {"one": STORES["one"]}
        fleet.adapt(left)
        theirs.close()
        fleet.adapt(left)
        assert [follower.store for follower in fleet.followers] == ["one"]
    finally:
        fleet.close()
