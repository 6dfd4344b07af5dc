"""Waiting until a store shows everything up to an LSN: behind `cdc wait`, `/v1/wait` and ``cdc.connect(config).wait(…)``.

``judge`` is the pure core: it says, from the parts' latest status files, what is still awaited. ``wait`` is the shell that looks again whenever a part
has written something.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import psycopg

from cdc.client.throughviews import ThroughViews, ViewLags
from cdc.clock import MACHINE, Clock
from cdc.errors import ConfigError, SourceError, StoreError, WaitTimeout
from cdc.log.contract import LogReader, selected
from cdc.log.home import head_file
from cdc.model.position import START, Cut, Lsn, Position, format_lsn, parse_lsn
from cdc.settings.models import Settings, StoreOptions
from cdc.source.connection import connect, reason
from cdc.state import status, stops
from cdc.state.filewatch import Watch
from sinks import make_sink, traits_of

_Answer = TypeVar("_Answer")

WATCHED_S: Final = 0.25
"""It looks this often although nothing seems to have been written, for file systems that do not tell;"""
POLL_S: Final = (0.004, 0.05)
"""and where nothing can be watched, first after the one pause, then after ever longer ones up to the other."""
NUDGE_AFTER_S: Final = 0.1
"""An idle stream that has not reached the LSN by itself after this long gets a commit of our own to carry it there."""
REFRESH_AGAIN_S: Final = 0.5
"""How long a store that would not refresh just now is left alone."""

_DOWN: Final = "does not run"


@dataclass(frozen=True, slots=True)
class Waited:
    """The store holds everything that the source had committed at ``lsn``; ``position`` is the log position that covers it."""

    store: str
    lsn: Lsn
    position: Position
    seconds: float


@dataclass(frozen=True, slots=True)
class Awaited:
    """The changes still missing. ``target`` is the log position to wait for, None while the log itself is not there yet."""

    target: Position | None
    done: bool
    why: str


def judge(
    store: str, lsn: Lsn, target: Position | None, received: Lsn, applied: Position | None, held_up: str | None = None
) -> Awaited:
    """target: as far as known from the log. received: capture's, or the log's head where that is further. applied: the store's.

    held_up: why the follower cannot say now whether the store still holds what it held ("is starting"): ``applied`` is then only where it was.
    """
    if target is None and received >= lsn:
        return Awaited(None, False, "rows are still being read from the tables into the log")
    if target is None:
        return Awaited(
            None, False, f"capture lags: it has received {format_lsn(received)}, {lsn - received} bytes before {format_lsn(lsn)}"
        )
    if applied is None:
        return Awaited(target, False, f"follower {store} has never run")
    if applied < target:
        return Awaited(
            target,
            False,
            f"follower {store} lags: it has applied position {applied} of {target}, {target - applied} changes behind",
        )
    if held_up is not None:
        return Awaited(target, False, f"follower {store} {held_up}")
    return Awaited(target, True, "")


def target_of(reader: LogReader, cut: Cut | None, lsn: Lsn, received: Lsn, complete: Position | None) -> Position | None:
    """A position that covers every commit up to the LSN: the first cut that reaches it, else the log's head once capture has received it.

    cut: the log's first that reaches the LSN. complete: from where on the log holds the rows that have to be read from the tables, those that
    were there before the slot was and those that the stream lacks; None while it does not. It must have been read after the cut, as capture
    says what a cut lacks before it is there; and both before this call: whatever they cover is then in the head.
    """
    if complete is None:
        return None
    if cut is not None:
        return max(cut.position, complete)
    return reader.head().position if received >= lsn else None


def clean_point(reader: LogReader, tables: Sequence[str]) -> Position:
    """Before this position a store of these tables may lack rows that the log holds as later changes only, whatever it has applied."""
    return Position(max((topic.clean_from - 1 for topic in selected(reader, tables)), default=START))


def wait(
    settings: Settings, reader: LogReader, store: str, *, lsn: Lsn | None = None, timeout_s: float = 60.0, clock: Clock = MACHINE
) -> Waited:
    """Returns once the store shows everything up to ``lsn`` (None: whatever is committed at the source now).

    The store's follower vouches for that: as long as it does not run and follow, the store may have been emptied behind its back.

    Raises WaitTimeout saying who lags and by how much, or what keeps the follower; Stopped when a part that is waited for is in a stop
    state, ConfigError for a store that the configuration does not have, SourceError when the current LSN cannot be asked for, StoreError when
    the store refuses for good to show what it has taken.
    """
    options = settings.stores.get(store)
    if options is None:
        raise ConfigError(
            f"there is no store {store!r} in the configuration", hint=f"known stores: {', '.join(settings.stores) or 'none'}"
        )
    began = clock.monotonic()
    wanted = current_lsn(settings.source.dsn.get_secret_value()) if lsn is None else lsn
    with closing(_Changes(settings)) as changes:
        left_s = timeout_s - (clock.monotonic() - began)
        target = _until_shown(settings, reader, store, wanted, left_s, changes, clock, nudges=lsn is None)
    if traits_of(options).refreshes:
        while (refusal := _refresh(store, options, reader)) is not None:
            if clock.monotonic() - began >= timeout_s:
                raise WaitTimeout(f"{_not_shown(store, wanted, timeout_s)}: {refusal}", hint=refusal.hint)
            clock.wait(threading.Event(), REFRESH_AGAIN_S)
    return Waited(store, wanted, target, clock.monotonic() - began)


def _until_shown(
    settings: Settings,
    reader: LogReader,
    store: str,
    wanted: Lsn,
    timeout_s: float,
    changes: _Changes,
    clock: Clock,
    *,
    nudges: bool,
) -> Position:
    """Returns the position that the store has then reached. ``nudges``: an idle stream is carried on by a commit of ours."""
    began = clock.monotonic()
    deadline = began + timeout_s
    covers: Position | None = None
    target: Position | None = None
    tables = settings.stores[store].tables
    through = ThroughViews(settings, reader, tables)
    while True:
        lags = ""
        if target is None:
            cut = reader.cut_at_lsn(wanted)
            received, complete = capture_says(settings, reader.head())
            covers = covers or target_of(reader, cut, wanted, received, complete)
            try:
                if covers is not None:
                    target = max(through.shown_at(covers), clean_point(reader, tables))
            except ViewLags as view:
                lags = str(view)
        else:
            received = wanted
        saved = status.read_follower(settings.run_dir, store)
        awaited = judge(store, wanted, target, received, *_follower_says(saved))
        # What an operator has to decide does not get better by waiting, and a store that is stopped may hold anything.
        _refuse_stopped(settings, f"follow-{store}")
        if awaited.done:
            assert target is not None
            if (clean := clean_point(reader, tables)) <= target:
                return target
            target = clean  # the log was compacted meanwhile
            continue
        if covers is None:
            _refuse_stopped(settings, "capture")
        now = clock.monotonic()
        if now >= deadline and lags:
            raise WaitTimeout(f"{_not_shown(store, wanted, timeout_s)}: {lags}", hint="cdc views")
        if now >= deadline:
            raise _too_late(settings, store, wanted, timeout_s, awaited)
        if covers is None and received < wanted and nudges and now - began >= NUDGE_AFTER_S:
            nudge(settings.source.dsn.get_secret_value())
            nudges = False
        changes.wait(min(deadline - now, NUDGE_AFTER_S) if nudges else deadline - now)


class _Changes:
    """The files that the parts write while somebody waits: the log's head, and the status files."""

    def __init__(self, settings: Settings) -> None:
        self._paths = (head_file(settings.log.dir), settings.run_dir / "status")
        self._watch: Watch | None = None
        self._pause_s = POLL_S[0]
        self._look_for()

    def wait(self, most_s: float) -> None:
        """Returns when something was written since the last call, or earlier, but at the latest after this long."""
        if self._watch is not None:
            self._watch.wait(min(WATCHED_S, most_s))
            return
        time.sleep(max(0.0, min(self._pause_s, most_s)))
        self._pause_s = min(1.5 * self._pause_s, POLL_S[1])
        self._look_for()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _look_for(self) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            watch = Watch(*self._paths)
            if not watch.blind:
                self._watch = watch


