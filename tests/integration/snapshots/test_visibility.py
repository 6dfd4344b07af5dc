"""A commit that is in the WAL, and so in the stream, while nobody sees it yet: held up by a synchronous standby that never answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from cdc.embedded.postgres import Postgres
from cdc.source import connect
from snapshots.catalog import load_tables
from snapshots.fence import Snapshot, Window
from snapshots.flight import IN_FLIGHT
from tests.integration.heldcommit import held_commit
from tests.integration.snapshots.pipeline import Pipeline, fold, operations, rows_of, settle
from tests.waiting import until

ROWS = 500


@pytest.fixture
def table(postgres_server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")
        yield sql


@contextlib.contextmanager
def closing(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
        pipeline.check()
    finally:
        pipeline.close()


CHANGES = {
    "update": "update t set v = 'new' where id = 7",
    "delete": "delete from t where id = 7",
    "key": "update t set id = 1000 where id = 7",
    "truncate": "truncate t",
}


@pytest.mark.parametrize(("kind", "workers"), [("update", 1), ("update", 3), ("delete", 2), ("key", 2)])
def test_delivered_before_the_window_opened(
    postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path, kind: str, workers: int
) -> None:
    """The chunk is read again until the commit is visible; LSNs alone would let the old row win."""
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=10, snapshot_workers=workers)) as pipeline:
        pipeline.start(snapshot=False)
        with held_commit(postgres_server, CHANGES[kind]):
            until(lambda: pipeline.writer.head.position >= 1)
            assert table.execute("select v from t where id = 7").fetchone() == ("old",), "the race is not there"
            pipeline.coordinator.start()
            time.sleep(0.5)
            pipeline.check()
            assert pipeline.feed.entered == 0
        pipeline.wait_finished()
        settle(pipeline, table)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(table, "public.t")


@pytest.mark.parametrize("kind", ["update", "delete", "key"])
def test_delivered_inside_the_window(postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path, kind: str) -> None:
    """The chunk may be used, without the key: the snapshot finishes although the commit is still invisible."""
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=1000)) as pipeline:
        pipeline.pause.set()
        pipeline.start(snapshot=False)
        with held_commit(postgres_server, CHANGES[kind]):
            pipeline.coordinator.start()
            until(lambda: pipeline.feed._ready)
            pipeline.pause.clear()
            pipeline.wait_finished()
            assert operations(tmp_path, "public.t")["READ"] == ROWS - 1
        settle(pipeline, table)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(table, "public.t")


def test_a_range_without_rows_waits_for_its_watermark(
    postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """A delete with synchronous_commit off is seen before it is on the disk: a crash of the server may bring the rows back."""
    table.execute("alter table t set (autovacuum_enabled = false)")  # the pages have to stay
    table.execute("delete from t")
    with closing(Pipeline(postgres_server.dsn(), tmp_path)) as pipeline:
        pipeline.pause.set()
        pipeline.start()
        until(lambda: pipeline.feed._ready or pipeline.coordinator.finished)
        assert pipeline.progress.unfinished()
        pipeline.pause.clear()
        pipeline.wait_finished()


def _admit_all(window: Window, snapshot: Snapshot) -> bool:
    window.snapshot = snapshot
    return True


def _keep_all(_: Window, chunk: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(chunk)


@pytest.mark.parametrize("rule", ["admit", "survivors"])
def test_the_race_is_lost_without_either_rule(
    postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """So the tests above would notice."""
    monkeypatch.setattr(Window, rule, {"admit": _admit_all, "survivors": _keep_all}[rule])
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=1000)) as pipeline:
        if rule == "survivors":
            pipeline.pause.set()
        pipeline.start(snapshot=False)
        with held_commit(postgres_server, CHANGES["update"]):
            if rule == "survivors":
                pipeline.coordinator.start()
                until(lambda: pipeline.feed._ready)
                pipeline.pause.clear()
            else:
                until(lambda: pipeline.writer.head.position >= 1)
                # As in a log that begins here: otherwise the barrier would wait for this commit too.
                pipeline.coordinator._needs_barrier = False
                pipeline.coordinator.start()
            pipeline.wait_finished()
        settle(pipeline, table)
        assert fold(tmp_path, "public.t")[("7",)] == ("7", "old")
        assert table.execute("select v from public.t where id = 7").fetchone() == ("new",)


def test_delivered_to_an_earlier_process(postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path) -> None:
    """Durable in the log, never delivered again, and invisible still when the next process begins."""
    with closing(Pipeline(postgres_server.dsn(), tmp_path)) as first, connect(postgres_server.dsn()) as catalog:
        for source in load_tables(catalog, first.source.tables, first.source.publication):
            first.progress.begin(source, "")
        first.start(snapshot=False)
        held = held_commit(postgres_server, CHANGES["update"])
        held.__enter__()
        until(lambda: first.writer.head.position >= 1)
    with psycopg.connect(postgres_server.dsn()) as idle, closing(Pipeline(postgres_server.dsn(), tmp_path)) as second:
        # Somebody who holds a transaction open for long must not hold the snapshot up.
        idle.execute("update t set v = 'never' where id = 8")
        second.start()
        time.sleep(0.5)
        second.check()
        assert second.feed.entered == 0
        held.__exit__(None, None, None)
        second.wait_finished()
        idle.rollback()
        settle(second, table)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(table, "public.t")


def test_truncated_after_the_chunk_was_read(postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path) -> None:
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=200)) as pipeline:
        pipeline.pause.set()
        pipeline.start()
        until(lambda: pipeline.feed._ready)
        # The chunk's transaction has ended, its watermark is in the WAL already or comes behind: either way nothing may come back.
        table.execute("truncate t")
        table.execute("insert into t values (1, 'again')")
        pipeline.pause.clear()
        pipeline.wait_finished()
        settle(pipeline, table)
        assert fold(tmp_path, "public.t") == {("1",): ("1", "again")}


def test_finished_tables_are_not_held_up_by_a_later_start(
    postgres_server: Postgres, table: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with closing(Pipeline(postgres_server.dsn(), tmp_path)) as first:
        first.start()
        first.wait_finished()
    before = operations(tmp_path, "public.t")
    with closing(Pipeline(postgres_server.dsn(), tmp_path)) as second:
        second.start()
        second.wait_finished()
        settle(second, table)
    assert operations(tmp_path, "public.t") == before == {"READ": ROWS}


@pytest.fixture
def wide(table: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Every row has a value that updates leave out unless they change it."""
    table.execute("alter table t add column w text; alter table t alter w set storage external")
    table.execute("update t set w = repeat(md5(id::text), 100)")
    table.execute("vacuum full t")
    return table


