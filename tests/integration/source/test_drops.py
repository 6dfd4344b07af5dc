"""The server's own errors for what was dropped while it was asked about: functions of the catalog look beside the statement's snapshot."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from cdc.source.connection import connect
from cdc.source.drops import despite_drops, vanished
from tests.conftest import Database

GONE = 4_000_000_000
"""No object has this OID."""
QUESTIONS: dict[str, LiteralString] = {
    "could not open relation with OID": "select pg_get_replica_identity_index(%s::oid::regclass)",
    "does not exist": "select pg_relation_size(%s::text::regclass)",
}


@pytest.mark.parametrize("said", QUESTIONS)
def test_a_question_about_what_was_dropped_is_asked_again(postgres: Database, said: str) -> None:
    question = QUESTIONS[said]
    with connect(postgres.dsn) as connection:
        connection.execute("create table public.t (id int primary key)")
        (there,) = connection.execute("select 'public.t'::regclass::oid::int8").fetchone() or (0,)
        given: list[object] = [GONE if "OID" in said else "public.gone", there if "OID" in said else "public.t"]

        def ask() -> object:
            return connection.execute(question, (given.pop(0),)).fetchone()

        assert despite_drops(connection, ask) is not None
        assert given == []


@pytest.mark.parametrize("said", QUESTIONS)
def test_a_transaction_that_such_an_error_has_ended_is_not_gone_on_with(postgres: Database, said: str) -> None:
    asked: list[int] = []
    with connect(postgres.dsn) as connection:

        def ask() -> object:
            asked.append(1)
            return connection.execute(QUESTIONS[said], (GONE if "OID" in said else "public.gone",)).fetchone()

        with pytest.raises(psycopg.Error, match=said) as ended, connection.transaction():
            despite_drops(connection, ask)
        assert vanished(ended.value)
        assert asked == [1]
        with pytest.raises(psycopg.errors.DivisionByZero):
            despite_drops(connection, lambda: connection.execute("select 1/0").fetchone())
