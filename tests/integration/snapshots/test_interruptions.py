"""kill -9, lost connections, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.embedded.postgres import Postgres
from cdc.errors import SourceError
from cdc.source import connect
from snapshots import catalog
from snapshots.catalog import load_tables, reload_tables
from snapshots.flight import IN_FLIGHT
from snapshots.plan import RANGE_PARTS
from snapshots.progress import FILE
from tests.conftest import Database
from tests.integration.snapshots.pipeline import Pipeline, fold, operations, rows_of, running, settle

ROWS, CHUNK = 5000, 50
LOCK = 77

CHILD = """
import os, signal, sys, time
from pathlib import Path
from snapshots.progress import SnapshotProgress
from tests.conftest import Database
from tests.integration.snapshots.pipeline import Pipeline
advance = SnapshotProgress.advance
def dying(self, oid, *arguments, **more):
    advance(self, oid, *arguments, **more)
    if self.rows(oid)[0] >= int(sys.argv[5]):
        os.kill(os.getpid(), signal.SIGKILL)
SnapshotProgress.advance = dying
pipeline = Pipeline(sys.argv[1], Path(sys.argv[2]), chunk_rows=int(sys.argv[3]), snapshot_workers=int(sys.argv[4]))
pipeline.start()
while True:
    pipeline.check()
    time.sleep(0.01)
