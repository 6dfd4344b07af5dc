"""The capture process: connects, sees to publication and slot, streams into the log, and connects again when the stream breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import structlog

from cdc import background, source
from cdc.background import BackgroundPart
from cdc.capture.endings import Poison, StreamEnded
from cdc.capture.feedback import Feedback
from cdc.capture.stream import Connection
from cdc.capture.toast import ToastMemory
from cdc.capture.warm import warm
from cdc.compaction.states import StateKeeping
from cdc.compaction.tiermoves import tiering_for
from cdc.compaction.worker import Compaction
from cdc.crashpoint import crashpoint
from cdc.diskspace import FULL, GOES_ON, described
from cdc.errors import HeadwaterError, ProtocolError, SourceError, SourceUnreachable, Stopped, StopState
from cdc.inbox.bell import InboxBell
from cdc.inbox.writerside import Inbox, check_names
from cdc.ingest.definitions import Evolving
from cdc.ingest.eventremoval import EventRemoval, removal_for
from cdc.ingest.events import Events, check_topics
from cdc.ingest.intake import Intake
from cdc.ingest.loggedtables import LoggedTables
from cdc.ingest.meter import Meter
from cdc.ingest.preparation import Preparation
from cdc.ingest.round import Round, begun
from cdc.ingest.slotalarms import Alarms
from cdc.log.contract import LogReader
from cdc.log.home import open_reader, open_writer, upkeep_of
from cdc.lookup.worker import Keeping
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Cut, format_lsn
from cdc.privacy.policies import ProtectedWriter, Protection, protection_of
from cdc.settings.implications import own_topics
from cdc.settings.models import Settings
from cdc.settings.models import Source as SourceSettings
from cdc.source import identity
from cdc.source.connection import address
from cdc.source.identity import Identity
from cdc.state import reloads
from cdc.state.status import CaptureStatus
from snapshots.coordinator import SnapshotCoordinator
from snapshots.feed import SnapshotFeed
from snapshots.progress import SnapshotProgress
from snapshots.requests import Requests

BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before the first, second, … attempt to reconnect in a row."""

PAUSE_LOOK_S: Final = 0.1
"""How often the inbox is looked into while the source cannot be reached."""

_log = structlog.get_logger("capture")


def run_capture(
    settings: Settings,
    stop: threading.Event,
    *,
    warmed: Callable[[], None] = lambda: None,
    in_force: Callable[[], Settings] | None = None,
) -> int:
    """The capture process: returns 0 when ``stop`` was set and everything received is durable or will be sent again.

    warmed: called when everything is loaded that stays as long as the process. in_force: says, to any one thread, the configuration as it is now;
    its stores hold compaction back.
    Raises SourceError or ConfigError when capture cannot begin, Stopped for a stop state. A connection that breaks later is opened again.
    """
    with closing(open_writer(settings.log.dir, segment_bytes=settings.log.segment_bytes, source=settings.source.name)) as unguarded:
        with closing(open_reader(settings.log.dir)) as log:
            check_names(log, settings.source.tables)
            if settings.outbox is not None:
                check_topics(log, settings.outbox)
            protection = protection_of(settings, log, remember=True)
            progress = _progress(settings, log)
        writer = ProtectedWriter(unguarded, protection.protect)
        upkeep = upkeep_of(unguarded)
        one_at_a_time = threading.Lock()

        def now_in_force() -> Settings:
            with one_at_a_time:
                return in_force() if in_force else settings

        compaction = None if upkeep is None else Compaction(settings, upkeep, stop, in_force=now_in_force)
        lookups = Keeping(settings, stop, in_force=now_in_force)
        states = StateKeeping(settings, stop, in_force=now_in_force)
        keeping = [part for part in (compaction, tiering_for(settings, unguarded, stop), lookups, states) if part is not None]
        removal = removal_for(settings, stop)
        beside: list[BackgroundPart] = [*keeping, *([removal] if removal is not None else [])]

        def log_alarm() -> str | None:
            alarms = (part.alarm() for part in keeping)
            return unguarded.alarm() or next((alarm for alarm in alarms if alarm), None)

        meter = Meter(settings.run_dir, settings.source.slot, progress, log_alarm=log_alarm)
        meter.status.position, meter.status.commit_lsn = writer.head.position, writer.head.commit_lsn
        meter.say("starting")
        warm()
        warmed()
        state, problem = "exited", None
        try:
            with closing(ToastMemory(settings.log.dir / "toast.db", protection.kept_back)) as memory:
                inbox = Inbox(settings.log.dir, writer, settings.run_dir, source=settings.source.name, tables=own_topics(settings))
                bell = InboxBell(settings.log.dir, inbox.looks.rung, stop)
                events = (
                    None if settings.outbox is None else Events(settings.outbox, writer, partial(open_reader, settings.log.dir))
                )
                feed, views = SnapshotFeed(progress), bool(settings.views)
                intake = Intake(settings.log.dir, writer, memory, feed, meter, inbox=inbox, events=events, rowless=views)
                intake.catch_up()
                beside.append(bell)
                for part in beside:
                    part.start()
                _capture(settings, protection, intake, progress, meter, stop, removal, bell)
        except Stopped as stopped:
            state, problem, meter.status.stop = "stopped", stopped.line(), stopped.state
            raise
        except Exception as error:
            problem = _problem(error) if isinstance(error, HeadwaterError | OSError) else type(error).__name__
            raise
        finally:
            meter.say(state, problem)
            stop.set()
            background.join(beside)
    return 0