def current_lsn(dsn: str) -> Lsn:
    """The LSN at or before which everything that is committed by now ends."""

    def ask(connection: psycopg.Connection) -> Lsn:
        row = connection.execute(
            "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text"
        ).fetchone()
        assert row is not None
        return parse_lsn(row[0])

    return _on_source(dsn, ask)


def nudge(dsn: str) -> None:
    """One empty transactional message: its commit is flushed, so the stream moves past every LSN handed out before.

    Without it an idle stream can stop short for good: the insert LSN may lie behind a page header that no record has passed yet, and
    WAL that nobody has flushed is not streamed.
    """
    _on_source(dsn, lambda connection: connection.execute("select pg_logical_emit_message(true, 'headwater-wait', '')"))


def parse_wanted(text: str) -> Lsn:
    """An LSN as users write it. Raises ConfigError."""
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not an LSN: {error}", hint="select pg_current_wal_insert_lsn() gives one") from None


def capture_says(settings: Settings, head: Cut) -> tuple[Lsn, Position | None]:
    """How far capture has received the stream, and from where on the log is complete (None: it is not), for ``target_of``."""
    saved = status.read_capture(settings.run_dir)
    if saved is None:
        return head.commit_lsn, None
    complete = saved.complete_position
    return Lsn(max(head.commit_lsn, saved.received_lsn)), None if complete is None else Position(complete)


