"""A table whose rows the server cannot read keeps nothing else from being captured, and is named with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import failures
from snapshots.requests import Request, Requests
from tests.conftest import Database
from tests.integration.capture.running import Capture


def test_a_value_that_the_server_cannot_send_as_text(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 500 MB of bytea, beside a column that has the table read as text."""
    monkeypatch.setattr(failures, "FAILED_S", 1.0)
    sql = postgres.connect()
    sql.execute("create type mood as enum ('fine'); create table big (id int primary key, m mood, v bytea)")
    sql.execute("insert into big select 1, 'fine', convert_to(repeat('x', 540000000), 'UTF8')")
    sql.execute("create table small (id int primary key, v text); insert into small values (1, 'a')")
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}")
    with capture.running():
        capture.until(lambda: "public.small" in capture.topics() and len(capture.rows("public.small")) == 1, "for the other table")
        capture.until(lambda: len(capture.status.left_out) == 1, "for the line")
        (line,) = capture.status.left_out
        assert line.startswith("cannot be read: a row of table public.big is too large for Postgres to send (invalid memory alloc")
        assert "500 MB of bytea" in line
        assert "a column list of the publication" in line
        assert "source.tables (!public.big)" in line
        sql.execute("insert into small values (2, 'b')")
        capture.until(lambda: len(capture.rows("public.small")) == 2, "for the stream")
        requests = Requests(capture.settings.log.dir)
        sql.execute("update big set v = 'small'")
        capture.until(lambda: "public.big" in capture.topics() and len(capture.rows("public.big")) == 1, "for its row")
        capture.until_snapshot_done()
        capture.until(lambda: capture.status.left_out == [], "for the line to go")
        asked = requests.queue(Request("public.big", where="1 / (id - 1) = 7"))
        capture.until(lambda: requests.outcome(asked).state == "failed", "for the request")
        assert requests.outcome(asked).error == "a data exception (SQLSTATE 22012)"


def test_rows_that_the_server_cannot_read(postgres: Database, tmp_path: Path) -> None:
    sql = postgres.connect()
    sql.execute("create table bad (id int primary key); insert into bad select generate_series(1, 9)")
    sql.execute("create table small (id int primary key); insert into small values (1)")
    sql.execute("create publication cdc for table bad where (1 / (id - 3) < 2), small")
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}")
    with capture.running():
        capture.until(lambda: "public.small" in capture.topics() and len(capture.rows("public.small")) == 1, "for the other table")
        capture.until(lambda: len(capture.status.left_out) == 1, "for the line")
        (line,) = capture.status.left_out
        assert line == (
            "cannot be read: Postgres cannot read table public.bad: a data exception (SQLSTATE 22012)"
            " → repair it, or leave the table out of source.tables (!public.bad)"
        )
