"""How fresh a view of three tables is in a store: the time from a transaction's commit to its row in Redis, under steady traffic.

Postgres has customers, orders and products; ``cdc run`` captures them, keeps their join up as a view, and follows it into Redis: processes of their own, as in
production. The traffic is small transactions at a fixed rate (``bench.viewshop``), each of which writes a version that only it has to one order, which is asked for
by key in Redis about every ms. A commit counts from the moment when its call returns.

- ``sustained``: source changes a second from the first commit to the last one seen in Redis, beside those that were wanted.
- ``growth``: the median of the last third of the traffic over that of the first. Where a view does not keep up, it rises.
- Spark (``spark_empty``): a stateful micro-batch that has nothing to aggregate, trigger to commit, of whichever of its stores of state is faster, with nothing else to do.
  Ours may take twice as long.
- Postgres (``refresh``): REFRESH MATERIALIZED VIEW CONCURRENTLY of the same join, with what the traffic has changed, and nothing else to do. Refreshed again and again,
  a row is shown half as long again after its commit on average, and never sooner than that.
- pathway (``--pathway-python``), if that Python has it: see ``bench.pathway_view``. It comes after ours, over the same tables and under the same traffic, three times:
  committing every 10 ms with nothing on the disk (``pathway``, and its slowest hundredth, ``pathway_p99``); the same with its input persisted, so that it goes on after
  an end, as ours does (``pathway_kept``); and committing as often as it does when nobody says otherwise (``pathway_default``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import psycopg
import redis

from bench import latency, viewpeers
from bench.backlog import Usage
from bench.daemon import end, wait_for
from bench.result import Result, faster, lower
from bench.viewshop import CHANGES, VIEW, ShopSize, ShopWork, write
from cdc.demo.configuration import toml
from cdc.embedded.postgres import Postgres
from cdc.embedded.processes import free_port
from cdc.embedded.valkey import Valkey
from cdc.state.status import read_capture, read_follower, read_view

OF_SPARK: Final = 2.0
"""As many empty micro-batches may pass until a change is shown."""
OF_PATHWAY: Final = 3.0
PATHWAY_COMMIT_MS: Final = 1500
"""What pathway's connectors have where nobody says otherwise."""
GROWTH: Final = 1.5
SUSTAINED_BAR: Final = 0.95
_OPTIONS: Final = {"max_wal_size": "8GB"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench viewlive", description=__doc__)
    parser.add_argument("--customers", type=int, default=1_000_000)
    parser.add_argument("--orders", type=int, default=5_000_000)
    parser.add_argument("--products", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=2000, help="changes a second")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--warm-s", type=int, default=10, help="seconds of the same traffic before anything counts")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches of Spark's; 0: Spark is left out")
    parser.add_argument("--pathway-python", type=Path, help="a Python that has pathway and psycopg2; left out, so is pathway")
    parser.add_argument(
        "--pathway-commit-ms", type=int, default=10, help="how often pathway commits what has come, where it is made to be fast"
    )
    options = parser.parse_args(arguments)
    size = ShopSize(options.customers, options.orders, options.products)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    postgres, valkey = Postgres(folder / "pg", options=_OPTIONS), Valkey(folder / "valkey")
    try:
        for server in (postgres, valkey):
            server.start()
        print(measure(folder, postgres, valkey, size, options).line())
        return 0
    finally:
        valkey.stop()
        postgres.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, postgres: Postgres, valkey: Valkey, size: ShopSize, options: argparse.Namespace) -> Result:
    materialized = viewpeers.Materialized(postgres.dsn())
    _say("making the tables")
    size.create(postgres.dsn())
    materialized.create()
    traffic = ViewTraffic(postgres.dsn(), valkey.port, size, options)
    result = Result("viewlive")
    _say("the first build")
    with daemon(folder, postgres, valkey, size) as usage:
        ours = traffic.through("redis", usage, folder / "log")
    result.cpu_s, result.rss_mb = ours.told["cpu_s"], ours.told["rss_mb"]
    result.orientation = {
        "orders": size.orders,
        "rate": options.rate,
        "seconds": options.seconds,
        "cpu_s_is": _CPU_IS,
        "ours": ours.told,
    }
    result.figures["sustained"] = faster([ours.per_s], [options.rate], "changes/s", bar=SUSTAINED_BAR)
    result.figures["growth"] = lower([ours.growth], GROWTH, "x p50")
    if options.pathway_python:
        for name, commit_ms, kept in _ways(options, folder):
            _say(name)
            with psycopg.connect(postgres.dsn()) as connection:
                rows = connection.execute("select count(*) from orders").fetchone()[0]
            with viewpeers.pathway(options.pathway_python, folder, postgres.dsn(), valkey, rows, commit_ms, kept) as theirs:
                peer = traffic.through("pathway", theirs)
            result.orientation[name] = peer.told | {"sustained": round(peer.per_s)}
            for figure, share in ((name, 0.5), *([("pathway_p99", 0.99)] if name == "pathway" else [])):
                bar = 1.0 if figure == "pathway" else None  # the others are for orientation
                result.figures[figure] = lower([ours.ms(share)], OF_PATHWAY * peer.ms(share), "ms", bar=bar)
    _say("refreshing")
    refresh_s = materialized.refresh_s()
    result.figures["refresh"] = lower([ours.ms(0.5)], refresh_s * 1e3, "ms")
    if options.batches:
        _say("Spark")
        batches = viewpeers.empty_batches_ms(folder, options.batches)
        result.orientation["spark_empty_ms"] = batches
        result.figures["spark_empty"] = lower([ours.ms(0.5)], OF_SPARK * min(batches.values()), "ms")
    return result