def _follower_says(saved: status.FollowerStatus | None) -> tuple[Position | None, str | None]:
    """The position that it has applied, and why that may no longer be so: only one that follows looks at its store all the time."""
    if saved is None:
        return None, None
    return Position(saved.position), _held_up(saved)


def _held_up(saved: status.FollowerStatus) -> str | None:
    if not status.alive(saved.pid):
        return _DOWN
    if not status.reports(saved):
        silent_s = status.silent_s(saved)
        return "has reported nothing " + (f"for {silent_s:.0f} s" if math.isfinite(silent_s) else "since this machine started")
    if saved.state == "starting":
        return "is starting: it has not looked at its store yet"
    if saved.state == "rebuilding":
        return "builds its store from the log"
    if saved.state == "waiting":
        return f"waits for its store: {saved.error or 'it does not answer'}"
    if saved.state != "following" or saved.error is not None:
        return f"is {saved.state}" + (f": {saved.error}" if saved.error else "")
    return None


def _refuse_stopped(settings: Settings, part: str) -> None:
    if (settings.run_dir / "stops").exists():
        stops.check(settings.run_dir, part)


def _too_late(settings: Settings, store: str, wanted: Lsn, timeout_s: float, awaited: Awaited) -> WaitTimeout:
    part = "capture" if awaited.target is None else f"follower {store}"
    saved = status.read_capture(settings.run_dir) if awaited.target is None else status.read_follower(settings.run_dir, store)
    why, hint = awaited.why, "cdc status"
    if saved is not None and saved.foreign:
        hint = f"restart cdc run: {part} runs another version of Headwater than this"
    if saved is None or not status.alive(saved.pid):
        hint = "cdc run"
        why = f"{part} has never run" if saved is None else awaited.why
        if not why.endswith((_DOWN, "has never run")):
            why = f"{why}, and {part} {_DOWN}"
    return WaitTimeout(f"{_not_shown(store, wanted, timeout_s)}: {why}", hint=hint)


def _refresh(store: str, options: StoreOptions, reader: LogReader) -> StoreError | None:
    """Has the store show what it has taken. Returns why it would not this time (it is too busy, or starts again), None when it did."""
    sink = make_sink(store, options)
    try:
        sink.open(reader)
        sink.make_visible()
    except StoreError as refusal:
        if not refusal.retryable:
            raise
        return refusal
    finally:
        sink.close()
    return None


def _not_shown(store: str, wanted: Lsn, timeout_s: float) -> str:
    return f"{store} does not show {format_lsn(wanted)} after {timeout_s:.3g} s"


def _on_source(dsn: str, ask: Callable[[psycopg.Connection], _Answer]) -> _Answer:
    with connect(dsn, application="headwater-wait") as connection:
        try:
            return ask(connection)
        except psycopg.Error as error:
            raise SourceError(f"the source does not answer: {reason(error, dsn)}", hint="cdc doctor") from None
