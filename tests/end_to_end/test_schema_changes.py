"""Definitions change in the middle of traffic while `cdc run` follows with three real stores: in the end each equals the source.

Once in a fixed order, where one store waits because its contract is broken and goes on when it is let; and at random, under kill -9.
Part of `make faults`: Spark's processes take long to start on a machine with much else to do.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.state import stops
from tests import counters
from tests.conftest import Cache, Database
from tests.end_to_end.altering import AnyRows, Definitions, insert, targets
from tests.end_to_end.daemon import DEADLINE_S, STORES, Daemon, configure

ROUNDS: Final = -(-int(os.environ.get("HEADWATER_FAULTS", "0")) // 100)
ROLES: Final = Path(__file__).parents[2] / "deploy/roles.sql"

TABLES: Final = """
create type mood as enum ('good', 'bad');
create type pair as (x int, y text);
create table orders (id bigint primary key, total numeric(12,2), note text, a text, b text, day date, rank int, m mood);
create table items (id int primary key, name text, price numeric);
create table parts (id int primary key, label text);
create table board (id int primary key, line text);
create table ledger (id int primary key, amount numeric(12,2), memo text);
create table events (id int not null, v text, primary key (id)) partition by range (id);
create table events_low partition of events for values from (minvalue) to (2500);
create table events_high partition of events for values from (2500) to (maxvalue);
"""
CONTRACT: Final = {'contracts."public.ledger"': {"require": ["id", "amount"]}}
CHANGES: Final = (
    "alter table orders add column extra text",
    "alter table orders add column made date not null default '2013-01-31'",
    "alter table orders add column chance float8 default random()",
    "alter table orders rename column note to remark",
    "alter table orders rename a to aside; alter table orders rename b to a; alter table orders rename aside to b",
    "alter table orders drop column day",
    "alter table orders alter column rank type text using '<' || rank || '>'",
    "alter table orders add column day text",
    "alter table items rename to things",
    "drop table parts; create table parts (id bigint primary key, weight numeric, label text)",
    "truncate board",
    "alter table orders drop constraint orders_pkey, add primary key (id, made)",
    "alter table events detach partition events_low",
    # Locked, as the traffic writes rows into it that the partition's bounds would refuse.
    "lock table events_low; delete from events_low where id % 3 = 0 or id >= 2500; "
    "alter table events attach partition events_low for values from (minvalue) to (2500)",
    "alter type mood rename value 'bad' to 'sad'",
)


def until_equal(daemon: Daemon) -> dict[str, Any]:
    """`cdc audit` ends with 0. Again while it does not: what no event tells is found by a look at the catalog, and read again."""
    deadline = time.monotonic() + 4 * DEADLINE_S
    while True:
        code, told = daemon.audit()
        if (code, told["equal"]) == (0, True):
            return told
        assert time.monotonic() < deadline, f"{told}\n{daemon.said()}"


def install_trigger(database: Database) -> None:
    """The event trigger of deploy/roles.sql, so that a change of definitions needs no look at the catalog."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        (role,) = connection.execute("select current_user").fetchone() or ("",)
        psql = [str(database.server.binary("psql")), "-Xqd", database.dsn, "-v", f"role={role}", "-v", "schema=public"]
        subprocess.run([*psql, "-f", str(ROLES)], check=True, timeout=60)
        connection.execute("drop publication if exists cdc")  # made for the tables that there were; cdc.toml names all


