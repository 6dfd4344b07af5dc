"""The followers' process: one thread for each store. Where Spark's workers write to a store, a Structured Streaming query hands them large ranges.

A micro-batch costs Spark some 15 ms of CPU and its data source three Python processes, however little there is in it. So the thread itself applies
all ranges of a store without workers, and small ranges of every store, straight from the log. A query runs only while a store with workers is far
behind: at the first load, after an outage. Each query has a fresh checkpoint that starts where the store stands. It only says how far to go (its
micro-batch's end offset); how far the store is, the store says. So a lost, stale or damaged checkpoint cannot matter, and a store that is down
holds up nobody else.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdc.errors import HeadwaterError, Stopped
from cdc.follow.access import Ports
from cdc.follow.apply import Slices
from cdc.follow.fleet import Fleet
from cdc.follow.follower import LARGE_ROWS, Follower
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.model.position import Cut, Position
from cdc.pace import Pace
from cdc.settings.models import Settings, StoreOptions
from cdc.settings.sparkoptions import SparkOptions
from cdc.spark import cluster
from cdc.spark import session as sessions
from cdc.spark.causes import ending_of, place_of
from cdc.spark.source import CdcSource, cut_at
from sinks.sparksession import use_session

REST: Final = 3.0
"""After a small range that took t a store's thread rests for 3 t, so that steady traffic takes a quarter of a core at most."""
REST_S_MAX: Final = 0.03
INTERVAL_S: Final = 0.02
"""… and two small ranges of a store never begin closer together than this, or than its own interval of commits."""
_POLL_S: Final = 0.5
_QUERY_POLL_S: Final = 0.1
_IDLE_S: Final = 0.5
_REPORT_S: Final = 0.5
_RESTART_S: Final = 1.0
ALONE_S: Final = (0.0, 10.0, 30.0, 120.0, 600.0)
"""After so many queries in a row that ended by an accident, a store's thread goes on without one for so long. Spark gives a Python worker ten
seconds to report, and a machine that has no time for that is slow, not broken."""


def run_followers(
    log_dir: Path,
    run_dir: Path,
    stores: Mapping[str, StoreOptions],
    *,
    until_caught_up: bool = False,
    stop: threading.Event,
    settings: Settings | None = None,
    wanted: Callable[[], Mapping[str, StoreOptions]] | None = None,
    ports: Ports | None = None,
) -> int:
    """Follows the log with every store until ``stop`` is set, then finishes the batches under way and returns the exit code.

    until_caught_up: returns as soon as every store holds what the log held at the start.
    wanted: asked now and then which stores are to be followed; those that differ from before are begun, ended or opened again alone.
    ports: the followers' (default: the product's own). settings: beside the stores.
    Returns 0, or 4 when every store is in a stop state, or one of them is at the end. Raises HeadwaterError when one of the stores is
    followed already, and the stop state when none may run.
    """
    scratch = run_dir / "spark"
    spark, contracts = (SparkOptions(), {}) if settings is None else (settings.spark, settings.contracts)
    engine = Engine(scratch / "local", spark, lambda: any(one.by_query for one in fleet.followers))
    with closing(open_reader(log_dir)) as reader:

        def query(follower: Follower, halt: threading.Event) -> StoreQuery:
            return StoreQuery(engine, follower, reader, log_dir, scratch, halt)

        fleet = Fleet(log_dir, run_dir, reader, contracts, query, ports or Ports())
        target = reader.head().position
        use_session(engine.session)
        fleet.begin(stores, stand_by=not until_caught_up)
        try:
            _watch(fleet, wanted or (lambda: stores), target if until_caught_up else None, stop)
        finally:
            fleet.close()
            engine.stop()
    return 4 if any(follower.stopped for follower in fleet.followers) else 0


def _watch(fleet: Fleet, wanted: Callable[[], Mapping[str, StoreOptions]], target: Position | None, stop: threading.Event) -> None:
    """Reports until there is nothing left to do. Raises what ended a query's thread: the supervisor starts the process again."""
    reported_at = 0.0
    while not stop.wait(_POLL_S):
        fleet.look()
        if fleet.stopped:
            return
        if target is not None and all(follower.stopped or follower.applied.position >= target for follower in fleet.followers):
            return
        if time.monotonic() - reported_at >= _REPORT_S:
            fleet.adapt(wanted())
            fleet.report()
            reported_at = time.monotonic()


