"""Events without a table: logical messages under the outbox's prefix, from the stream."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from cdc.outbox import BadEvent, OutboxMessages, emit
from cdc.settings.outbox import Outbox
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE, OutboxCapture, write
from tests.integration.outbox.test_events import wal_end

PREFIX = "outbox"
MESSAGES = OutboxMessages(PREFIX)
EXACT = '{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}'


def say(connection: psycopg.Connection[Any], body: str, prefix: str = PREFIX, *, transactional: bool = True) -> None:
    connection.execute("select pg_logical_emit_message(%s, %s, %s::text)", [transactional, prefix, body])


def told(connection: psycopg.Connection[Any], key: str = "1", payload: str = "{}", type: str = "order.placed") -> str:
    """One event, in the transaction that is open, if one is. Returns its id."""
    id = str(uuid.uuid4())
    texts = {"id": id, "aggregate": type.partition(".")[0], "key": key, "type": type}
    say(connection, json.dumps(texts)[:-1] + f', "payload": {payload}}}')
    return id


def capture_of(postgres: Database, folder: Path, **more: Any) -> OutboxCapture:
    return OutboxCapture(postgres.dsn, folder, Outbox.model_validate({"prefix": PREFIX, **more}))


def test_messages_are_events_in_commit_order_with_the_rows_of_their_transactions(postgres: Database, tmp_path: Path) -> None:
    one, other = postgres.connect(), postgres.connect(autocommit=False)
    one.execute("create table orders (id int primary key)")
    with capture_of(postgres, tmp_path).running() as capture:
        capture.until_snapshot_done()
        late = told(other, "1")  # emitted first, committed last
        with one.transaction():
            one.execute("insert into orders values (1)")
            first = told(one, "1", EXACT)
            say(one, "no JSON", "somebody.else")
        other.commit()
        with one.transaction(force_rollback=True):
            told(one)
        alone = told(one, type="Customer.moved")
        capture.until_lsn(wal_end(one))
        assert capture.ids("outbox.order") == [first, late]
        assert capture.ids("outbox.Customer") == [alone]
        [(position, op, values), _] = capture.events("outbox.order")
        assert (op, values["key"], values["type"], values["payload"], values["headers"]) == ("c", "1", "order.placed", EXACT, None)
        assert values["time"] is not None
        [(row, _, _)] = capture.changes("public.orders")
        assert row == position - 1, "in one commit"
        assert capture.positions() == list(range(1, capture.reader.head().position + 1))
        assert capture.status.left_out == []


def test_emit_writes_messages_with_every_driver(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    engine = sqlalchemy.create_engine(postgres.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with capture_of(postgres, tmp_path).running() as capture:
        capture.until_snapshot_done()
        with connection.transaction():
            ids = [emit(connection, "order.placed", 7, {"text": "ü %s :p0"}, {"tenant": "north"}, outbox=MESSAGES)]
        with Session(engine) as session:
            emit(session, "order.lost", 7, {}, outbox=MESSAGES)
            session.rollback()
            ids.append(emit(session, "order.gone", 7, None, outbox=MESSAGES))
            with pytest.raises(BadEvent, match=r"^bytes are a payload for a table"):
                emit(session, "order.placed", 7, b"bytes", outbox=MESSAGES)
            with pytest.raises(BadEvent, match=r"^the event has more than 4,194,304 bytes"):
                emit(session, "order.placed", 7, "x" * 2**22, outbox=MESSAGES)
            session.commit()
        engine.dispose()
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [str(id) for id in ids]
        first, second = (values for _, _, values in capture.events("outbox.order"))
        assert (first["payload"], first["headers"]) == ('{"text":"ü %s :p0"}', '{"tenant":"north"}')
        assert (second["payload"], second["headers"]) == (None, None)
    capture.until_released(connection)
    with capture.running():  # nothing comes twice
        last = told(connection)
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [*(str(id) for id in ids), last]


def test_what_is_no_event_is_said_and_others_flow(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    with capture_of(postgres, tmp_path).running() as capture:
        capture.until_snapshot_done()
        first = told(connection)
        with connection.transaction():
            say(connection, "secret")
            say(connection, '{"id": "secret", "aggregate": "order", "key": "1", "type": "t"}')
            say(connection, '{"aggregate": "order", "key": "1", "type": "t"}')
            say(connection, '{"id": "0190b3a0-0000-7000-8000-000000000000", "aggregate": "", "key": "1", "type": "t"}')
            say(connection, json.dumps("x" * 5 * 2**20))
            connection.execute("insert into orders values (1)")
            last = told(connection)
        say(connection, json.dumps({"id": str(uuid.uuid4()), "aggregate": "order", "key": "1", "type": "t"}), transactional=False)
        say(connection, "x" * 5 * 2**20, "somebody.else")
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [first, last]
        assert len(capture.changes("public.orders")) == 1
        capture.until(lambda: len(capture.status.left_out) == 6, "for the status")
        assert [line.partition(" →")[0] for line in capture.status.left_out] == [
            "1 messages under outbox are no events: it has no id, which is text without U+0000",
            "1 messages under outbox are no events: it is larger than 4,194,304 bytes",
            "1 messages under outbox are no events: it is not a JSON object",
            "1 messages under outbox are no events: it was not emitted with its transaction: the first argument of pg_logical_emit_message has to"
            " be true",
            "1 messages under outbox are no events: its id is not a UUID",
            "1 messages under outbox are no events: no topic can have the name that its route makes",
        ]
        assert "secret" not in "".join(capture.status.left_out)


def test_messages_from_before_there_was_a_prefix_are_no_events(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    capture = OutboxCapture(postgres.dsn, tmp_path)
    capture.settings = capture.settings.model_copy(update={"outbox": None})
    with capture.running():
        capture.until_snapshot_done()
        connection.execute("insert into orders values (1)")
        for _ in range(3):
            told(connection)
        capture.until_lsn(wal_end(connection))
    capture.until_released(connection)
    capture = capture_of(postgres, tmp_path)
    with capture.running():
        capture.until_snapshot_done()
        id = told(connection)
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == [id]


def test_rows_and_messages_stand_in_the_order_of_their_commits_under_one_definition(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    capture = capture_of(postgres, tmp_path, table="public.outbox", keep="")
    with capture.running():
        capture.until_snapshot_done()
    capture.until_released(connection)
    ids = []  # all of it comes at once
    for number in range(10):
        with connection.transaction():
            ids.append(write(connection, "order", "1", {"n": number}))
            ids.append(told(connection, payload=EXACT))
        ids.append(told(connection) if number % 3 else write(connection, "order", "1"))
    with capture.running():
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == ids
        assert {op for _, op, _ in capture.events("outbox.order")} == {"c"}
        assert capture.events("outbox.order")[1][2]["payload"] == EXACT
        assert capture.positions() == list(range(1, capture.reader.head().position + 1))


def test_transactions_that_come_before_their_end_keep_the_order(postgres: Database, tmp_path: Path) -> None:
    """A large one in pieces while it runs, with a savepoint that is taken back, and one that is prepared."""
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key, note text)")
    capture = capture_of(postgres, tmp_path)
    source = capture.settings.source.model_copy(update={"two_phase": True})
    capture.settings = capture.settings.model_copy(update={"source": source})
    ids = []
    with capture.running():
        capture.until_snapshot_done()
        with connection.transaction():
            for number in range(4):
                ids.append(told(connection, str(number)))
                connection.execute(
                    "insert into orders select %s * 100000 + n, repeat('x', 900) from generate_series(1, 25000) n", [number]
                )
                with connection.transaction(force_rollback=True):
                    told(connection, "lost")
        other = postgres.connect(autocommit=False)
        prepared = [told(other, "prepared")]
        other.execute("insert into orders values (-1)")
        prepared.append(told(other, "prepared"))
        other.execute("prepare transaction 'outbox'")
        connection.execute("commit prepared 'outbox'")
        capture.until_lsn(wal_end(connection))
        assert capture.ids("outbox.order") == ids + prepared
        assert len(capture.changes("public.orders")) == 100_001
        assert capture.positions() == list(range(1, capture.reader.head().position + 1))


def test_whoever_may_connect_may_emit_and_a_revoke_ends_that(postgres: Database) -> None:
    """What docs/outbox.md says of forged events."""
    connection = postgres.connect()
    name = f"anybody_{uuid.uuid4().hex[:8]}"
    of = "boolean, text, text" + (", boolean" if connection.info.server_version >= 170000 else "")
    connection.execute(f"create role {name}".encode())
    try:
        connection.execute(f"set role {name}".encode())
        with connection.transaction():
            connection.execute("set transaction read only")
            told(connection)
        connection.execute("reset role")
        connection.execute(f"revoke execute on function pg_logical_emit_message({of}) from public".encode())
        connection.execute(f"set role {name}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            told(connection)
    finally:
        connection.execute("reset role")
        connection.execute(f"drop role {name}".encode())
