"""Waiting on an in-memory log and status files: who is waited for, and what is said when it takes too long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc import status, stops
from cdc.errors import ConfigError, Stopped, StopState, WaitTimeout
from cdc.gathering import lag_of
from cdc.log.memory import MemoryLog
from cdc.model.batch import batch_schema
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.settings import Settings, Source, StoreOptions
from cdc.waiting import judge, parse_wanted, target_of, wait

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


def applied(tmp_path: Path, position: int) -> None:
    status.write(tmp_path, "follow-cache", status.FollowerStatus("cache", position=position))


@pytest.mark.parametrize(
    ("target", "applied_position", "done", "why", "waits_for"),
    [
        (None, 5, False, "capture lags: it has received 0/64, 100 bytes before 0/C8", None),
        (7, None, False, "follower cache has never run", None),
        ("loading", 5, False, "the first load of the tables into the log is under way", None),
        (7, 5, False, "follower cache lags: it has applied position 5 of 7, 2 changes behind", None),
        (7, 7, True, "", None),
        (7, 9, True, "", None),
        (0, None, True, "follower cache has never run", None),
        (7, 9, False, "follower cache waits for its store: it was flushed", "it was flushed"),
        (7, 5, False, "follower cache lags: it has applied position 5 of 7, 2 changes behind", "it was flushed"),
    ],
)
def test_every_answer(target: int | str | None, applied_position: int | None, done: bool, why: str, waits_for: str | None) -> None:
    awaited = judge(
        "cache",
        Lsn(200),
        Position(target) if isinstance(target, int) else None,
        Lsn(200 if target == "loading" else 100),
        None if applied_position is None else Position(applied_position),
        waits_for,
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
        found = target_of(reader, Lsn(lsn), Lsn(received), None if complete is None else Position(complete))
        assert found == target, (lsn, received, complete)


def test_a_store_that_lost_something_is_not_said_to_be_there(tmp_path: Path) -> None:
    """Its follower knows that something is wrong, and not yet how much of it is left."""
    log = MemoryLog()
    captured(tmp_path)
    committed(log, 100)
    told = status.FollowerStatus("cache", pid=os.getpid(), position=1, state="waiting", error="store cache has lost something")
    status.write(tmp_path, "follow-cache", told)
    with pytest.raises(WaitTimeout, match="store cache has lost something"):
        wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=0.05)
    applied(tmp_path, 1)
    assert wait(settings(tmp_path), log.reader(), "cache", lsn=Lsn(100), timeout_s=60).position == 1


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
    with pytest.raises(WaitTimeout, match="first load"):
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


def test_an_unknown_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store 'search'"):
        wait(settings(tmp_path), MemoryLog().reader(), "search", lsn=Lsn(1))


def test_lsns_as_users_write_them() -> None:
    assert parse_wanted("16/B374D848") == 0x16_B374D848
    with pytest.raises(ConfigError, match="is no LSN"):
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
