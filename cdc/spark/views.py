"""A view driven by Spark: a Structured Streaming query over ``format("cdc")`` asks for each of its steps.

The query's micro-batches hold only where the changes lie (``as = slices``), and say how far to go. What is computed, and how it is handed over, is the same as
without Spark (``cdc.derive``), so the checkpoint is fresh at each start, and says nothing that counts.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from cdc.derive.process import Drive, ViewSession
from cdc.errors import StoreError
from cdc.model.position import Position
from cdc.model.selection import literal
from cdc.settings.views import View
from cdc.spark import session as sessions
from cdc.spark.causes import ending_of
from cdc.spark.queries import end_of
from cdc.spark.source import CdcSource

LOOK_S: Final = 0.2


def by_query(name: str, view: View, topics: list[str], log_dir: Path, run_dir: Path) -> Drive:
    """The drive of a view with ``engine = "spark"``. The JVM, and what it leaves in ``run_dir``, are this process's alone."""
    scratch = run_dir / "spark" / f"view-{name}"

    def drive(session: ViewSession) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        spark = sessions.session(
            app=f"headwater-view-{name}",
            master="local[1]",
            driver_memory=f"{view.heap_mb}m",
            scratch=scratch / "local",
            iceberg_sql=False,
        )
        try:
            spark.dataSource.register(CdcSource)
            spark.conf.set("spark.sql.codegen.wholeStage", "false")
            _Ticks(spark, view, topics, log_dir, scratch / uuid4().hex).drive(session)
        finally:
            sessions.stop()
            shutil.rmtree(scratch, ignore_errors=True)

    return drive


class _Ticks:
    """One query. Its micro-batches come on a thread of py4j's; each waits there until the view's own thread has taken its step."""

    def __init__(self, spark: SparkSession, view: View, topics: list[str], log_dir: Path, checkpoint: Path) -> None:
        self._spark = spark
        self._view = view
        self._topics = topics
        self._log_dir = log_dir
        self._checkpoint = checkpoint
        self._asked: Queue[tuple[Position, threading.Event]] = Queue()
        self._leaving = threading.Event()

    def drive(self, session: ViewSession) -> None:
        """Returns when it is asked to end. Raises StoreError when the query ended by itself: the process starts again."""
        query = self._started(session.at)
        try:
            while not session.stop.is_set():
                try:
                    upto, done = self._asked.get(timeout=LOOK_S)
                except Empty:
                    session.wait(0.0)
                    if not query.isActive:
                        raise StoreError(f"Spark's query ended: {ending_of(query)}", retryable=True) from None
                    continue
                try:
                    session.step_to(upto)
                finally:
                    done.set()
        finally:
            self._leaving.set()
            query.stop()

    def _started(self, at: Position) -> Any:
        frame: Any = self._spark.readStream.format("cdc").option("log", str(self._log_dir)).option("as", "slices")
        frame = frame.option("fresh", "true").option("tables", json.dumps([literal(topic) for topic in self._topics]))
        frame = frame.option("startPosition", str(at)).option("maxRows", str(self._view.batch_rows))
        frame = frame.option("maxBytes", str(self._view.batch_bytes)).load()

        def on_batch(_: Any, number: int) -> None:
            done = threading.Event()
            self._asked.put((end_of(self._checkpoint, number).position, done))
            while not done.wait(LOOK_S) and not self._leaving.is_set():
                pass

        writer = frame.writeStream.option("checkpointLocation", str(self._checkpoint)).foreachBatch(on_batch)
        return writer.trigger(processingTime="0 milliseconds").start()
