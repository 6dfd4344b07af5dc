"""Waiting on an in-memory log and status files: who is waited for, and what is said when it takes too long."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc.client import wait as waiting
from cdc.client.api import Client
from cdc.client.wait import judge, parse_wanted, target_of, wait
from cdc.clock import MACHINE
from cdc.errors import ConfigError, Stopped, StopState, StoreError, WaitTimeout
from cdc.follow.reporter import Reporter, written
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.log.memory import MemoryLog
from cdc.model.batch import batch_schema
from cdc.model.position import ZERO_CUT, Lsn, Position
from cdc.model.table import Column, Table
from cdc.report.collector import lag_of
from cdc.settings.models import Log, Settings, Source, StoreOptions
from cdc.state import jsonfile, status, stops
from cdc.state.filewatch import Watch
from sinks.contract import Outcome, Traits
from tests.sim.clock import Clock
from tests.unit.log.changes import ORDERS, changes

TABLE = Table(1, "public", "t", (Column("id", 23, key=True),))
OTHER = Table(2, "public", "other", (Column("id", 23, key=True),))


def settings(tmp_path: Path) -> Settings:
    made = Settings(source=Source(dsn=SecretStr("postgresql://127.0.0.1:1/none")), run_dir=tmp_path)
    return made.model_copy(update={"stores": {"cache": StoreOptions(kind="redis")}})


def committed(log: MemoryLog, *lsns: int, table: Table = TABLE) -> None:
    writer = log.writer()
    for lsn in lsns:
        row = {
            "_cdc_position": writer.next_position,
            "_cdc_op": ord("c"),
            "_cdc_lsn": lsn,
            "_cdc_ts": None,
            "_cdc_exact": None,
            "id": lsn,
        }
        writer.append(pa.RecordBatch.from_pylist([row], schema=batch_schema(table)))
        writer.commit(Lsn(lsn), lsn * 1_000_000)


def captured(tmp_path: Path, lsn: int = 0, complete: int | None = 0) -> None:
    status.write(tmp_path, "capture", status.CaptureStatus(received_lsn=lsn, complete_position=complete))


def applied(tmp_path: Path, position: int, **more: Any) -> None:
    """A follower that follows, unless it is said to be otherwise, has got this far."""
    told = {"pid": os.getpid(), "state": "following", "said_at": time.monotonic(), **more}
    status.write(tmp_path, "follow-cache", status.FollowerStatus("cache", position=position, **told))


@pytest.mark.parametrize(
    ("target", "applied_position", "done", "why", "held_up"),
    [
        (None, 5, False, "capture lags: it has received 0/64, 100 bytes before 0/C8", None),
        (7, None, False, "follower cache has never run", None),
        ("loading", 5, False, "rows are still being read from the tables into the log", None),
        (7, 5, False, "follower cache lags: it has applied position 5 of 7, 2 changes behind", None),
        (7, 7, True, "", None),
        (7, 9, True, "", None),
        (0, None, False, "follower cache has never run", None),
        (0, 0, True, "", None),
        (0, 0, False, "follower cache does not run", "does not run"),
        (7, 9, False, "follower cache waits for its store: it was flushed", "waits for its store: it was flushed"),
        (
            7,
            5,
            False,
            "follower cache lags: it has applied position 5 of 7, 2 changes behind",
            "waits for its store: it was flushed",
        ),
    ],
)
def test_every_answer(target: int | str | None, applied_position: int | None, done: bool, why: str, held_up: str | None) -> None:
    awaited = judge(
        "cache",
        Lsn(200),
        Position(target) if isinstance(target, int) else None,
        Lsn(200 if target == "loading" else 100),
        None if applied_position is None else Position(applied_position),
        held_up,
    )
    assert (awaited.done, awaited.why) == (done, why)


def test_the_target_is_the_first_cut_that_reaches_the_lsn_else_the_head() -> None:
    log = MemoryLog()
    committed(log, 100, 200, 300)
    reader = log.reader()
    for lsn, received, complete, target in (
        (150, 0, 0, 2),
        (200, 0, 1, 2),
        (200, 0, 3, 3),
        (200, 400, None, None),
        (301, 300, 0, None),
        (301, 301, 0, 3),
    ):
        cut = reader.cut_at_lsn(Lsn(lsn))
        found = target_of(reader, cut, Lsn(lsn), Lsn(received), None if complete is None else Position(complete))
        assert found == target, (lsn, received, complete)


@pytest.mark.parametrize(
    ("told", "why", "hint"),
    [
        (
            {"state": "waiting", "error": "store cache has lost something"},
            "follower cache waits for its store: store cache has lost something",
            "cdc status",
        ),
        ({"state": "waiting"}, "follower cache waits for its store: it does not answer", "cdc status"),
        ({"state": "starting"}, "follower cache is starting: it has not looked at its store yet", "cdc status"),
        ({"state": "exited"}, "follower cache is exited", "cdc status"),
        ({"state": "stopped", "error": "DIVERGED"}, "follower cache is stopped: DIVERGED", "cdc status"),
        ({"state": "exited", "pid": 2**22 + 1}, "follower cache does not run", "cdc run"),
        ({"pid": 2**22 + 1}, "follower cache does not run", "cdc run"),
        ({"said_at": float("inf")}, "follower cache has reported nothing since this machine started", "cdc status"),
    ],
)
def test_only_a_follower_that_follows_vouches_for_its_store(tmp_path: Path, told: dict[str, Any], why: str, hint: str) -> None:
    """What it last said of its store may be of before the store was flushed."""
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    applied(tmp_path, 1, **told)
    with pytest.raises(WaitTimeout, match=f"^cache does not show 0/64 after .* s: {why}$") as caught:
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.01)
    assert (caught.value.exit_code, caught.value.hint) == (3, hint)
    applied(tmp_path, 1)
    assert wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=60).position == 1


def test_a_stopped_store_is_not_said_to_be_there_either(tmp_path: Path) -> None:
    """Whatever its follower said last: the stop is recorded first."""
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    applied(tmp_path, 1)
    stops.record(tmp_path, "follow-cache", Stopped(StopState.STORE_REFUSES, "everything"))
    with pytest.raises(Stopped, match="STORE_REFUSES") as caught:
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=60)
    assert caught.value.exit_code == 4


def test_a_restarted_follower_is_waited_for_until_it_has_looked_at_its_store(tmp_path: Path) -> None:
    """The store was flushed while nobody followed it: until the follower knows, it shows where it was last seen."""
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    applied(tmp_path, 1)
    reporter = Reporter(tmp_path, "cache", "", MACHINE, written)
    reporter.report()
    assert reporter.status.position == 1

    def late(why: str) -> None:
        with pytest.raises(WaitTimeout, match=why):
            wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.01)

    late("is starting")
    reporter.found(ZERO_CUT)
    late("lags: it has applied position 0 of 1")
    reporter.following()
    late("lags: it has applied position 0 of 1")
    reporter.committed(log.head, Outcome(1))
    assert wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=60).position == 1


def test_a_store_that_could_never_be_opened_stands_still_since_it_was_first_tried(tmp_path: Path) -> None:
    """Else what it holds back in the log would be held back for ever by whoever starts it again often enough."""
    first = Reporter(tmp_path, "cache", "", MACHINE, written)
    first.report()
    assert time.time() - 60 < first.status.moved_at <= time.time()
    again = Reporter(tmp_path, "cache", "", MACHINE, written)
    assert again.status.moved_at == first.status.moved_at


def test_time_passes_by_the_clock_that_is_passed_in(tmp_path: Path) -> None:
    class Hasty(Clock):
        def monotonic(self) -> float:
            self.now += 1_000
            return self.now

    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    applied(tmp_path, 0)
    with pytest.raises(WaitTimeout, match="does not show"):
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=1_500, clock=Hasty())


def test_returns_when_the_store_gets_there(tmp_path: Path) -> None:
    log = MemoryLog()
    captured(tmp_path)
    applied(tmp_path, 0)

    def world() -> None:
        time.sleep(0.05)
        committed(log, 100, 200)
        applied(tmp_path, 1)
        time.sleep(0.05)
        applied(tmp_path, 2)

    moving = threading.Thread(target=world)
    moving.start()
    waited = wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(200), timeout_s=60)
    moving.join()
    assert (waited.position, waited.lsn) == (2, 200)
    assert 0 <= waited.seconds < 60


def test_what_was_there_before_the_slot_must_be_loaded(tmp_path: Path) -> None:
    log = MemoryLog()
    committed(log, 100)
    captured(tmp_path, 5000, complete=None)
    applied(tmp_path, 1)
    with pytest.raises(WaitTimeout, match="rows are still being read"):
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.05)


def test_a_cut_that_lacks_rows_is_not_taken_for_one_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture says what a cut lacks before the cut can be seen, and may do both while somebody who waits reads one and then the other."""
    log = MemoryLog()
    captured(tmp_path)
    applied(tmp_path, 1)
    plain = status.read_capture

    def meanwhile(run_dir: Path) -> status.CaptureStatus | None:
        said = plain(run_dir)
        if log.head == ZERO_CUT:
            captured(tmp_path, complete=None)
            committed(log, 100)
        return said

    monkeypatch.setattr(status, "read_capture", meanwhile)
    with pytest.raises(WaitTimeout, match="rows are still being read"):
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.05)


