"""``emit``: one event, written by the caller's own connection within its own transaction. It commits nothing.

Neither SQLAlchemy nor psycopg is loaded here: whoever gives a session or a connection has loaded what it is of.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from cdc.outbox.event import Event, NoTransaction, OutboxMessages, OutboxTable, UnknownConnection, event
from cdc.outbox.message import body_of

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

    Writer = Session | scoped_session[Any] | sqlalchemy.Connection | psycopg.Connection[Any] | psycopg.Cursor[Any]
    AsyncWriter = AsyncSession | AsyncConnection | psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]

DEBEZIUM: Final = OutboxTable()
"""The table that ``cdc outbox init`` makes by default."""
_BEGIN: Final = "begin a transaction first: with connection.transaction(), or without autocommit"


def emit(
    session_or_connection: Writer,
    type: str,
    key: str | int | uuid.UUID,
    payload: Any,
    headers: Mapping[str, str] | None = None,
    *,
    aggregate: str | None = None,
    outbox: OutboxTable | OutboxMessages = DEBEZIUM,
    encode: Callable[[Any], str] | None = None,
) -> uuid.UUID:
    """Writes an event, and returns its id. It exists exactly if the caller's transaction commits.

    ``session_or_connection``: SQLAlchemy's Session or Connection, psycopg's Connection or Cursor. ``type``: the kind of event, such as "order.placed".
    ``key``: what it is about; events of one aggregate and key keep the order of their commits. ``payload``: what JSON can hold; bytes for a column
    of type bytea; None is NULL. ``aggregate``: says into which topic it goes; by default the type up to its first dot. ``encode``: makes JSON's text of the
    payload, instead of ``json.dumps``. ``outbox``: where it is written to: a row of a table, or a logical message.

    Raises BadEvent before anything is sent, so that the transaction can go on; NoTransaction where the connection commits by itself, UnknownConnection, and what
    the driver raises.
    """
    written = event(type, key, payload, headers, aggregate=aggregate, encode=encode)
    given: Any = session_or_connection
    if _is_of(given, _ALCHEMY):
        _by_sqlalchemy(given, written, outbox)
    elif _is_of(given, _PSYCOPG):
        _within_transaction(given).execute(*_statement(written, outbox))
    else:
        raise _unknown(given, "emit_async", (*_ASYNC_ALCHEMY, *_ASYNC_PSYCOPG))
    return written.id


async def emit_async(
    session_or_connection: AsyncWriter,
    type: str,
    key: str | int | uuid.UUID,
    payload: Any,
    headers: Mapping[str, str] | None = None,
    *,
    aggregate: str | None = None,
    outbox: OutboxTable | OutboxMessages = DEBEZIUM,
    encode: Callable[[Any], str] | None = None,
) -> uuid.UUID:
    """``emit`` for SQLAlchemy's AsyncSession or AsyncConnection and psycopg's AsyncConnection or AsyncCursor."""
    written = event(type, key, payload, headers, aggregate=aggregate, encode=encode)
    given: Any = session_or_connection
    if _is_of(given, _ASYNC_ALCHEMY):
        await given.run_sync(_by_sqlalchemy, written, outbox)
    elif _is_of(given, _ASYNC_PSYCOPG):
        await _within_transaction(given).execute(*_statement(written, outbox))
    else:
        raise _unknown(given, "emit", (*_ALCHEMY, *_PSYCOPG))
    return written.id


_ALCHEMY: Final = (
    ("sqlalchemy.orm", "Session"),
    ("sqlalchemy.orm", "scoped_session"),
    ("sqlalchemy.engine", "Connection"),
)
_ASYNC_ALCHEMY: Final = (("sqlalchemy.ext.asyncio", "AsyncSession"), ("sqlalchemy.ext.asyncio", "AsyncConnection"))
_PSYCOPG: Final = (("psycopg", "Connection"), ("psycopg", "Cursor"))
_ASYNC_PSYCOPG: Final = (("psycopg", "AsyncConnection"), ("psycopg", "AsyncCursor"))
_answers: Final[dict[tuple[type, tuple[tuple[str, str], ...]], bool]] = {}
"""Whether things of a type are of one of the classes: whoever has one of them has loaded its class, so the answer stays."""
_IDLE: Final = 0
"""psycopg.pq.TransactionStatus.IDLE."""


def _is_of(given: object, classes: tuple[tuple[str, str], ...]) -> bool:
    asked = type(given), classes
    if asked not in _answers:
        found = (getattr(sys.modules.get(module), name, None) for module, name in classes)
        _answers[asked] = isinstance(given, tuple(one for one in found if one is not None))
    return _answers[asked]


def _unknown(given: object, other: str, classes: tuple[tuple[str, str], ...]) -> UnknownConnection:
    hint = f"use {other}" if _is_of(given, classes) else "give SQLAlchemy's Session or Connection, or psycopg's"
    return UnknownConnection(f"{type(given).__name__} cannot write an event here", hint=hint)


def _refuse_autocommit(*, autocommit: bool) -> None:
    if autocommit:
        raise NoTransaction("the connection is in no transaction, so the event would be committed by itself", hint=_BEGIN)


def _within_transaction(given: Any) -> Any:
    """psycopg's connection, given by itself or by its cursor. Raises NoTransaction."""
    connection = getattr(given, "connection", given)
    _refuse_autocommit(autocommit=connection.autocommit and connection.info.transaction_status == _IDLE)
    return connection


