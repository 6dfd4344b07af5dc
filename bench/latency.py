"""How long after its commit a change can be read in each store, with all three stores followed by one ``cdc run``.

The load is single-row transactions at a fixed rate, half inserts, half updates of rows that the snapshot brought; each writes a version
that only it has. A commit counts from the moment when its call returns. Each arrival is seen by a process of its own:

- Redis: every transaction that has not arrived yet is asked for by key, in one command, about every ms.
- OpenSearch: the same by id (``_mget``, which does not wait for a refresh), about every 4 ms.
- Warehouse: the follower's own word, written after each commit into the table, read every 20 ms; the table's rows are counted by Spark
  at the end. A reader of the table could see a change then, not before.
- The log (for orientation): a reader waits for its head.
- A plain reader, the peer of the same run (``bench.plain_reader``): psycopg2 on a slot of its own, each change straight into the same Redis under keys
  of its own; its keys are polled as ours are. It takes its share of the processors from us, as ours does from it.

Polling is part of what is measured: it makes every figure larger, and takes CPU from what it looks at.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import c_bool, c_double
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import psycopg

from bench import peers
from bench.backlog import Usage, on_spark
from bench.daemon import end, wait_for
from bench.plain_reader import PREFIX
from bench.result import Result, lower
from cdc.demo.configuration import toml
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.processes import free_port
from cdc.embedded.valkey import Valkey
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.position import Position
from cdc.state.status import read_capture, read_follower, read_followers

FIRST_ROWS: Final = 10_000
WARM_S: Final = 20
AT_ONCE: Final = 200
"""At most so many outstanding changes are asked for at once, the oldest ones."""
START_S: Final = 180
DRAIN_S: Final = 60
LIMITS: Final = {"redis_p50_ms": 60.0, "redis_p99_ms": 250.0, "opensearch_p50_ms": 60.0, "opensearch_p99_ms": 250.0}
WAREHOUSE_LIMIT_S: Final = 10.0

_VERSION: Final = re.compile(rb'"version":(\d+)')


@dataclass(frozen=True)
class Work:
    """The transactions, numbered from 0, and when each was begun, committed and seen. Shared between processes."""

    count: int
    begun: Any
    committed: Any
    finished: Any
    polling: Any
    """How many pollers have begun."""
    seen: dict[str, Any]

    @classmethod
    def of(cls, count: int, stores: Sequence[str]) -> Work:
        return cls(
            count,
            RawArray(c_double, count),
            RawArray(c_double, count),
            RawValue(c_bool, False),
            multiprocessing.get_context("spawn").Value("i", 0),
            {store: RawArray(c_double, count) for store in stores},
        )

    def id(self, number: int) -> int:
        """Every other one inserts a row."""
        return FIRST_ROWS + 1 + number if number % 2 == 0 else 1 + number * 7919 % FIRST_ROWS

    def version(self, number: int) -> int:
        """Rises, so that a later one of the same row stands for this one, too."""
        return number + 1


POLLED: Final = ("log", "redis", "opensearch", "warehouse", "plain")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=200, help="transactions per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm-s", type=int, default=WARM_S, help="seconds of the same traffic before anything counts")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    postgres, valkey, opensearch = Postgres(folder / "pg"), Valkey(folder / "valkey"), OpenSearch(folder / "os", production=True)
    try:
        for server in (postgres, valkey, opensearch):
            server.start()
        print(measure(folder, postgres, valkey, opensearch, options.rate, options.seconds, options.warm_s).line())
        return 0
    finally:
        opensearch.stop()
        valkey.stop()
        postgres.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    folder: Path, postgres: Postgres, valkey: Valkey, opensearch: OpenSearch, rate: int, seconds: int, warm_s: int
) -> Result:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            "create table orders (id bigint primary key, version bigint, customer_id bigint, status text, amount numeric(12,2), "
            "note text, created_at timestamptz)"
        )
        connection.execute(f"insert into orders select g, 0, {_VALUES} from generate_series(1, {FIRST_ROWS}) g")
    config = folder / "cdc.toml"
    config.write_text(
        toml(
            {
                "": {"run_dir": "run"},
                "source": {"dsn": postgres.dsn()},
                "log": {"dir": "log"},
                "stores.opensearch": {"kind": "opensearch", "url": opensearch.url},
                "stores.redis": {"kind": "redis", "url": valkey.url, "key": "order:{id}"},
                "stores.warehouse": {"kind": "iceberg", "path": "warehouse"},
                "http": {"listen": f"127.0.0.1:{free_port()}"},
            }
        )
    )
    work = Work.of((warm_s + seconds) * rate, POLLED)
    peer = _plain_reader(postgres, valkey)
    daemon = subprocess.Popen([sys.executable, "-m", "cdc", "--config", str(config), "run"], stdout=subprocess.DEVNULL)
    pollers: list[Any] = []
    usage = Usage(psutil.Process(daemon.pid))
    try:
        wait_for(lambda: _loaded(folder / "run"), START_S, "the first load")
        spawn = multiprocessing.get_context("spawn")
        for poll, *given in (
            (poll_redis, valkey.port),
            (poll_redis, valkey.port, 0, "plain"),
            (poll_opensearch, opensearch.port),
            (poll_warehouse, str(folder / "run")),
            (poll_log, str(folder / "log")),
        ):
            pollers.append(spawn.Process(target=_polling, args=(poll, work, *given), daemon=True))
            pollers[-1].start()
        await_pollers(work, len(pollers))
        print("writing …", file=sys.stderr, flush=True)
        late_ms = write(postgres.dsn(), work, rate, usage, warm=warm_s * rate)
        cpu_s = usage.cpu_s()
        wait_for(lambda: all(seen[-1] for seen in work.seen.values()), DRAIN_S, "the last transactions")
        work.finished.value = True
        for poller in pollers:
            poller.join(10)
    finally:
        work.finished.value = True
        for poller in pollers:
            poller.kill()
        peer.kill()
        peer.wait()
        end(daemon)
    rows = on_spark("rows", str(folder / "warehouse"), folder)["rows"]
    expected = FIRST_ROWS + (work.count + 1) // 2
    assert rows == expected, f"the warehouse has {rows} rows, not {expected}"
    return _result(work, warm_s * rate, cpu_s / seconds, usage.rss_mb, {"rate": rate, "seconds": seconds, "late_ms": late_ms})


def _plain_reader(postgres: Postgres, valkey: Valkey) -> subprocess.Popen[str]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot('plain', 'test_decoding')")
    command = [sys.executable, "-m", "bench.plain_reader", postgres.dsn(), "plain", str(valkey.port)]
    environment = peers.environment(peers.install(("psycopg2-binary",)))
    peer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert peer.stdout is not None
    assert peer.stdout.readline() == "reads\n"
    return peer


_VALUES: Final = "g % 97777, 'new', (g % 100000) * 0.25, 'note for order ' || g, timestamptz '2026-01-01' + g * interval '1 second'"


class Unmeasured(Usage):
    """For traffic whose CPU somebody else measures."""

    def __init__(self) -> None: ...

    def begin(self) -> None: ...


def write(dsn: str, work: Work, rate: int, usage: Usage, *, first: int = 0, warm: int = 0) -> dict[str, float]:
    """All transactions from number ``first`` on, at the rate; returns how late they began, in ms, besides the first ``warm``."""
    insert = f"insert into orders select g, %s, {_VALUES.replace('%', '%%')} from (select %s::bigint) _ (g)"
    update = "update orders set version = %s, status = 'paid', amount = amount + 1 where id = %s"
    late = np.zeros(work.count)
    with psycopg.connect(dsn, autocommit=True) as connection:
        start = time.time()
        for number in range(first, work.count):
            due = start + (number - first) / rate
            while (left := due - time.time()) > 0:
                time.sleep(left)
            if number == warm:
                threading.Thread(target=usage.begin).start()
            work.begun[number] = time.time()
            late[number] = work.begun[number] - due
            connection.execute(insert if number % 2 == 0 else update, (work.version(number), work.id(number)))
            work.committed[number] = time.time()
    late = late[first + warm :]
    return {"p50": round(float(np.median(late)) * 1e3, 2), "p99": round(float(np.quantile(late, 0.99)) * 1e3, 2)}


def _result(work: Work, warm: int, cpu_share: float, rss_mb: float, told: dict[str, Any]) -> Result:
    result = Result("latency", cpu_s=round(cpu_share, 3), rss_mb=round(rss_mb), orientation=told)
    result.orientation["cpu_s_is"] = "CPU seconds of the daemon's whole tree per second of traffic"
    committed = np.array(work.committed)[warm:]
    for store, seen in work.seen.items():
        taken = (np.array(seen)[warm:] - committed) * 1e3
        assert (np.array(seen)[warm:] > 0).all(), f"{store} never showed some transactions"
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value = float(np.quantile(taken, share))
            if f"{store}_{name}_ms" in LIMITS:
                result.figures[f"{store}_{name}_ms"] = lower([value], LIMITS[f"{store}_{name}_ms"], "ms")
            elif (store, name) == ("warehouse", "p99"):
                result.figures["warehouse_p99_s"] = lower([value / 1e3], WAREHOUSE_LIMIT_S, "s")
        spread = {f"p{round(share * 100)}": round(float(np.quantile(taken, share)), 1) for share in (0.1, 0.5, 0.9, 0.99)}
        result.orientation[f"{store}_ms"] = {**spread, "max": round(float(taken.max()), 1)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, plain = (
            [float(np.quantile((np.array(work.seen[store])[warm:] - committed) * 1e3, share))] for store in ("redis", "plain")
        )
        result.figures[f"redis_{name}_beside_plain_ms"] = lower(ours, round(plain[0], 1), "ms")
    return result


def _loaded(run_dir: Path) -> bool:
    capture = read_capture(run_dir)
    if capture is None or capture.complete_position is None or capture.position < FIRST_ROWS:
        return False
    followers = read_followers(run_dir)
    return len(followers) == 3 and all(follower.position >= capture.position for follower in followers)


# The pollers, each in its own process


def _polling(poll: Callable[..., None], work: Work, *given: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with work.polling.get_lock():
        work.polling.value += 1
    poll(work, *given)


def await_pollers(work: Work, count: int) -> None:
    """Starting them takes the machine's cores for seconds, which would count as the stores' latency."""
    wait_for(lambda: work.polling.value == count, START_S, "the pollers")


def _outstanding(work: Work, waiting: list[int], begun: int) -> int:
    """Adds what was committed since; returns the number of the first transaction that was not."""
    while begun < work.count and work.committed[begun]:
        waiting.append(begun)
        begun += 1
    return begun


def poll_redis(work: Work, port: int, known: int = 0, store: str = "redis") -> None:
    """``known``: transactions before this number are none of its business. ``store``: "redis", or "plain" and "pathway" for a peer's keys."""
    seen = work.seen[store]
    prefix = {"redis": b"order:", "plain": PREFIX.encode(), "pathway": b"order:"}[store]
    waiting: list[int] = []
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = wire.makefile("rb")
        while not work.finished.value:
            time.sleep(0.001)
            known = _outstanding(work, waiting, known)
            asked = waiting[:AT_ONCE]
            if not asked:
                continue
            keys = [prefix + b"%d" % work.id(number) for number in asked]
            wire.sendall(b"*%d\r\n$4\r\nMGET\r\n" % (len(keys) + 1) + b"".join(b"$%d\r\n%s\r\n" % (len(key), key) for key in keys))
            values = _read_array(answers)
            now = time.time()
            for number, value in zip(asked, values, strict=True):
                found = _VERSION.search(value)
                if found and int(found[1]) >= work.version(number):
                    seen[number] = now
                    waiting.remove(number)


