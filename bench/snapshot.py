"""The initial load: rows of a table through the snapshot into the log (with fsync), against psql's COPY TO STDOUT thrown away.

Both read the same table of the same server over the same Unix socket; runs alternate. psql asks for COPY's text format, as it does by
itself, and the snapshot for what it takes for such tables, the binary one, which costs the server less; what psql reaches with that stands
under ``orientation``. ``copy``: one connection that reads; ``workers_2``: two of ours against psql's one; ``wide``: one, rows of 40 columns and 1.6 kB. Ours is timed from the first chunk's beginning until the log holds the last one durably and the progress file says so.
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
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.orders import PUBLICATION, create_orders, fill_orders
from bench.result import Result, faster
from cdc.embedded.postgres import Postgres
from cdc.ingest.process import run_capture
from cdc.settings.models import Log, Settings, Source
from snapshots.progress import FILE

BAR = 0.75
WIDE_COLUMNS = 40
POLL_S = 0.002


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
            fill_wide(connection, options.rows // 10)
        result = measure(server, dsn, folder, options.rows, options.runs)
        print(result.line())
        return 0
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def fill_wide(connection: psycopg.Connection, rows: int) -> None:
    columns = [f"c{number} {kind}" for number, kind in enumerate(("bigint", "text", "numeric(12,2)", "timestamptz") * 10)][:-1]
    values = [
        ("g", "repeat(md5((g + {0})::text), 4)", "(g % 100000) * 0.25", "timestamptz '2026-01-01' + g * interval '1 second'")[
            n % 4
        ].format(n)
        for n in range(WIDE_COLUMNS - 1)
    ]
    connection.execute(f"create table wide (id bigint primary key, {', '.join(columns)})")
    connection.execute(f"insert into wide select g, {', '.join(values)} from generate_series(1, {int(rows)}) g")
    connection.execute("create publication wide for table wide")
    connection.execute("vacuum (freeze, analyze) wide")


@dataclass(frozen=True, slots=True)
class Case:
    """What is read, by how many connections of ours."""

    table: str
    publication: str
    rows: int
    workers: int = 1


def measure(server: Postgres, dsn: str, folder: Path, rows: int, runs: int) -> Result:
    cases = {
        "copy": Case("orders", PUBLICATION, rows),
        "workers_2": Case("orders", PUBLICATION, rows, workers=2),
        "wide": Case("wide", "wide", rows // 10),
    }
    ours: dict[str, list[float]] = {name: [] for name in cases}
    limit: dict[str, list[float]] = {name: [] for name in cases}
    binary: dict[str, list[float]] = {name: [] for name in cases if name != "workers_2"}
    usage: list[tuple[float, float]] = []
    load(dsn, folder / "warm", cases["copy"])
    for run in range(runs):
        for name, case in cases.items():
            limit[name].append(case.rows / copy(server, dsn, case.table))
            if name in binary:
                binary[name].append(case.rows / copy(server, dsn, case.table, "(FORMAT binary)"))
            seconds, cpu_s, rss_mb = load(dsn, folder / f"log-{name}-{run}", case)
            ours[name].append(case.rows / seconds)
            usage.append((cpu_s, rss_mb))
    bars = {"copy": BAR, "workers_2": None, "wide": BAR}
    return Result(
        "snapshot",
        {name: faster(ours[name], limit[name], "rows/s", bars[name]) for name in cases},
        cpu_s=round(sorted(cpu for cpu, _ in usage)[len(usage) // 2], 2),
        rss_mb=round(max(rss for _, rss in usage)),
        orientation={
            "rows": rows,
            "wide_rows": rows // 10,
            "psql_binary_rows_per_s": {name: round(sorted(speeds)[len(speeds) // 2]) for name, speeds in binary.items()},
            "cpu_s_is": "of the whole capture process, its start included",
        },
    )


def copy(server: Postgres, dsn: str, table: str, how: str = "") -> float:
    """Seconds that psql takes to read the table and drop it."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run([server.binary("psql"), dsn, "-qc", f"COPY {table} TO STDOUT {how}"], stdout=nowhere, check=True)
    return time.perf_counter() - began


def load(dsn: str, folder: Path, case: Case) -> tuple[float, float, float]:
    """(seconds of the snapshot, CPU seconds and peak MB of the capture process) for a log recreated."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_capture, args=(dsn, str(folder), case, sender))
    process.start()
    seconds = _timed(folder / FILE, process, case.rows)
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


def _capture(dsn: str, folder: str, case: Case, sender: object) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    source = Source(
        dsn=dsn, tables=(f"public.{case.table}",), slot="bench", publication=case.publication, snapshot_workers=case.workers
    )
    run_capture(Settings(source=source, log=Log(dir=Path(folder)), run_dir=Path(folder) / "run"), stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sender.send((used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))  # type: ignore[attr-defined]
