"""The report (``cdc.report.shape``) as it stands now: from the status files, the log and the source."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cdc.diskspace import free_bytes
from cdc.errors import ConfigError, HeadwaterError, StoreError
from cdc.log.contract import LogReader, selected
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from cdc.report.lag import commit_lsn, commit_ts, lag_of
from cdc.report.probe import SourceProbe
from cdc.report.problems import problems_of
from cdc.report.shape import (
    AuditedTableReport,
    AuditReport,
    CaptureReport,
    CatchUp,
    FollowerReport,
    GenerationReport,
    LettersReport,
    LogReport,
    ProcessReport,
    Report,
    SnapshotReport,
    StopReport,
    TopicReport,
    catch_up_of,
)
from cdc.report.views import view_report
from cdc.settings.models import Settings, StoreOptions
from cdc.settings.storetables import mistaken
from cdc.settings.views import topics_of
from cdc.state import auditstate, status, stops
from cdc.terminal import counted, visible
from cdc.version import VERSION
from snapshots.requests import Requests, asked_at

SIZE_S: Final = 10.0
"""The log's size is looked at no more often than this,"""
SIZE_SHARE: Final = 100
"""and takes no more than one part in so many of the time."""


@dataclass(frozen=True, slots=True)
class _Size:
    size_bytes: int
    again_at: float
    """Monotonic time from which on it is to be looked at again."""


_sizes: Final[dict[Path, _Size]] = {}


@dataclass(frozen=True, slots=True)
class _Statuses:
    """The status files, each read once, so that one report does not contradict itself. ``followers``: by store."""

    capture: status.CaptureStatus | None
    supervisor: status.SupervisorStatus | None
    followers: Mapping[str, status.FollowerStatus | None]
    audits: Mapping[str, auditstate.AuditStanding | None]
    generations: Mapping[str, Sequence[status.GenerationStatus]]
    views: Mapping[str, status.ViewStatus | None]

    @classmethod
    def by_now(cls, settings: Settings) -> Self:
        run_dir = settings.run_dir
        followers = {store: status.read_follower(run_dir, store) for store in settings.stores}
        audits = {store: _standing(settings, store) for store in settings.stores}
        generations = {store: status.read_generations(run_dir, store) for store in settings.stores}
        views = {view: status.read_view(run_dir, view) for view in settings.views}
        return cls(status.read_capture(run_dir), status.read_supervisor(run_dir), followers, audits, generations, views)

    def silent_s(self) -> dict[str, float]:
        """The parts whose processes live and have reported nothing for too long, with the seconds."""
        parts = {
            "capture": self.capture,
            **{f"follow-{store}": saved for store, saved in self.followers.items()},
            **{status.view_part(view): saved for view, saved in self.views.items()},
        }
        return {
            part: status.silent_s(saved)
            for part, saved in parts.items()
            if saved is not None and status.alive(saved.pid) and not status.reports(saved)
        }

    def table_notes(self) -> Sequence[str]:
        return () if self.capture is None else self.capture.notes

    def problems(self) -> Iterator[str]:
        """Problems that the files report beside their parts' states."""
        if self.capture is not None and self.capture.log_alarm:
            yield self.capture.log_alarm
        followers = {f"follower {store}": saved for store, saved in self.followers.items()}
        others = {f"generation {one.number} of {store}": one for store, all_of in self.generations.items() for one in all_of}
        for what, saved in {"capture": self.capture, "cdc run": self.supervisor, **followers, **others}.items():
            if saved is not None and (line := status.other_version(saved, what)):
                yield line
        for view, told in self.views.items():
            if told is not None and (foreign := status.other_version(told, f"view {view}")):
                yield foreign


