"""What happens once in the life of a service: hundreds of tables go at once, the database is dumped and restored into a new cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.embedded.postgres import installations
from cdc.errors import Stopped, StopState
from cdc.state import reloads
from tests.integration.capture.cached import Cache
from tests.integration.capture.running import Capture

TABLES = 200


def test_many_tables_dropped_at_once_hold_up_none_of_the_others(postgres: Any, tmp_path: Path, valkey: Any) -> None:
    """In one transaction, in one statement, while rows come, and with the snapshots of some of them under way; out of a store, too."""
    with postgres.connect() as connection:
        connection.execute("create table kept (id int primary key, v text)")
        for number in range(TABLES):
            connection.execute(f"create table t{number} (id int primary key, v text)")
        for number in range(0, TABLES, 2):
            connection.execute(f"insert into t{number} values (1, 'a'), (2, 'b')")
        with Capture(postgres.dsn, tmp_path).running() as capture:
            cache = Cache(capture, valkey)
            capture.until(lambda: any(topic.startswith("public.t") for topic in capture.topics()), "for the first of them")
            assert any(key.startswith("public.t") for key in cache.follow())
            connection.execute("insert into t0 values (3, 'c')")
            connection.execute("insert into kept values (1, 'before')")
            connection.execute("drop table " + ", ".join(f"t{number}" for number in range(TABLES)))
            connection.execute("insert into kept values (2, 'after')")
            connection.execute("create table late (id int primary key, v text)")
            connection.execute("insert into late values (7, 'new')")
            capture.until(lambda: set(capture.rows("public.kept")) == {("1",), ("2",)}, "for the table that stays")
            capture.until(lambda: set(capture.rows("public.late")) == {("7",)}, "for the table that came after")
            capture.until(
                lambda: not any(capture.rows(f"public.t{number}") for number in range(TABLES)), "for the end of the others"
            )
            capture.until_snapshot_done()
            assert cache.follow() == {"public.kept:1": "before", "public.kept:2": "after", "public.late:7": "new"}
        # A second life over the same log knows of them no more.
        with Capture(postgres.dsn, tmp_path).running() as capture:
            connection.execute("insert into kept values (3, 'again')")
            capture.until(lambda: ("3",) in capture.rows("public.kept"))
            capture.until_snapshot_done()
            assert cache.follow() == {
                "public.kept:1": "before", "public.kept:2": "after", "public.kept:3": "again", "public.late:7": "new",
            }  # fmt: skip


@pytest.mark.timeout(600)
def test_a_database_restored_from_a_dump_into_a_new_cluster(
    postgres_server: Any, tmp_path: Path, postgres: Any, valkey: Any
) -> None:
    """Other rows stand under the same names there, and other ones are gone: it stops by name, and the way out ends with the new rows, in a
    store as well."""
    old, new = postgres_server, postgres
    with psycopg.connect(old.dsn(), autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, v text)")
        connection.execute("insert into orders select g, 'old ' || g from generate_series(1, 500) g")
        with Capture(old.dsn(), tmp_path).running() as capture:
            capture.until(lambda: len(capture.rows("public.orders")) == 500)
            capture.until_snapshot_done()
            cache = Cache(capture, valkey)
            assert cache.follow() == {f"public.orders:{id}": f"old {id}" for id in range(1, 501)}
        dump = _dump(old)
    with new.connect() as connection:
        # As psql: the search path that the dump sets ends with its session.
        subprocess.run(
            [_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", new.dsn], input=dump, check=True, stdout=subprocess.DEVNULL
        )
        connection.execute("delete from orders where id % 5 = 0")
        connection.execute("update orders set v = 'new ' || id where id % 7 = 0")
        error = Capture(new.dsn, tmp_path).start().failure()
        assert isinstance(error, Stopped)
        assert error.state is StopState.SYSTEM_CHANGED
        assert "--rebuild" in str(error.hint)
        reloads.request(tmp_path / "log", error.state)
        with Capture(new.dsn, tmp_path).running() as capture:
            wanted = {str(id): v for id, v in connection.execute("select id, v from orders")}
            capture.until(lambda: _texts(capture) == wanted, "for the restored rows")
            connection.execute("insert into orders values (1000, 'live')")
            capture.until(lambda: ("1000",) in capture.rows("public.orders"))
            capture.until_snapshot_done()
            assert cache.follow() == {f"public.orders:{id}": v for id, v in {**wanted, "1000": "live"}.items()}


def _texts(capture: Capture) -> dict[str | None, str | None]:
    return {id: row["v"] for (id,), row in capture.rows("public.orders").items()}


def _program(name: str) -> str:
    return str(installations()[18].binary(name))


def _dump(server: Any) -> bytes:
    environment = {**os.environ, "PGPASSWORD": ""}
    return subprocess.run([_program("pg_dump"), "-d", server.dsn()], check=True, stdout=subprocess.PIPE, env=environment).stdout
