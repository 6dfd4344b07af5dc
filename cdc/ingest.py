"""Capture, wired: stream → batches → log → feedback, with the snapshot's chunks entering between two transactions.

One thread does all the work here; the stream has two of its own (receiving, answering), the snapshot's coordinator its workers. Only the
log's fsync confirms an LSN: a transaction's end LSN once its group is durable, or a keepalive's LSN once an empty group has
recorded it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import structlog

from cdc import source, status
from cdc.capture.decoder import Decoder, Hold
from cdc.capture.feedback import Feedback
from cdc.capture.group import Group
from cdc.capture.stream import Connection, Stream, error_text
from cdc.capture.toast import ToastMemory
from cdc.capture.values import Bytes, Flags
from cdc.capture.warm import warm
from cdc.errors import SourceError, Stopped, StopState
from cdc.log.reader import EmbeddedLogReader
from cdc.log.writer import EmbeddedLogWriter
from cdc.model.batch import table_of
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Lsn, Position, format_lsn
from cdc.settings import Settings
from cdc.settings import Source as SourceSettings
from cdc.source import identity
from cdc.source.connection import address, parse
from snapshots.coordinator import SnapshotCoordinator
from snapshots.feed import SnapshotFeed, place
from snapshots.progress import SnapshotProgress

IDLE_RECORD_S: Final = 10.0
"""How often the position of a database without changes of ours is recorded, so that it can be confirmed and its WAL freed."""
IDLE_RECORD_BYTES: Final = 16 * 2**20
"""… or after this much WAL (one WAL file)."""
STATUS_S: Final = 0.5
PROMPT_STATUS_S: Final = 0.02
"""After the stream has moved past changes that are not ours: whoever waits for an LSN there has nothing but the status file to look at."""
TAKE_S: Final = 0.05
BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before the first, second, … attempt to reconnect in a row."""

_log = structlog.get_logger("capture")


class Meter:
    """Keeps the capture process's status file current."""

    def __init__(self, run_dir: Path, slot: str, progress: SnapshotProgress) -> None:
        self._run_dir = run_dir
        self._progress = progress
        self._written_at = float("-inf")
        self._told_lsn = 0
        self._counted = (time.monotonic(), 0)
        self.status = status.CaptureStatus(pid=os.getpid(), slot=slot)
        self.loaded: Callable[[], bool] = lambda: False
        """Whether every selected table is in the log."""

    def write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        unseen = self.status.received_lsn > max(self._told_lsn, self.status.commit_lsn)
        if not force and now - self._written_at < (PROMPT_STATUS_S if unseen else STATUS_S):
            return
        self._written_at, self._told_lsn = now, self.status.received_lsn
        then, changes = self._counted
        if now - then >= 2 * STATUS_S:
            self.status.changes_per_s = (self.status.changes - changes) / (now - then)
            self._counted = (now, self.status.changes)
        self.status.snapshot = self._progress.tables()
        if not self.loaded():
            self.status.complete_position = None
        elif self.status.complete_position is None:
            self.status.complete_position = self.status.position
        if self.status.state in ("snapshot", "streaming"):
            self.status.state = "snapshot" if self.status.complete_position is None else "streaming"
        self.status.updated_at = time.time()
        status.write(self._run_dir, "capture", self.status)

    def say(self, state: str, error: str | None = None) -> None:
        self.status.state, self.status.error = state, error
        self.write(force=True)