def gather(settings: Settings, reader: LogReader, probe: SourceProbe) -> Report:
    """The facts as they stand now. Raises only when the log itself cannot be read (LogCorrupt); everything else is in the report.

    Keep ``probe`` between calls where you call again and again: its connection and its WAL rate live in it.
    """
    now = time.time()
    head = reader.head()
    source = probe.read()
    statuses = _Statuses.by_now(settings)
    capture = _capture(statuses.capture)
    source_now = probe.now()
    followers = tuple(_follower(statuses, name, store, reader, head, source_now) for name, store in settings.stores.items())
    views = tuple(view_report(settings, name, saved, reader, head, source_now) for name, saved in statuses.views.items())
    stopped = tuple(
        StopReport(stop.name, str(stop.state), stop.part, visible(stop.message), visible(stop.hint), stop.since)
        for stop in stops.held(settings.run_dir)
    )
    daemon = _running(statuses.supervisor)
    processes = _processes(daemon)
    mistaken = (mistake.line() for mistake in _mistaken(settings, reader, capture))
    asked, unreadable = _asked(settings.log.dir, runs=capture is not None and capture.alive)
    further = [*statuses.problems(), *mistaken, *unreadable, *daemon.problems]
    problems = problems_of(source, capture, followers, views, stopped, processes, statuses.silent_s(), further)
    return Report(
        version=VERSION,
        at=now,
        healthy=not problems,
        problems=problems,
        notes=tuple(visible(note) for note in (*daemon.notes, *asked, *statuses.table_notes())),
        source=source,
        capture=capture,
        log=_log(settings.log.dir, reader, head),
        followers=followers,
        stops=stopped,
        processes=processes,
        generations=tuple(
            _generation(one, store, reader, head, source_now)
            for name, store in settings.stores.items()
            for one in statuses.generations[name]
        ),
        views=views,
    )


def _mistaken(settings: Settings, reader: LogReader, capture: CaptureReport | None) -> Iterator[ConfigError]:
    """Finds what is wrong with the stores' tables, as far as it is known which tables are captured."""
    logged = [topic.table for topic in reader.topics()]
    read = [entry.table for entry in capture.snapshot] if capture is not None else []
    # The views that stores hold, too: first ones may wait for the next start, and what is said of stores counts at once.
    views = [*settings.views, *(view for options in settings.stores.values() for view in options.views)]
    known: list[Table | str] = [*logged, *read, *topics_of(dict.fromkeys(views))]
    return mistaken(settings.stores, known, settings.outbox) if logged or read else iter(())


def _asked(log_dir: Path, *, runs: bool) -> tuple[Sequence[str], Sequence[str]]:
    """Notes on what `cdc snapshot` has asked for and is not over; and what is wrong with it. ``runs``: capture does, and takes it up."""
    requests, found = Requests(log_dir), []
    try:
        for name, request in requests.unfinished().items():
            outcome, at = requests.outcome(name), asked_at(name)
            when = "" if at is None else f", asked for at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
            if not runs:
                how = "is kept: capture takes it up as soon as it runs → cdc run"
            elif outcome.state == "running":
                how = f"is being read: {counted(outcome.rows, 'row')} so far"
            else:
                how = "waits for capture to begin with it"
            found.append(f"the snapshot of {request.table} (request {name}{when}) {how}")
    except HeadwaterError as error:
        return found, [error.line() if error.hint else f"{error} → cdc snapshot asks again"]
    return found, []


def _capture(saved: status.CaptureStatus | None) -> CaptureReport | None:
    if saved is None:
        return None
    alive = status.reports(saved)
    return CaptureReport(
        state=saved.state,
        alive=alive,
        stop=saved.stop,
        error=saved.error,
        position=saved.position,
        commit_lsn=commit_lsn(saved.commit_lsn),
        commit_ts=commit_ts(saved.commit_ts_us),
        received_lsn=commit_lsn(saved.received_lsn),
        confirmed_lsn=commit_lsn(saved.confirmed_lsn),
        changes=saved.changes,
        changes_per_s=saved.changes_per_s if alive else 0.0,
        wire_bytes=saved.wire_bytes,
        snapshot=tuple(SnapshotReport(entry.table, entry.done, entry.total, entry.finished) for entry in saved.snapshot),
        updated_at=saved.updated_at,
        snapshot_paused=saved.snapshot_paused,
        left_out=tuple(saved.left_out),
    )


