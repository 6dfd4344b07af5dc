"""Everything that `cdc status`, `/v1/status` and the status page show, gathered once into one value.

``Report.to_json()`` is the stable JSON shape. LSNs are text in Postgres's notation (or null), times are Unix seconds, sizes are bytes.

=============  ===============================================================================================================
``version``    the package's version
``at``         when the facts were gathered
``healthy``    true when nothing is stopped, down or in danger: then ``problems`` is empty
``problems``   one line each: what is wrong → the command that helps
``source``     ``reachable``, ``error``, ``address`` (host:port/database), ``slot`` (or null): {``name``, ``exists``, ``active``,
               ``wal_status``, ``server_lsn``, ``confirmed_lsn``, ``lag_bytes`` (written and not confirmed), ``held_bytes`` (WAL kept
               because of the slot), ``max_keep_bytes``, ``safe_wal_bytes`` (the WAL budget that is left, null = no limit),
               ``wal_bytes_per_s``, ``budget_eta_s`` (until the budget is used up at that rate; null = no limit, or not known yet)},
               ``alarms`` (one line each: what endangers the slot → what helps), ``transactions`` that keep WAL from being freed:
               [{``pid``, ``xid``, ``age_s``, ``application``, ``gid`` (of a prepared one)}]
``capture``    null before its first start, else {``state``, ``alive``, ``stop``, ``error``, ``position``, ``commit_lsn``, ``commit_ts``,
               ``received_lsn``, ``confirmed_lsn``, ``changes``, ``changes_per_s``, ``wire_bytes``, ``snapshot``: [{``table``, ``done``,
               ``total``, ``finished``}], ``snapshot_paused`` (why reading tables stands still, or null), ``updated_at``}
``log``        {``dir``, ``position``, ``commit_lsn``, ``commit_ts``, ``rows``, ``bytes`` (on disk), ``disk_free_bytes``, ``tables``: [{``name``,
               ``rows``, ``bytes``, ``first``, ``last``}]}
``followers``  [{``store``, ``kind``, ``state``, ``alive``, ``stop``, ``error``, ``position``, ``commit_lsn``, ``commit_ts``, ``lag``:
               {``changes``, ``bytes``, ``seconds``} (the log's head against the store's applied position; bytes and changes of the store's own
               tables; seconds = age of the oldest commit not yet applied; null before the follower's first word), ``written``,
               ``stale``, ``dead``, ``batches``, ``rows_per_s``, ``updated_at``}], one for each store of the configuration
``stops``      [{``name`` (what `cdc resume` takes), ``state``, ``part``, ``message``, ``hint``, ``since``}]
``processes``  the supervisor's children: [{``name``, ``pid``, ``state``, ``restarts``, ``exit_code``, ``started_at``}]
=============  ===============================================================================================================
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from pydantic import SecretStr

from cdc import status, stops
from cdc.errors import HeadwaterError
from cdc.log.contract import LogReader
from cdc.model.position import Cut, Position, format_lsn
from cdc.model.selection import matches
from cdc.settings import Settings, StoreOptions
from cdc.source.budget import alarms, budget_eta_s, wal_rate
from cdc.source.connection import address, connect, reason
from cdc.source.pins import Pin, read_pins
from cdc.source.slot import SlotFacts, read_slot
from cdc.version import VERSION

RETRY_SOURCE_S: Final = 5.0
"""A source that was down is asked again no more often than this."""
STALE_S: Final = 10.0
"""A live part writes its status every second; after this long its last word no longer counts as alive."""
_RATE_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SlotReport:
    name: str
    exists: bool
    active: bool
    wal_status: str | None
    server_lsn: str
    confirmed_lsn: str | None
    lag_bytes: int | None
    held_bytes: int | None
    max_keep_bytes: int | None
    safe_wal_bytes: int | None
    wal_bytes_per_s: float | None
    budget_eta_s: float | None


@dataclass(frozen=True, slots=True)
class SourceReport:
    reachable: bool
    error: str | None
    address: str
    slot: SlotReport | None
    alarms: tuple[str, ...] = ()
    transactions: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    table: str
    done: int
    total: int
    finished: bool


@dataclass(frozen=True, slots=True)
class CaptureReport:
    state: str
    alive: bool
    stop: str | None
    error: str | None
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    received_lsn: str | None
    confirmed_lsn: str | None
    changes: int
    changes_per_s: float
    wire_bytes: int
    snapshot: tuple[SnapshotReport, ...]
    updated_at: float
    snapshot_paused: str | None = None
    """Why reading tables stands still now."""


@dataclass(frozen=True, slots=True)
class TopicReport:
    name: str
    rows: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LogReport:
    dir: str
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    rows: int
    bytes: int
    disk_free_bytes: int
    tables: tuple[TopicReport, ...]


@dataclass(frozen=True, slots=True)
class Lag:
    changes: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FollowerReport:
    store: str
    kind: str
    state: str
    alive: bool
    stop: str | None
    error: str | None
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    lag: Lag | None
    written: int
    stale: int
    dead: int
    batches: int
    rows_per_s: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class StopReport:
    name: str
    state: str
    part: str
    message: str
    hint: str
    since: float


@dataclass(frozen=True, slots=True)
class ProcessReport:
    name: str
    pid: int
    state: str
    restarts: int
    exit_code: int | None
    started_at: float


@dataclass(frozen=True, slots=True)
class Report:
    version: str
    at: float
    healthy: bool
    problems: tuple[str, ...]
    source: SourceReport
    capture: CaptureReport | None
    log: LogReport
    followers: tuple[FollowerReport, ...]
    stops: tuple[StopReport, ...]
    processes: tuple[ProcessReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists in the shape that the module's text gives."""
        return asdict(self)


