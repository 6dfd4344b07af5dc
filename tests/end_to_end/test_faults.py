"""The daemon under kill -9: capture, Spark, Postgres and the stores die in the middle of traffic, one after the other, and no row is lost.

One run for all of them, since what costs time is the start of the servers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from cdc import status
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.processes import kill_group, spawn
from cdc.embedded.valkey import Valkey

STORES = ("search", "cache", "warehouse")
DEADLINE_S = 90.0
"""For one step, on a machine with much else to do."""
PAUSE_S = 0.02
"""Between two transactions of the traffic."""

DDL = """
create table accounts (id bigint primary key, owner text, amount numeric(12,2), at timestamptz default now());
create table docs (id text primary key, body text, n int);
alter table docs alter body set storage external;
create table board (id int primary key, line text);
insert into accounts select n, 'owner ' || n, n, now() from generate_series(1, 2000) n;
insert into docs select 'd' || n, repeat(md5(n::text), 100), 0 from generate_series(1, 200) n;
insert into board select n, 'first' from generate_series(1, 20) n;
"""

CONFIGURATION = """
run_dir = "run"
[source]
dsn = "{dsn}"
tables = ["public.*"]
[log]
dir = "log"
[stores.search]
kind = "opensearch"
url = "{opensearch}"
[stores.cache]
kind = "redis"
url = "{valkey}"
[stores.warehouse]
kind = "iceberg"
path = "warehouse"
[http]
listen = "127.0.0.1:0"
"""


class Traffic(threading.Thread):
    """Small random transactions until told to stop. A database that is away is waited for."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self._dsn = dsn
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self.failure: BaseException | None = None
        self.done = 0
        """Transactions known to have been committed."""

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    with psycopg.connect(self._dsn) as connection:
                        self._drive(connection)
                except psycopg.OperationalError:
                    time.sleep(0.05)
        except BaseException as failure:
            self.failure = failure

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._ending.set()
        self.join(30)

    def end(self) -> None:
        self.stop()
        assert not self.is_alive()
        self.check()

    def _drive(self, connection: psycopg.Connection) -> None:
        while not self._ending.wait(PAUSE_S):
            for _ in range(self._random.randint(1, 4)):
                self._change(connection)
            connection.commit()
            self.done += 1

    def _change(self, connection: psycopg.Connection) -> None:
        pick, at = self._random.randint, self._random.random()
        account, doc = pick(1, 4000), f"d{pick(1, 300)}"
        if at < 0.30:
            connection.execute("insert into accounts values (%s, 'new', 1) on conflict (id) do update set amount = 0", [account])
        elif at < 0.55:
            connection.execute("update accounts set amount = amount + 1, owner = %s where id = %s", [str(at), account])
        elif at < 0.65:
            connection.execute("delete from accounts where id = %s", [account])
        elif at < 0.75:
            other = pick(1, 4000)
            free = "not exists (select from accounts where id = %s)"
            connection.execute(f"update accounts set id = %s where id = %s and {free}", [other, account, other])
        elif at < 0.85:  # leaves the TOASTed body out of the stream
            connection.execute("update docs set n = n + 1 where id = %s", [doc])
        elif at < 0.88:  # moves the row, body left out
            connection.execute(
                "update docs set id = id || 'm' where id = %s and not exists (select from docs where id = %s || 'm')", [doc, doc]
            )
        elif at < 0.93:
            body = str(at) * 300
            connection.execute(
                "insert into docs values (%s, %s, 0) on conflict (id) do update set body = excluded.body", [doc, body]
            )
        elif at < 0.96:
            connection.execute("delete from docs where id = %s", [doc])
        elif at < 0.963:
            connection.execute("truncate board")
            connection.execute("insert into board select n, %s from generate_series(1, 20) n", [str(at)])
        else:
            connection.execute("update board set line = %s where id <= 5", [str(at)])


class Service:
    """`cdc run` as a process, seen through its status files and the command line."""

    def __init__(self, folder: Path, traffic: Traffic) -> None:
        self.folder = folder
        self.traffic = traffic
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "cdc", "--config", str(self.folder / "cdc.toml")]

    def start(self) -> None:
        self._process = spawn([*self._command, "run"], log=self.folder / "cdc.log", death_signal=signal.SIGTERM)

    def drain(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
            kill_group(self._process)

    def cdc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)

    def follower(self, store: str) -> status.FollowerStatus:
        return status.read_follower(self.folder / "run", store) or status.FollowerStatus(store)

    def position(self) -> int:
        """Of the log."""
        told = status.read_capture(self.folder / "run")
        return 0 if told is None else told.position

    def process(self, name: str) -> status.ProcessStatus:
        told = status.read_supervisor(self.folder / "run")
        assert told is not None
        (found,) = [process for process in told.processes if process.name == name]
        return found

    def moves_on(self, *stores: str) -> None:
        """Returns once capture has logged something new, and these stores hold it."""
        before = self.position()
        self.until(lambda: self.position() > before, "capture to go on")
        goal = self.position()
        for store in stores:
            self.until(lambda store=store: self.follower(store).position >= goal, f"{store} to reach {goal}")

    def until(self, what: Callable[[], Any], name: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            self.traffic.check()
            assert self._process is not None
            assert self._process.poll() is None, f"cdc run ended\n{self.said()}"
            assert time.monotonic() < deadline, f"waited in vain for {name}\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        files = sorted((self.folder / "run" / "status").glob("*.json"))
        states = "\n".join(f"{path.name}: {path.read_text()}" for path in files)
        return f"{(self.folder / 'cdc.log').read_text()[-6000:]}\n{states}"

    def audit(self) -> tuple[int, dict[str, Any]]:
        done = self.cdc("audit", "--json", "--timeout", str(DEADLINE_S))
        assert done.stdout, f"{done.stderr}\n{self.said()}"
        return done.returncode, json.loads(done.stdout)


@contextmanager
def serving(service: Service) -> Iterator[None]:
    service.start()
    try:
        service.traffic.start()
        yield
    finally:
        service.traffic.stop()
        service.kill()


def kill_process(service: Service, name: str) -> None:
    """kill -9; the supervisor has to notice by itself. What the process leaves behind (Spark's JVM, its workers) ends soon after."""
    before = service.process(name)
    children = psutil.Process(before.pid).children(recursive=True)
    os.kill(before.pid, signal.SIGKILL)
    service.until(lambda: service.process(name).state == "running" and service.process(name).pid != before.pid, f"another {name}")
    service.until(lambda: not any(map(lives, children)), f"the children of {name} to end")
    assert service.process(name).exit_code == -signal.SIGKILL


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
    (tmp_path / "cdc.toml").write_text(
        CONFIGURATION.format(dsn=postgres_server.dsn(), opensearch=opensearch.url, valkey=valkey_server.url)
    )
    traffic = Traffic(postgres_server.dsn(), seed)
    service = Service(tmp_path, traffic)
    with serving(service):
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