def _follower(parts: _Statuses, name: str, store: StoreOptions, reader: LogReader, head: Cut, now: float) -> FollowerReport:
    saved = parts.followers[name]
    if saved is None:
        saved = status.FollowerStatus(name, store.kind, state="never started")
        lag = None
    else:
        lag = lag_of(reader, head, Position(saved.position), store.tables, now)
    alive = status.reports(saved)
    rows_per_s = saved.rows_per_s if alive else 0.0
    held = sum(topic.rows for topic in selected(reader, store.tables))
    return FollowerReport(
        store=name,
        kind=store.kind,
        state=saved.state,
        alive=alive,
        stop=saved.stop,
        error=saved.error,
        position=saved.position,
        commit_lsn=commit_lsn(saved.commit_lsn),
        commit_ts=commit_ts(saved.commit_ts_us),
        lag=lag,
        written=saved.written,
        stale=saved.stale,
        dead=saved.dead,
        batches=saved.batches,
        rows_per_s=rows_per_s,
        updated_at=saved.updated_at,
        catch_up=catch_up_of(lag, held, status.unread_rows(parts.capture, store.tables), rows_per_s),
        aside=tuple(LettersReport(one.table, one.letters, one.edited, one.accepted, one.oldest_at or None) for one in saved.aside),
        audit=_audit(parts.audits[name]),
    )


def _generation(told: status.GenerationStatus, store: StoreOptions, reader: LogReader, head: Cut, now: float) -> GenerationReport:
    alive = status.reports(told)
    rate = round(told.rows_per_s, 1) if alive else 0.0
    left = max(0, told.expected - told.rows)
    eta_s = round(left / rate, 1) if rate > 0 else None
    return GenerationReport(
        store=told.store,
        number=told.number,
        state=told.state,
        alive=alive,
        error=told.error,
        position=told.position,
        lag=lag_of(reader, head, Position(told.position), store.tables, now),
        phase=told.phase or None,
        progress=CatchUp(told.rows, told.expected, rate, eta_s) if told.expected else None,
        until=told.until or None,
    )


def _standing(settings: Settings, store: str) -> auditstate.AuditStanding | None:
    """A damaged file tells nothing; the audit replaces it."""
    try:
        return auditstate.load(settings.run_dir, store) if settings.audit.continuous else None
    except StoreError:
        return None


def _audit(found: auditstate.AuditStanding | None) -> AuditReport | None:
    return None if found is None else AuditReport(found.waits, round(found.share(), 4), tuple(map(_audited, found.tables)))


def _audited(one: auditstate.TableStanding) -> AuditedTableReport:
    drift = one.drift
    return AuditedTableReport(
        table=one.table,
        whole_at=one.whole_at or None,
        compared_at=one.compared_at or None,
        position=one.position,
        rows=drift.rows,
        missing=drift.missing,
        extra=drift.extra,
        different=drift.different,
        in_flight=drift.in_flight,
        at_least=drift.at_least,
        problem=one.problem,
    )


def _log(folder: Path, reader: LogReader, head: Cut) -> LogReport:
    topics = tuple(TopicReport(topic.name, topic.rows, topic.bytes, int(topic.first), int(topic.last)) for topic in reader.topics())
    standing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return LogReport(
        dir=str(folder),
        position=int(head.position),
        commit_lsn=commit_lsn(head.commit_lsn),
        commit_ts=commit_ts(head.commit_ts_us),
        rows=sum(topic.rows for topic in topics),
        bytes=size_on_disk(folder),
        disk_free_bytes=free_bytes(standing),
        tables=topics,
    )


def size_on_disk(folder: Path) -> int:
    """As of some seconds ago: a log has a file for every so many changes, and the page asks every second."""
    now = time.monotonic()
    known = _sizes.get(folder)
    if known is not None and now < known.again_at:
        return known.size_bytes
    size_bytes = _walked(folder)
    took_s = time.monotonic() - now
    _sizes[folder] = _Size(size_bytes, now + max(SIZE_S, SIZE_SHARE * took_s))
    return size_bytes


def _walked(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):  # passes over folders that go meanwhile, such as a spool's
        for name in files:
            with suppress(FileNotFoundError):  # sealed and removed while we looked
                total += Path(place, name).stat().st_size
    return total


def _running(saved: status.SupervisorStatus | None) -> status.SupervisorStatus:
    """The supervisor, if it runs; else one without children."""
    return saved if saved is not None and status.alive(saved.pid) else status.SupervisorStatus()


def _processes(daemon: status.SupervisorStatus) -> tuple[ProcessReport, ...]:
    return tuple(
        ProcessReport(child.name, child.pid, child.state, child.restarts, child.exit_code, child.started_at)
        for child in daemon.processes
    )