"""


def done(folder: Path) -> int:
    try:
        (record,) = json.loads((folder / FILE).read_text())["tables"].values()
    except FileNotFoundError:
        return 0
    return int(record["done"])


@pytest.mark.faults
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_and_resumed(postgres: Any, tmp_path: Path, workers: int) -> None:
    """Ranges that were recorded are not read again, whoever read them; everything else is there, and changes made meanwhile too."""
    rows, ranged = 20_000, RANGE_PARTS * CHUNK
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute(f"insert into t select i, repeat('v', 30) from generate_series(1, {rows}) i")
        sql.execute("vacuum analyze t")
        reached = 0
        for _ in range(3):
            # It kills itself once so many rows are done: from outside it might be too fast to be caught in the middle.
            given = (postgres.unix_dsn, tmp_path, CHUNK, workers, reached + 3 * ranged)
            child = subprocess.run([sys.executable, "-c", CHILD, *map(str, given)], timeout=240)
            assert child.returncode == -signal.SIGKILL
            reached = done(tmp_path)
            assert 0 < reached < rows
            sql.execute("update t set v = v || 'x' where id % 100 = 0")
            sql.execute("update t set id = id + 100000 where id % 1000 = 1")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=CHUNK, snapshot_workers=workers) as pipeline:
            pipeline.wait_finished()
            settle(pipeline, sql)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")
        moved, lost = 3 * rows // 90, 3 * workers * (ranged + IN_FLIGHT * CHUNK)
        assert operations(tmp_path, "public.t")["READ"] <= rows + moved + lost


@pytest.mark.faults
def test_connections_are_lost(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute(f"insert into t select i, 'v' from generate_series(1, {ROWS}) i")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=CHUNK) as pipeline:
            for wanted in (10, 40):
                while pipeline.feed.entered < wanted:
                    pipeline.check()
                    time.sleep(0.001)
                sql.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater snapshot'")
            pipeline.wait_finished()
            settle(pipeline, sql)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")


def test_the_stream_begins_anew(postgres: Any, tmp_path: Path) -> None:
    """What was handed over but not made durable is read again."""
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute(f"insert into t select i, 'v' from generate_series(1, {ROWS}) i")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=CHUNK) as pipeline:
            for wanted in (5, 30, 50):
                while pipeline.feed.entered < wanted:
                    pipeline.check()
                    time.sleep(0.001)
                pipeline.feed.reset()
            pipeline.wait_finished()
            settle(pipeline, sql)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")


def test_a_table_is_dropped_before_its_turn(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        for name in ("a", "b"):
            sql.execute(f"create table {name} (id int primary key)")
            sql.execute(f"insert into {name} select generate_series(1, 1000)")
        pipeline = Pipeline(postgres.unix_dsn, tmp_path, chunk_rows=CHUNK, snapshot_workers=1)
        pipeline.pause.set()
        pipeline.start()
        while not pipeline.feed._ready:
            time.sleep(0.01)
        sql.execute("drop table b")
        pipeline.pause.clear()
        pipeline.wait_finished()
        pipeline.close()
        assert [one.table for one in pipeline.progress.tables()] == ["public.a"]


def test_settings_of_the_role_do_not_reach_the_session(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, at timestamptz, f float8, b bytea)")
        sql.execute("insert into t select i, now(), i / 3.0, '\\x00ff' from generate_series(1, 2000) i")
        name = postgres.name
        for setting, value in {
            "statement_timeout": "1",
            "idle_in_transaction_session_timeout": "1",
            "transaction_timeout": "1",
            "timezone": "Asia/Tokyo",
            "datestyle": "German",
            "extra_float_digits": "-5",
            "bytea_output": "escape",
        }.items():
            sql.execute(f"alter database {name} set {setting} = '{value}'")
        # Only the snapshot's own sessions come after that: the pipeline's others would end by the timeouts, which is not the point here.
        sql.execute(f"alter database {name} reset statement_timeout")
        sql.execute(f"alter database {name} reset transaction_timeout")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=500) as pipeline:
            pipeline.wait_finished()
            settle(pipeline, sql)
            assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")


@pytest.mark.parametrize(
    ("prepare", "says", "hint"),
    [
        (
            "alter table t enable row level security; create policy p on t using (id > 1); grant select on t to poor",
            "row-level",
            "BYPASSRLS",
        ),
        ("select 1", "may not read table public.t", 'GRANT SELECT ON "public"."t" TO "poor"'),
        (
            "grant select on t to poor; alter table t replica identity nothing",
            "REPLICA IDENTITY NOTHING",
            "REPLICA IDENTITY DEFAULT",
        ),
        (
            "grant select on t to poor; alter table t alter v set not null; alter publication cdc set table t (v)",
            "has a primary key that the publication leaves out (id)",
            "column list",
        ),
    ],
)
def test_refusals(postgres_server: Postgres, prepare: str, says: str, hint: str) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key, v text); create role poor login; create publication cdc for table t")
        sql.execute(prepare)
        oid = sql.execute("select 't'::regclass::oid::int8").fetchone()
    assert oid is not None
    with connect(postgres_server.dsn(user="poor")) as connection:
        [(_, refused)] = reload_tables(connection, oid, ["*"], "cdc").values()
    assert refused is not None
    assert says in str(refused)
    assert hint in (refused.hint or "")


@pytest.mark.parametrize(
    ("prepare", "says", "hint"),
    [
        ("select 1", "role 'poor' may not read table public.t", 'GRANT SELECT ON "public"."t" TO "poor"'),
        (
            "revoke usage on schema public from public; grant select on t to poor",
            "role 'poor' may not read table public.t",
            "GRANT USAGE ON SCHEMA",
        ),
        (
            "alter table t enable row level security; create policy p on t using (id > 1); grant select on t to poor",
            "row-level security hides rows of table public.t from role 'poor'",
            'ALTER ROLE "poor" BYPASSRLS',
        ),
        (
            "alter table t enable row level security; grant select on t to poor",
            "row-level security hides rows of table public.t from role 'poor'",
            'ALTER ROLE "poor" BYPASSRLS',
        ),
    ],
)
def test_the_first_look_ends_at_a_selected_table_that_cannot_be_read_whole(
    postgres_server: Postgres, prepare: str, says: str, hint: str
) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key); create table u (id int primary key); create role poor login")
        sql.execute("grant select on u to poor; create publication cdc for table t, u")
        sql.execute(prepare)
    with connect(postgres_server.dsn(user="poor")) as connection:
        with pytest.raises(SourceError) as refused:
            load_tables(connection, ("public.*",), "cdc")
        assert says in str(refused.value)
        assert hint in (refused.value.hint or "")
        if "schema" not in prepare:
            assert [one.name for one in load_tables(connection, ("public.*", "!public.t"), "cdc")] == ["public.u"], (
                "it is not selected"
            )


def test_the_first_look_takes_a_table_in_that_cannot_be_captured_as_it_is(postgres: Database) -> None:
    """It may be another one when it is read."""
    sql = postgres.connect()
    sql.execute("create table t (id int primary key); alter table t replica identity nothing; create publication cdc for table t")
    with connect(postgres.dsn) as connection:
        assert [one.name for one in load_tables(connection, ("public.*",), "cdc")] == ["public.t"]


def test_a_table_that_is_dropped_while_it_is_looked_at_is_not_there(pg_versions: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Privileges are looked up as of now, where the table is gone, which is not a missing right."""
    sql = pg_versions.connect()
    sql.execute("create table t (id int primary key); create table u (id int primary key); create publication cdc for table t, u")
    # Locking a table that the query does not read lets the session hear of the drop.
    hears = f"pg_advisory_lock_shared({LOCK})::text || pg_relation_size('pg_catalog.pg_language')::text"
    slow = f"({hears}) is not null and has_schema_privilege("
    monkeypatch.setattr(catalog, "_TABLES", catalog._TABLES.replace("has_schema_privilege(", slow, 1))
    with connect(pg_versions.dsn) as connection, ThreadPoolExecutor(1) as pool:
        sql.execute("select pg_advisory_lock(%s)", (LOCK,))
        found = pool.submit(load_tables, connection, ("public.*",), "cdc")
        waits = "select 1 from pg_stat_activity where pid = %s and wait_event = 'advisory'"
        while not found.done() and not sql.execute(waits, (connection.info.backend_pid,)).fetchone():
            time.sleep(0.01)
        sql.execute("drop table u")
        sql.execute("select pg_advisory_unlock(%s)", (LOCK,))
        assert [one.name for one in found.result()] == ["public.t"]
