"""The initial load: rows of a table through the snapshot into the log (with fsync), against psql's COPY TO STDOUT thrown away.

Both read the same table of the same server over the same Unix socket, in COPY's text format, on one connection that reads; runs
alternate. Ours is timed from the first chunk's beginning until the log holds the last one durably and the progress file says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg

from bench.orders import PUBLICATION, create_orders, fill_orders
from bench.result import Result, faster
from cdc.capturing import run_capture
from cdc.embedded.postgres import Postgres
from cdc.settings import Log, Settings, Source
from snapshots.progress import FILE

BAR = 0.55
POLL_S = 0.002
COLUMNS = "id, customer_id, status, amount, note, created_at"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench snapshot", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tcp", action="store_true", help="over TCP instead of the Unix socket")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    server = Postgres(folder / "postgres", options={"shared_buffers": "512MB", "max_wal_size": "4GB"})
    try:
        server.start()
        dsn = server.dsn() if options.tcp else server.unix_dsn()
        with psycopg.connect(dsn, autocommit=True) as connection:
            create_orders(connection)
            fill_orders(connection, options.rows)
        result = measure(server, dsn, folder, options.rows, options.runs)
        print(result.line())
        return 0
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def measure(server: Postgres, dsn: str, folder: Path, rows: int, runs: int) -> Result:
    ours: list[float] = []
    limit: list[float] = []
    usage: list[tuple[float, float]] = []
    load(dsn, folder / "warm", rows)
    copy(server, dsn)
    for run in range(runs):
        limit.append(rows / copy(server, dsn))
        seconds, cpu_s, rss_mb = load(dsn, folder / f"log-{run}", rows)
        ours.append(rows / seconds)
        usage.append((cpu_s, rss_mb))
    return Result(
        "snapshot",
        {"copy": faster(ours, limit, "rows/s", BAR)},
        cpu_s=round(sorted(cpu for cpu, _ in usage)[len(usage) // 2], 2),
        rss_mb=round(max(rss for _, rss in usage)),
        orientation={"rows": rows, "cpu_s_is": "of the whole capture process, its start included"},
    )


def copy(server: Postgres, dsn: str) -> float:
    """Seconds that psql takes to read the table and drop it."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run([server.binary("psql"), dsn, "-qc", f"COPY orders ({COLUMNS}) TO STDOUT"], stdout=nowhere, check=True)
    return time.perf_counter() - began


def load(dsn: str, folder: Path, rows: int, workers: int = 1) -> tuple[float, float, float]:
    """(seconds of the snapshot, CPU seconds and peak MB of the capture process) for a log made anew."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_capture, args=(dsn, str(folder), workers, sender))
    process.start()
    seconds = _timed(folder / FILE, process, rows)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    cpu_s, rss_mb = receiver.recv()
    process.join(30)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")
    shutil.rmtree(folder)
    return seconds, cpu_s, rss_mb


def _timed(path: Path, process: multiprocessing.process.BaseProcess, rows: int) -> float:
    began = 0.0
    while process.is_alive():
        time.sleep(POLL_S)
        if not path.exists():
            continue
        began = began or time.perf_counter()
        (record,) = json.loads(path.read_text())["tables"].values()
        if record["finished"]:
            assert record["done"] == rows, record["done"]
            return time.perf_counter() - began
    raise RuntimeError("capture ended before its snapshot")


def _capture(dsn: str, folder: str, workers: int, sender: object) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    source = Source(dsn=dsn, tables=("public.orders",), slot="bench", publication=PUBLICATION, snapshot_workers=workers)
    run_capture(Settings(source=source, log=Log(dir=Path(folder)), run_dir=Path(folder) / "run"), stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sender.send((used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))  # type: ignore[attr-defined]
