"""A snapshot stands in nobody's way: who has locked a partition, and comes to lock another, does not end in a deadlock with it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from snapshots import plan, reading
from snapshots.catalog import SourceTable
from tests.conftest import Database
from tests.integration.capture.running import Capture

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

    monkeypatch.setattr(reading, "lock", lock)
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