def _read_array(answers: Any) -> list[bytes]:
    """The values of one MGET; empty for a key that is not there."""
    values = []
    for _ in range(int(answers.readline()[1:])):
        length = int(answers.readline()[1:])
        values.append(answers.read(length + 2) if length >= 0 else b"")
    return values


def poll_opensearch(work: Work, port: int, known: int = 0) -> None:
    """``known``: transactions before this number are none of its business."""
    seen = work.seen["opensearch"]
    waiting: list[int] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while not work.finished.value:
        time.sleep(0.004)
        known = _outstanding(work, waiting, known)
        asked = waiting[:AT_ONCE]
        if not asked:
            continue
        ids = sorted({work.id(number) for number in asked})
        path = "/public.orders/_mget?_source_includes=version&filter_path=docs._id,docs._source"
        connection.request("POST", path, json.dumps({"ids": list(map(str, ids))}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, f"_mget was answered {response.status}"
        now = time.time()
        versions = {int(found["_id"]): found["_source"]["version"] for found in answer.get("docs", ()) if "_source" in found}
        for number in asked:
            if versions.get(work.id(number), 0) >= work.version(number):
                seen[number] = now
                waiting.remove(number)


def poll_warehouse(work: Work, run_dir: str) -> None:
    """A transaction is there when the last applied one was committed after this one was begun: one connection writes them all."""
    seen = work.seen["warehouse"]
    next_one = 0
    while not work.finished.value:
        time.sleep(0.02)
        status = read_follower(Path(run_dir), "warehouse")
        if status is not None:
            next_one = _arrived(work, seen, next_one, status.commit_ts_us / 1e6)


def poll_log(work: Work, log: str) -> None:
    seen = work.seen["log"]
    reader = EmbeddedLogReader(Path(log))
    next_one = 0
    position = Position(0)
    while not work.finished.value:
        cut = reader.wait(position, 0.2)
        position = cut.position
        next_one = _arrived(work, seen, next_one, cut.commit_ts_us / 1e6)


def _arrived(work: Work, seen: Any, next_one: int, commit_ts: float) -> int:
    now = time.time()
    while next_one < work.count and 0 < work.begun[next_one] <= commit_ts:
        # The server's commit may reach a reader before the call that made it returns.
        seen[next_one] = now
        next_one += 1
    return next_one