class Ingest:
    """One connection's stream into the log. ``feed`` is the snapshot's side, ``memory`` completes unchanged TOAST values."""

    def __init__(
        self, stream: Stream, decoder: Decoder, writer: EmbeddedLogWriter, memory: ToastMemory, feed: SnapshotFeed, meter: Meter
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._writer = writer
        self._memory = memory
        self._feed = feed
        self._meter = meter
        self._torn: list[Bytes] = []
        """What the decoder has not used up, and what came since."""
        self._lacks = 0
        self._recorded_at = time.monotonic()
        self._unrecorded = 0

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Raises ConnectionError, OSError or ProtocolError when the stream ends, Stopped for a stop state."""
        while not stop.is_set():
            taken = self._stream.take(TAKE_S)
            if len(taken):
                self._gather(taken)
            self._feed.check()
            self._record_idle(force=False)
            self._meter.write()

    def finish(self) -> None:
        """Records how far an idle stream has come, so that a stopped service holds no WAL back that it does not need."""
        self._record_idle(force=True)

    def _gather(self, taken: Bytes) -> None:
        """A message much larger than a block is not put together again with every piece of it that comes."""
        self._lacks -= len(taken)
        if self._lacks > 0:
            self._torn.append(taken.copy())
            return
        self._consume(np.concatenate([*self._torn, taken]) if self._torn else taken)

    def _consume(self, block: Bytes) -> None:
        decoder = self._decoder
        groups = decoder.groups(block, 0, len(block), lambda: self._writer.next_position)
        for notice in decoder.notices:
            _heed(notice)  # before anything that came with it becomes durable
        for group in groups:
            self._append(group)
        self._torn = [block[decoder.consumed :].copy()] if decoder.consumed < len(block) else []
        self._lacks = decoder.lacks
        if decoder.keepalive_lsn > self._writer.head.commit_lsn:
            self._unrecorded = max(self._unrecorded, decoder.keepalive_lsn)
            self._meter.status.received_lsn = max(self._meter.status.received_lsn, decoder.keepalive_lsn)
        if decoder.reply_requested:
            self._record_idle(force=True)
            self._stream.reply_now()
        if decoder.ended >= 0:
            raise _ending(block[decoder.ended :].tobytes())

    def _append(self, group: Group) -> None:
        self._feed.on_group(group)
        for batch in group.batches:
            self._writer.append(batch)
        if not group.complete:
            return
        transactions = group.transactions
        end_lsn, commit_ts_us = int(transactions.end_lsn[-1]), int(transactions.commit_ts_us[-1])
        if group.watermark is not None:
            chunk = self._feed.chunk_at(group.watermark) or ()
            for batch in place(chunk, self._writer.next_position, end_lsn, commit_ts_us):
                self._writer.append(batch)
                self._memory.learn(batch)
        elif self._writer.next_position == self._writer.head.position + 1:
            # Nothing of ours in these transactions: as good as a keepalive.
            self._unrecorded = max(self._unrecorded, end_lsn)
            self._meter.status.received_lsn = max(self._meter.status.received_lsn, end_lsn)
            return
        self._commit(end_lsn, commit_ts_us)

    def _commit(self, lsn: int, commit_ts_us: int) -> None:
        before = self._writer.head.position
        cut = self._writer.commit(Lsn(lsn), commit_ts_us)
        self._memory.commit(cut.position)
        self._feed.on_durable(cut)
        self._stream.confirm(cut.commit_lsn)
        self._recorded_at = time.monotonic()
        state = self._meter.status
        state.position, state.commit_lsn, state.commit_ts_us = cut.position, cut.commit_lsn, cut.commit_ts_us
        state.changes += cut.position - before
        state.confirmed_lsn = cut.commit_lsn
        state.received_lsn = max(state.received_lsn, cut.commit_lsn)
        state.wire_bytes = self._stream.received

    def _record_idle(self, *, force: bool) -> None:
        head = self._writer.head
        ahead = self._unrecorded - head.commit_lsn
        if ahead <= 0 or self._writer.next_position != head.position + 1:
            return
        if force or ahead >= IDLE_RECORD_BYTES or time.monotonic() - self._recorded_at >= IDLE_RECORD_S:
            self._commit(self._unrecorded, head.commit_ts_us)


def run_capture(settings: Settings, stop: threading.Event) -> int:
    """The capture process: returns 0 when ``stop`` was set and everything received is durable or will be sent again.

    Raises SourceError or ConfigError when capture cannot begin, Stopped for a stop state. A connection that breaks later is opened again.
    """
    with closing(EmbeddedLogWriter(settings.log.dir, segment_bytes=settings.log.segment_bytes)) as writer:
        progress = SnapshotProgress(settings.log.dir)
        meter = Meter(settings.run_dir, settings.source.slot, progress)
        meter.status.position, meter.status.commit_lsn = writer.head.position, writer.head.commit_lsn
        meter.say("starting")
        warm()
        state, problem = "exited", None
        try:
            with closing(ToastMemory(settings.log.dir / "toast.db")) as memory:
                _catch_up(memory, writer, settings.log.dir)
                _capture(settings, writer, memory, progress, meter, stop)
        except Stopped as stopped:
            state, problem, meter.status.stop = "stopped", stopped.line(), stopped.state
            raise
        except Exception as error:
            problem = type(error).__name__
            raise
        finally:
            meter.say(state, problem)
    return 0


def _capture(
    settings: Settings,
    writer: EmbeddedLogWriter,
    memory: ToastMemory,
    progress: SnapshotProgress,
    meter: Meter,
    stop: threading.Event,
) -> None:
    """Connects, streams, and connects again after a failure, until ``stop``."""
    feed = SnapshotFeed(progress)
    coordinator: SnapshotCoordinator | None = None
    attempts = 0
    try:
        while not stop.is_set():
            began = time.monotonic()
            try:
                _prepare(settings.source, settings.log.dir, writer)
                if coordinator is None:
                    coordinator = SnapshotCoordinator(settings.source, feed, progress, stop)
                    meter.loaded = partial(_loaded, coordinator)
                    coordinator.start()
                _stream_once(settings.source, writer, memory, feed, meter, stop)
            except (ConnectionError, OSError, SourceError, psycopg.OperationalError) as error:
                if coordinator is None:
                    raise
                writer.rollback()
                memory.rollback()
                feed.reset()
                feed.check()
                attempts = 0 if time.monotonic() - began > BACKOFF_S[-1] else attempts
                problem = error.line() if isinstance(error, SourceError) else (str(error) or type(error).__name__)
                _log.warning("the stream broke, connecting again", problem=problem, in_s=BACKOFF_S[attempts])
                meter.say("retrying", problem)
                stop.wait(BACKOFF_S[attempts])
                attempts = min(attempts + 1, len(BACKOFF_S) - 1)
    finally:
        if coordinator is not None:
            stop.set()
            coordinator.join()


def _loaded(coordinator: SnapshotCoordinator) -> bool:
    return coordinator.finished


def _prepare(settings: SourceSettings, folder: Path, writer: EmbeddedLogWriter) -> None:
    """Publication and slot as they must be; the slot is made only for a log that has not begun."""
    dsn = settings.dsn.get_secret_value()
    with source.connect(dsn) as connection:
        source.ensure_publication(connection, settings)
        known = identity.recorded(folder)
        facts = source.ensure_slot(connection, settings, create=known is None)
        with closing(Connection(parse(dsn), PINNED_SETTINGS, name=address(dsn))) as walsender:
            system = walsender.identify()
        found = identity.Identity(system.identifier, system.database, settings.slot)
        if known is None:
            if writer.head.commit_lsn < (facts.confirmed_lsn or 0):
                writer.commit(Lsn(facts.confirmed_lsn or 0), 0)
            identity.record(folder, found)
        else:
            identity.check(known, found, writer.head, facts)


def _stream_once(
    settings: SourceSettings,
    writer: EmbeddedLogWriter,
    memory: ToastMemory,
    feed: SnapshotFeed,
    meter: Meter,
    stop: threading.Event,
) -> None:
    dsn = settings.dsn.get_secret_value()
    with source.connect(dsn) as catalog:
        connection = Connection(parse(dsn), PINNED_SETTINGS, name=address(dsn))
        head = writer.head
        stream = connection.start(settings.slot, settings.publication, head.commit_lsn, Feedback(head.commit_lsn))
        with stream:
            _log.info("streaming", slot=settings.slot, lsn=format_lsn(head.commit_lsn), position=head.position)
            decoder = Decoder(lambda oid: source.primary_key(catalog, oid), memory, _hold(feed), head.commit_lsn)
            ingest = Ingest(stream, decoder, writer, memory, feed, meter)
            meter.say("streaming")
            ingest.run(stop)
            ingest.finish()


def _hold(feed: SnapshotFeed) -> Hold:
    def hold(rows: pa.RecordBatch, missing: Mapping[str, Flags]) -> None:
        table = table_of(rows.schema)
        if not feed.unresolved(table.oid):
            # A column was renamed, the identity changed, or the memory was lost: the database still has the values.
            _log.warning("reads rows back whose unchanged values the log does not hold", table=table.qualified, rows=len(rows))
        feed.hold(rows, missing)

    return hold


def _catch_up(memory: ToastMemory, writer: EmbeddedLogWriter, folder: Path) -> None:
    """What the memory missed by a crash stands in the log."""
    if memory.position > writer.head.position:
        memory.clear()
    if memory.position == writer.head.position:
        return
    reader = EmbeddedLogReader(folder)
    for topic in reader.topics():
        for batch in reader.read(topic.name, Position(memory.position), writer.head.position):
            memory.learn(batch)
    memory.commit(writer.head.position)


def _heed(fields: bytes) -> None:
    """From version 18 on, a server whose publication is gone warns once and leaves every change out, silently from then on."""
    text = error_text(fields)
    if "SQLSTATE 55000" in text and "publication" in text:
        raise Stopped(StopState.PUBLICATION_LOST, text)
    _log.warning("the server says", notice=text)


def _ending(message: bytes) -> Exception:
    """Why the server ended the stream."""
    if message[:1] != b"E":
        return ConnectionError("the server ended the stream")
    text = error_text(message[5:])
    if "SQLSTATE 42704" in text and "publication" in text:
        return Stopped(StopState.PUBLICATION_LOST, text)
    return ConnectionError(f"the server ended the stream: {text}")