@contextmanager
def running(daemon: Daemon, traffic: AnyRows) -> Iterator[None]:
    daemon.start()
    try:
        traffic.start()
        yield
    finally:
        traffic.stop()
        daemon.kill()


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not ROUNDS, reason="make faults")
def test_every_store_follows_and_one_waits_for_its_contract(
    postgres: Database, valkey: Cache, opensearch: OpenSearch, tmp_path: Path, seed: int
) -> None:
    connection = postgres.connect(prepare_threshold=None)
    connection.execute(TABLES)
    for table in targets(connection):
        connection.execute(insert(random.Random(seed), table, 100))
    install_trigger(postgres)
    source, store = {"slot": postgres.name}, {"tables": ["*", "!public.ledger"]}
    configure(tmp_path, postgres.dsn, opensearch.url, valkey.url, source=source, store=store, more=CONTRACT)
    traffic = AnyRows(postgres.dsn, seed)
    daemon = Daemon(tmp_path, traffic.check)
    with running(daemon, traffic):
        daemon.until(lambda: all(daemon.follower(store).position for store in STORES), "every store to follow")
        for number, statements in enumerate(CHANGES):
            with connection.transaction():
                connection.execute(statements)
            writes(daemon, traffic)
            if number == len(CHANGES) // 2:
                connection.execute("alter table ledger drop column amount")
                writes(daemon, traffic)
        daemon.until(lambda: stops.held(tmp_path / "run"), "the cache to stop")
        [stop] = stops.held(tmp_path / "run")
        assert stop.name == "CONTRACT_BROKEN:follow-cache"
        waits_at = daemon.follower("cache").position
        daemon.moves_on("search", "warehouse")
        assert daemon.follower("cache").position == waits_at < daemon.position()
        resumed = daemon.cdc("resume", stop.name)
        assert resumed.returncode == 0, resumed.stderr
        daemon.moves_on(*STORES)
        traffic.end()
        told = until_equal(daemon)
        assert daemon.drain() == 0
    names = {f"public.{table.name}" for table in targets(connection)}
    assert names == {f"public.{name}" for name in ("orders", "things", "parts", "board", "ledger", "events")}
    assert {store["store"]: {table["table"] for table in store["tables"]} for store in told["stores"]} == {
        "search": names - {"public.ledger"}, "cache": names, "warehouse": names - {"public.ledger"},
    }  # fmt: skip


def writes(daemon: Daemon, traffic: AnyRows, count: int = 3) -> None:
    """Returns when the application has committed so many more transactions."""
    goal = traffic.done + count
    daemon.until(lambda: traffic.done >= goal, "traffic")


ACTIONS: Final = 30


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.xdist_group("opensearch")  # its Spark is a process of the daemon's, and the worker with the session has most to do
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pg_versions", [15, 18], indirect=True, ids=["pg15", "pg18"])
@pytest.mark.parametrize("round", range(ROUNDS))
def test_random_definitions_under_kill_9(
    round: int, pg_versions: Database, valkey: Cache, opensearch: OpenSearch, tmp_path: Path, seed: int
) -> None:
    """Whatever the tables become, and whichever process dies when; with the event trigger or by looks at the catalog."""
    chance = random.Random(seed)
    connection = pg_versions.connect(prepare_threshold=None)
    definitions = Definitions(chance, connection)
    definitions.fill()
    by_trigger = round % 2 == 0
    if by_trigger:
        install_trigger(pg_versions)
    source = {"slot": pg_versions.name, "snapshot_chunk_rows": chance.choice([20, 100, 1000])}
    configure(tmp_path, pg_versions.dsn, opensearch.url, valkey.url, source=source)
    traffic = AnyRows(pg_versions.dsn, seed)
    daemon = Daemon(tmp_path, traffic.check)
    kills = Counter[str]()
    try:
        with running(daemon, traffic):
            daemon.until(lambda: daemon.reports, "the supervisor")
            for number in range(ACTIONS):
                if number == ACTIONS // 2:
                    # However slowly processes start, some of it happens while every store follows.
                    daemon.moves_on(*STORES)
                writes(daemon, traffic, chance.choice([1, 1, 3, 20]))
                part = chance.choices(["definitions", "capture", "followers", "everything"], [20, 3, 2, 1])[0]
                kills[part] += 1
                if part == "definitions":
                    for _ in range(chance.choice([1, 1, 2, 5])):
                        definitions.step()
                elif part == "everything":
                    daemon.kill()
                    daemon.start()
                    daemon.until(lambda: daemon.reports, "another supervisor")
                elif daemon.process(part).state == "running":
                    with suppress(ProcessLookupError):
                        os.kill(daemon.process(part).pid, signal.SIGKILL)
            traffic.end()
            until_equal(daemon)
            assert not stops.held(tmp_path / "run")
            assert daemon.drain() == 0
    except BaseException:
        print("\n".join(definitions.done))
        raise
    for part, count in kills.items():
        counters.add("random definitions", part if part == "definitions" else f"{part} killed", count)
