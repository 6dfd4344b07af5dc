"""The capture process: connects, sees to publication and slot, streams into the log, and connects again when the stream breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import structlog

from cdc import source
from cdc.capture.continuity import Continuity
from cdc.capture.decoder import Decoder
from cdc.capture.endings import Poison, StreamEnded
from cdc.capture.feedback import Feedback
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.rows import Hold
from cdc.capture.spool import Spools
from cdc.capture.stream import Connection
from cdc.capture.toast import ToastMemory
from cdc.capture.warm import warm
from cdc.crashpoint import crashpoint
from cdc.diskspace import FULL, GOES_ON, described
from cdc.errors import HeadwaterError, ProtocolError, SourceError, SourceUnreachable, Stopped, StopState
from cdc.ingest.definitions import Evolving
from cdc.ingest.loop import Ingest
from cdc.ingest.meter import STATUS_S, Meter
from cdc.ingest.preparation import Preparation
from cdc.ingest.slotalarms import Alarms
from cdc.log.contract import LogWriter
from cdc.log.home import open_reader, open_writer
from cdc.model.batch import table_of
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Cut, Position, format_lsn
from cdc.pgvalues.values import Flags
from cdc.privacy.policies import ProtectedWriter, Protection, protection_of
from cdc.settings.models import Settings
from cdc.settings.models import Source as SourceSettings
from cdc.source import identity
from cdc.source.connection import address
from cdc.source.identity import Identity
from cdc.source.slot import SlotFacts
from cdc.state import reloads
from snapshots.coordinator import SnapshotCoordinator
from snapshots.feed import SnapshotFeed
from snapshots.progress import SnapshotProgress
from snapshots.requests import Requests

BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before the first, second, … attempt to reconnect in a row."""

_log = structlog.get_logger("capture")


def run_capture(settings: Settings, stop: threading.Event, *, warmed: Callable[[], None] = lambda: None) -> int:
    """The capture process: returns 0 when ``stop`` was set and everything received is durable or will be sent again.

    warmed: called when everything is loaded that stays as long as the process.
    Raises SourceError or ConfigError when capture cannot begin, Stopped for a stop state. A connection that breaks later is opened again.
    """
    with closing(open_writer(settings.log.dir, segment_bytes=settings.log.segment_bytes)) as unguarded:
        with closing(open_reader(settings.log.dir)) as log:
            protection = protection_of(settings, log, remember=True)
        writer = ProtectedWriter(unguarded, protection.protect)
        progress = SnapshotProgress(settings.log.dir)
        meter = Meter(settings.run_dir, settings.source.slot, progress)
        meter.log_alarm = unguarded.alarm
        meter.status.position, meter.status.commit_lsn = writer.head.position, writer.head.commit_lsn
        meter.say("starting")
        warm()
        warmed()
        state, problem = "exited", None
        try:
            with closing(ToastMemory(settings.log.dir / "toast.db", protection.kept_back)) as memory:
                _catch_up(memory, writer, settings.log.dir)
                _capture(settings, protection, writer, memory, progress, meter, stop)
        except Stopped as stopped:
            state, problem, meter.status.stop = "stopped", stopped.line(), stopped.state
            raise
        except Exception as error:
            problem = _problem(error) if isinstance(error, HeadwaterError | OSError) else type(error).__name__
            raise
        finally:
            meter.say(state, problem)
    return 0