def test_toast_left_out_inside_the_window(postgres_server: Postgres, wide: psycopg.Connection[Any], tmp_path: Path) -> None:
    """The held update lies over the chunk's row while the source itself still shows the old one."""
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=1000)) as pipeline:
        pipeline.pause.set()
        pipeline.start(snapshot=False)
        with held_commit(postgres_server, CHANGES["update"]):
            pipeline.coordinator.start()
            until(lambda: pipeline.feed._ready)
            pipeline.pause.clear()
            pipeline.wait_finished()
            assert pipeline.feed.waited == 1
            assert operations(tmp_path, "public.t") == {"READ": ROWS}
            assert fold(tmp_path, "public.t")[("7",)][1] == "new"
            assert wide.execute("select v from public.t where id = 7").fetchone() == ("old",)
        settle(pipeline, wide)
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(wide, "public.t")


def test_key_moves_into_what_was_read(postgres_server: Postgres, wide: psycopg.Connection[Any], tmp_path: Path) -> None:
    """No chunk will bring the row any more, and its update left the wide value out: it is read back by its key."""
    with closing(Pipeline(postgres_server.dsn(), tmp_path, chunk_rows=50)) as pipeline:
        pipeline.pause.set()
        pipeline.start()
        until(lambda: len(pipeline.feed._ready) == IN_FLIGHT)
        wide.execute("update t set id = -5 where id = 450")
        wide.execute("update t set v = 'moved' where id = -5")
        pipeline.pause.clear()
        pipeline.wait_finished()
        assert pipeline.feed.waited == 2
        settle(pipeline, wide)
        assert fold(tmp_path, "public.t")[("-5",)][1] == "moved"
        assert sorted(fold(tmp_path, "public.t").values(), key=repr) == rows_of(wide, "public.t")