class Engine:
    """Spark, started when it is first needed: for a large range that its workers apply, or by a store that commits through its JVM."""

    def __init__(self, scratch: Path, options: SparkOptions, by_workers: Callable[[], bool]) -> None:
        """``by_workers``: whether there are stores that workers write to. Without any, a cluster has no part in it."""
        self._scratch, self._options, self._by_workers = scratch, options, by_workers
        self._lock = threading.Lock()
        self._ours = False
        self._queries: SparkSession | None = None
        self._starter = ThreadPoolExecutor(1, "spark-start")
        self._starting: Future[SparkSession] | None = None

    def starting(self) -> Future[SparkSession]:
        """``queries``, begun beside: whoever asks goes on meanwhile. It holds what a start has failed with; the next one tries again,
        as it does where the JVM has ended since."""
        running = sessions.running() is not None
        with self._lock:
            begun = self._starting
            if begun is None or (begun.done() and (not running or begun.exception() is not None)):
                self._starting = begun = self._starter.submit(self.queries)
            started = begun
        if running:
            wait([started])  # that takes no time worth using
        return started

    def session(self) -> SparkSession:
        with self._lock:
            self._ours |= sessions.running() is None
            options = self._options if self._by_workers() else self._options.alone
            settings = cluster.GIVES_BACK if options.cluster else None
            return sessions.session(options=options, scratch=self._scratch, settings=settings, iceberg_sql=False)

    def queries(self) -> SparkSession:
        """The session that the stores' queries share."""
        spark = self.session()
        with self._lock:
            if self._queries is None or self._queries.sparkContext is not spark.sparkContext:
                self._queries = spark.newSession()
                self._queries.dataSource.register(CdcSource)
                # Micro-batches compute nothing in Spark, so generating code for them is work for nothing.
                self._queries.conf.set("spark.sql.codegen.wholeStage", "false")
            return self._queries

    def stop(self) -> None:
        """Ends Spark when it was started here."""
        self._starter.shutdown()
        if self._ours:
            sessions.stop()


