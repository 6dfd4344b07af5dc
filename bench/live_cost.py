"""What it costs to stand by: CPU and memory of the daemon with three stores, idle and under small steady traffic, beside an earlier commit.

Both commits are driven from outside by their own command line, one daemon at a time, in turn (reference, ours, reference, …) on the same
fresh servers' kind: Postgres, Valkey, OpenSearch with production JVM flags, a warehouse in a folder. Each run loads the tables, warms up, then
holds each rate for a while. CPU is that of the daemon's whole tree per second of traffic, in cores; memory is its proportional share (PSS) at the
end of the run, when everything has been used. Latency is taken at one rate, by ``bench.latency``'s pollers for Redis and OpenSearch, whose CPU
is not counted and the same for both. Medians over the runs.

``cpu_200`` is the reference's CPU over ours at 200 transactions a second: 2 means half the cost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import psutil
import psycopg

from bench import latency
from bench.backlog import Usage
from bench.daemon import end, wait_for
from bench.result import Figure, Result, lower
from cdc.demo.configuration import toml
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.processes import free_port
from cdc.embedded.valkey import Valkey

REFERENCE: Final = "f478f24"
RATES: Final = (0, 20, 200, 1000)
TIMED: Final = 200
"""The rate at which latency is taken, too."""
STORES: Final = ("redis", "opensearch")
CPU_BAR: Final = 2.0
IDLE_LIMIT_CORES: Final = 0.02
PSS_LIMIT_MB: Final = 900.0


@dataclass(slots=True)
class Run:
    """One daemon's life. ``cpu``: cores by rate. ``ms``: "redis_p99" and the like → milliseconds."""

    cpu: dict[int, float] = field(default_factory=dict)
    ms: dict[str, float] = field(default_factory=dict)
    pss_mb: float = 0.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench live-cost", description=__doc__)
    parser.add_argument("--reference", default=REFERENCE, help='the commit to compare with; "none": ours alone')
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=20, help="at each rate")
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="transactions a second")
    parser.add_argument("--rows", type=int, default=latency.FIRST_ROWS, help="that are there at the start")
    options = parser.parse_args(arguments)
    ours = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        checkouts = {"ours": ours}
        if options.reference != "none":
            checkouts = {"reference": check_out(ours, options.reference, Path(folder) / "reference"), **checkouts}
        runs: dict[str, list[Run]] = {name: [] for name in checkouts}
        for number in range(options.runs):
            for name, checkout in checkouts.items():
                place = Path(tempfile.mkdtemp(prefix=f"{name}-{number}-", dir=folder))
                runs[name].append(drive(checkout, place, options.rates, options.seconds, options.rows))
                print(f"{name} {number + 1}/{options.runs}: {runs[name][-1]}", file=sys.stderr, flush=True)
    print(result(runs, options).line())
    return 0


def check_out(repository: Path, commit: str, into: Path) -> Path:
    """The commit's files, without a work tree that git would remember."""
    into.mkdir()
    archive = subprocess.run(["git", "-C", str(repository), "archive", commit], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(into)], input=archive.stdout, check=True)
    return into


def drive(checkout: Path, folder: Path, rates: Sequence[int], seconds: int, rows: int) -> Run:
    """One daemon of that checkout, with servers of its own, through all rates."""
    for above in (folder, *folder.parents[: len(folder.parents) - 2]):
        if above.owner() != "root" or above.name.startswith(("headwater-bench-", "ours-", "reference-")):
            above.chmod(0o755)  # Postgres runs as another user
    with _servers(folder) as (postgres, valkey, opensearch):
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                "create table orders (id bigint primary key, version bigint, customer_id bigint, status text, amount numeric(12,2), "
                "note text, created_at timestamptz)"
            )
            connection.execute(f"insert into orders select g, 0, {latency._VALUES} from generate_series(1, {rows}) g")
        config = folder / "cdc.toml"
        config.write_text(_configuration(postgres, valkey, opensearch))
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", "cdc", "--config", str(config), "run"]
        with (folder / "daemon.log").open("wb") as out:
            daemon = subprocess.Popen(command, cwd=checkout, env=environment, stdout=out, stderr=out)
        try:
            wait_for(lambda: _loaded(folder / "run", rows), latency.START_S, "the first load")
            return _through(daemon.pid, folder / "run", postgres.dsn(), valkey.port, opensearch.port, rates, seconds)
        finally:
            end(daemon)


def _configuration(postgres: Postgres, valkey: Valkey, opensearch: OpenSearch) -> str:
    return toml(
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


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[Postgres, Valkey, OpenSearch]]:
    postgres, valkey = Postgres(folder / "pg"), Valkey(folder / "valkey")
    opensearch = OpenSearch(folder / "os", production=True)
    try:
        for server in (postgres, valkey, opensearch):
            server.start()
        yield postgres, valkey, opensearch
    finally:
        opensearch.stop()
        valkey.stop()
        postgres.stop("immediate")