def _capture(
    settings: Settings,
    protection: Protection,
    writer: LogWriter,
    memory: ToastMemory,
    progress: SnapshotProgress,
    meter: Meter,
    stop: threading.Event,
) -> None:
    """Connects, streams, and connects again after a failure, until ``stop``."""
    feed = SnapshotFeed(progress)
    evolving = Evolving(settings.source, settings.log.dir, protection.logged, protection.undecided, feed.fail, stop)
    coordinator: SnapshotCoordinator | None = None
    preparation = Preparation(settings.source, settings.log.dir, writer, memory, progress, protection)
    poison = Poison()
    watch = Alarms(settings.source.dsn, settings.source.slot, stop)
    attempts = 0
    now: Identity | None = None
    streaming = settings.source.streaming
    try:
        while not stop.is_set():
            began = time.monotonic()
            try:
                # What was durable when the stream broke, and the memory had not committed yet.
                _catch_up(memory, writer, settings.log.dir)
                now = preparation.run()
                if coordinator is None:
                    evolving.start()
                    coordinator = SnapshotCoordinator(
                        settings.source, feed, progress, Requests(settings.log.dir), stop, refused=evolving.refused
                    )
                    meter.loaded, meter.paused = partial(_loaded, coordinator), partial(_paused, coordinator)
                    meter.passed_over = evolving.refused
                    meter.left_out = partial(_left_out, evolving, coordinator, meter)
                    meter.notes = evolving.notes
                    coordinator.start()
                    watch.start()
                _stream_once(
                    settings.source, settings.log.dir, now, writer, memory, feed, evolving, meter, stop, streaming=streaming
                )
            except (ConnectionError, OSError, SourceError, ProtocolError, psycopg.OperationalError) as error:
                if coordinator is None and not _passes(error, settings.log.dir):
                    raise
                crashpoint("capture.stream_broken")
                _back_to_durable(writer, memory, feed)
                # Some transactions the server can decode only once they have ended, such as one that rewrites a table after a savepoint
                # with DDL was taken back: "could not map filenumber", although nothing is wrong with it.
                ended_only = isinstance(error, StreamEnded) and error.undecodable
                if not (ended_only and streaming):
                    _remake_slot(error, now, writer.head, settings.log.dir)
                streaming = settings.source.streaming and not ended_only
                _count(poison, error, writer.head.commit_lsn)
                attempts = 0 if time.monotonic() - began > BACKOFF_S[-1] else attempts
                problem = _problem(error)
                what = "the stream broke, connecting again" if coordinator else "cannot begin, trying again"
                _log.warning(what, problem=problem, in_s=BACKOFF_S[attempts])
                meter.say("retrying", problem)
                _pause(BACKOFF_S[attempts], meter, stop)
                attempts = min(attempts + 1, len(BACKOFF_S) - 1)
    finally:
        if coordinator is not None:
            stop.set()
            evolving.join()
            coordinator.join()
            watch.join()


def _back_to_durable(writer: LogWriter, memory: ToastMemory, feed: SnapshotFeed) -> None:
    """Forgets what a stream has brought since the last commit. Raises what the snapshot has failed with meanwhile."""
    writer.rollback()
    memory.rollback()
    feed.reset()
    feed.check()


def _passes(error: Exception, folder: Path) -> bool:
    """Whether waiting may help before anything has been streamed. A source that has never answered is more likely a mistyped DSN."""
    if isinstance(error, SourceUnreachable):
        return identity.recorded(folder) is not None
    return isinstance(error, ConnectionError | psycopg.OperationalError)


def _remake_slot(error: Exception, now: Identity | None, head: Cut, folder: Path) -> None:
    """Raises HeadwaterError, with the slot's new beginning requested, when the slot cannot be decoded from its beginning and the log holds
    nothing that came by it: then nothing is lost, and what it passes is read with the tables, by the process that comes next."""
    if not isinstance(error, StreamEnded) or not error.unmapped or now is None or head.commit_lsn != now.since_lsn:
        return
    reloads.request(folder, StopState.POISON_ROW)
    raise HeadwaterError(
        f"the new slot {now.slot!r} was made while a table was being rewritten: {error.text}",
        hint="nothing of it was used; the next start creates it again",
    )


def _count(poison: Poison, error: Exception, durable_lsn: int) -> None:
    """Raises Stopped (POISON_ROW) for an error that has come too often from the same place to be an accident."""
    if isinstance(error, ProtocolError):
        poison.failed(durable_lsn, str(error))
    elif isinstance(error, StreamEnded) and error.undecodable:
        poison.failed(durable_lsn, error.text, error.lsn)


def _problem(error: Exception) -> str:
    if isinstance(error, HeadwaterError):
        return error.line()
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{described(error)} → {GOES_ON}"
    return str(error) or type(error).__name__


