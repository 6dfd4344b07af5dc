"""A link that is silent although TCP acknowledges everything ends a statement; a statement that takes its time does not."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from cdc.capture import stream
from cdc.errors import SourceError
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.source import connect, patience
from cdc.source.copyout import copy_blocks
from tests.conftest import Database
from tests.faults.proxy import Proxy

DEADLINE_S = 120.0
LOCK = 41


@pytest.fixture
def proxy(postgres: Database) -> Iterator[Proxy]:
    with closing(Proxy(int(conninfo_to_dict(postgres.dsn)["port"] or 0), lambda: 0)) as proxy:
        yield proxy


@pytest.fixture
def swallow(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on the link is silent, and nobody waits long any more: a busy machine's server may take its time before."""
    made: list[patience.Patience] = []
    begin = patience.Patience.__init__

    def remembered(self: patience.Patience, connection: psycopg.Connection[Any]) -> None:
        begin(self, connection)
        made.append(self)

    monkeypatch.setattr(patience.Patience, "__init__", remembered)

    def now() -> None:
        proxy.swallow(replication=False)
        monkeypatch.setattr(patience, "SILENCE_S", 0.3)
        monkeypatch.setattr(patience, "GRACE_S", 0.1)
        for one in made:
            one.heard()

    return now


@pytest.fixture
def linked(postgres: Database, proxy: Proxy) -> Iterator[psycopg.Connection[Any]]:
    parts = conninfo_to_dict(postgres.dsn)
    with closing(connect(f"postgresql://{parts['user']}@127.0.0.1:{proxy.port}/{parts['dbname']}?sslmode=disable")) as connection:
        yield connection


def ending(work: Callable[[], object], cut: Callable[[], object]) -> BaseException:
    """What ``work`` ends with; a link that would be waited on for ever is cut after the deadline, so that nothing is left behind."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except psycopg.Error as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    hung = thread.is_alive()
    cut()
    thread.join(DEADLINE_S)
    assert not hung, "waits for ever"
    (error,) = ended
    return error


def test_a_statement_that_is_swallowed_ends(linked: psycopg.Connection[Any], proxy: Proxy, swallow: Callable[[], None]) -> None:
    swallow()
    error = ending(lambda: linked.execute("select 1"), proxy.reset)
    assert "has not answered" in str(error)
    assert linked.closed


def test_a_copy_that_is_swallowed_ends(linked: psycopg.Connection[Any], proxy: Proxy, swallow: Callable[[], None]) -> None:
    never = threading.Event()
    blocks = copy_blocks(linked, "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 100000)) TO STDOUT", never)
    assert next(blocks).rows
    swallow()
    error = ending(lambda: list(blocks), proxy.reset)
    assert "has not answered" in str(error)


def test_a_copy_through_libpq_that_is_swallowed_ends(
    linked: psycopg.Connection[Any], proxy: Proxy, swallow: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.source.copyout._is_plain", lambda _: False)
    test_a_copy_that_is_swallowed_ends(linked, proxy, swallow)


def until_it_waits(sql: psycopg.Connection[Any], backend: int) -> None:
    """Until the backend waits for the lock."""
    waits = "select 1 from pg_stat_activity where pid = %s and wait_event = 'advisory'"
    deadline = time.monotonic() + DEADLINE_S
    while not sql.execute(waits, (backend,)).fetchone():
        assert time.monotonic() < deadline, "the statement has not reached the server"
        time.sleep(0.01)


def test_a_statement_that_takes_its_time_is_waited_for(
    postgres: Database, linked: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a lock until the server has been asked three times what it does."""
    sql = postgres.connect()
    sql.execute("select pg_advisory_lock(%s)", (LOCK,))
    asked: list[bool | None] = []
    works = patience._works

    def ask(connection: psycopg.Connection[Any]) -> bool | None:
        if len(asked) < 3:
            until_it_waits(sql, connection.info.backend_pid)
        asked.append(works(connection))
        if len(asked) == 3:
            monkeypatch.setattr(patience, "SILENCE_S", DEADLINE_S)  # the answer may take its time, too
            sql.execute("select pg_advisory_unlock(%s)", (LOCK,))
        return asked[-1]

    monkeypatch.setattr(patience, "_works", ask)
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    assert linked.execute("select pg_advisory_lock(%s)::text, 7", (LOCK,)).fetchone() == ("", 7)
    assert asked == [True] * 3


