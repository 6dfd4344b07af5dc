"""Tables that are dropped while the catalog is asked about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

_TRIES: Final = 20
_INTERNAL: Final = ("could not open relation with OID ", "cache lookup failed for ")
"""Postgres's internal errors, which it does not translate."""

Answer = TypeVar("Answer")


def vanished(error: psycopg.Error) -> bool:
    """Whether the error says that something was dropped while the statement ran: functions of the catalog look beside its snapshot."""
    if isinstance(error, psycopg.errors.InternalError_):
        return (error.diag.message_primary or "").startswith(_INTERNAL)
    return isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName)


def despite_drops(connection: psycopg.Connection, ask: Callable[[], Answer]) -> Answer:
    """Returns what ``ask`` returns, and asks again where something vanished meanwhile. Inside a transaction, which the error has ended, only once."""
    for _ in range(_TRIES):
        try:
            return ask()
        except psycopg.Error as error:
            if not vanished(error) or connection.info.transaction_status is not TransactionStatus.IDLE:
                raise
    return ask()
