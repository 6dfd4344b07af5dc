"""A table that is read again keeps its rows meanwhile: what every cut of the log shows of it, which is what stores show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.errors import PositionGone
from cdc.ingest.loggedtables import LoggedTables
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import OP, Op, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.position import Position
from snapshots.requests import Request
from tests.integration.snapshots.pipeline import fold, operations, rows_of, running, settle, texts
from tests.integration.snapshots.test_requests import behind_the_back, done

ROWS = 1200
TOPIC = "public.t"


@pytest.fixture
def sql(postgres: Any) -> Iterator[psycopg.Connection[Any]]:
    with postgres.connect() as sql:
        sql.execute("create table t (a int, b text, v text, primary key (b, a))")
        sql.execute(f"insert into t select i, 'k' || i % 3, 'old' from generate_series(1, {ROWS}) i")
        yield sql


def unseen(sql: psycopg.Connection[Any]) -> None:
    behind_the_back(sql, "update t set v = 'new' where a > 100")
    behind_the_back(sql, "delete from t where a in (7, 8)")


def shown(folder: Path, after: int) -> list[set[tuple[str, ...]]]:
    """The table's keys as of position ``after``, and behind each change since."""
    reader, keys, found = EmbeddedLogReader(folder), set[tuple[str, ...]](), list[set[tuple[str, ...]]]()
    for batch in reader.read(TOPIC, Position(0), reader.head().position):
        if (change := schema_change_of(batch)) is not None:
            keys = set() if change.empties else keys
            found += [set(keys)]
            continue
        for position, op, row in zip(
            batch.column(0).to_pylist(), batch.column(OP).to_pylist(), texts(batch, table_of(batch.schema)), strict=True
        ):
            key = tuple(str(text) for text in row[:2])
            if position > after and not found:
                found.append(set(keys))
            if op == Op.TRUNCATE:
                keys = set()
            elif op == Op.DELETE:
                keys.discard(key)
            else:
                keys.add(key)
            if position > after:
                found.append(set(keys))
    return found


def head(folder: Path) -> int:
    return int(EmbeddedLogReader(folder).head().position)


def test_no_row_vanishes_that_is_there_before_and_after(postgres: Any, sql: psycopg.Connection[Any], tmp_path: Path) -> None:
    with running(postgres.unix_dsn, tmp_path, snapshot_workers=2) as pipeline:
        pipeline.wait_finished()
        unseen(sql)
        before = head(tmp_path)
        name = pipeline.requests.queue(Request(TOPIC, replace=True))
        for n in range(20):
            sql.execute(
                f"insert into t values ({5000 + n}, 'k', 'meanwhile'); update t set v = 'meanwhile' where a = {n * 50 + 10}"
            )
        sql.execute("delete from t where a = 9")
        assert done(pipeline, name).state == "done"
        settle(pipeline, sql)
    states = shown(tmp_path, before)
    stay = states[0] & states[-1]
    assert len(stay) == ROWS - 3
    assert all(stay <= state for state in states)
    assert sorted(fold(tmp_path, TOPIC).values(), key=repr) == rows_of(sql, "public.t")
    assert operations(tmp_path, TOPIC)["SCHEMA"] == 1


def hanging(*_: object) -> Iterator[Any]:
    go_on: Callable[[], None] = _[-1]  # type: ignore[assignment]
    while True:
        go_on()
        time.sleep(0.01)
        yield from ()


def test_it_goes_on_after_the_process_has_ended_before_what_is_gone_was_deleted(
    postgres: Any, sql: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the table counts as one that is being read."""
    with running(postgres.unix_dsn, tmp_path) as pipeline:
        pipeline.wait_finished()
        unseen(sql)
        with monkeypatch.context() as patch:
            patch.setattr(LoggedTables, "unread", hanging)
            pipeline.requests.queue(Request(TOPIC, replace=True))
            deadline = time.monotonic() + 120
            while operations(tmp_path, TOPIC)["READ"] < 2 * ROWS - 2:
                assert time.monotonic() < deadline
                pipeline.check()
                time.sleep(0.02)
            assert not pipeline.coordinator.finished
            assert [entry.finished for entry in pipeline.progress.tables()] == [False]
            pipeline.stop.set()
            pipeline.close()
    sql.execute("delete from t where a = 11; insert into t values (7, 'k1', 'back')")
    with running(postgres.unix_dsn, tmp_path) as pipeline:
        settle(pipeline, sql)
    assert sorted(fold(tmp_path, TOPIC).values(), key=repr) == rows_of(sql, "public.t")
    assert operations(tmp_path, TOPIC)["SCHEMA"] == 1


def gone(*_: object) -> Iterator[Any]:
    yield from ()
    raise PositionGone("the beginning is gone")


def test_what_cannot_be_looked_for_is_emptied_first(
    postgres: Any, sql: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoggedTables, "unread", gone)
    with running(postgres.unix_dsn, tmp_path) as pipeline:
        pipeline.wait_finished()
        unseen(sql)
        assert done(pipeline, pipeline.requests.queue(Request(TOPIC, replace=True))).state == "done"
        settle(pipeline, sql)
    assert sorted(fold(tmp_path, TOPIC).values(), key=repr) == rows_of(sql, "public.t")
    assert operations(tmp_path, TOPIC)["SCHEMA"] == 2


def test_a_truncate_and_a_new_column_meanwhile(
    postgres: Any, sql: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come between the announcement and the end."""
    looked: list[int] = []
    unread = LoggedTables.unread

    def first(self: LoggedTables, *given: Any) -> Iterator[Any]:
        if not looked:
            sql.execute("alter table t add w text; insert into t values (-1, 'k', 'v', 'w')")
        if len(looked) == 1:
            sql.execute("truncate t; insert into t values (-2, 'k', 'v', 'w')")
        looked.append(1)
        yield from unread(self, *given)

    monkeypatch.setattr(LoggedTables, "unread", first)
    with running(postgres.unix_dsn, tmp_path) as pipeline:
        pipeline.wait_finished()
        unseen(sql)
        assert done(pipeline, pipeline.requests.queue(Request(TOPIC, replace=True))).state == "done"
        settle(pipeline, sql)
        assert done(pipeline, pipeline.requests.queue(Request(TOPIC, replace=True))).state == "done"
        settle(pipeline, sql)
    assert sorted(fold(tmp_path, TOPIC).values(), key=repr) == rows_of(sql, "public.t")


def test_a_table_without_a_key_is_emptied_first(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (a int, b text); alter table t replica identity full; insert into t values (1, 'x'), (1, 'x')")
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            behind_the_back(sql, "delete from t where a = 1; insert into t values (2, 'y')")
            assert done(pipeline, pipeline.requests.queue(Request(TOPIC, replace=True))).state == "done"
            settle(pipeline, sql)
        assert sorted(fold(tmp_path, TOPIC).values(), key=repr) == rows_of(sql, "public.t")
