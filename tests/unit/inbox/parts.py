"""A log whose writer serves an inbox, in a folder of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc.inbox.bell import LOOK_S
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.inbox.writerside import Inbox
from cdc.log.contract import LogWriter
from cdc.log.home import open_reader, open_writer
from cdc.model.position import Position

TOPIC = "derived.delays"
KEY = ("id",)


@contextmanager
def written(folder: Path) -> Iterator[LogWriter]:
    with closing(open_writer(folder / "log", segment_bytes=1 << 20)) as writer:
        yield writer


def inbox_of(folder: Path, writer: LogWriter, tables: Sequence[str] = ("public.*",)) -> Inbox:
    return Inbox(folder / "log", writer, folder / "run", source="postgres", tables=tables, clock=Ticking())


@contextmanager
def served(inbox: Inbox, lock: AbstractContextManager[object] | None = None) -> Iterator[None]:
    """A thread serves the inbox, as capture does. ``lock``: held meanwhile, for tests that write to the log as well."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            with lock or nullcontext():
                serve_all(inbox)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Ticking:
    """A clock on which every look finds that the last one was long enough ago."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 2 * LOOK_S
        return self._now

    def worked(self) -> float:
        return self._now

    def wait(self, stop: threading.Event, seconds: float) -> bool:  # noqa: ARG002
        return stop.is_set()


def handover(folder: Path, inbox: Inbox, producer: str = "job") -> Handover:
    return Handover(folder / "log", folder / "run", producer, lambda: serve_all(inbox))


def serve_all(inbox: Inbox) -> None:
    while inbox.serve():
        pass


def deadline() -> HandoverDeadline:
    return HandoverDeadline.within(60)


def rows(*ids: int, op: str = "u", **columns: Any) -> list[pa.RecordBatch]:
    """Rows with a text derived from the id; of deleted ones the key."""
    texts = [None if op == "d" else f"row {one}" for one in ids]
    more = {name: pa.array([None if op == "d" else value] * len(ids)) for name, value in columns.items()}
    arrays = {
        "_cdc_op": pa.array([op] * len(ids)),
        "id": pa.array(ids, pa.int64()),
        "text": pa.array(texts, pa.utf8()),
        **more,
    }
    return [pa.RecordBatch.from_pydict(arrays)]


def logged(folder: Path, topic: str = TOPIC) -> list[tuple[int, str, Any, Any]]:
    """(position, operation, id, text) of every change of the topic."""
    with closing(open_reader(folder / "log")) as reader:
        found = [row for batch in reader.read(topic, Position(0), reader.head().position) for row in batch.to_pylist()]
    return [(row["_cdc_position"], chr(row["_cdc_op"]), row["id"], row.get("text")) for row in found]
