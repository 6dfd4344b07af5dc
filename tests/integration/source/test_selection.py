"""``source.tables`` decides what reaches the log, however much more the publication publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source import watch
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.source.test_lost_identity import roles
from tests.integration.source.test_stop_states import agrees, fold

Connection = psycopg.Connection[Any]
SECRET = "kept out"
TABLES = """
create table t (id int primary key, v text);
create table hidden (id int primary key, v text);
insert into t values (1, 'one');
insert into hidden values (1, 'kept out')
"""


@pytest.fixture(params=["with trigger", "without trigger"])
def sql(request: pytest.FixtureRequest, postgres: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.2)
    connection = postgres.connect()
    connection.execute(TABLES)
    connection.execute("create publication cdc for all tables")
    role = f"reader_{postgres.name}"
    if request.param == "with trigger":
        roles(postgres, role)
    yield connection
    if request.param == "with trigger":
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


def of(postgres: Database, folder: Path, *tables: str) -> Capture:
    return Capture(postgres.dsn, folder, slot=f"s_{postgres.name}", tables=tables)


def is_nowhere(folder: Path) -> bool:
    """No file of the log holds a value of the table that is not selected."""
    return not any(SECRET.encode() in path.read_bytes() for path in (folder / "log").rglob("*") if path.is_file())


def test_what_is_not_selected_never_reaches_the_log(postgres: Database, sql: Connection, tmp_path: Path) -> None:
    capture = of(postgres, tmp_path, "public.*", "!public.hidden", "!public.late*")
    with capture.running():
        agrees(capture, sql)
        sql.execute("insert into hidden values (2, 'kept out'); update hidden set v = 'kept out again'; truncate hidden")
        sql.execute("create table late (id int primary key, v text); insert into late values (1, 'kept out')")
        sql.execute("alter table hidden add more text default 'kept out'; insert into hidden values (3, 'kept out')")
        sql.execute("insert into t values (2, 'two')")
        agrees(capture, sql)
    with capture.running():
        sql.execute(
            "insert into hidden values (4, 'kept out'); insert into late values (2, 'kept out'); insert into t values (3, 'three')"
        )
        agrees(capture, sql)
    assert capture.topics() == ["public.t"]
    assert is_nowhere(tmp_path)


def test_a_table_that_is_renamed_out_of_the_selection_ends_and_back_into_it_is_read(
    postgres: Database, sql: Connection, tmp_path: Path
) -> None:
    capture = of(postgres, tmp_path, "public.*", "!public.hidden")
    with capture.running():
        agrees(capture, sql)
        sql.execute("drop table hidden; alter table t rename to hidden; insert into hidden values (2, 'kept out')")
        capture.until(lambda: fold(capture, "public.t") == {}, "the topic to be empty")
        assert is_nowhere(tmp_path)
        sql.execute("update hidden set v = 'now shown'; alter table hidden rename to t; insert into t values (3, 'three')")
        agrees(capture, sql)
        sql.execute("update t set v = 'last' where id = 1")
        agrees(capture, sql)


def test_a_table_that_is_selected_again_by_the_configuration_is_read_again(
    postgres: Database, sql: Connection, tmp_path: Path
) -> None:
    everything, fewer = of(postgres, tmp_path, "public.*"), of(postgres, tmp_path, "public.*", "!public.hidden")
    with everything.running():
        agrees(everything, sql, "hidden")
    everything.until_released(sql)
    with fewer.running():
        sql.execute("delete from hidden; insert into hidden values (7, 'unseen'); insert into t values (2, 'two')")
        agrees(fewer, sql)
    fewer.until_released(sql)
    assert set(fold(fewer, "public.hidden")) == {("1",)}
    with everything.running():
        agrees(everything, sql, "hidden")
        sql.execute("insert into hidden values (8, 'seen')")
        agrees(everything, sql, "hidden")