def _statement(written: Event, outbox: OutboxTable | OutboxMessages) -> tuple[str, tuple[str | bytes | None, ...]]:
    """What psycopg executes, and its values."""
    if isinstance(outbox, OutboxMessages):
        return _emission("%s", "%s"), (outbox.prefix, body_of(written))
    return _insert(outbox, "%s"), written.values(outbox)


def _by_sqlalchemy(session_or_connection: Any, written: Event, outbox: OutboxTable | OutboxMessages) -> None:
    import sqlalchemy

    given = session_or_connection
    connection = given if isinstance(given, sqlalchemy.Connection) else given.connection()
    _refuse_autocommit(autocommit=bool(getattr(connection.connection.dbapi_connection, "autocommit", False)))
    _, values = _statement(written, outbox)
    clause = _clause(outbox, len(values))
    connection.execute(clause, {f"p{number}": value for number, value in enumerate(values)})


@lru_cache
def _clause(outbox: OutboxTable | OutboxMessages, values: int) -> sqlalchemy.TextClause:
    """Of so many values; made once, so that SQLAlchemy compiles it once."""
    import sqlalchemy

    names = [f"p{number}" for number in range(values)]
    places = [f":{name}" for name in names]
    statement = _emission(*places) if isinstance(outbox, OutboxMessages) else _insert(outbox, *places)
    # Without a type of SQLAlchemy's the server takes each value for what its column is: uuid, jsonb, json, text or bytea.
    return sqlalchemy.text(statement).bindparams(*(sqlalchemy.bindparam(name, type_=sqlalchemy.types.NullType()) for name in names))


def _emission(prefix: str, body: str) -> str:
    """``prefix``, ``body``: what stands for each value. The message's bytes are UTF-8, whatever the database's encoding."""
    return f"select pg_logical_emit_message(true, {prefix}, convert_to({body}, 'UTF8'))"


@lru_cache
def _insert(table: OutboxTable, *places: str) -> str:
    """``places``: what stands for each value; one for all of them."""
    schema, _, name = table.table.partition(".")
    mark = places[0] if places else ""
    alchemy = mark.startswith(":")
    columns = ", ".join(_quoted(column, alchemy=alchemy) for column in table.columns)
    values = ", ".join(places if alchemy else [mark] * len(table.columns))
    return f"insert into {_quoted(schema, alchemy=alchemy)}.{_quoted(name, alchemy=alchemy)} ({columns}) values ({values})"


def _quoted(name: str, *, alchemy: bool) -> str:
    """An identifier of Postgres's, in text in which : or % means something."""
    if not name or "\0" in name:
        raise UnknownConnection(
            "the outbox table, or a column of it, has no name that Postgres can have", hint="write it as schema.table"
        )
    quoted = '"' + name.replace('"', '""') + '"'
    return quoted.replace(":", "\\:") if alchemy else quoted.replace("%", "%%")
