"""1,000,000 waiting changes through the real capture into the real log with fsync, against raw readers of the same stream.

The limit is a *drain*: a socket reader that only receives and drops bytes, the better of one that reads eagerly and one that lets
bytes gather for the same pause as ours between reads (longer ones were slower). Ours and the drains alternate over the same WAL: nothing is ever confirmed to the server,
so each run gets the same changes.

Parts: ``orders`` (small transactions, six columns), ``wide`` (40 columns, 1.6 kB a row), ``tables`` (1,000 tables, ten rows a transaction),
``large`` (one transaction of 10,000,000 rows, received while it runs: no drain, but memory, and that readers of the log see all or nothing) and
``lookup`` (``orders`` with the look-ups of every table kept beside it, against the same without: pairs of runs, one behind the other).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.debezium import measure_debezium
from bench.orders import PUBLICATION
from bench.result import Result, faster, lower, paired
from bench.workloads import SLOT, WORKLOADS, Workload
from cdc.capture.pace import PAUSE_S
from cdc.embedded.postgres import Postgres

SILENCE_S = 1.0
LOOKUP = "lookup"
LOOKUP_S = 120.0
"""Within so long the first of the look-ups' files has to be there, on any machine."""
QUIET = {"wal_sender_timeout": "0", "autovacuum": "off"}
"""Of the server: the first statistics of many new tables are minutes of work beside some runs and not others, and make the server describe
each table again."""
KEEPALIVE_BYTES = 23
"""One CopyData message with a keepalive. The server goes on sending them while its WAL grows by work of its own."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench capture", description=__doc__)
    parser.add_argument("--part", choices=sorted([*WORKLOADS, LOOKUP]), default="orders")
    parser.add_argument("--changes", type=int, help="as many as the part's own number otherwise")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--debezium", action="store_true", help="also Debezium's engine (installs requirements/bench.lock)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        server = Postgres(Path(folder) / "pg", options=QUIET)
        server.start()
        try:
            workload = WORKLOADS["orders" if options.part == LOOKUP else options.part]
            changes = options.changes or workload.changes
            load(server, workload, changes)
            if options.part == LOOKUP:
                result = measure_lookup(server, Path(folder), changes, options.runs)
            else:
                result = measure(server, Path(folder), changes, options.runs, options.part)
            if options.debezium:
                measure_debezium(server, changes, result)
        finally:
            server.stop("immediate")
    print(result.line())
    return 0


def load(server: Postgres, workload: Workload, changes: int) -> None:
    """Leaves so many changes behind the slot."""
    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        workload.create(connection)
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        print(f"writing {changes} changes …", file=sys.stderr, flush=True)
        workload.load(connection, changes)
        connection.execute("checkpoint")


def measure(server: Postgres, folder: Path, changes: int, runs: int, part: str = "orders") -> Result:
    """What ``load`` has left there."""
    result = Result("capture" if part == "orders" else f"capture-{part}")
    if part == "large":
        return _large(server, folder, changes, result)
    cpu: dict[str, list[float]] = {"unix": [], "tcp": []}
    rss: list[float] = []
    for transport, dsn in (("unix", server.unix_dsn()), ("tcp", server.dsn())):
        # A little less than all: how many keepalives come is up to the server.
        wire = _child("bytes", dsn, changes, folder)["bytes"] * 0.999
        ours: list[float] = []
        drains: dict[str, list[float]] = {"eager": [], "pausing": []}
        for _ in range(runs):
            for how in drains:
                drains[how].append(changes / _child(how, dsn, int(wire), folder)["seconds"])
            run = _child("capture", dsn, changes, folder)
            ours.append(changes / run["seconds"])
            cpu[transport].append(run["cpu_s"] * 1e6 / changes)
            rss.append(run["rss_mb"])
            print(
                f"{transport}: ours {ours[-1]:.0f}/s, drains { ({k: round(v[-1]) for k, v in drains.items()}) }",
                file=sys.stderr,
                flush=True,
            )
        best = max(drains.values(), key=median)
        result.figures[f"drain_{transport}"] = faster(ours, best, "changes/s", bar=0.85)
        result.orientation[f"drains_{transport}"] = {how: round(median(figures)) for how, figures in drains.items()}
    for transport, used in cpu.items():
        if part == "orders":  # the bound is one for small rows of one table
            result.figures[f"cpu_s_per_million_{transport}"] = lower(used, 2.0, "CPU s")
        else:
            result.orientation[f"cpu_s_per_million_{transport}"] = round(median(used), 3)
    result.figures["rss_mb"] = lower(rss, 400.0, "MB")
    result.cpu_s, result.rss_mb = round(median([*cpu["unix"], *cpu["tcp"]]), 3), round(max(rss))
    if part == "orders":
        result.orientation["pg_recvlogical"] = round(changes / _recvlogical(server))
    return result


def measure_lookup(server: Postgres, folder: Path, changes: int, runs: int) -> Result:
    """The same changes with and without, in pairs, and each of the two as often first as second."""
    result = Result(f"capture-{LOOKUP}")
    found: dict[str, list[dict[str, float]]] = {"capture": [], "looked-up": []}
    for number in range(runs):
        for what in sorted(found, reverse=number % 2 == 1):
            found[what].append(_child(what, server.unix_dsn(), changes, folder))
            print(f"{what}: {changes / found[what][-1]['seconds']:.0f}/s", file=sys.stderr, flush=True)
    ours, alone = ([changes / run["seconds"] for run in found[what]] for what in ("looked-up", "capture"))
    result.figures["beside_lookup"] = paired(ours, alone, "changes/s", bar=0.9)
    cpu = {what: round(median(run["cpu_s"] for run in those) * 1e6 / changes, 3) for what, those in found.items()}
    result.orientation["cpu_s_per_million_with_and_without_lookup"] = [cpu["looked-up"], cpu["capture"]]
    # The thread begins a second after capture, and is never ahead of it.
    result.orientation["lookup_kept_meanwhile"] = round(median(run["kept"] for run in found["looked-up"]), 2)
    used = [run for those in found.values() for run in those]
    result.cpu_s, result.rss_mb = round(median(run["cpu_s"] for run in used), 3), round(max(run["rss_mb"] for run in used))
    return result


def _large(server: Postgres, folder: Path, changes: int, result: Result) -> Result:
    for transport, dsn in (("unix", server.unix_dsn()), ("tcp", server.dsn())):
        run = _child("capture", dsn, changes, folder)
        assert run["cuts"] == 2, "a reader has seen a part of the transaction"
        print(f"{transport}: {changes / run['seconds']:.0f}/s, {run['rss_mb']:.0f} MB", file=sys.stderr, flush=True)
        result.figures[f"rss_mb_{transport}"] = lower([run["rss_mb"]], 600.0, "MB")
        result.orientation[f"changes_per_s_{transport}"] = round(changes / run["seconds"])
        result.orientation[f"cpu_s_per_million_{transport}"] = round(run["cpu_s"] * 1e6 / changes, 3)
    return result


def _child(what: str, dsn: str, amount: int, folder: Path) -> dict[str, float]:
    """One run in a process of its own, so that its CPU time and memory are only its.

    Every run's log stays until all are done: a file system that puts off using what was freed a moment ago (ext4 without a journal does)
    takes half a millisecond longer for each new file, and a run of many tables makes thousands.
    """
    log = next(folder / f"log-{number}" for number in count() if not (folder / f"log-{number}").exists())
    done = subprocess.run(
        [sys.executable, "-m", "bench.capture", "--child", what, dsn, str(amount), str(log)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=1800,
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_child(what: str, dsn: str, amount: int, log: Path) -> dict[str, Any]:
    if what in ("capture", "unsealed", "looked-up"):
        run = capture(dsn, amount, log, segment_bytes=2**30 if what == "unsealed" else 64 * 2**20, lookup=what == "looked-up")
        return {key: value for key, value in run.items() if key != "ended"}
    if what == "bytes":
        return {"bytes": _drain(dsn, None, 0.0)[0]}
    before = _cpu_s()
    began = time.perf_counter()
    _, ended = _drain(dsn, amount, PAUSE_S["@127" in dsn] if what == "pausing" else 0.0)
    return {"seconds": ended - began, "cpu_s": _cpu_s() - before}


def capture(
    dsn: str,
    changes: int,
    log: Path,
    *,
    segment_bytes: int = 64 * 2**20,
    confirm: bool = False,
    lookup: bool = False,
    durable: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Stream, decoder, log and feedback as the daemon runs them; done when the last change is durable (at ``ended``, by perf_counter).

    confirm: tells the server what is durable. lookup: the look-ups of every table are kept beside it. durable: told the commit time (microseconds) of what has become so.
    """
    import structlog

    from cdc.capture.decoder import Decoder
    from cdc.capture.definitions import Definitions
    from cdc.capture.feedback import Feedback
    from cdc.capture.preparedfiles import PreparedFiles
    from cdc.capture.spool import Spools
    from cdc.capture.stream import Connection
    from cdc.capture.toast import ToastMemory
    from cdc.capture.warm import warm
    from cdc.ingest.intake import Intake
    from cdc.ingest.loop import Ingest
    from cdc.ingest.meter import Meter
    from cdc.log.embedded.writer import EmbeddedLogWriter
    from cdc.lookup.worker import Keeping
    from cdc.model.pgtypes import PINNED_SETTINGS
    from cdc.settings.models import Settings
    from snapshots.feed import SnapshotFeed
    from snapshots.progress import SnapshotProgress

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    warm()
    gc.freeze()
    log.mkdir(parents=True)
    writer, memory, progress = (
        EmbeddedLogWriter(log, segment_bytes=segment_bytes),
        ToastMemory(log / "toast.db"),
        SnapshotProgress(log),
    )
    stop, kept_enough = threading.Event(), threading.Event()
    meter = Meter(log / "run", SLOT, progress)
    keeping = Keeping(Settings.model_validate(_looked_up(log)), kept_enough)
    if lookup:
        keeping.start()
    connection = Connection(conninfo_to_dict(dsn), PINNED_SETTINGS, name="bench")
    before, began = _cpu_s(), time.perf_counter()
    stream = connection.start(SLOT, PUBLICATION, 0, Feedback(0) if confirm else _silent(), streaming=True)
    spools = Spools(log)
    decoder = Decoder(Definitions(lambda _: None), memory, lambda _rows, _missing: None, 0, spools, PreparedFiles(log))
    ingest = Ingest(Intake(log, writer, memory, SnapshotFeed(progress), meter), stream, decoder)

    def watch() -> None:
        while writer.head.position < changes and thread.is_alive():
            cuts.add(writer.head.position)
            durable(writer.head.commit_ts_us)
            time.sleep(0.001)
        cuts.add(writer.head.position)
        durable(writer.head.commit_ts_us)
        ended.append(time.perf_counter())
        stop.set()

    ended: list[float] = []
    cuts: set[int] = set()
    thread = threading.current_thread()
    watcher = threading.Thread(target=watch)
    watcher.start()
    ingest.run(stop)
    watcher.join()
    cpu, kept = _cpu_s() - before, _kept(log) / changes
    until = time.monotonic() + LOOKUP_S
    while lookup and not _kept(log) and keeping.alarm() is None and time.monotonic() < until:
        time.sleep(0.01)  # capture may have been faster than the thread's first look
    kept_enough.set()
    keeping.join()
    assert not lookup or _kept(log), f"no look-up was kept: {keeping.alarm()}"
    assert writer.head.position == changes, f"{writer.head.position} of {changes} changes"
    stream.close()
    spools.close()
    writer.close()
    return {
        "seconds": ended[0] - began,
        "ended": ended[0],
        "cpu_s": cpu,
        "cuts": len(cuts),
        "kept": kept,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _looked_up(log: Path) -> dict[str, Any]:
    return {"source": {"dsn": ""}, "log": {"dir": log, "tables": {"*": {"lookup": True}}, "reserve_mb": 0}}


def _kept(log: Path) -> float:
    """How many changes the look-ups' files hold, about: each takes 16 bytes."""
    return sum(path.stat().st_size for path in (log / "lookup").rglob("[0-9]*.run")) / 16


def _silent() -> Any:
    """Confirms nothing, so that the slot stays where it is and every run gets the same WAL."""
    from cdc.capture.feedback import Feedback

    class Silent(Feedback):
        def confirm(self, lsn: int) -> None:
            del lsn

    return Silent(0)


def _drain(dsn: str, amount: int | None, pause_s: float, silence_s: float = SILENCE_S) -> tuple[int, float]:
    """Receives and drops ``amount`` bytes, or until nothing comes for so long; returns how many came, and when the last did.

    How many there are is not quite certain: a server that works longer sends more keepalives.
    """
    from cdc.capture.stream import Connection, _Socket
    from cdc.model.pgtypes import PINNED_SETTINGS

    connection = Connection(conninfo_to_dict(dsn), PINNED_SETTINGS, name="bench")
    command = (
        f"START_REPLICATION SLOT \"{SLOT}\" LOGICAL 0/0 (proto_version '1', publication_names '\"{PUBLICATION}\"', messages 'true')"
    ).encode()
    wire = _Socket(connection._pg, command)
    raw = wire._socket
    wire._timeout(int(silence_s * 1000))
    into = memoryview(bytearray(2**20))
    got, last = 0, time.perf_counter()
    while amount is None or got < amount:
        if pause_s:
            time.sleep(pause_s)
        try:
            read = raw.recv_into(into, 0, socket.MSG_DONTWAIT if pause_s else 0)
        except BlockingIOError:
            if time.perf_counter() - last > silence_s:
                break
            continue
        if not read:
            raise ConnectionError("the server went away")
        got += read
        if read % KEEPALIVE_BYTES or into[5] != ord("k"):
            last = time.perf_counter()
    wire.close()
    return got, last


def _recvlogical(server: Postgres) -> float:
    """pg_recvlogical, for orientation: it varies much, so nothing is divided by it. It confirms, so it gets a slot of its own."""
    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (SLOT, f"{SLOT}_recvlogical"))
    assert row is not None
    began = time.perf_counter()
    options = ["--option", "proto_version=1", "--option", f"publication_names={PUBLICATION}", "--file", os.devnull]
    where = ["--dbname", server.unix_dsn(), "--slot", f"{SLOT}_recvlogical", "--start", "--endpos", row[0], "--no-loop"]
    subprocess.run(
        [str(server.binary("pg_recvlogical")), *where, *options],
        check=True,
        timeout=300,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    assert sys.argv[1] == "--child"
    print(json.dumps(run_child(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))))
