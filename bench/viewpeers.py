"""What ``bench.viewlive`` compares a view's freshness with: Spark's empty stateful micro-batch, REFRESH MATERIALIZED VIEW CONCURRENTLY, and pathway."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import psycopg
import redis

from bench.backlog import Usage
from bench.daemon import wait_for
from bench.pathway_view import SLOT
from bench.viewshop import VIEW
from cdc.embedded.valkey import Valkey

LOAD_S: Final = 900

WARM: Final = 10
"""The most micro-batches that do not count: the JVM compiles what is hot meanwhile."""
PROVIDERS: Final = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def empty_batches_ms(folder: Path, batches: int) -> dict[str, float]:
    """The median time of a stateful micro-batch that aggregates nothing, from its trigger to its commit, for each of Spark's stores of state."""
    from cdc.spark import session as sessions

    warm = min(WARM, batches)
    spark = sessions.session(scratch=folder / "spark", iceberg_sql=False)
    try:
        spark.sparkContext.setLogLevel("OFF")  # a query that is stopped complains of that
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", warm + batches + 1)
        found = {}
        for name, provider in PROVIDERS.items():
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
            rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            writer = rows.where("value < 0").groupBy("value").count().writeStream.format("noop").outputMode("update")
            query = writer.option("checkpointLocation", str(folder / name)).start()
            while (last := query.lastProgress) is None or last["batchId"] < warm + batches:
                if (failure := query.exception()) is not None:
                    raise failure
                time.sleep(0.05)
            times = [one["durationMs"]["triggerExecution"] for one in query.recentProgress]
            query.stop()
            found[name] = float(median(times[-batches:]))
        return found
    finally:
        sessions.stop()


class Materialized:
    """The same view in the database itself."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def create(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"create materialized view shown as {VIEW}")
            connection.execute("create unique index on shown (id)")

    def refresh_s(self) -> float:
        """How long it takes to show what has changed."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            began = time.perf_counter()
            connection.execute("refresh materialized view concurrently shown")
            return time.perf_counter() - began


@contextmanager
def pathway(
    python: Path, folder: Path, dsn: str, valkey: Valkey, rows: int, commit_ms: int, kept: Path | None = None
) -> Iterator[Usage]:
    """The same view by pathway, from where Redis, which is emptied before, has all its rows on. ``kept``: the folder in which it persists its input."""
    cache = redis.Redis(port=valkey.port)
    cache.flushall()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (SLOT,))
    script = Path(__file__).parent / "pathway_view.py"
    said = folder / "pathway.log"
    given = [dsn, str(valkey.port), str(commit_ms), *([str(kept)] if kept else [])]
    with said.open("wb") as out:
        started = subprocess.Popen([str(python), str(script), *given], stdout=out, stderr=out)
    try:
        wait_for(lambda: _alive(started, said) and cache.dbsize() >= rows, LOAD_S, "pathway's first build")
        yield Usage(psutil.Process(started.pid))
    finally:
        started.kill()
        started.wait()
        _drop_slot(dsn)


def _drop_slot(dsn: str) -> None:
    """Once the server has noticed that nobody reads from it any more."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        free = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s and not active"
        wait_for(lambda: connection.execute(free, (SLOT,)).rowcount == 1, 60, "the end of pathway's slot")


def _alive(started: subprocess.Popen[bytes], said: Path) -> bool:
    if started.poll() is not None:
        raise RuntimeError(f"pathway ended with {started.returncode}: {said.read_text()[-2000:]}")
    return True
