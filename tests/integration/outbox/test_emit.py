"""``emit`` with every kind of connection that it takes: the event shares the fate of the caller's transaction."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from cdc.outbox import BadEvent, NoTransaction, OutboxTable, UnknownConnection, emit, emit_async
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE

ODD = OutboxTable('app.ev"ents %s:x', "the id", "kind", "who", "what", 'pay\\load:"', None)


@pytest.fixture
def connection(postgres: Database) -> psycopg.Connection[Any]:
    found = postgres.connect()
    found.execute(CREATE)
    return found


@pytest.fixture
def engine(postgres: Database) -> Any:
    made = sqlalchemy.create_engine(postgres.dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


def rows(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("select id, aggregatetype, aggregateid, type, payload, headers from outbox order by ctid").fetchall()


def test_a_session_writes_it_in_its_transaction(connection: psycopg.Connection[Any], engine: Any) -> None:
    with Session(engine) as session:
        emit(session, "order.placed", 1, {"never": True})
        session.rollback()
        id = emit(session, "order.placed", 1, {"total": "12.50", "none": None}, {"tenant": "ü"})
        assert rows(connection) == []
        session.commit()
    assert rows(connection) == [(id, "order", "1", "order.placed", {"total": "12.50", "none": None}, {"tenant": "ü"})]
    assert id.version == 7


def test_a_scoped_session_and_a_connection(connection: psycopg.Connection[Any], engine: Any) -> None:
    scoped = scoped_session(sessionmaker(engine))
    first = emit(scoped, "order.placed", "a", [1, 2])
    scoped.commit()
    scoped.remove()
    with engine.begin() as own:
        second = emit(own, "Shipped", uuid.UUID(int=7), None, aggregate="order")
    assert rows(connection) == [
        (first, "order", "a", "order.placed", [1, 2], None),
        (second, "order", str(uuid.UUID(int=7)), "Shipped", None, None),
    ]


def test_connections_and_cursors_of_psycopgs(connection: psycopg.Connection[Any], postgres: Database) -> None:
    own = postgres.connect(autocommit=False)
    emit(own, "order.placed", 1, {})
    own.rollback()
    first = emit(own, "order.placed", 1, "text")
    second = emit(own.cursor(), "order.paid", 1, 5)
    own.commit()
    with connection.transaction():
        third = emit(connection, "order.sent", 1, True)
    assert [(row[0], row[4]) for row in rows(connection)] == [(first, "text"), (second, 5), (third, True)]


def test_what_commits_by_itself_is_refused(connection: psycopg.Connection[Any], engine: Any) -> None:
    with pytest.raises(NoTransaction):
        emit(connection, "order.placed", 1, {})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own, pytest.raises(NoTransaction):
        emit(own, "order.placed", 1, {})
    assert rows(connection) == []


def test_asynchronous_connections(connection: psycopg.Connection[Any], postgres: Database) -> None:
    async def work() -> uuid.UUID:
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as own:
            await emit_async(own, "order.placed", 1, {})
            await own.rollback()
            with pytest.raises(UnknownConnection) as wrong:
                emit(own, "order.placed", 1, {})  # type: ignore[arg-type]
            assert wrong.value.hint == "use emit_async"
            return await emit_async(own.cursor(), "order.placed", 2, {"n": 1})

    id = asyncio.run(work())
    assert [(row[0], row[2]) for row in rows(connection)] == [(id, "2")]


def test_asynchronous_sessions(connection: psycopg.Connection[Any], postgres: Database) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work() -> uuid.UUID:
        engine = create_async_engine(postgres.dsn.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session:
            await emit_async(session, "order.placed", 1, {})
            await session.rollback()
            await emit_async(session, "order.placed", 2, {"n": 1})
            await session.commit()
        async with engine.begin() as own:
            id = await emit_async(own, "order.placed", 3, {"n": 1})
        await engine.dispose()
        return id

    id = asyncio.run(work())
    assert [row[2] for row in rows(connection)] == ["2", "3"]
    assert rows(connection)[1][0] == id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 1, {}), "the type is empty"),
        ((".placed", 1, {}), "the aggregate is empty"),
        (("order.placed", "", {}), "the key is empty"),
        (("order.placed", None, {}), "the key is a str, an int or a UUID, not NoneType"),
        (("order.placed", True, {}), "the key is a str, an int or a UUID, not bool"),
        ((7, 1, {}), "the type is a str, not int"),
        (("order.placed", "secret\0", {}), "the key is text without U+0000 and of at most 2000 bytes"),
        (("order.placed", 1, {"secret": float("nan")}), "the payload is not JSON"),
        (("order.placed", 1, {"secret": 1j}), "the payload is not JSON: Object of type complex is not JSON serializable"),
        (
            ("order.placed", 1, {"secret": "\0"}),
            "the payload holds a character that Postgres cannot: U+0000, or half of a surrogate pair",
        ),
        (("order.placed", 1, "\ud800"), "the payload holds a character that Postgres cannot: U+0000, or half of a surrogate pair"),
        (("order.placed", 1, {}, {"secret": 1}), "headers map text to text"),
        (("o" * 64, 1, {}), "the aggregate becomes a topic's name: it is at most 63 bytes of printable text"),
    ],
)
def test_a_bad_event_costs_nothing(connection: psycopg.Connection[Any], arguments: tuple[Any, ...], message: str) -> None:
    with connection.transaction():
        connection.execute("create table other (id int)")
        with pytest.raises(BadEvent) as refused:
            emit(connection, *arguments)
        assert str(refused.value) == message
        assert "secret" not in refused.value.line()
        emit(connection, "order.placed", 1, {"text": "\\u0000 as text \\"})
    assert [row[4] for row in rows(connection)] == [{"text": "\\u0000 as text \\"}]


def test_other_things_are_no_connections() -> None:
    with pytest.raises(UnknownConnection, match=r"^dict cannot write an event here$"):
        emit({}, "order.placed", 1, {})  # type: ignore[arg-type]


def test_a_table_of_other_names_and_types(connection: psycopg.Connection[Any], engine: Any) -> None:
    connection.execute("create schema app")
    connection.execute(
        'create table app."ev""ents %s:x" ("the id" text primary key, kind text, who text, what text, "pay\\load:""" bytea)'
    )
    with connection.transaction():
        emit(connection, "order.placed", 1, b"\x00\xff", outbox=ODD)
        with pytest.raises(BadEvent):
            emit(connection, "order.placed", 1, b"", {"a": "b"}, outbox=ODD)
    with Session(engine) as session:
        emit(session, "order.placed", 2, b"\x01", outbox=ODD)
        session.commit()
    found = connection.execute('select kind, who, what, "pay\\load:""" from app."ev""ents %%s:x" order by who', ()).fetchall()
    assert found == [("order", "1", "order.placed", b"\x00\xff"), ("order", "2", "order.placed", b"\x01")]


def test_json_is_written_as_it_was_encoded(connection: psycopg.Connection[Any]) -> None:
    connection.execute("alter table outbox alter payload type json")
    text = '{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}'
    with connection.transaction():
        emit(connection, "order.placed", 1, text, encode=str)
        emit(connection, "order.placed", 1, json.loads(text))
    found = connection.execute("select payload::text from outbox order by ctid").fetchall()
    assert [row[0] for row in found] == [text, text.replace(": ", ":").replace(", ", ",")]
