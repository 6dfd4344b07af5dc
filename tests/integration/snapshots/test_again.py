"""Tables that are read again, and tables that join, while the stream goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tests.integration.snapshots.pipeline import fold, operations, rows_of, running, settle


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