def _progress(settings: Settings, log: LogReader) -> SnapshotProgress:
    """Where there are views, which have to know how their tables are defined, tables without rows are read once more that the log does not know."""
    progress = SnapshotProgress(settings.log.dir)
    if settings.views:
        progress.restart_unlogged({topic.name for topic in log.topics()})
    return progress


def _capture(
    settings: Settings,
    protection: Protection,
    intake: Intake,
    progress: SnapshotProgress,
    meter: Meter,
    stop: threading.Event,
    removal: EventRemoval | None,
    bell: InboxBell,
) -> None:
    """Connects, streams, and connects again after a failure, until ``stop``."""
    writer, feed, clock = intake.writer, intake.feed, intake.clock
    evolving = Evolving(settings.source, settings.log.dir, protection.logged, protection.undecided, feed.fail, stop)
    coordinator: SnapshotCoordinator | None = None
    preparation = Preparation(settings.source, settings.log.dir, writer, intake.memory, progress, protection)
    poison = Poison()
    watch = Alarms(settings.source.dsn, settings.source.slot, stop)
    attempts = 0
    now: Identity | None = None
    streaming = settings.source.streaming
    try:
        while not stop.is_set():
            began = clock.monotonic()
            try:
                # What was durable when the stream broke, and the memory had not committed yet.
                intake.catch_up()
                now = preparation.run()
                if coordinator is None:
                    evolving.start()
                    logged = LoggedTables(lambda: closing(open_reader(settings.log.dir)), protection.as_it_would_be_logged)
                    coordinator = SnapshotCoordinator(
                        settings.source, feed, progress, Requests(settings.log.dir), stop, refused=evolving.refused, logged=logged
                    )
                    meter.tables = _Selected(evolving, coordinator, meter.status, intake.events, removal)
                    coordinator.start()
                    watch.start()
                _stream_once(settings.source, now, intake, evolving, bell, stop, streaming=streaming)
            except (ConnectionError, OSError, SourceError, ProtocolError, psycopg.OperationalError) as error:
                if coordinator is None and not _passes(error, settings.log.dir):
                    raise
                crashpoint("capture.stream_broken")
                intake.back_to_durable()
                # Some transactions the server can decode only once they have ended, such as one that rewrites a table after a savepoint
                # with DDL was taken back: "could not map filenumber", although nothing is wrong with it.
                ended_only = isinstance(error, StreamEnded) and error.undecodable
                if not (ended_only and streaming):
                    _remake_slot(error, now, writer.head, settings.log.dir)
                streaming = settings.source.streaming and not ended_only
                _count(poison, error, writer.head.commit_lsn)
                attempts = 0 if clock.monotonic() - began > BACKOFF_S[-1] else attempts
                problem = _problem(error)
                what = "the stream broke, connecting again" if coordinator else "cannot begin, trying again"
                _log.warning(what, problem=problem, in_s=BACKOFF_S[attempts])
                meter.say("retrying", problem)
                _pause(BACKOFF_S[attempts], intake, stop)
                attempts = min(attempts + 1, len(BACKOFF_S) - 1)
    finally:
        if coordinator is not None:
            stop.set()
            evolving.join()
            coordinator.join()
            watch.join()


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