def _pause(seconds: float, meter: Meter, stop: threading.Event) -> None:
    """Says meanwhile that we live."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stop.wait(min(left, STATUS_S)):
        meter.write()


def _loaded(coordinator: SnapshotCoordinator) -> bool:
    return coordinator.finished


def _left_out(evolving: Evolving, coordinator: SnapshotCoordinator, meter: Meter) -> list[str]:
    """Selected tables, or parts of them, that do not reach the log: one line each with what helps. While the stream itself has a problem, its own words do."""
    refused = [f"table {one.table} is not captured: it {one.problem} → {one.hint}" for one in evolving.refused().values()]
    unread = [f"cannot be read: {problem.line()}" for problem in coordinator.unreadable]
    blind = evolving.blind() if meter.status.error is None else None
    return sorted([*refused, *unread, *evolving.left_out(), *([blind] if blind else [])])


def _paused(coordinator: SnapshotCoordinator) -> str | None:
    return coordinator.paused


def _stream_once(
    settings: SourceSettings,
    folder: Path,
    now: Identity,
    writer: LogWriter,
    memory: ToastMemory,
    feed: SnapshotFeed,
    evolving: Evolving,
    meter: Meter,
    stop: threading.Event,
    *,
    streaming: bool,
) -> None:
    """``streaming``: large transactions come before they have ended."""
    dsn = settings.dsn.get_secret_value()
    with source.connect(dsn) as catalog:
        connection = Connection(catalog.opened_with, PINNED_SETTINGS, name=address(dsn))
        head = writer.head
        prepared = PreparedFiles(folder)
        prepared.settle(head.commit_lsn)
        stream = connection.start(
            settings.slot,
            settings.publication,
            now.since_lsn,
            Feedback(0),  # until the log's end has been recognised
            streaming=streaming,
            two_phase=settings.two_phase,
        )
        with stream, closing(Spools(folder)) as spools:
            _log.info(
                f"streams from slot {settings.slot}, LSN {format_lsn(head.commit_lsn)}",
                facts={"slot": settings.slot, "lsn": format_lsn(head.commit_lsn), "position": head.position},
            )
            continuity = _continuity(now, head, folder, source.read_slot(catalog, settings.slot))
            durable_lsn = head.commit_lsn if continuity.done else max(continuity.last.commit_lsn, continuity.start_lsn)
            decoder = Decoder(evolving.definitions(catalog), memory, _hold(feed), durable_lsn, spools, prepared, feed.expects)
            ingest = Ingest(stream, decoder, writer, memory, feed, meter, continuity)
            meter.say("streaming")
            ingest.run(stop)
            ingest.finish()


def _continuity(now: Identity, head: Cut, folder: Path, facts: SlotFacts) -> Continuity:
    """The changes that the log holds and the server will send again. ``facts``: of the slot while this connection has it."""
    with closing(open_reader(folder)) as log:
        last = log.last_commit()
    return Continuity(last, head, max(now.since_lsn, facts.confirmed_lsn or 0))


def _hold(feed: SnapshotFeed) -> Hold:
    def hold(rows: pa.RecordBatch, missing: Mapping[str, Flags]) -> None:
        table = table_of(rows.schema)
        if not feed.unresolved(table.oid):
            # A column was renamed, the identity changed, or the memory was lost: the database still has the values.
            _log.warning("reads rows back whose unchanged values the log does not hold", table=table.qualified, rows=len(rows))
        feed.hold(rows, missing)

    return hold


def _catch_up(memory: ToastMemory, writer: LogWriter, folder: Path) -> None:
    """Reads from the log what the memory missed by a crash."""
    if memory.position > writer.head.position:
        memory.clear()
    if memory.position == writer.head.position:
        return
    known = identity.recorded(folder)
    if known is not None and memory.position < known.since_position:
        memory.begin_at(known.since_position)
    with closing(open_reader(folder)) as reader:
        for topic in [topic for topic in reader.topics() if topic.last > memory.position]:
            for batch in reader.read(topic.name, Position(memory.position), writer.head.position):
                memory.learn(batch)
    crashpoint("capture.toast_caught_up")
    memory.commit(writer.head.position)
