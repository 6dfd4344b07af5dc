"""The race that an outbox is for: a service that ends between its commit and its event, or the other way round. And docs/outbox.md's own code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from examples.dual_write.dual_write import commit_then_publish, publish_then_commit, with_an_outbox, work
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE, OutboxCapture
from tests.integration.outbox.test_events import wal_end

ROOT: Final = Path(__file__).parents[3]
EXAMPLE: Final = ROOT / "examples" / "dual_write"
PAGE: Final = ROOT / "docs" / "outbox.md"


def orders(connection: psycopg.Connection[Any]) -> list[int]:
    return [row[0] for row in connection.execute("select id from orders order by id").fetchall()]


@pytest.mark.parametrize(("service", "lost", "ghosts"), [(commit_then_publish, {1}, set()), (publish_then_commit, set(), {1})])
def test_without_an_outbox_one_order_has_no_event_or_one_event_no_order(
    service: Any, lost: set[int], ghosts: set[int], postgres: Database, tmp_path: Path
) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    broker = tmp_path / "broker"
    work(service, postgres.dsn, broker, 0)
    sent = {int(line) for line in broker.read_text().split()}
    assert (set(orders(connection)) - sent, sent - set(orders(connection))) == (lost, ghosts)


def test_with_an_outbox_there_is_an_event_exactly_for_each_order(postgres: Database, tmp_path: Path) -> None:
    connection = postgres.connect()
    connection.execute("create table orders (id int primary key)")
    connection.execute(CREATE)
    with OutboxCapture(postgres.dsn, tmp_path).running() as capture:
        capture.until_snapshot_done()
        work(with_an_outbox, postgres.dsn, tmp_path, 0)
        capture.until_lsn(wal_end(connection))
        assert (
            [values["key"] for _, _, values in capture.events("outbox.order")]
            == [str(id) for id in orders(connection)]
            == ["2", "3", "4"]
        )


@pytest.mark.slow
def test_the_example_shows_what_its_page_says() -> None:
    """It takes a server and a service of its own, so it runs with all faults only."""
    done = subprocess.run(
        [sys.executable, EXAMPLE / "dual_write.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"```\n{done.stdout}```" in (EXAMPLE / "README.md").read_text(encoding="utf-8")


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
