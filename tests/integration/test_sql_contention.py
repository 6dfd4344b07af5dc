"""A store of kind sql beside somebody else's sessions in the same database: what is in its way is named and tried again, and nothing is lost or written twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest

from cdc.crashpoint import decided_by
from cdc.errors import StoreError
from cdc.model.batch import Op
from sinks.contract import Sink
from sinks.deadletters import box_of
from tests.conftest import Database
from tests.contract.labs import LABS, Lab
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.rows import ORDERS, batch, order, schema, upserts
from tests.contract.test_marks import FIRST, SECOND, THIRD, apply, heal, step, whole
from tests.waiting import until

Session = psycopg.Connection[Any]
WAIT_S: Final = 2.0
"""So long the store waits for a lock."""


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["sql"](request.getfixturevalue)
    yield made
    made.close()


@contextmanager
def somebody(postgres: Database) -> Iterator[Session]:
    """In a transaction, until the end."""
    with psycopg.connect(postgres.dsn) as session:
        yield session
        session.rollback()


class Once:
    """Does something the first time that the point is reached."""

    def __init__(self, point: str, work: Callable[[], object]) -> None:
        self._point = point
        self._work = work
        self.done = False

    def reach(self, name: str) -> None:
        if name == self._point and not self.done:
            self.done = True
            self._work()


def refused(lab: Lab, sink: Sink, *, state: str) -> None:
    """A commit is named, and may be tried again; and the store is as it was."""
    for changes in SECOND:
        lab.log.put(changes)
        apply(sink, changes)
    with pytest.raises(StoreError) as failure:
        sink.commit(lab.log.head)
    assert failure.value.retryable, failure.value
    assert state in str(failure.value), failure.value
    assert lab.applied().position == 5


def goes_on(lab: Lab) -> None:
    sink = heal(lab)
    step(lab, sink, *THIRD)
    whole(lab, sink)


@pytest.mark.parametrize(
    "statement",
    ["lock table public.orders in share mode", "select * from public.pairs for update", "create index on public.pairs (v)"],
)
def test_a_lock_that_stays_is_waited_for_and_named(lab: Lab, postgres: Database, statement: str) -> None:
    sink = lab.opened(timeout_s=WAIT_S)
    step(lab, sink, *FIRST)
    with somebody(postgres) as session:
        session.execute(statement.encode())
        refused(lab, sink, state="lock timeout")
    goes_on(lab)


def test_a_reader_holds_up_no_rows_and_a_change_of_columns_waits_for_it(lab: Lab, postgres: Database) -> None:
    sink = lab.opened(timeout_s=WAIT_S)
    step(lab, sink, *FIRST)
    with somebody(postgres) as session:
        session.execute("set transaction isolation level repeatable read")
        seen = session.execute("select * from public.orders order by id").fetchall()
        step(lab, sink, *SECOND, batch(ORDERS, [(Op.TRUNCATE, 10, {})]), upserts(ORDERS, 11, [order(7)]))
        assert session.execute("select * from public.orders order by id").fetchall() == seen, "it goes on with what it began with"
        fewer = replace(ORDERS, columns=tuple(one for one in ORDERS.columns if one.name != "note"))
        change = schema(fewer, 12)
        lab.log.put(change)
        apply(sink, change)
        with pytest.raises(StoreError, match="lock timeout") as failure:
            sink.commit(lab.log.head)
        assert failure.value.retryable
        assert session.execute("select note from public.orders order by id").fetchall() == [(row[4],) for row in seen]
    assert heal(lab).applied() == lab.log.head
    with postgres.connect() as session:
        assert session.execute("select customer_id, status, amount::text from public.orders").fetchall() == [(7, "new", "1.10")]


def test_a_deadlock_is_tried_again(lab: Lab, postgres: Database) -> None:
    """The store has written orders and wants pairs; somebody has written pairs and wants orders."""
    sink = lab.opened(timeout_s=30)
    step(lab, sink, *FIRST)
    with somebody(postgres) as session:
        session.execute("set deadlock_timeout = '60s'")  # the store's session is the one that notices
        session.execute("update public.pairs set v = v")
        held = threading.Thread(target=lambda: session.execute("update public.orders set status = status"))
        with decided_by(Once("sql.table_written", held.start)):
            refused(lab, sink, state="deadlock detected")
        held.join(60)
        assert not held.is_alive(), "and the other one goes on"
        session.commit()
    goes_on(lab)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_isolation_by_default_changes_nothing(lab: Lab, postgres: Database, level: str) -> None:
    """The store's sessions have their own: somebody who writes to the same rows meanwhile is no failure of serialization."""
    with postgres.connect() as owner:
        owner.execute(f"alter database \"{postgres.name}\" set default_transaction_isolation = '{level}'".encode())
    sink = lab.opened()
    step(lab, sink, *FIRST)

    def touch() -> None:
        with postgres.connect() as session:
            session.execute("update public.pairs set v = v")

    with decided_by(Once("sql.table_written", touch)):
        step(lab, sink, *SECOND)
    goes_on(lab)


