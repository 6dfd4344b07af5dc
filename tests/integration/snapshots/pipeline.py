"""Stream, ingest, snapshot and log without the rest of the capture process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.feedback import Feedback
from cdc.capture.stream import Connection, Stream
from cdc.capture.toast import ToastMemory
from cdc.ingest.intake import Intake
from cdc.ingest.loggedtables import LoggedTables
from cdc.ingest.loop import Ingest
from cdc.ingest.meter import Meter
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import EXACT, OP, Op, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.group import Watermark
from cdc.model.pgtypes import PINNED_SETTINGS, canonical_text
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes, Flags
from cdc.settings.models import Source
from cdc.source import connect, ensure_publication, ensure_slot, find_tables
from cdc.source.connection import parse
from cdc.source.facts import read_facts
from cdc.source.slot import read_slot
from snapshots.coordinator import SnapshotCoordinator
from snapshots.feed import SnapshotFeed
from snapshots.progress import SnapshotProgress
from snapshots.requests import Requests


class CountingFeed(SnapshotFeed):
    """``entered``: chunks that the log took in. ``waited``: rows that had to wait for one."""

    entered = 0
    waited = 0

    def chunk_at(self, watermark: Watermark) -> list[pa.RecordBatch] | None:
        chunk = super().chunk_at(watermark)
        self.entered += chunk is not None
        return chunk

    def hold(self, rows: pa.RecordBatch, missing: Mapping[str, Flags]) -> None:
        assert self.unresolved(table_of(rows.schema).oid)
        self.waited += rows.num_rows
        super().hold(rows, missing)


class Pausable:
    """The stream, of which nothing is taken while ``pause`` is set."""

    def __init__(self, stream: Stream, pause: Event) -> None:
        self._stream = stream
        self._pause = pause

    def take(self, timeout_s: float) -> Bytes:
        if self._pause.is_set():
            time.sleep(0.01)
            return np.empty(0, np.uint8)
        return self._stream.take(timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Pipeline:
    """One capture process's worth. ``pause``: while set, the stream is not taken from."""

    def __init__(
        self, dsn: str, folder: Path, *, tables: Sequence[str] = ("public.*",), chunk_rows: int = 100, **options: Any
    ) -> None:
        self.source = Source(dsn=dsn, tables=tuple(tables), snapshot_chunk_rows=chunk_rows, **options)
        self.folder = folder
        self.stop = Event()
        self.pause = Event()
        self.failure: BaseException | None = None
        with connect(dsn) as connection:
            ensure_publication(connection, self.source, find_tables(connection))
            self.writer = EmbeddedLogWriter(folder, seal=False)
            ensure_slot(connection, self.source, create=not self.writer.head.commit_lsn, record=folder)
            # The server lets go of it a little after the process before has gone.
            deadline = time.monotonic() + 120
            while read_slot(connection, self.source.slot).reader:
                assert time.monotonic() < deadline, "somebody else reads the slot"
                time.sleep(0.01)
        self.progress = SnapshotProgress(folder, interval_s=0.0)
        self.feed = CountingFeed(self.progress)
        self.meter = Meter(folder / "run", self.source.slot, self.progress)
        self.requests = Requests(folder)
        self.coordinator = SnapshotCoordinator(
            self.source,
            self.feed,
            self.progress,
            self.requests,
            self.stop,
            log_has_begun=bool(self.writer.head.commit_lsn),
            logged=LoggedTables(lambda: contextlib.closing(EmbeddedLogReader(folder))),
        )
        self._thread = Thread(target=self._guarded, name="ingest", daemon=True)

    def start(self, *, snapshot: bool = True) -> None:
        self._thread.start()
        if snapshot:
            self.coordinator.start()

    def close(self) -> None:
        self.stop.set()
        self._thread.join(120)
        if self.coordinator._thread.is_alive():
            self.coordinator.join(120)
        # What follows would meet them in the folder.
        assert not self._thread.is_alive()
        assert not self.coordinator._thread.is_alive()
        self.writer.close()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self._ingest()
        except BaseException as error:
            self.failure = error

    def _ingest(self) -> None:
        dsn = self.source.dsn.get_secret_value()
        wire = Connection(parse(dsn), PINNED_SETTINGS, name="test")
        durable = self.writer.head.commit_lsn
        with (
            connect(dsn) as catalog,
            contextlib.closing(ToastMemory(self.folder / "toast.db")) as memory,
            wire.start(self.source.slot, self.source.publication, durable, Feedback(durable)) as stream,
        ):
            definitions = Definitions(lambda oid: next(iter(read_facts(catalog, self.source.publication, [oid])), None))
            decoder = Decoder(definitions, memory, self.feed.hold, durable)
            taken = Pausable(stream, self.pause)
            ingest = Ingest(Intake(self.folder, self.writer, memory, self.feed, self.meter), taken, decoder)
            ingest.run(self.stop)
            ingest.finish()

    def wait_finished(self, timeout_s: float = 120) -> None:
        ticks = Event()
        for _ in range(int(timeout_s / 0.01)):
            self.check()
            if self.coordinator.finished:
                return
            ticks.wait(0.01)
        raise TimeoutError("the snapshot did not finish")

    def wait_for(self, lsn: int, timeout_s: float = 120) -> None:
        """Until the log holds everything that was committed before ``lsn``: a commit after it shows that, even one that the log needs nothing of."""
        ticks = Event()
        for _ in range(int(timeout_s / 0.01)):
            self.check()
            if max(self.writer.head.commit_lsn, self.meter.status.received_lsn) >= lsn:
                return
            ticks.wait(0.01)
        raise TimeoutError("the stream did not come that far")


