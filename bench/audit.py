"""The audit of a table against each store, beside what bounds it: COPY of the same rows, and the store's own bulk read of them.

Ours is what `cdc audit` does once connected: both sides read whole, row by row compared, at one position. It is timed until it says that they are equal. What it is
divided by is the slower of two drops of the same rows into nothing, both measured in each run, one after the other with ours:

- COPY: `psql` over the same Unix socket, its output thrown away.
- OpenSearch: its scroll over `_source` through one raw connection, by pages of 2,000 and of 10,000 documents and by two slices at once, whichever is the fastest;
  bodies are not looked at.
- Redis: MGET, or HGETALL, of all keys, which it is told beforehand, 500 to a request, pipelined over one raw connection; answers are counted and dropped.
- Warehouse: Spark reads the table into its own ``noop``, warm.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa

from bench.orders import PUBLICATION, ROW, create_orders
from bench.result import Result, faster
from bench.workloads import SLOT
from cdc.audit.comparison import SourceSide, Target
from cdc.audit.stores import audit_store
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.valkey import Valkey
from cdc.log.contract import captured
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.source.connection import connect
from sinks import make_sink, options_model
from sinks.cache.resp import items_of
from sinks.cache.wire import RedisWire, bulk
from sinks.render.texts import raw_texts

BAR: Final = 0.5
TOPIC: Final = "public.orders"
TRANSACTION: Final = 10_000
NAMES_AT_ONCE: Final = 500


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench audit", description=__doc__)
    parser.add_argument("stores", nargs="*", default=list(STORES), metavar="STORE", help=f"which of them: {', '.join(STORES)}")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--heap-mb", type=int, default=1024, help="OpenSearch's heap, at least 1024")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    server = Postgres(folder / "pg", options={"wal_sender_timeout": "0", "max_wal_size": "4GB"})
    result = Result("audit", orientation={"rows": options.rows})
    try:
        server.start()
        fill(server, folder, options.rows)
        for name in options.stores:
            store = STORES[name](folder, options.heap_mb)
            store.start()
            try:
                measure(store, server, folder, result, options)
            finally:
                store.stop()
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
    result.rss_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(result.line())
    return 0


def fill(server: Postgres, folder: Path, rows: int) -> None:
    """The rows in the database, and captured into ``folder/log``."""
    from bench.capture import _child

    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        create_orders(connection)
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        connection.execute("set synchronous_commit = off")
        for first in range(1, rows + 1, TRANSACTION):
            last = min(first + TRANSACTION - 1, rows)
            connection.execute(f"insert into orders select {ROW} from generate_series({first}, {last}) g")
        connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")
        connection.execute("vacuum (freeze, analyze) orders")
    _child("unsealed", server.unix_dsn(), rows, folder)
    (folder / "log-0").rename(folder / "log")


@dataclass
class Store:
    """One store. Subclasses give the server and its bulk read."""

    folder: Path
    heap_mb: int
    name: str = ""
    kind: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def sink(self) -> Any:
        return make_sink(self.name, options_model(self.kind)(kind=self.kind, **self.settings))

    def prepare(self, sink: Any) -> None:
        """Once the rows are there."""

    def bulk(self, rows: int) -> float:
        """Seconds that reading all of them takes."""
        raise NotImplementedError


def measure(store: Store, server: Postgres, folder: Path, result: Result, options: argparse.Namespace) -> None:
    reader = open_reader(folder / "log")
    sink = store.sink()
    with closing(reader), closing(sink), connect(server.unix_dsn()) as connection:
        load(sink, reader)
        store.prepare(sink)
        database = SourceSide(connection, PUBLICATION)
        (topic,) = captured(reader)
        target = Target(topic.table, topic.rows)

        def audited() -> None:
            found = audit_store(database, sink, lambda: [target], lambda _: sink.applied())
            (table,) = found.tables
            assert found.equal, table
            assert table.scanned.source_rows == table.scanned.store_rows == options.rows
            assert table.tally.in_flight == 0, "rows were looked at twice"

        audited()
        store.bulk(options.rows)
        ours: list[float] = []
        limits: list[float] = []
        beside: dict[str, list[int]] = {"copy": [], "bulk": []}
        cpu: list[float] = []
        for _ in range(options.runs):
            copied, read = options.rows / copy(server), options.rows / store.bulk(options.rows)
            began, cpu_began = time.perf_counter(), time.process_time()
            audited()
            ours.append(options.rows / (time.perf_counter() - began))
            cpu.append((time.process_time() - cpu_began) * 1e6 / options.rows)
            limits.append(min(copied, read))
            beside["copy"].append(round(copied))
            beside["bulk"].append(round(read))
            print(f"{store.name}: ours {ours[-1]:.0f}/s, COPY {copied:.0f}/s, bulk {read:.0f}/s", file=sys.stderr, flush=True)
    result.figures[store.name] = faster(ours, limits, "rows/s", BAR)
    result.cpu_s = round(max(sorted(cpu)[len(cpu) // 2], result.cpu_s or 0.0), 2)
    result.orientation[store.name] = {**beside, "cpu_s_per_million": [round(one, 2) for one in cpu]}


def load(sink: Any, reader: Any) -> None:
    """The whole log into the store."""
    sink.open(reader, 1)
    head, done = reader.head(), Position(0)
    while done < head.position:
        cut = reader.cut_within(done, 100_000, 64 << 20)
        for batch in reader.read(TOPIC, done, cut.position):
            sink.apply(batch)
        sink.commit(cut)
        done = cut.position
    sink.make_visible()


def copy(server: Postgres) -> float:
    """Seconds of psql's COPY into nothing."""
    command = [str(server.binary("psql")), "-X", "-q", "-d", server.unix_dsn(), "-c", "copy orders to stdout"]
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