def _pause(seconds: float, intake: Intake, stop: threading.Event) -> None:
    """Says meanwhile that we live, and takes what other producers hand over: they do not need the source."""
    clock = intake.clock
    until = clock.monotonic() + seconds
    more = True
    while (left := until - clock.monotonic()) > 0 and not clock.wait(stop, 0.0 if more else min(left, PAUSE_LOOK_S)):
        try:
            more = intake.serve_inbox()
            intake.writer.commit()  # the rollback has left nothing staged, but compaction may wait for it
        except OSError as error:
            _log.warning("the log takes nothing now", problem=_problem(error))
            more = False
        intake.gauge.write()


@dataclass(frozen=True, slots=True)
class _Selected:
    """The selected tables, as the catalog's watch and the snapshot see them (``cdc.ingest.meter.Tables``)."""

    evolving: Evolving
    coordinator: SnapshotCoordinator
    status: CaptureStatus
    events: Events | None
    removal: EventRemoval | None

    def loaded(self) -> bool:
        return self.coordinator.finished

    def paused(self) -> str | None:
        return self.coordinator.paused

    def left_out(self) -> list[str]:
        refused = [f"table {one.table} is not captured: it {one.problem} → {one.hint}" for one in self.evolving.refused().values()]
        unread = [f"cannot be read: {problem.line()}" for problem in self.coordinator.unreadable]
        blind = self.evolving.blind() if self.status.error is None else None  # while the stream has a problem, its own words do
        no_events = self.events.problems() if self.events is not None else []
        return sorted([*refused, *unread, *no_events, *self.evolving.left_out(), *([blind] if blind else [])])

    def notes(self) -> Sequence[str]:
        stays = self.removal.alarm() if self.removal is not None else None
        return [*self.evolving.notes(), *([stays] if stays else [])]

    def passed_over(self) -> Collection[int]:
        return self.evolving.refused()


def _stream_once(
    settings: SourceSettings,
    now: Identity,
    intake: Intake,
    evolving: Evolving,
    bell: InboxBell,
    stop: threading.Event,
    *,
    streaming: bool,
) -> None:
    """``streaming``: large transactions come before they have ended."""
    dsn = settings.dsn.get_secret_value()
    with source.connect(dsn) as catalog:
        connection = Connection(catalog.opened_with, PINNED_SETTINGS, name=address(dsn))
        stream = connection.start(
            settings.slot,
            settings.publication,
            now.since_lsn,
            Feedback(0),  # until the log's end has been recognised
            streaming=streaming,
            two_phase=settings.two_phase,
        )
        with stream, bell.waking(stream.wake):
            head = intake.writer.head
            _log.info(
                f"streams from slot {settings.slot}, LSN {format_lsn(head.commit_lsn)}",
                facts={"slot": settings.slot, "lsn": format_lsn(head.commit_lsn), "position": head.position},
            )
            confirmed_lsn = source.read_slot(catalog, settings.slot).confirmed_lsn or 0
            with begun(intake, Round(stream, evolving.definitions(catalog), now.since_lsn, confirmed_lsn)) as ingest:
                intake.gauge.say("streaming")
                ingest.run(stop)
                ingest.finish()