def test_a_failure_to_serialize_is_tried_again(lab: Lab, postgres: Database) -> None:
    """Such as a trigger of somebody's raises, whose words are repeated nowhere."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    with postgres.connect() as owner:
        owner.execute(
            """create function public.unlucky() returns trigger language plpgsql as $$ begin
            raise exception 'could not serialize access' using errcode = '40001'; end $$"""
        )
        owner.execute("create trigger unlucky after update on public.orders execute function public.unlucky()")
        refused(lab, sink, state="SQLSTATE 40001")
        owner.execute("drop trigger unlucky on public.orders")
    goes_on(lab)


def test_the_accounts_own_timeouts_do_not_count(lab: Lab, postgres: Database) -> None:
    """The store's session stands still for longer than they are, and then waits for a lock for longer."""
    with postgres.connect() as owner:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            owner.execute(f"alter database \"{postgres.name}\" set {name} = '1s'".encode())
    sink = lab.opened()
    step(lab, sink, *FIRST)
    with somebody(postgres) as session:

        def hold() -> None:
            session.execute("set idle_in_transaction_session_timeout = 0")
            session.execute("lock table public.pairs in share mode")
            threading.Timer(3.0, session.rollback).start()
            time.sleep(1.5)

        with decided_by(Once("sql.table_written", hold)):
            step(lab, sink, *SECOND)
    goes_on(lab)


@pytest.mark.parametrize("how", ["terminate", "cancel"])
@pytest.mark.parametrize("point", ["sql.table_written", "sql.before_commit"])
def test_a_session_that_is_ended_in_a_commit(lab: Lab, postgres: Database, point: str, how: str) -> None:
    """``cancel``: the statement that comes next, as `pg_cancel_backend` does to one that waits for a lock."""
    sink = lab.opened(timeout_s=30)
    step(lab, sink, *FIRST)
    mine = f"select pg_{how}_backend(pid) from pg_stat_activity where application_name = 'headwater {lab.name}' and state <> 'idle'"

    def end() -> None:
        with postgres.connect() as session:
            assert session.execute(mine.encode()).fetchall() == [(True,)]

    if how == "terminate":
        with decided_by(Once(point, end)):
            refused(lab, sink, state="terminating connection")
    else:
        with somebody(postgres) as session:
            session.execute("lock table public.pairs in share mode")
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'headwater %'"

            def cancel() -> None:
                with postgres.connect() as other:
                    until(lambda: other.execute(waits.encode()).fetchall(), "the store to wait")
                end()

            canceller = threading.Thread(target=cancel)
            canceller.start()
            refused(lab, sink, state="canceling statement")
            canceller.join()
    goes_on(lab)


def test_the_answer_to_a_commit_that_set_rows_aside_is_lost(lab: Lab, postgres: Database) -> None:
    """Whether it was carried out is what the marks say; the letters are those of that commit, once."""
    assert lab.server is not None
    proxy = LossyProxy(lab.server.port, only_to=b"COMMIT")
    sink = lab.opened(url=lab.url_at(proxy.port))
    step(lab, sink, upserts(ORDERS, 1, [order(1)]))
    with postgres.connect() as owner:
        owner.execute("alter table public.orders add constraint short check (length(status) < 5)")
    changes = upserts(ORDERS, 2, [order(2, "canary"), order(3)])
    lab.log.put(changes)
    apply(sink, changes)
    proxy.lose_answers = True
    with pytest.raises(StoreError) as failure:
        sink.commit(lab.log.head)
    assert failure.value.retryable
    proxy.lose_answers = False
    assert lab.applied() == lab.log.head, "it was carried out"
    sink.commit(lab.log.head)
    box, there = box_of(sink), box_of(lab.sink())
    assert box is not None
    assert there is not None
    assert [int(one.position) for one in box.letters()] == [2]
    assert box.letters() == there.letters()
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(2, "ok"))]))
    assert box.letters() == there.letters() == ()
    proxy.close()
