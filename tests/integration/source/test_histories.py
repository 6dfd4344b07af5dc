"""Databases whose history is not the one that the log holds: copies, restores, promotions, other clusters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.embedded.postgres import Postgres
from cdc.errors import StopState
from cdc.model.position import format_lsn
from tests.integration.capture.running import Capture
from tests.integration.source.servers import Clusters, promote
from tests.integration.source.test_stop_states import agrees, rebuilt, stopped


@pytest.fixture
def clusters(server_folder: Path) -> Iterator[Clusters]:
    found = Clusters(server_folder)
    yield found
    found.stop()


def connect(server: Postgres) -> psycopg.Connection[Any]:
    return psycopg.connect(server.dsn(), autocommit=True)


def fill(server: Postgres) -> None:
    with connect(server) as sql:
        sql.execute(
            "create table t (id int primary key, v text); insert into t select n, 'row ' || n from generate_series(1, 20) n"
        )


def at(capture: Capture, server: Postgres) -> Capture:
    """The same log, with its source elsewhere."""
    settings = capture.settings
    capture.settings = settings.model_copy(
        update={"source": settings.source.model_copy(update={"dsn": type(settings.source.dsn)(server.dsn())})}
    )
    return capture


def captured(capture: Capture, server: Postgres, *statements: str) -> None:
    with capture.running(), connect(server) as sql:
        for statement in statements:
            sql.execute(statement)
        agrees(capture, sql)


def write_past(server: Postgres, lsn: int) -> None:
    """Until the WAL has grown beyond the LSN."""
    with connect(server) as sql:
        for _ in range(100):
            if sql.execute("select pg_current_wal_lsn() > %s::pg_lsn", (format_lsn(lsn),)).fetchone() == (True,):
                return
            sql.execute(
                "insert into t select n, repeat('elsewhere', 20) from generate_series(10000, 12000) n on conflict do nothing"
            )
            sql.execute("delete from t where id >= 10000")
    raise AssertionError("the WAL did not grow")


def test_copies_of_the_cluster_and_another_one(clusters: Clusters, tmp_path: Path) -> None:
    first = clusters.empty()
    fill(first)
    capture = Capture(first.dsn(), tmp_path)
    captured(capture, first)
    first.stop()
    behind = clusters.copy(first)
    promoted = clusters.copy(first, promote=True)
    first.start()
    captured(capture, first, *(f"insert into t values ({n}, 'only in the first')" for n in range(100, 110)))
    head = capture.reader.head()
    capture.reader.close()

    # A copy that was started as it was, same timeline: at first its WAL is shorter …
    stopped(at(capture, behind), StopState.DIVERGED)
    # … and later it is not; only the commits are others.
    write_past(behind, head.commit_lsn + 1_000_000)
    assert "history is not the one" in str(stopped(capture, StopState.DIVERGED))

    # A restored one is on a timeline of its own, which left ours before the log's end.
    write_past(promoted, head.commit_lsn + 1_000_000)
    assert "left timeline 1 at" in str(stopped(at(capture, promoted), StopState.DIVERGED))

    other = clusters.empty()
    fill(other)
    stopped(at(capture, other), StopState.SYSTEM_CHANGED)
    with connect(other) as sql:
        assert sql.execute("select count(*) from pg_publication").fetchone() == (0,), "nothing was made on the wrong server"

    # The first one has not been touched by all this.
    captured(at(capture, first), first, "insert into t values (200, 'still here')")

    with connect(promoted) as sql:
        at(capture, promoted)
        stopped(capture, StopState.DIVERGED)
        rebuilt(capture, StopState.DIVERGED, sql)
        stopped(at(capture, other), StopState.SYSTEM_CHANGED)
    with connect(other) as sql:
        rebuilt(capture, StopState.SYSTEM_CHANGED, sql)


def test_promotions(clusters: Clusters, tmp_path: Path) -> None:
    primary = clusters.empty()
    fill(primary)
    capture = Capture(primary.dsn(), tmp_path)
    captured(capture, primary)
    standby = clusters.standby(primary)
    refused = at(capture, standby).start().failure()
    capture.stop()
    assert "is a standby" in str(refused)
    captured(at(capture, primary), primary, "insert into t values (100, 'everywhere')")
    with connect(primary) as sql, connect(standby) as other:
        row = sql.execute("select pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        while other.execute("select pg_last_wal_replay_lsn() < %s::pg_lsn", row).fetchone() == (True,):
            pass
    primary.stop("immediate")
    promote(standby)
    # It has all that we have, but not our slot.
    stopped(at(capture, standby), StopState.SLOT_MISSING)
    with connect(standby) as sql:
        rebuilt(capture, StopState.SLOT_MISSING, sql)
    # The old primary comes back on the timeline that was left.
    primary.start()
    stopped(at(capture, primary), StopState.DIVERGED)


@pytest.mark.parametrize(("version", "two_phase"), [(18, False), (17, True)])
def test_a_failover_to_a_standby_that_keeps_the_slot(clusters: Clusters, tmp_path: Path, version: int, two_phase: bool) -> None:
    primary = clusters.empty(version, max_prepared_transactions="2")
    fill(primary)
    capture = Capture(primary.dsn(), tmp_path, two_phase=two_phase)
    captured(capture, primary)
    standby = clusters.standby(primary, keeps_slots=True)
    with connect(primary) as sql, connect(standby) as other:
        deadline = time.monotonic() + 60
        # The slot is copied once the standby has what the slot still needs, so both have to move on.
        with capture.running():
            while other.execute("select not temporary from pg_replication_slots where slot_name = 'cdc'").fetchone() != (True,):
                assert time.monotonic() < deadline, other.execute("select * from pg_replication_slots").fetchall()
                sql.execute("select pg_log_standby_snapshot()")
                sql.execute("update t set v = v || '.' where id = 1")
                time.sleep(0.1)
            agrees(capture, sql)
            if two_phase:
                sql.execute("begin")
                sql.execute("insert into t values (301, 'prepared on the old primary')")
                sql.execute("prepare transaction 'over'")
                capture.until(lambda: any((capture.settings.log.dir / "prepared").glob("*")), "for the prepared transaction")
        row = sql.execute("select pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        while other.execute("select pg_last_wal_replay_lsn() < %s::pg_lsn", row).fetchone() == (True,):
            pass
    read = len(capture.changes("public.t"))
    primary.stop("fast")
    promote(standby)
    statements = ["insert into t values (300, 'on the new primary')", *(["commit prepared 'over'"] if two_phase else [])]
    captured(at(capture, standby), standby, *statements)
    assert len(capture.changes("public.t")) == read + len(statements), "nothing was read again"
