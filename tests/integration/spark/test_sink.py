"""writeStream.format("cdc") on a real Spark: a derived topic in the log, exactly once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.inbox.writerside import Inbox
from cdc.model.batch import Op
from cdc.spark.source import CdcSource
from tests.contract.rows import ORDERS, batch, order
from tests.integration.spark.traffic import Traffic
from tests.unit.inbox.parts import logged
from tests.unit.inbox.parts import served as serving

TOPIC = "derived.states"


class Served:
    """A log whose inbox is served by a thread, as capture does."""

    def __init__(self, folder: Path, traffic: Traffic) -> None:
        self.folder = folder
        self.traffic = traffic
        self.lock = threading.Lock()
        self.inbox = Inbox(folder / "log", traffic.writer, folder / "run", source="postgres", tables=["public.*"])

    def append(self, *changes: tuple[Op, int, dict[str, Any]]) -> None:
        with self.lock:
            first = int(self.traffic.writer.next_position)
            self.traffic.append(
                batch(ORDERS, [(op, first + at, order(key, text)) for at, (op, key, text) in enumerate(changes)]), first * 10
            )

    def query(self, spark: Any, checkpoint: Path, *, source: str = "public.orders", topic: str = TOPIC, **more: Any) -> None:
        """One run of the stream until everything is in the log."""
        frame = spark.readStream.format("cdc").options(log=str(self.folder / "log"), table=source, **more).load()
        written = (
            frame.select("_cdc_position", "_cdc_op", "id", frame["status"].alias("text"))
            if source == "public.orders" else frame.select("_cdc_position", "_cdc_op", "id", "text")
        )  # fmt: skip
        writer = written.writeStream.format("cdc").options(**self.options(topic))
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def options(self, topic: str = TOPIC) -> dict[str, str]:
        return {"log": str(self.folder / "log"), "runDir": str(self.folder / "run"), "topic": topic, "key": "id"}

    def states(self) -> list[tuple[str, Any, Any]]:
        return [row[1:] for row in logged(self.folder, TOPIC)]


@pytest.fixture
def served(tmp_path: Path, spark: Any, seed: int) -> Iterator[Served]:
    # Makes the session this thread's, by which a writer is looked up: an earlier test may have cleared that.
    spark.createDataFrame([], "id int")
    spark.dataSource.register(CdcSource)
    traffic = Traffic(tmp_path / "log", seed)
    made = Served(tmp_path, traffic)
    with serving(made.inbox, made.lock):
        yield made
    traffic.close()


def test_a_topic_is_not_derived_from_itself(spark: Any, served: Served, tmp_path: Path) -> None:
    served.append((Op.INSERT, 1, "a"))
    served.query(spark, tmp_path / "first")
    with pytest.raises(Exception, match=r"derived\.states would be derived from itself: derived\.states → derived\.states"):
        served.query(spark, tmp_path / "second", source=TOPIC)
    assert served.states() == [("u", 1, "a")]


def test_a_frame_is_appended_once(spark: Any, served: Served) -> None:
    frame = spark.createDataFrame([(1, "old", 1), (1, "new", 2), (2, "b", 3)], "id long, text string, at long")
    for _ in range(2):
        frame.write.format("cdc").options(**served.options(), sequence="at").mode("append").save()
    assert served.states() == [("u", 1, "new"), ("u", 2, "b")]
    with pytest.raises(Exception, match="the frame has no column when"):
        frame.write.format("cdc").options(**served.options(), sequence="when").mode("append").save()
    with pytest.raises(Exception, match="two rows of a micro-batch have the same key"):
        frame.drop("at").write.format("cdc").options(**served.options("derived.other")).mode("append").save()


def test_a_stream_is_in_the_log_exactly_once(spark: Any, served: Served, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    served.append((Op.INSERT, 1, "a"), (Op.INSERT, 2, "b"), (Op.UPDATE, 1, "c"))
    served.query(spark, checkpoint)
    assert served.states() == [("u", 2, "b"), ("u", 1, "c")]
    # Killed after the hand-over, before Spark noted the micro-batch as done: it comes again.
    for noted in (checkpoint / "commits").glob("*0*"):
        noted.unlink()
    served.append((Op.DELETE, 2, ""))
    served.query(spark, checkpoint)
    assert served.states() == [("u", 2, "b"), ("u", 1, "c"), ("d", 2, None)]
    # Without its checkpoint the query begins at 0, and brings only what the log lacks.
    shutil.rmtree(checkpoint)
    served.append((Op.INSERT, 3, "d"))
    served.query(spark, checkpoint)
    assert served.states() == [("u", 2, "b"), ("u", 1, "c"), ("d", 2, None), ("u", 3, "d")]
