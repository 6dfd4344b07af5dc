"""The daemon under kill -9: capture, Spark, Postgres and the stores die in the middle of traffic, one after the other, and no row is lost.

One run for all of them, since what costs time is the start of the servers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.valkey import Valkey
from cdc.state import status
from tests.end_to_end.daemon import STORES, Daemon, configure, kill_process
from tests.end_to_end.traffic import Traffic

DDL = """
create table accounts (id bigint primary key, owner text, amount numeric(12,2), at timestamptz default now());
create table docs (id text primary key, body text, n int);
alter table docs alter body set storage external;
create table board (id int primary key, line text);
insert into accounts select n, 'owner ' || n, n, now() from generate_series(1, 2000) n;
insert into docs select 'd' || n, repeat(md5(n::text), 100), 0 from generate_series(1, 200) n;
insert into board select n, 'first' from generate_series(1, 20) n;
"""


@contextmanager
def serving(service: Daemon, traffic: Traffic) -> Iterator[None]:
    service.start()
    try:
        traffic.start()
        yield
    finally:
        traffic.stop()
        service.kill()


def steps_since(began: float, what: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {what}")


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_every_part_is_killed_in_the_middle_of_traffic(
    postgres_server: Postgres, valkey_server: Valkey, opensearch: OpenSearch, spark: Any, tmp_path: Path, seed: int
) -> None:
    began = time.monotonic()
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(DDL)
    configure(tmp_path, postgres_server.dsn(), opensearch.url, valkey_server.url)
    traffic = Traffic(postgres_server.dsn(), seed)
    service = Daemon(tmp_path, traffic.check)
    with serving(service, traffic):
        service.until(lambda: (tmp_path / "run/status/capture.json").exists(), "capture")
        service.moves_on(*STORES)
        steps_since(began, "every store follows")

        kill_process(service, "capture")
        service.moves_on(*STORES)
        steps_since(began, "capture killed")

        kill_process(service, "followers")
        service.moves_on(*STORES)
        steps_since(began, "Spark killed")

        postgres_server.crash()
        service.until(lambda: (told := status.read_capture(tmp_path / "run")) and told.state == "retrying", "capture to notice")
        postgres_server.start()
        service.moves_on(*STORES)
        steps_since(began, "Postgres killed")

        valkey_server.crash()
        service.until(lambda: service.follower("cache").state == "waiting", "the cache's follower to notice")
        service.moves_on("search", "warehouse")
        valkey_server.start()
        service.moves_on(*STORES)
        steps_since(began, "Valkey killed")

        opensearch.crash()
        service.until(lambda: service.follower("search").state == "waiting", "the search index's follower to notice")
        service.moves_on("cache", "warehouse")
        opensearch.start()
        service.moves_on(*STORES)
        steps_since(began, "OpenSearch killed")

        traffic.end()
        assert traffic.done > 100
        code, told = service.audit()
        assert (code, told["equal"]) == (0, True), told
        assert {store["store"]: len(store["tables"]) for store in told["stores"]} == dict.fromkeys(STORES, 3)
        assert all(table["source_rows"] == table["store_rows"] > 0 for store in told["stores"] for table in store["tables"])
        assert not list((tmp_path / "run").glob("stops/*")), service.said()
        steps_since(began, f"{traffic.done} transactions, audited equal")

        keys = plant(postgres_server, opensearch, valkey_server, spark, tmp_path / "warehouse")
        code, told = service.audit()
        assert code == 1
        found = {
            (store["store"], table["table"], difference["kind"], difference["key"]["id"])
            for store in told["stores"]
            for table in store["tables"]
            for difference in table["differences"]
        }
        assert found == {
            ("search", "public.accounts", "missing", keys[0]),
            ("cache", "public.accounts", "missing", keys[1]),
            ("warehouse", "public.accounts", "missing", keys[2]),
        }
        steps_since(began, "drift found")
        assert service.drain() == 0
        steps_since(began, "drained")


def plant(postgres: Postgres, opensearch: OpenSearch, valkey: Valkey, spark: Any, warehouse: Path) -> tuple[str, str, str]:
    """Takes one row out of each store behind the service's back; returns the rows' ids."""
    import redis

    with psycopg.connect(postgres.dsn()) as connection:
        (first,), (second,), (third,) = connection.execute("select id::text from accounts order by id limit 3").fetchall()
    opensearch.request("DELETE", f"/public.accounts@1/_doc/{first}?refresh=true")
    with redis.Redis.from_url(valkey.url) as client:
        assert client.delete(f"public.accounts:{second}") == 1
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": str(warehouse)}.items():
        spark.conf.set(f"spark.sql.catalog.planted{key}", value)
    spark.sql(f"delete from planted.public.accounts where id = {third}")
    return first, second, third