def test_a_server_that_seemed_idle_is_asked_once_more(
    postgres: Database, linked: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question is answered before the statement has reached the server; the second when it is at work on it."""
    sql = postgres.connect()
    sql.execute("select pg_advisory_lock(%s)", (LOCK,))
    asked: list[bool | None] = []
    works = patience._works

    def ask(connection: psycopg.Connection[Any]) -> bool | None:
        if asked:
            until_it_waits(sql, connection.info.backend_pid)
        asked.append(works(connection) if asked else False)
        if len(asked) == 2:
            monkeypatch.setattr(patience, "SILENCE_S", DEADLINE_S)
            sql.execute("select pg_advisory_unlock(%s)", (LOCK,))
        return asked[-1]

    monkeypatch.setattr(patience, "_works", ask)
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    assert linked.execute("select pg_advisory_lock(%s)::text, 7", (LOCK,)).fetchone() == ("", 7)
    assert asked == [False, True]


def test_an_answer_that_comes_while_the_server_is_asked_counts(
    linked: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads while the server is asked: what it sends meanwhile stands in the socket."""
    asked: list[bool] = []

    def ask(connection: psycopg.Connection[Any]) -> bool:
        if asked:
            assert select.select([connection.pgconn.socket], [], [], DEADLINE_S)[0]
        asked.append(False)
        return False

    monkeypatch.setattr(patience, "_works", ask)
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    assert linked.execute("select pg_sleep(2)::text, 7").fetchone() == ("", 7)


@pytest.fixture
def crowded(postgres: Database) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
    """The only connection that its role may have, so that nobody can ask what it does, and another role's that holds the lock."""
    sql, role = postgres.connect(), f"r_{postgres.name}"
    sql.execute("select pg_advisory_lock(%s)", (LOCK,))
    sql.execute(f'create role "{role}" login connection limit 1'.encode())
    with closing(connect(postgres.server.dsn(postgres.name, user=role))) as connection:
        yield connection, sql
    sql.execute(f'drop role "{role}"'.encode())


def test_a_server_without_room_for_the_question_is_no_dead_link(
    crowded: tuple[psycopg.Connection[Any], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, holding = crowded
    asked: list[bool | None] = []
    works = patience._works

    def ask(connection: psycopg.Connection[Any]) -> bool | None:
        asked.append(works(connection))
        if len(asked) == 3:
            monkeypatch.setattr(patience, "SILENCE_S", DEADLINE_S)
            holding.execute("select pg_advisory_unlock(%s)", (LOCK,))
        return asked[-1]

    monkeypatch.setattr(patience, "_works", ask)
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    assert waiting.execute("select pg_advisory_lock(%s)::text, 7", (LOCK,)).fetchone() == ("", 7)
    assert asked == [None] * 3


def test_a_server_that_never_has_room_for_the_question_ends_the_statement(
    crowded: tuple[psycopg.Connection[Any], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "UNKNOWN_MAX", 3)
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    with pytest.raises(psycopg.OperationalError, match="has not answered"):
        crowded[0].execute("select pg_advisory_lock(%s)", (LOCK,))


def test_a_replication_command_that_is_swallowed_ends(postgres: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = conninfo_to_dict(postgres.dsn)
    given = {"host": "127.0.0.1", "port": str(proxy.port), "user": str(parts["user"]), "dbname": str(parts["dbname"])}
    with closing(stream.Connection({**given, "sslmode": "disable"}, PINNED_SETTINGS, name="here")) as connection:
        assert connection.identify().database == parts["dbname"]
        proxy.swallow()
        monkeypatch.setattr(stream, "ANSWER_S", 0.3)
        with pytest.raises(SourceError, match="does not answer IDENTIFY_SYSTEM"):
            connection.identify()