class Cache(Store):
    value = "json"

    def __init__(self, folder: Path, heap_mb: int) -> None:
        super().__init__(folder, heap_mb, "redis" if self.value == "json" else "redis_hash", "redis")
        self._server = Valkey(folder / self.name)
        self._requests: list[bytes] = []

    def start(self) -> None:
        self._server.start()
        self.settings = {"url": self._server.url, "key": "order:{id}", "value": self.value}

    def stop(self) -> None:
        self._server.stop()

    def bulk(self, rows: int) -> float:
        if not self._requests:
            self._requests = [
                self.request(first, min(first + NAMES_AT_ONCE, rows + 1)) for first in range(1, rows + 1, NAMES_AT_ONCE)
            ]
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self._server.port)) as connection:
            wire = RedisWire(connection)
            sender = threading.Thread(target=lambda: [connection.sendall(request) for request in self._requests])
            sender.start()
            for first in range(1, rows + 1, NAMES_AT_ONCE):
                wire.answers(self.answers(min(NAMES_AT_ONCE, rows + 1 - first)))
            sender.join()
        return time.perf_counter() - began

    def request(self, first: int, end: int) -> bytes:
        return b"*%d\r\n%s%s" % (end - first + 1, bulk(b"MGET"), items_of(self.names(first, end)))

    def names(self, first: int, end: int) -> Any:
        return raw_texts(pa.array([f"order:{number}" for number in range(first, end)], pa.utf8()))

    def answers(self, names: int) -> int:  # noqa: ARG002
        return 1


class HashCache(Cache):
    value = "hash"

    def request(self, first: int, end: int) -> bytes:
        return items_of(self.names(first, end), b"*2\r\n" + bulk(b"HGETALL"))

    def answers(self, names: int) -> int:
        return names


class Search(Store):
    def __init__(self, folder: Path, heap_mb: int) -> None:
        super().__init__(folder, heap_mb, "opensearch", "opensearch")
        self._server = OpenSearch(folder / "opensearch", heap_mb=heap_mb, production=True)
        self._best: Callable[[int], float] | None = None

    def start(self) -> None:
        self._server.start()
        self.settings = {"url": self._server.url}

    def stop(self) -> None:
        self._server.stop()

    def bulk(self, rows: int) -> float:
        """In the way that was the fastest the first time."""
        if self._best is None:
            ways: list[Callable[[int], float]] = [
                lambda n: self._read(n, 2000, 1),
                lambda n: self._read(n, 10_000, 1),
                lambda n: self._read(n, 2000, 2),
            ]
            for way in ways:
                way(rows)
            self._best = min(ways, key=lambda way: way(rows))
        return self._best(rows)

    def _read(self, rows: int, page: int, slices: int) -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(slices) as threads:
            found = sum(threads.map(lambda number: self._scroll(page, number, slices), range(slices)))
        assert found == rows, f"{found} documents"
        return time.perf_counter() - began

    def _scroll(self, page: int, number: int, slices: int) -> int:
        host = self._server.url.partition("://")[2]
        with closing(http.client.HTTPConnection(host, timeout=60)) as connection:

            def ask(path: str, body: Any) -> bytes:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                return connection.getresponse().read()

            body: dict[str, Any] = {"size": page, "sort": ["_doc"]}
            if slices > 1:
                body["slice"] = {"id": number, "max": slices}
            answer, found = ask(f"/{TOPIC}/_search?scroll=5m", body), 0
            while count := answer.count(b'"_source":'):
                found += count
                scroll = re.search(rb'"_scroll_id":"([^"]*)"', answer)
                assert scroll is not None
                answer = ask("/_search/scroll", {"scroll": "5m", "scroll_id": scroll[1].decode()})
            return found


class Lake(Store):
    def __init__(self, folder: Path, heap_mb: int) -> None:
        super().__init__(folder, heap_mb, "warehouse", "iceberg", {"path": str(folder / "warehouse")})
        self._frame: Callable[[], Any] | None = None

    def start(self) -> None:
        from cdc.spark import session as sessions
        from sinks.sparksession import use_session

        use_session(lambda: sessions.session(app="bench-audit", scratch=self.folder / "spark"))

    def stop(self) -> None:
        from cdc.spark import session as sessions

        sessions.stop()

    def prepare(self, sink: Any) -> None:
        from sinks.sparksession import spark_session

        spark, catalog = spark_session(sink.name), "bench_audit"
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": self.settings["path"]}
        for key, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
        columns = ["id", "customer_id", "status", "amount", "note", "created_at"]
        self._frame = lambda: spark.table(f"{catalog}.{TOPIC}").select(*columns)

    def bulk(self, rows: int) -> float:  # noqa: ARG002
        assert self._frame is not None
        began = time.perf_counter()
        self._frame().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began


STORES: Final[dict[str, Callable[[Path, int], Store]]] = {
    "redis": Cache,
    "redis-hash": HashCache,
    "opensearch": Search,
    "warehouse": Lake,
}
