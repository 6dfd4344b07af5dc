"""What is remembered of wide rows is never older than what the database has, whatever makes a row wide and whatever becomes of the memory."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.integration.capture.running import Capture


def noise(size: int) -> str:
    """Text that does not compress."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


def until_all(capture: Capture, sql: psycopg.Connection[Any]) -> None:
    row = sql.execute("select (pg_current_wal_insert_lsn() - '0/0')::int8").fetchone()
    assert row is not None
    sql.execute("select pg_logical_emit_message(true, 'nobody', 'so that there is something behind it')")
    capture.until_lsn(row[0])


@pytest.mark.parametrize(
    "hidden", ["generated always as (lower(body)) stored", "default null"], ids=["generated", "not in the column list"]
)
def test_a_row_that_is_wide_by_what_is_not_published(pg_versions: Database, tmp_path: Path, hidden: str) -> None:
    sql = pg_versions.connect()
    sql.execute(f"create table t (id int primary key, body text, n int, hidden text {hidden})".encode())
    if "generated" not in hidden:
        sql.execute("create publication cdc for table t (id, body, n) with (publish_via_partition_root = true)")
    capture = Capture(pg_versions.dsn, tmp_path, tables=("public.*",), slot=f"s_{pg_versions.name}")
    with capture.running():
        capture.until_snapshot_done()
        sql.execute("insert into t (id, body, n) values (1, %s, 0)", (noise(3000),))
        if "generated" not in hidden:
            sql.execute("update t set hidden = %s", (noise(1200),))
        sql.execute("update t set body = %s", (noise(1500),))
        sql.execute("update t set n = 1")
        capture.until(lambda: [row["n"] for row in capture.rows("public.t").values()] == ["1"], "for the last update")
        (row,) = capture.rows("public.t").values()
        assert row["body"] == noise(1500)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_lost_memory_after_two_tables_exchanged_their_names(postgres: Database, tmp_path: Path, order: tuple[str, str]) -> None:
    first, second = order
    sql = postgres.connect()
    for name in order:
        sql.execute(f"create table {name} (id int primary key, body text, n int)".encode())
        sql.execute(f"alter table {name} alter body set storage external".encode())
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}")
    with capture.running():
        capture.until_snapshot_done()
        sql.execute(f"insert into {first} values (1, repeat('f', 3000), 0)".encode())
        sql.execute(f"insert into {second} values (1, repeat('s', 3000), 0)".encode())
        until_all(capture, sql)
        sql.execute("begin; alter table a rename to x; alter table b rename to a; alter table x rename to b; commit")
        sql.execute("update a set n = 1")
        sql.execute("update b set n = 1")
        for name in "ab":
            capture.until(lambda: [row["n"] for row in capture.rows(f"public.{name}").values()] == ["1"], "for the exchange")  # noqa: B023
        capture.until_snapshot_done()
        sql.execute("update a set body = repeat('A', 3000)")
        sql.execute("update b set body = repeat('B', 3000)")
        until_all(capture, sql)
    for file in (tmp_path / "log").glob("toast.db*"):
        file.unlink()
    with capture.running():
        sql.execute("update a set n = 7")
        sql.execute("update b set n = 7")
        for name in "ab":
            capture.until(lambda: [row["n"] for row in capture.rows(f"public.{name}").values()] == ["7"], "for the last update")  # noqa: B023
            (row,) = capture.rows(f"public.{name}").values()
            assert (row["body"] or "")[:1] == name.upper()
