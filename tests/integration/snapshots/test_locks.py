"""A snapshot stands in nobody's way: who has locked a partition, and comes to lock another, does not end in a deadlock with it."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from cdc.model.evolution import schema_change_of
from snapshots import locks, plan, queries
from snapshots.catalog import SourceTable
from snapshots.requests import Request, Requests
from tests.conftest import Database
from tests.integration.capture.running import Capture

SOON_S = 30.0
LOCK = "lock table a, b, c, d_2 in access exclusive mode"
WAITING = """select exists (select from pg_stat_activity
where application_name = 'headwater snapshot' and datname = current_database() and wait_event_type = 'Lock')"""


def test_a_transaction_that_locks_partitions_in_its_own_order(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql, watching, locked = postgres.connect(), postgres.connect(), threading.Event()
    sql.execute("create table big (id int primary key, v text) partition by range (id)")
    for part in range(3):
        sql.execute(f"create table big_{part} partition of big for values from ({part * 10}) to ({part * 10 + 10})".encode())
    sql.execute("insert into big select n, 'v' from generate_series(0, 29) n")

    def lock(source: SourceTable) -> str:
        """The application locks its first partition just before the snapshot locks all of them."""
        if not locked.is_set():
            sql.execute(
                "begin; set local deadlock_timeout = '700ms'; truncate big_2"
            )  # it looks before the snapshot's second is over
            locked.set()
        return plan.lock(source)

    monkeypatch.setattr(queries, "lock", lock)
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}")
    with capture.running():
        capture.until(locked.is_set, "the snapshot to begin")
        try:
            capture.until(lambda: watching.execute(WAITING).fetchone() == (True,), "the snapshot to meet the locked partition")
            sql.execute("truncate big_0")
        finally:
            sql.execute("commit")
        capture.until(lambda: len(capture.rows("public.big")) == 10, "the rows that are left")
        capture.until_snapshot_done()


@pytest.mark.parametrize("asked", [False, True], ids=["first load", "request"])
def test_locked_tables_keep_no_worker_from_the_others(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setattr(locks, "NAMED_S", 0.2)
    sql, owner = postgres.connect(), postgres.connect(autocommit=False)
    for name in ("a", "b", "c", "z"):
        sql.execute(f"create table {name} (id int primary key); insert into {name} values (1), (2)".encode())
    sql.execute("create table d (id int primary key) partition by range (id)")
    sql.execute("create table d_1 partition of d for values from (0) to (9) partition by range (id)")
    sql.execute("create table d_2 partition of d_1 for values from (0) to (9); insert into d values (1), (2)")
    sql.execute("create publication cdc for table a, b, c, d, z with (publish_via_partition_root = true)")
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}", snapshot_workers=2)
    requests = Requests(capture.settings.log.dir)
    names = ("a", "b", "c", "d")
    first, locked = threading.Lock(), threading.Event()

    def lock(source: SourceTable) -> str:
        """Once there is a slot, which would wait for the lock's transaction."""
        with first:
            if not locked.is_set() and not asked:
                owner.execute(LOCK)
                locked.set()
        return plan.lock(source)

    monkeypatch.setattr(queries, "lock", lock)
    try:
        if asked:
            with capture.running():
                capture.until_snapshot_done()
            capture.until_released(sql)
            owner.execute(LOCK)
        with capture.running():
            wanted = {name: requests.queue(Request(f"public.{name}")) for name in (*names, "z")} if asked else {}
            if asked:
                capture.until(lambda: requests.outcome(wanted["z"]).state == "done", "for the request", deadline_s=SOON_S)
            else:
                capture.until(locked.is_set, "for the snapshot to begin")
                capture.until(lambda: "public.z" in capture.topics(), "for the table that is free", deadline_s=SOON_S)
                capture.until(lambda: len(capture.rows("public.z")) == 2, "for its rows", deadline_s=SOON_S)
            capture.until(lambda: len(capture.status.left_out) == 4, "for the names of the others", deadline_s=SOON_S)
            for name, line in zip(names, capture.status.left_out, strict=True):
                assert line.startswith(f"cannot be read: table public.{name} is locked (ACCESS EXCLUSIVE)")
                query = line.partition("end who holds it: ")[2]
                assert sql.execute(query.encode()).fetchall() == [(owner.info.backend_pid,)]
            owner.rollback()
            for name in names:
                topic = f"public.{name}"
                capture.until(lambda: topic in capture.topics() and len(capture.rows(topic)) == 2, f"for {name}")  # noqa: B023
            capture.until(lambda: all(requests.outcome(one).state == "done" for one in wanted.values()), "for the requests")
            capture.until(lambda: capture.status.left_out == [], "for the lines to go")
            capture.until_snapshot_done()
    finally:
        owner.rollback()


@pytest.mark.parametrize("asked", [False, True], ids=["first load", "request"])
def test_a_table_that_is_locked_after_every_task_is_read_all_the_same(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Reading goes on with the task that was refused: nothing is read twice."""
    monkeypatch.setattr(locks, "AGAIN_S", (0.01, 0.01))
    sql = postgres.connect()
    sql.execute("create table big (id int primary key, v text)")
    sql.execute("insert into big select n, repeat('v', 500) from generate_series(1, 4000) n")
    sql.execute("analyze big; create publication cdc for table big")
    tries = count()

    def lock(source: SourceTable) -> str:
        return plan.lock(source) if next(tries) % 2 == 0 else "do $$ begin raise lock_not_available; end $$"

    capture = Capture(
        postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}", snapshot_workers=1, snapshot_chunk_rows=100
    )
    requests = Requests(capture.settings.log.dir)
    if asked:
        with capture.running():
            capture.until_snapshot_done()
    monkeypatch.setattr(queries, "lock", lock)
    with capture.running():
        if asked:
            name = requests.queue(Request("public.big"))
            capture.until(lambda: requests.outcome(name).state == "done", "for the request", deadline_s=SOON_S)
        capture.until_snapshot_done(deadline_s=SOON_S)
        assert len(capture.rows("public.big")) == 4000
        read = sum(batch.num_rows for batch in capture.batches("public.big") if schema_change_of(batch) is None)
        assert read == 4000 * (1 + asked)
    assert next(tries) > 4, "it was read in several tasks"