def _through(pid: int, run_dir: Path, dsn: str, valkey: int, opensearch: int, rates: Sequence[int], seconds: int) -> Run:
    run = Run()
    usage = Usage(psutil.Process(pid))
    done = 0
    # Everything is used once before anything is measured.
    done = _traffic(dsn, done, 50, max(seconds // 2, 2), None, None)
    for rate in rates:
        _wait_for(run_dir)
        if rate == TIMED:
            done = _timed(run, usage, dsn, (valkey, opensearch), done, rate, seconds)
        elif rate:
            done = _traffic(dsn, done, rate, seconds, usage, run)
        else:
            usage.begin()
            time.sleep(seconds)
            run.cpu[0] = usage.cpu_s() / seconds
    run.pss_mb = _pss_mb(pid)
    return run


def _traffic(dsn: str, done: int, rate: int, seconds: int, usage: Usage | None, run: Run | None) -> int:
    """Single-row transactions at the rate, numbered from ``done``; returns the next number."""
    work = latency.Work.of(done + rate * seconds, ())
    if usage is not None:
        usage.begin()
    began = time.monotonic()
    latency.write(dsn, work, rate, latency.Unmeasured(), first=done, warm=0)
    if usage is not None and run is not None:
        run.cpu[rate] = usage.cpu_s() / (time.monotonic() - began)
    return work.count


def _timed(run: Run, usage: Usage, dsn: str, ports: tuple[int, int], done: int, rate: int, seconds: int) -> int:
    work = latency.Work.of(done + rate * seconds, STORES)
    spawn = multiprocessing.get_context("spawn")
    polls = zip((latency.poll_redis, latency.poll_opensearch), ports, strict=True)
    pollers: list[Any] = [
        spawn.Process(target=latency._polling, args=(poll, work, port, done), daemon=True) for poll, port in polls
    ]
    for poller in pollers:
        poller.start()
    try:
        latency.await_pollers(work, len(pollers))
        usage.begin()
        latency.write(dsn, work, rate, latency.Unmeasured(), first=done, warm=0)
        wait_for(lambda: all(seen[-1] for seen in work.seen.values()), latency.DRAIN_S, "the last transactions")
        # On a busy machine traffic comes later than it should, and the stores follow later still: it is the work of the same transactions.
        run.cpu[rate] = usage.cpu_s() / seconds
    finally:
        work.finished.value = True
        for poller in pollers:
            poller.join(10)
            poller.kill()
    committed = np.array(work.committed)[done:]
    for store, seen in work.seen.items():
        taken = (np.array(seen)[done:] - committed) * 1e3
        run.ms |= {f"{store}_p{share}": round(float(np.quantile(taken, share / 100)), 1) for share in (50, 99)}
    return work.count


def _wait_for(run_dir: Path) -> None:
    """Until every store holds what capture has."""
    wait_for(lambda: len({_position(path) for path in _parts(run_dir)}) == 1, latency.DRAIN_S, "the stores")
    time.sleep(1.0)


def _loaded(run_dir: Path, rows: int) -> bool:
    parts = _parts(run_dir)
    return len(parts) == 4 and all(_position(path) >= rows for path in parts) and len({_position(path) for path in parts}) == 1


def _parts(run_dir: Path) -> list[Path]:
    """The status files of capture and the followers, read as JSON: they are another version's."""
    return [path for path in (run_dir / "status").glob("*.json") if path.stem == "capture" or path.stem.startswith("follow-")]


def _position(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["position"])
    except (OSError, ValueError, KeyError):
        return -1


def _pss_mb(pid: int) -> float:
    root = psutil.Process(pid)
    return sum(process.memory_full_info().pss for process in (root, *root.children(recursive=True))) / 2**20


def result(runs: dict[str, list[Run]], options: argparse.Namespace) -> Result:
    ours, reference = runs["ours"], runs.get("reference", [])
    found = Result("live-cost", orientation={"reference": options.reference, "seconds": options.seconds, "rows": options.rows})
    for rate in options.rates:
        cpu = [run.cpu[rate] for run in ours]
        if rate == 0:
            found.figures["idle_core"] = lower(cpu, IDLE_LIMIT_CORES, "cores")
        elif reference:
            found.figures[f"cpu_{rate}"] = _saved(cpu, [run.cpu[rate] for run in reference], CPU_BAR if rate == TIMED else None)
        found.orientation[f"cores_at_{rate}"] = {
            name: round(median(run.cpu[rate] for run in those), 3) for name, those in runs.items()
        }
    found.figures["pss_mb"] = lower([run.pss_mb for run in ours], PSS_LIMIT_MB, "MB")
    found.orientation["pss_mb"] = {name: round(median(run.pss_mb for run in those)) for name, those in runs.items()}
    for name in ours[0].ms:
        mine, theirs = [run.ms[name] for run in ours], [run.ms[name] for run in reference]
        if theirs:
            found.figures[f"{name}_ms"] = Figure(
                round(median(mine), 1), "ms", round(median(theirs), 1), round(median(theirs) / median(mine), 3),
                1.0 if name.endswith("p99") else None, tuple(mine), tuple(theirs),
            )  # fmt: skip
        else:
            found.orientation[f"{name}_ms"] = mine
    found.cpu_s = round(median(run.cpu[max(options.rates)] for run in ours), 3)
    return found


def _saved(ours: list[float], reference: list[float], bar: float | None) -> Figure:
    """CPU in cores; the ratio says how many times less ours is."""
    mine, theirs = median(ours), median(reference)
    runs = tuple(round(one, 3) for one in ours), tuple(round(one, 3) for one in reference)
    return Figure(round(mine, 3), "cores", round(theirs, 3), round(theirs / mine, 3), bar, *runs)
