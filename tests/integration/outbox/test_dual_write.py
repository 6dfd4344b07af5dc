"""The race that an outbox is for: a service that ends between its commit and its event, or the other way round. And docs/outbox.md's own code."""

from __future__ import annotations

import os
import re
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from cdc.crashpoint import KILLED
from cdc.outbox import emit
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE, OutboxCapture
from tests.integration.outbox.test_events import wal_end

PAGE: Final = Path(__file__).parents[3] / "docs" / "outbox.md"
STEPS: Final = 4


def ending_at(last: int, step: int) -> None:
    """The service ends right here, at the last of its steps."""
    if step == last:
        os._exit(KILLED)


def tells_after(dsn: str, broker: Path, order: int, last: int) -> None:
    """Commits the order, and then sends the event."""
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into orders values (%s)", [order])
        ending_at(last, 0)
        connection.commit()
        ending_at(last, 1)
        _send(broker, order)
        ending_at(last, 2)
    ending_at(last, 3)


def tells_before(dsn: str, broker: Path, order: int, last: int) -> None:
    """Sends the event, and then commits the order."""
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into orders values (%s)", [order])
        ending_at(last, 0)
        _send(broker, order)
        ending_at(last, 1)
        connection.commit()
        ending_at(last, 2)
    ending_at(last, 3)


def tells_within(dsn: str, _: Path, order: int, last: int) -> None:
    """Writes the event with the order."""
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into orders values (%s)", [order])
        ending_at(last, 0)
        emit(connection, "order.placed", order, {"id": order})
        ending_at(last, 1)
        connection.commit()
        ending_at(last, 2)
    ending_at(last, 3)


def _send(broker: Path, order: int) -> None:
    with broker.open("a") as sent:
        sent.write(f"{order}\n")


def serve(service: Any, dsn: str, broker: Path) -> None:
    """An order for each step at which the service may end, and one that it brings to its end."""
    for last in range(STEPS + 1):
        process = get_context("fork").Process(target=service, args=(dsn, broker, last, last))
        process.start()
        process.join(60)
        assert process.exitcode == (0 if last == STEPS else KILLED)


def orders(connection: psycopg.Connection[Any]) -> list[int]:
    return [row[0] for row in connection.execute("select id from orders order by id").fetchall()]


@pytest.mark.parametrize(("service", "lost", "invented"), [(tells_after, {1}, set()), (tells_before, set(), {1})])
def test_without_an_outbox_one_order_has_no_event_or_one_event_no_order(
    service: Any, lost: set[int], invented: set[int], postgres: Database, tmp_path: Path
) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    broker = tmp_path / "broker"
    serve(service, postgres.dsn, broker)
    sent = {int(line) for line in broker.read_text().split()}
    assert (set(orders(connection)) - sent, sent - set(orders(connection))) == (lost, invented)


def test_with_an_outbox_there_is_an_event_exactly_for_each_order(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        serve(tells_within, postgres.dsn, tmp_path)
        capture.until_lsn(wal_end(connection))
        assert (
            [values["key"] for _, _, values in capture.events("outbox.order")]
            == [str(id) for id in orders(connection)]
            == ["2", "3", "4"]
        )


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[str]


def test_the_pages_code_writes_an_order_and_its_event(postgres: Database) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key, total text)")
    found = re.search(r"```sql\n(create table public\.outbox .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    connection.execute(found[1].encode())
    code = re.search(r"<!-- emit: tested -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    engine = sqlalchemy.create_engine(postgres.dsn.replace("postgresql://", "postgresql+psycopg://"))
    exec(code[1], {"engine": engine, "Session": Session, "Order": Order})
    engine.dispose()
    assert orders(connection) == [7]
    [row] = connection.execute("select aggregatetype, aggregateid, type, payload, headers from outbox").fetchall()
    assert row == ("order", "7", "order.placed", {"id": 7, "total": "12.50"}, {"tenant": "north"})