def _ways(options: argparse.Namespace, folder: Path) -> list[tuple[str, int, Path | None]]:
    """How pathway is run: a name, how often it commits (ms), where it persists its input."""
    often = options.pathway_commit_ms
    return [
        ("pathway", often, None),
        ("pathway_kept", often, folder / "pathway-kept"),
        ("pathway_default", PATHWAY_COMMIT_MS, None),
    ]


_CPU_IS: Final = "CPU seconds of the daemon's whole tree per second of traffic"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How traffic was shown. ``taken_ms``: of each transaction that counts, from its commit."""

    taken_ms: np.ndarray
    per_s: float
    told: dict[str, Any]

    def ms(self, share: float) -> float:
        return float(np.quantile(self.taken_ms, share))

    @property
    def growth(self) -> float:
        third = max(len(self.taken_ms) // 3, 1)
        return float(np.median(self.taken_ms[-third:]) / np.median(self.taken_ms[:third]))


class ViewTraffic:
    """The same traffic for each that keeps the view up, one behind the other."""

    def __init__(self, dsn: str, port: int, size: ShopSize, options: argparse.Namespace) -> None:
        self._dsn, self._port, self._size = dsn, port, size
        self._per_s = options.rate / CHANGES
        self._warm, self._count = (round(seconds * self._per_s) for seconds in (options.warm_s, options.seconds))
        self._first = 0

    def through(self, store: str, usage: Usage, log: Path | None = None) -> Freshness:
        """``store``: the name of its keys' pollers in ``bench.latency``. ``log``: asked how soon its head has a change, for orientation."""
        first, counted = self._first, self._first + self._warm
        self._first = last = counted + self._count
        work = ShopWork.sized(self._size, last, (store, "log") if log else (store,))
        with _polled(work, store, self._port, first, log):
            write(self._dsn, work, self._per_s, first, counted)
            usage.begin()
            late_ms = write(self._dsn, work, self._per_s, counted, last)
            cpu_s = usage.cpu_s()
            wait_for(lambda: all(seen[last - 1] for seen in work.seen.values()), latency.DRAIN_S, "the last transactions")
        committed = np.array(work.committed)[counted:last]
        seen = {name: (np.array(times)[counted:last]) for name, times in work.seen.items()}
        assert (seen[store] > 0).all(), f"{store} never showed some transactions"
        whole_s = float(seen[store].max() - committed[0])
        taken = {name: np.maximum(times - committed, 0.0) * 1e3 for name, times in seen.items()}
        told = {f"{name}_ms": _spread(times) for name, times in taken.items()}
        told |= {"late_ms": late_ms, "cpu_s": round(cpu_s / (self._count / self._per_s), 3), "rss_mb": round(usage.rss_mb)}
        return Freshness(taken[store], (last - counted) * CHANGES / whole_s, told)


def _spread(taken_ms: np.ndarray) -> dict[str, float]:
    found = {f"p{round(share * 100)}": round(float(np.quantile(taken_ms, share)), 1) for share in (0.1, 0.5, 0.9, 0.99)}
    return {**found, "max": round(float(taken_ms.max()), 1)}


@contextmanager
def _polled(work: ShopWork, store: str, port: int, first: int, log: Path | None) -> Iterator[None]:
    """Processes that look at the store, and at the log."""
    polls: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(latency.poll_redis, (port, first, store))]
    if log is not None:
        polls.append((latency.poll_log, (str(log),)))
    spawn = multiprocessing.get_context("spawn")
    pollers: list[Any] = [spawn.Process(target=latency._polling, args=(poll, work, *given), daemon=True) for poll, given in polls]
    try:
        for poller in pollers:
            poller.start()
        latency.await_pollers(work, len(pollers))
        yield
    finally:
        work.finished.value = True
        for poller in pollers:
            poller.join(10)
            poller.kill()


@contextmanager
def daemon(folder: Path, postgres: Postgres, valkey: Valkey, size: ShopSize) -> Iterator[Usage]:
    """``cdc run``, from where Redis has the whole view on."""
    config = folder / "cdc.toml"
    config.write_text(
        toml(
            {
                "": {"run_dir": "run"},
                "source": {"dsn": postgres.dsn()},
                "log": {"dir": "log"},
                "views.joined": {"sql": VIEW, "key": ["id"]},
                "stores.redis": {"kind": "redis", "url": valkey.url, "key": "order:{id}", "views": ["joined"]},
                "http": {"listen": f"127.0.0.1:{free_port()}"},
            }
        )
    )
    with (folder / "daemon.log").open("wb") as out:
        started = subprocess.Popen([sys.executable, "-m", "cdc", "--config", str(config), "run"], stdout=out, stderr=out)
    try:
        wait_for(lambda: _shown(started, folder, valkey, size), viewpeers.LOAD_S, "the first build of the view")
        yield Usage(psutil.Process(started.pid))
    finally:
        end(started)


def _shown(started: subprocess.Popen[bytes], folder: Path, valkey: Valkey, size: ShopSize) -> bool:
    if started.poll() is not None:
        raise RuntimeError(f"cdc run ended with {started.returncode}: {(folder / 'daemon.log').read_text()[-2000:]}")
    capture, view, store = read_capture(folder / "run"), read_view(folder / "run", "joined"), read_follower(folder / "run", "redis")
    if capture is None or view is None or store is None or capture.complete_position is None or view.state != "following":
        return False
    return store.position >= size.orders and redis.Redis(port=valkey.port).dbsize() >= size.orders


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what} …", file=sys.stderr, flush=True)