class StoreQuery:
    """The thread that keeps one store's follower going."""

    def __init__(
        self, engine: Engine, follower: Follower, reader: LogReader, log_dir: Path, scratch: Path, stop: threading.Event
    ) -> None:
        self._engine = engine
        self._follower = follower
        self._reader = reader
        self._log_dir = log_dir
        self._scratch = scratch / follower.store
        self._stop = stop
        self._failure: BaseException | None = None
        self._accident: str | None = None
        self._accidents = 0
        """Queries in a row that did not end well."""
        self._leaving = threading.Event()
        """The query is to end: its next micro-batches do nothing."""
        self._thread = threading.Thread(target=self._run, name=f"follow-{follower.store}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

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
        while not self._ending:
            self._accident = None
            try:
                if self._follower.start():
                    # Under the store's lease: no other process has a checkpoint there that it still needs.
                    shutil.rmtree(self._scratch, ignore_errors=True)
                    self._follow()
            except Exception as error:  # outside a micro-batch, as when the store is opened: an accident like one inside
                self._accident = place_of(error)
            self._explain()
            self._stop.wait(_RESTART_S)

    def _follow(self) -> None:
        """Returns when a query has ended by an accident, or when there is nothing more to do."""
        follower = self._follower
        pace = Pace(REST, REST_S_MAX, follower.options.commit_interval_s or INTERVAL_S)
        # Changes of other topics only, such as the tables that a view is computed from: what comes of them is to find nobody resting.
        in_vain = Pace(REST, REST_S_MAX, follower.options.commit_interval_s)
        while not self._ending and self._accident is None:
            head = self._reader.wait(follower.applied.position, _IDLE_S)
            if follower.by_query and head.position - follower.applied.position >= LARGE_ROWS:
                spark = self._begin()
                if self._behind() and not self._ending:
                    self._accidents += 1
                    self._run_a_query(spark.result())
                    if self._accident is None:
                        self._accidents = 0
            elif head.position > follower.applied.position:
                began, before = time.monotonic(), follower.counted
                follower.follow_to(head)
                self._rest((in_vain if follower.counted == before else pace).rest_s(time.monotonic() - began))
                follower.settled()
            follower.idle()

    def _rest(self, rest_s: float) -> None:
        """However long: the store is looked at meanwhile as often as ever."""
        until = time.monotonic() + rest_s
        while (left := until - time.monotonic()) > 0 and not self._ending:
            self._stop.wait(min(left, _IDLE_S))
            self._follower.idle()

    def _begin(self) -> Future[SparkSession]:
        """Applies step by step until Spark has started, so that something shows at once, or can be relied on. Nothing large, which is for Spark's
        workers, unless they could not."""
        follower, spark = self._follower, self._engine.starting()
        until = time.monotonic() + ALONE_S[min(self._accidents, len(ALONE_S) - 1)]
        while True:
            step = follower.next_step()
            if not self._accidents and step.position - follower.applied.position >= LARGE_ROWS:
                return spark
            follower.follow_to(step)
            if (spark.done() and time.monotonic() >= until) or self._ending or not self._behind():
                return spark

    @property
    def _ending(self) -> bool:
        return self._stop.is_set() or self._follower.stopped

    def _behind(self) -> bool:
        return self._reader.head().position - self._follower.applied.position >= LARGE_ROWS

    def _run_a_query(self, spark: SparkSession) -> None:
        """Returns when it has caught up, has ended by itself, or was asked to."""
        # Each store's jobs get a fair share of the cores.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._follower.store)
        checkpoint = self._scratch / uuid4().hex
        query = self._started(spark, checkpoint)
        watch = cluster.WorkerWatch(spark.sparkContext)
        try:
            while self._behind() and query.isActive and not self._ending:
                self._follower.idle()
                watch.check()
                self._stop.wait(_QUERY_POLL_S)
            if not query.isActive and self._accident is None:
                self._accident = ending_of(query)
        except cluster.NoWorkers:
            # The batch waits for workers that do not come, and the query's end for the batch.
            spark.sparkContext.cancelJobGroup(str(query.runId))
            raise
        finally:
            self._end(query)
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _started(self, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
        options = self._follower.options
        frame: Any = spark.readStream.format("cdc").option("log", str(self._log_dir)).option("as", "slices").option("fresh", "true")
        start = self._follower.applied.position
        frame = frame.option("tables", json.dumps(list(options.tables))).option("startPosition", str(start))
        frame = frame.option("maxRows", str(options.batch_rows)).option("maxBytes", str(options.batch_bytes)).load()
        pace = Pace(0.0, 0.0, options.commit_interval_s)
        leaving = self._leaving = threading.Event()

        def on_batch(frame: Any, number: int) -> None:
            began = time.monotonic()
            with self._follower.between_batches():
                if self._stop.is_set() or leaving.is_set():
                    return
                try:
                    after = end_of(checkpoint, number - 1).position if number else start
                    self._follower.follow_to(end_of(checkpoint, number), Slices(after, frame))
                except Exception as error:
                    self._accident = place_of(error)
                    raise
            leaving.wait(pace.rest_s(time.monotonic() - began))

        writer = (
            frame.writeStream.queryName(self._follower.store).option("checkpointLocation", str(checkpoint)).foreachBatch(on_batch)
        )
        # Not Spark's own interval: it waits until the wall clock shows the next one, which takes hours once that was set back by them.
        query: StreamingQuery = writer.trigger(processingTime="0 milliseconds").start()
        return query

    def _explain(self) -> None:
        """A query that ended by itself: a stop state if the log says so, else an accident that a new query gets over."""
        if self._ending:
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
        self._leaving.set()
        with self._follower.between_batches():
            pass  # never in the middle of a batch: Spark would print pages about it
        try:
            # Not under a lock that a batch waits for: Spark waits for the batch.
            query.stop()
        except Exception as error:  # Spark says StreamingQueryException, py4j its own: the query is over either way
            self._follower.status.error = f"stopping the query of store {self._follower.store}: {type(error).__name__}"


def end_of(checkpoint: Path, number: int) -> Cut:
    """The cut that micro-batch ``number`` reaches: foreachBatch does not get it, but Spark has written it down before."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    return cut_at(json.loads(lines[2]))
