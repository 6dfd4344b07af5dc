"""The Spark process: one Structured Streaming query per store, each with a fresh checkpoint that starts where the store stands.

A query only says how far to go (its micro-batch's end offset); how far the store is, the store says. So a lost, stale or damaged
checkpoint cannot matter, and a store that is down holds up its own query alone.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import sinks.warehouse
from cdc.errors import HeadwaterError, Stopped
from cdc.log.reader import EmbeddedLogReader
from cdc.model.position import Cut, Position
from cdc.settings import Contract, StoreOptions
from cdc.spark import session as sessions
from cdc.spark.apply import Slices
from cdc.spark.causes import ending_of, place_of
from cdc.spark.follower import Follower
from cdc.spark.source import CdcSource, cut_at

_POLL_S: Final = 0.02
_REPORT_S: Final = 0.5
_RESTART_S: Final = 1.0


def run_followers(
    log_dir: Path,
    run_dir: Path,
    stores: Mapping[str, StoreOptions],
    *,
    until_caught_up: bool = False,
    stop: threading.Event,
    contracts: Mapping[str, Contract] | None = None,
) -> int:
    """Follows the log with every store until ``stop`` is set, then finishes the batches under way and returns the exit code.

    until_caught_up: returns as soon as every store holds what the log held at the start. Returns 0, or 4 when a store is in a stop
    state. Raises HeadwaterError when one of the stores is followed already.
    """
    reader = EmbeddedLogReader(log_dir)
    enough = threading.Event()
    followers = [Follower(store, options, log_dir, reader, run_dir, enough, contracts) for store, options in stores.items()]
    with ExitStack() as leases:
        for follower in followers:
            leases.callback(follower.release_lease)
            follower.take_lease()
        scratch = run_dir / "spark"
        for store in stores:
            shutil.rmtree(scratch / store, ignore_errors=True)
        return _run(log_dir, reader, scratch, followers, enough, until_caught_up, stop)


def _run(
    log_dir: Path,
    reader: EmbeddedLogReader,
    scratch: Path,
    followers: Sequence[Follower],
    enough: threading.Event,
    until_caught_up: bool,
    stop: threading.Event,
) -> int:
    target = reader.head().position
    for follower in followers:
        follower.report()
    ours = sessions.running() is None
    spark = sessions.session(scratch=scratch / "local", iceberg_sql=False)
    sinks.warehouse.use_session(lambda: spark)
    queries_session = spark.newSession()
    queries_session.dataSource.register(CdcSource)
    # Micro-batches compute nothing in Spark, so generating code for them is work for nothing.
    queries_session.conf.set("spark.sql.codegen.wholeStage", "false")
    queries = [Query(queries_session, follower, log_dir, scratch, enough) for follower in followers]
    try:
        for query in queries:
            query.start()
        _watch(queries, followers, target if until_caught_up else None, stop)
    finally:
        enough.set()
        for query in queries:
            query.join()
        for follower in followers:
            follower.close()
        if ours:
            sessions.stop()
    for query in queries:
        query.check()
    return 4 if any(follower.stopped for follower in followers) else 0


def _watch(queries: Sequence[Query], followers: Sequence[Follower], target: Position | None, stop: threading.Event) -> None:
    """Reports until there is nothing left to do. Raises what ended a query's thread: the supervisor starts the process again."""
    reported_at = 0.0
    while not stop.wait(_POLL_S):
        for query in queries:
            query.check()
        if all(follower.stopped for follower in followers):
            return
        if target is not None and all(follower.stopped or follower.applied.position >= target for follower in followers):
            return
        if time.monotonic() - reported_at >= _REPORT_S:
            for follower in followers:
                follower.report()
            reported_at = time.monotonic()


class Query:
    """The thread that keeps one store's query running."""

    def __init__(self, spark: SparkSession, follower: Follower, log_dir: Path, scratch: Path, stop: threading.Event) -> None:
        self._spark = spark
        self._follower = follower
        self._log_dir = log_dir
        self._scratch = scratch / follower.store
        self._stop = stop
        self._failure: BaseException | None = None
        self._accident: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"follow-{follower.store}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def check(self) -> None:
        """Raises what has ended the thread, where nothing should."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._keep_running()
        except BaseException as failure:
            self._failure = failure

    def _keep_running(self) -> None:
        # Each store's jobs get a fair share of the cores.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._follower.store)
        while not self._stop.is_set() and not self._follower.stopped:
            self._accident = None
            try:
                if self._follower.start():
                    self._run_a_query()
            except Exception as error:  # outside a micro-batch, as when the store is opened: an accident like one inside
                self._accident = place_of(error)
            self._explain()
            self._stop.wait(_RESTART_S)

    def _run_a_query(self) -> None:
        """Returns when it has ended, by itself or because it was asked to."""
        checkpoint = self._scratch / uuid4().hex
        query = self._started(checkpoint)
        try:
            while query.isActive and not self._stop.is_set() and not self._follower.stopped:
                self._follower.idle()
                self._stop.wait(_POLL_S)
            if not query.isActive and self._accident is None:
                self._accident = ending_of(query)
        finally:
            self._end(query)
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _started(self, checkpoint: Path) -> StreamingQuery:
        options = self._follower.options
        frame: Any = (
            self._spark.readStream.format("cdc").option("log", str(self._log_dir)).option("as", "slices").option("fresh", "true")
        )
        start = self._follower.applied.position
        frame = frame.option("tables", json.dumps(list(options.tables))).option("startPosition", str(start))
        frame = frame.option("maxRows", str(options.batch_rows)).option("maxBytes", str(options.batch_bytes)).load()
        interval_ms = getattr(options, "commit_interval_ms", 0)

        def on_batch(frame: Any, number: int) -> None:
            if not self._stop.is_set():
                try:
                    after = end_of(checkpoint, number - 1).position if number else start
                    self._follower.follow_to(end_of(checkpoint, number), Slices(after, frame))
                except Exception as error:
                    self._accident = place_of(error)
                    raise

        writer = (
            frame.writeStream.queryName(self._follower.store).option("checkpointLocation", str(checkpoint)).foreachBatch(on_batch)
        )
        query: StreamingQuery = writer.trigger(processingTime=f"{interval_ms} milliseconds").start()
        return query

    def _explain(self) -> None:
        """A query that ended by itself: a stop state if the log says so, else an accident that a new query mends."""
        if self._stop.is_set() or self._follower.stopped:
            return
        try:
            self._follower.probe()
        except Stopped as error:
            self._follower.fail(error)
        except HeadwaterError as error:
            self._follower.status.error = error.line()
        else:
            why = self._accident or "Spark ended it"
            self._follower.status.error = f"the query of store {self._follower.store} starts again: {why}"
        self._follower.report()

    def _end(self, query: StreamingQuery) -> None:
        try:
            # Never in the middle of a batch: Spark would print pages about it.
            with self._follower.between_batches():
                query.stop()
        except Exception as error:  # Spark says StreamingQueryException, py4j its own: the query is over either way
            self._follower.status.error = f"stopping the query of store {self._follower.store}: {type(error).__name__}"


def end_of(checkpoint: Path, number: int) -> Cut:
    """The cut that micro-batch ``number`` reaches: foreachBatch is not told, but Spark has written it down before."""
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    return cut_at(json.loads(lines[2]))