@dataclass(slots=True)
class SourceProbe:
    """Asks the source for its slot over one connection that it keeps. Safe to use from several threads.

    A source that does not answer is part of the report, not an error: it is asked again after ``RETRY_SOURCE_S``.
    """

    dsn: SecretStr
    slot: str
    connect_timeout_s: int = 3
    _connection: psycopg.Connection | None = None
    _failed_at: float = float("-inf")
    _error: str | None = None
    _samples: list[tuple[float, int]] = field(default_factory=list)
    _pins: list[Pin] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> SourceReport:
        with self._lock:
            facts = self._facts()
            if facts is None:
                return SourceReport(False, self._error, address(self.dsn.get_secret_value()), None)
            found = alarms(facts, wal_rate(self._samples), self._pins)
            return SourceReport(
                True, None, address(self.dsn.get_secret_value()), self._slot(facts), tuple(found), tuple(self._pins)
            )

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _facts(self) -> SlotFacts | None:
        now = time.monotonic()
        if self._connection is None and now - self._failed_at < RETRY_SOURCE_S:
            return None
        dsn = self.dsn.get_secret_value()
        try:
            if self._connection is None:
                self._connection = connect(dsn, application="headwater-status", connect_timeout_s=self.connect_timeout_s)
            facts = read_slot(self._connection, self.slot)
            self._pins = read_pins(self._connection)
        except (HeadwaterError, psycopg.Error) as error:
            self._error = reason(error, dsn) if isinstance(error, psycopg.Error) else str(error)
            self._failed_at = now
            self._drop()
            return None
        self._error = None
        self._samples = [sample for sample in self._samples if now - sample[0] <= _RATE_WINDOW_S] + [(now, facts.server_lsn)]
        return facts

    def _slot(self, facts: SlotFacts) -> SlotReport:
        rate = wal_rate(self._samples)
        return SlotReport(
            name=facts.name,
            exists=facts.exists,
            active=facts.active,
            wal_status=facts.wal_status,
            server_lsn=format_lsn(facts.server_lsn),
            confirmed_lsn=_lsn(facts.confirmed_lsn),
            lag_bytes=facts.lag_bytes,
            held_bytes=facts.held_bytes,
            max_keep_bytes=facts.max_keep_bytes,
            safe_wal_bytes=facts.safe_wal_bytes,
            wal_bytes_per_s=rate,
            budget_eta_s=budget_eta_s(facts.safe_wal_bytes, rate),
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def lag_of(reader: LogReader, head: Cut, position: Position, tables: Sequence[str], now: float) -> Lag:
    """How far ``position`` lies behind the log's head, counting only the tables that the store's patterns select."""
    if position >= head.position:
        return Lag(0, 0, 0.0)
    topics = [topic.name for topic in reader.topics() if matches(tables, topic.name) and topic.last > position]
    pieces = reader.slices(topics, position, head.position, 1 << 62) if topics else ()
    if not pieces:
        return Lag(0, 0, 0.0)
    first = reader.cut_within(position, 1, 1)
    seconds = max(0.0, now - first.commit_ts_us / 1e6) if first.commit_ts_us else 0.0
    return Lag(sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces), seconds)


def gather(settings: Settings, reader: LogReader, probe: SourceProbe) -> Report:
    """The facts as they stand now. Raises only when the log itself cannot be read (LogCorrupt); everything else is in the report.

    Keep ``probe`` between calls where you call again and again: its connection and its WAL rate live in it.
    """
    now = time.time()
    head = reader.head()
    source = probe.read()
    capture = _capture(settings.run_dir, now)
    followers = tuple(_follower(settings.run_dir, name, store, reader, head, now) for name, store in settings.stores.items())
    stopped = tuple(
        StopReport(stop.name, str(stop.state), stop.part, stop.message, stop.hint, stop.since)
        for stop in stops.held(settings.run_dir)
    )
    processes = _processes(settings.run_dir)
    problems = (
        *_source_problems(source),
        *_part_problems(capture, followers, processes),
        *(f"{stop.part} stopped: {stop.state}: {stop.message} → {stop.hint}" for stop in stopped),
    )
    return Report(
        version=VERSION,
        at=now,
        healthy=not problems,
        problems=problems,
        source=source,
        capture=capture,
        log=_log(settings.log.dir, reader, head),
        followers=followers,
        stops=stopped,
        processes=processes,
    )


