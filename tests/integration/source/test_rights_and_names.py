"""What a role has to be allowed, and names that need quoting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.capture import stream
from cdc.errors import SourceError
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.source.connection import connect, parse
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.source.test_stop_states import agrees

Connection = psycopg.Connection[Any]


@pytest.fixture
def sql(postgres: Database) -> Connection:
    connection = postgres.connect()
    connection.execute(
        "create table t (id int primary key, v text, secret text); insert into t select n, 'v', 's' from generate_series(1, 5) n"
    )
    return connection


@pytest.fixture
def role(postgres: Database, sql: Connection) -> Iterator[str]:
    """May replicate and connect, and nothing else."""
    name = f"r_{postgres.name}"
    sql.execute(f"create role {name} login replication")
    yield name
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"drop owned by {name}")
    with psycopg.connect(postgres.server.dsn(), autocommit=True) as admin:
        admin.execute(f"drop role {name}")


def limited(postgres: Database, role: str, tmp_path: Path, **source: Any) -> Capture:
    dsn = postgres.server.dsn(postgres.name, user=role)
    return Capture(dsn, tmp_path, slot=f"s_{postgres.name}", **source)


def refused(capture: Capture) -> SourceError:
    error = capture.start().failure()
    capture.stop()
    assert isinstance(error, SourceError), error
    return error


def test_a_role_that_may_not_read(postgres: Database, sql: Connection, role: str, tmp_path: Path) -> None:
    sql.execute("create table other (id int primary key); create publication cdc for table t, other")
    sql.execute(f"grant select on other to {role}")
    error = refused(limited(postgres, role, tmp_path))
    assert "may not read public.t" in str(error)
    assert "other" not in str(error)
    assert error.hint is not None
    sql.execute(error.hint)
    with limited(postgres, role, tmp_path).running() as capture:
        capture.until_snapshot_done()


def test_rights_on_columns_are_not_enough(postgres: Database, sql: Connection, role: str, tmp_path: Path) -> None:
    sql.execute(
        "create schema apart; create table apart.t (id int primary key); create publication cdc for table t (id, v), apart.t"
    )
    sql.execute(f"grant select (id, v) on t to {role}")
    error = refused(limited(postgres, role, tmp_path, tables=("public.t", "apart.t")))
    assert "may not read apart.t, public.t" in str(error)
    assert error.hint is not None
    sql.execute(error.hint)
    with limited(postgres, role, tmp_path, tables=("public.t", "apart.t")).running() as capture:
        agrees(capture, sql)
        assert all("secret" not in values for _, _, values in capture.changes("public.t")), "the column list holds"


def test_row_level_security_is_refused(postgres: Database, sql: Connection, role: str, tmp_path: Path) -> None:
    sql.execute("create publication cdc for table t; alter table t enable row level security")
    sql.execute(f"grant select on t to {role}")
    error = refused(limited(postgres, role, tmp_path))
    assert "row-level security hides rows of public.t" in str(error)
    assert error.hint is not None
    sql.execute(error.hint)
    with limited(postgres, role, tmp_path).running() as capture:
        capture.until_snapshot_done()
        assert len(capture.changes("public.t")) == 5


def test_settings_of_the_database_do_not_reach_our_sessions(postgres: Database, sql: Connection, tmp_path: Path) -> None:
    given = {
        "statement_timeout": "1h",
        "transaction_timeout": "1h",
        "idle_session_timeout": "1h",
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "default_transaction_deferrable": "on",
        "datestyle": "SQL, DMY",
    }
    for name, value in given.items():
        sql.execute(f"alter database {postgres.name} set {name} = '{value}'".encode())
    wanted = ["0", "0", "0", "read committed", "off", "off", "ISO, MDY"]
    with connect(postgres.dsn) as ours:
        assert [ours.execute(f"show {name}".encode()).fetchone() for name in given] == [(value,) for value in wanted]
    with closing(stream.Connection(parse(postgres.dsn), PINNED_SETTINGS, name="here")) as walsender:
        assert [walsender.query(f"SHOW {name}".encode())[0].decode() for name in given] == wanted
    with Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}").running() as capture:
        capture.until_snapshot_done()
        assert len(capture.changes("public.t")) == 5


def test_no_slot_is_free(postgres: Database, sql: Connection, tmp_path: Path) -> None:
    taken: list[str] = []
    try:
        with suppress(psycopg.errors.ConfigurationLimitExceeded):
            while True:
                name = f"taken_{len(taken)}"
                sql.execute("select pg_create_physical_replication_slot(%s)", (name,))
                taken.append(name)
        error = refused(Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}"))
        assert "all replication slots are in use" in str(error)
        assert "max_replication_slots" in str(error.hint)
    finally:
        for name in taken:
            sql.execute("select pg_drop_replication_slot(%s)", (name,))
    with Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}").running() as capture:
        capture.until_snapshot_done()
        assert len(capture.changes("public.t")) == 5


@pytest.mark.parametrize("publication", ["Orders", "a, b", 'it\'s "quoted"', "größe"])
def test_publications_that_need_quoting(postgres: Database, sql: Connection, tmp_path: Path, publication: str) -> None:
    sql.execute("alter table t drop column secret")
    with Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", publication=publication).running() as capture:
        sql.execute("insert into t values (7, 'streamed')")
        agrees(capture, sql)


def test_a_slot_of_digits_only(postgres: Database, sql: Connection, tmp_path: Path) -> None:
    sql.execute("alter table t drop column secret")
    with Capture(postgres.dsn, tmp_path, slot=str(int(postgres.name[5:], 16))).running() as capture:
        sql.execute("insert into t values (7, 'streamed')")
        agrees(capture, sql)