def test_an_idle_streams_keepalive_is_enough(tmp_path: Path) -> None:
    log = MemoryLog()
    committed(log, 100)
    captured(tmp_path, 5000)
    applied(tmp_path, 1)
    assert wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(4000), timeout_s=60).position == 1


def test_a_timeout_says_who_lags(tmp_path: Path) -> None:
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    with pytest.raises(WaitTimeout, match=r"follower cache has never run") as caught:
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.01)
    assert caught.value.exit_code == 3


def test_a_timeout_names_a_part_that_does_not_run(tmp_path: Path) -> None:
    def late() -> WaitTimeout:
        with pytest.raises(WaitTimeout) as caught:
            wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.01)
        return caught.value

    log = MemoryLog()
    assert "capture has never run" in str(late())
    status.write(tmp_path, "capture", status.CaptureStatus(pid=2**22 + 1, complete_position=0))
    found = late()
    assert "capture lags" in str(found)
    assert "capture does not run" in str(found)
    assert found.hint == "cdc run"
    status.write(tmp_path, "capture", status.CaptureStatus(pid=os.getpid(), complete_position=0))
    assert "does not run" not in str(late())


def test_a_stop_state_ends_the_waiting(tmp_path: Path) -> None:
    stops.record(tmp_path, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    with pytest.raises(Stopped, match="SLOT_LOST"):
        wait(settings(tmp_path), MemoryLog().reader(), "cache", lsn=Lsn(100), timeout_s=10)


def test_a_stop_state_of_another_part_does_not(tmp_path: Path) -> None:
    stops.record(tmp_path, "follow-search", Stopped(StopState.STORE_REFUSES, "everything"))
    with pytest.raises(WaitTimeout):
        wait(settings(tmp_path), MemoryLog().reader(), "cache", lsn=Lsn(100), timeout_s=0.05)


class Shelf:
    """A store that shows nothing before it is refreshed, and has its moods. Only what a wait needs of one."""

    def __init__(self, *refusals: StoreError) -> None:
        self.refusals = list(refusals)
        self.closed = 0

    def open(self, _reader: Any) -> None:
        pass

    def make_visible(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    monkeypatch.setattr(waiting, "make_sink", lambda *_: shelf)
    monkeypatch.setattr(waiting, "traits_of", lambda _: Traits(refreshes=True))
    monkeypatch.setattr(waiting, "REFRESH_AGAIN_S", 0.001)
    return shelf


def shown_at_once(tmp_path: Path, timeout_s: float) -> waiting.Waited:
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    applied(tmp_path, 1)
    return wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=timeout_s)


def test_a_store_that_is_too_busy_to_refresh_is_asked_again(tmp_path: Path, shelf: Shelf) -> None:
    shelf.refusals = [StoreError("429 circuit_breaking_exception", retryable=True)] * 2
    assert shown_at_once(tmp_path, 60).position == 1
    assert shelf.closed == 3


def test_a_store_that_stays_too_busy_to_refresh_is_named_in_time(tmp_path: Path, shelf: Shelf) -> None:
    shelf.refusals = [StoreError("429 circuit_breaking_exception", retryable=True, hint="more heap")] * 100_000
    with pytest.raises(WaitTimeout, match=r"cache does not show 0/64 after 0.05 s: 429 circuit_breaking") as late:
        shown_at_once(tmp_path, 0.05)
    assert late.value.hint == "more heap"


def test_a_store_that_refuses_for_good_is_not_asked_again(tmp_path: Path, shelf: Shelf) -> None:
    shelf.refusals = [StoreError("403 no permissions", retryable=False)]
    with pytest.raises(StoreError, match="403"):
        shown_at_once(tmp_path, 60)
    assert shelf.closed == 1


def test_an_unknown_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store 'search'"):
        wait(settings(tmp_path), MemoryLog().reader(), "search", lsn=Lsn(1))


def test_lsns_as_users_write_them() -> None:
    assert parse_wanted("16/B374D848") == 0x16_B374D848
    with pytest.raises(ConfigError, match="is not an LSN"):
        parse_wanted("yesterday")


def test_lag_counts_the_stores_own_tables_only() -> None:
    log = MemoryLog()
    committed(log, 100, 200)
    committed(log, 300, 400, table=OTHER)
    reader = log.reader()
    head = reader.head()
    lag = lag_of(reader, head, Position(1), ["public.t"], now=210.0)
    assert (lag.changes, lag.seconds) == (1, 10.0)
    assert lag.bytes > 0
    assert lag_of(reader, head, Position(1), ["*"], now=210.0).changes == 3
    assert lag_of(reader, head, Position(2), ["public.t"], now=210.0).changes == 0
    assert lag_of(reader, head, head.position, ["*"], now=210.0).seconds == 0


class Looks:
    """How often a follower's status file is read by who waits, which is this thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        plain, waits = status.read_follower, threading.get_ident()

        def counted(run_dir: Path, store: str) -> status.FollowerStatus | None:
            self.count += threading.get_ident() == waits
            return plain(run_dir, store)

        monkeypatch.setattr(status, "read_follower", counted)


@pytest.fixture
def watched(tmp_path: Path) -> None:
    """Only where the system tells of files at all: each user has but so many watches."""
    with closing(Watch(tmp_path)) as watch:
        if watch.blind:
            pytest.skip("the system has no watch left")


def embedded(tmp_path: Path) -> tuple[Settings, EmbeddedLogWriter]:
    made = settings(tmp_path / "run").model_copy(update={"log": Log(dir=tmp_path / "log")})
    writer = EmbeddedLogWriter(made.log.dir)
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(100), 0)
    captured(made.run_dir)
    applied(made.run_dir, 0)
    return made, writer


@pytest.mark.usefixtures("watched")
def test_who_waits_looks_only_when_something_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, writer = embedded(tmp_path)
    looks = Looks(monkeypatch)
    with closing(open_reader(made.log.dir)) as reader, pytest.raises(WaitTimeout):
        wait(made, reader, "cache", lsn=Lsn(100), timeout_s=1.0)
    assert looks.count < 10
    writer.close()


def test_who_waits_is_woken_by_the_log_and_by_the_follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WATCHED_S", 3600.0)
    made, writer = embedded(tmp_path)
    looks = Looks(monkeypatch)

    def world() -> None:
        for position in (2, 3):
            seen, deadline = looks.count, time.monotonic() + 60
            while looks.count == seen and time.monotonic() < deadline and position == 2:
                time.sleep(0.001)  # until it waits
            writer.append(changes(ORDERS, [position]))
            writer.commit(Lsn(100 * position), 0)
        applied(made.run_dir, 3)

    moving = threading.Thread(target=world)
    moving.start()
    with closing(open_reader(made.log.dir)) as reader:
        assert wait(made, reader, "cache", lsn=Lsn(300), timeout_s=600).position == 3
    moving.join()
    writer.close()


def test_where_nothing_can_be_watched_the_pauses_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    with pytest.raises(WaitTimeout):
        wait(settings(tmp_path), MemoryLog().reader(), "cache", lsn=Lsn(100), timeout_s=1.0)
    assert looks.count < 40


def test_a_client_that_waits_again_and_again_keeps_nothing_open(tmp_path: Path) -> None:
    made, writer = embedded(tmp_path)
    applied(made.run_dir, 1)
    client = Client(made, lambda: open_reader(made.log.dir))
    client.wait("cache", 100)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        client.wait("cache", 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    writer.close()


def test_another_versions_status_is_read_as_far_as_it_is_known_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "status"
    captured(tmp_path, 5000)
    raw = jsonfile.decode((folder / "capture.json").read_bytes())
    raw |= {"wal_archived": 7, "pid": os.getpid(), "changes": "many"}
    raw["snapshot"] = [{"table": "public.t", "done": 1, "total": 2, "finished": False, "eta_s": 9}, "?"]
    del raw["wire_bytes"]
    jsonfile.write(folder / "capture.json", raw)
    told = status.read_capture(tmp_path)
    assert told is not None
    assert (told.received_lsn, told.changes, told.snapshot[0].table) == (5000, 0, "public.t")
    assert sorted(told.foreign) == ["changes", "snapshot.", "snapshot.eta_s", "wal_archived", "wire_bytes"]
    assert "capture runs another version" in (status.other_version(told, "capture") or "")
    applied(tmp_path, 1)
    raw = jsonfile.decode((folder / "follow-cache.json").read_bytes())
    jsonfile.write(folder / "follow-cache.json", {**raw, "epoch": 3})
    log = MemoryLog()
    committed(log, 100)
    assert wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(4000), timeout_s=60).position == 1
    with pytest.raises(WaitTimeout) as caught:
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(9000), timeout_s=0.01)
    assert caught.value.hint == "restart cdc run: capture runs another version of Headwater than this"
    status.write(tmp_path, "supervisor", status.SupervisorStatus(processes=[status.ProcessStatus("capture")]))
    raw = jsonfile.decode((folder / "supervisor.json").read_bytes())
    jsonfile.write(folder / "supervisor.json", {**raw, "processes": 7})
    supervisor = status.read_supervisor(tmp_path)
    assert supervisor is not None
    assert supervisor.foreign == ["processes"]