@contextlib.contextmanager
def running(dsn: str, folder: Path, **options: Any) -> Iterator[Pipeline]:
    pipeline = Pipeline(dsn, folder, **options)
    pipeline.start()
    try:
        yield pipeline
        pipeline.check()
    finally:
        pipeline.close()


def settle(pipeline: Pipeline, connection: psycopg.Connection[Any]) -> None:
    """Until everything committed so far is in the log, and no row is held."""
    connection.execute("select pg_logical_emit_message(true, 'headwater', 'settle')")
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    connection.execute("select pg_logical_emit_message(true, 'headwater', 'settle')")
    assert row is not None
    pipeline.wait_for(int(row[0]))
    pipeline.wait_finished()


Row = tuple[str | None, ...]


def fold(folder: Path, topic: str) -> dict[Row, Row]:
    """The log replayed: key → row, all as text."""
    reader = EmbeddedLogReader(folder)
    state: dict[Row, Row] = {}
    for batch in reader.read(topic, 0, reader.head().position):  # type: ignore[arg-type]
        table = table_of(batch.schema)
        change = schema_change_of(batch)
        if change is not None:
            if change.empties:
                state.clear()
            continue
        rows = texts(batch, table)
        keys = [index for index, column in enumerate(table.columns) if column.key]
        for op, row in zip(batch.column(OP).to_pylist(), rows, strict=True):
            key = tuple(row[index] for index in keys)
            if op == Op.TRUNCATE:
                state.clear()
            elif op == Op.DELETE:
                state.pop(key, None)
            else:
                state[key] = row
    return state


def operations(folder: Path, topic: str) -> Mapping[str, int]:
    reader = EmbeddedLogReader(folder)
    counts: dict[str, int] = {}
    for batch in reader.read(topic, 0, reader.head().position):  # type: ignore[arg-type]
        for op in batch.column(OP).to_pylist():
            counts[Op(op).name] = counts.get(Op(op).name, 0) + 1
    return counts


def texts(batch: pa.RecordBatch, table: Table) -> list[Row]:
    columns = [canonical_text(batch.column(name)).to_pylist() for name in table.names]
    exact = [dict(entry or ()) for entry in batch.column(EXACT).to_pylist()]
    return [
        tuple(instead.get(name, text) for name, text in zip(table.names, row, strict=True))
        for row, instead in zip(zip(*columns, strict=True), exact, strict=True)
    ]


def rows_of(connection: psycopg.Connection[Any], table: str, columns: str = "*") -> list[Row]:
    """What the source has now, as the text that Postgres gives under the pinned settings."""
    for name, value in PINNED_SETTINGS.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    with connection.cursor() as cursor, cursor.copy(f"copy (select {columns} from {table}) to stdout") as copy:
        return sorted((row for row in copy.rows()), key=repr)
