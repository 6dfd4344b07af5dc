"""Tables that are read again, and tables that join, while the stream goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from snapshots.catalog import look
from snapshots.plan import RANGE_PARTS
from tests.integration.snapshots.pipeline import Pipeline, fold, operations, rows_of, running, settle


def until(pipeline: Pipeline, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        pipeline.check()
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.001)


def oid_of(sql: psycopg.Connection[Any], table: str) -> int:
    row = sql.execute("select %s::regclass::oid::int8", (table,)).fetchone()
    assert row is not None
    return int(row[0])


def test_read_again_with_emptying(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute("insert into t select i, 'v' from generate_series(1, 1000) i")
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            pipeline.feed.read_again(oid_of(sql, "public.t"), empties=True)
            settle(pipeline, sql)
            assert operations(tmp_path, "public.t") == {"READ": 2000, "SCHEMA": 1}
            assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")


def test_a_table_joins_while_streaming(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key)")
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            with psycopg.connect(postgres.unix_dsn) as other:
                sql.execute("create table late (id int primary key, v text)")
                sql.execute("insert into late select i, 'v' from generate_series(1, 300) i")
                other.execute("update late set v = 'open' where id = 7")
                sql.execute("alter publication cdc add table late")
                pipeline.feed.read_again(oid_of(sql, "public.late"))
                other.execute("update late set v = 'open' where id = 8")
            settle(pipeline, sql)
            assert sorted(fold(tmp_path, "public.late").values(), key=repr) == rows_of(sql, "public.late")


def test_a_rewritten_table_begins_from_the_beginning(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VACUUM FULL moves rows to pages that had been read, and no event tells."""
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute("insert into t select i, repeat('v', 50) from generate_series(1, 8000) i")
        sql.execute("vacuum analyze t")
        with contextlib.closing(Pipeline(postgres.unix_dsn, tmp_path, chunk_rows=20, snapshot_workers=1)) as pipeline:
            advance = pipeline.progress.advance

            def pausing(*arguments: Any, **more: Any) -> None:
                advance(*arguments, **more)
                # The first range is done, so that only another look at the files lets it be read again.
                if not rewritten and any(table.done > 20 * RANGE_PARTS for table in pipeline.progress.tables()):
                    pipeline.pause.set()

            rewritten: list[bool] = []
            monkeypatch.setattr(pipeline.progress, "advance", pausing)
            pipeline.start()
            until(pipeline, pipeline.pause.is_set)
            assert not pipeline.coordinator.finished
            # What is left moves to the front. From when the rewriting waits for its lock on, no page is read before it.
            sql.execute("delete from t where id <= 4000")
            with postgres.connect() as other, ThreadPoolExecutor(1) as pool:
                full = pool.submit(other.execute, "vacuum full t")
                waits = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
                pid = other.info.backend_pid
                until(pipeline, lambda: full.done() or sql.execute(waits, (pid,)).fetchone() is not None)
                rewritten.append(True)
                pipeline.pause.clear()
                full.result()
            settle(pipeline, sql)
            pipeline.check()
            assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(sql, "public.t")


def test_a_look_notices_other_files(postgres: Any) -> None:
    with postgres.connect() as sql:
        sql.execute("create table plain (id int primary key); insert into plain select generate_series(1, 10)")
        sql.execute("create table parted (id int primary key) partition by range (id)")
        sql.execute("create table part partition of parted for values from (0) to (100); insert into parted values (1)")
        for table, rewritten in (("plain", "plain"), ("parted", "part"), ("part", "part")):
            before = look(sql, oid_of(sql, table))
            sql.execute(f"update {table} set id = id + 20")
            assert look(sql, oid_of(sql, table)).files == before.files, table
            sql.execute(f"vacuum full {rewritten}")
            after = look(sql, oid_of(sql, table))
            assert (after.files != before.files, after.facts) == (True, before.facts), table


def test_partitions_and_inheritance(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table p (id int, at date, v text, primary key (id, at)) partition by range (at)")
        for year in (2024, 2025):
            sql.execute(f"create table p{year} partition of p for values from ('{year}-01-01') to ('{year + 1}-01-01')")
        sql.execute("insert into p select i, date '2024-01-01' + i % 700, 'v' || i from generate_series(1, 2000) i")
        sql.execute("create table parent (id int primary key); create table child (primary key (id)) inherits (parent)")
        sql.execute("insert into parent select generate_series(1, 50); insert into child select generate_series(51, 120)")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=100) as pipeline:
            settle(pipeline, sql)
            assert operations(tmp_path, "public.p") == {"READ": 2000}
            assert sorted(fold(tmp_path, "public.p").values(), key=repr) == rows_of(sql, "public.p")
            assert operations(tmp_path, "public.parent") == {"READ": 50}
            assert operations(tmp_path, "public.child") == {"READ": 70}


def test_only_dead_rows(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key) with (autovacuum_enabled = off)")
        sql.execute("insert into t select generate_series(1, 5000); delete from t")
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            assert fold(tmp_path, "public.t") == {}
            assert pipeline.feed.entered > 0, (
                "what is seen to be empty may come back in a crash of the server, until a watermark is behind it"
            )


def test_rows_per_second(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 3000)")
        began = time.monotonic()
        with running(postgres.unix_dsn, tmp_path, snapshot_rows_per_s=1000) as pipeline:
            pipeline.wait_finished()
            assert time.monotonic() - began > 1.5