def gather_once(settings: Settings, reader: LogReader) -> Report:
    """``gather`` with a connection of its own that is closed again."""
    probe = SourceProbe(settings.source.dsn, settings.source.slot)
    try:
        return gather(settings, reader, probe)
    finally:
        probe.close()


def _capture(run_dir: Path, now: float) -> CaptureReport | None:
    told = status.read_capture(run_dir)
    if told is None:
        return None
    return CaptureReport(
        state=told.state,
        alive=_alive(told, now),
        stop=told.stop,
        error=told.error,
        position=told.position,
        commit_lsn=_lsn(told.commit_lsn),
        commit_ts=_seconds(told.commit_ts_us),
        received_lsn=_lsn(told.received_lsn),
        confirmed_lsn=_lsn(told.confirmed_lsn),
        changes=told.changes,
        changes_per_s=told.changes_per_s,
        wire_bytes=told.wire_bytes,
        snapshot=tuple(SnapshotReport(entry.table, entry.done, entry.total, entry.finished) for entry in told.snapshot),
        updated_at=told.updated_at,
        snapshot_paused=told.snapshot_paused,
    )


def _follower(run_dir: Path, name: str, store: StoreOptions, reader: LogReader, head: Cut, now: float) -> FollowerReport:
    told = status.read_follower(run_dir, name)
    if told is None:
        told = status.FollowerStatus(name, store.kind, state="never started")
        lag = None
    else:
        lag = lag_of(reader, head, Position(told.position), store.tables, now)
    return FollowerReport(
        store=name,
        kind=store.kind,
        state=told.state,
        alive=_alive(told, now),
        stop=told.stop,
        error=told.error,
        position=told.position,
        commit_lsn=_lsn(told.commit_lsn),
        commit_ts=_seconds(told.commit_ts_us),
        lag=lag,
        written=told.written,
        stale=told.stale,
        dead=told.dead,
        batches=told.batches,
        rows_per_s=told.rows_per_s,
        updated_at=told.updated_at,
    )


def _log(folder: Path, reader: LogReader, head: Cut) -> LogReport:
    topics = tuple(TopicReport(topic.name, topic.rows, topic.bytes, int(topic.first), int(topic.last)) for topic in reader.topics())
    standing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return LogReport(
        dir=str(folder),
        position=int(head.position),
        commit_lsn=_lsn(head.commit_lsn),
        commit_ts=_seconds(head.commit_ts_us),
        rows=sum(topic.rows for topic in topics),
        bytes=_size_on_disk(folder),
        disk_free_bytes=shutil.disk_usage(standing).free,
        tables=topics,
    )


def _size_on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # sealed and removed while we looked
            continue
    return total


def _processes(run_dir: Path) -> tuple[ProcessReport, ...]:
    told = status.read_supervisor(run_dir)
    if told is None or not status.alive(told.pid):
        return ()
    return tuple(
        ProcessReport(child.name, child.pid, child.state, child.restarts, child.exit_code, child.started_at)
        for child in told.processes
    )


def _source_problems(source: SourceReport) -> list[str]:
    if not source.reachable:
        return [f"the source is unreachable: {source.error} → cdc doctor"]
    slot = source.slot
    assert slot is not None
    if not slot.exists:
        return [f"replication slot {slot.name!r} does not exist → cdc doctor"]
    return list(source.alarms)


def _part_problems(
    capture: CaptureReport | None, followers: Sequence[FollowerReport], processes: Sequence[ProcessReport]
) -> list[str]:
    problems: list[str] = []
    if capture is None:
        problems.append("capture has never run → cdc run")
    elif not capture.alive and capture.stop is None:
        problems.append("capture does not run → cdc run")
    elif capture.error and capture.stop is None:
        problems.append(f"capture is {capture.state}: {capture.error}")
    for follower in followers:
        if not follower.alive and follower.stop is None:
            problems.append(f"follower {follower.store} does not run → cdc run")
        elif follower.error and follower.stop is None:
            problems.append(f"follower {follower.store} is {follower.state}: {follower.error}")
        if follower.dead:
            problems.append(f"store {follower.store} set {follower.dead} changes aside")
    refused: Mapping[str, str] = {child.name: child.state for child in processes if child.state == "refused"}
    problems += [f"{name} refuses its configuration → cdc doctor" for name in refused]
    return problems


def _alive(told: status.CaptureStatus | status.FollowerStatus, now: float) -> bool:
    """A part that starts says so once, and may then compile, load or recover for longer than a running one is ever silent."""
    return status.alive(told.pid) and (told.state == "starting" or now - told.updated_at < STALE_S)


def _lsn(lsn: int | None) -> str | None:
    return format_lsn(lsn) if lsn else None


def _seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if microseconds else None
