"""One store's follower: applies ranges of the log and keeps the store's word on how far it is above all else.

Spark's checkpoint is a convenience. What is applied says the store itself: a follower starts from it, goes back to it when the store
was restored or flushed, and stops when the store knows more than the log.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, HeadwaterError, Stopped, StopState, StoreError
from cdc.follow.apply import Prepared, Slices, Writer, apply_range, on_workers, outcome_of
from cdc.follow.opening import Opening
from cdc.follow.rules import Pause, Rules
from cdc.follow.stride import Rate, Stride
from cdc.follow.survey import Survey, survey
from cdc.log.contract import LogReader, selected
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.settings.models import Contract, StoreOptions
from cdc.state import status, stops
from cdc.state.approvals import approved, ask
from cdc.state.status import FollowerStatus
from sinks.contract import Outcome, Shape, Sink

FIRST_RETRY_S: Final = 0.2
LONGEST_RETRY_S: Final = 15.0
LARGE_ROWS: Final = 20_000
"""A range of so many rows is work for a Spark query, in micro-batches with their limits on rows and bytes, where Spark's workers apply it."""
_LOOK_AT_THE_STORE_S: Final = 1.0
_TOLD_S: Final = 0.1
"""Of commits that follow each other closely the status tells so often. The last one is told once nothing follows it."""
_RESULT_DDL: Final = "written long, stale long, dead string, error string, hint string, retryable boolean"


class Follower:
    """Thread-safe. ``follow_to`` is called by the store's thread or its Spark query, ``idle`` now and then by its thread."""

    def __init__(
        self,
        store: str,
        options: StoreOptions,
        log_dir: Path,
        reader: LogReader,
        run_dir: Path,
        stop: threading.Event,
        contracts: Mapping[str, Contract] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.options = options
        self._clock = clock
        self._stride = Stride(options.batch_rows)
        self.applied: Cut = ZERO_CUT
        self.status = _beginning(run_dir, store, options.kind)
        self._log_dir = log_dir
        self._reader = reader
        self._run_dir = run_dir
        self._stop = stop
        self._lock = threading.RLock()
        self._opening = Opening(store, options, log_dir, reader, run_dir)
        self._open = False
        self._prepared = Prepared()
        self._rules = Rules(store, options, contracts or {}, approved(run_dir, store))
        self._looked_at = 0.0
        self._idled_at = 0.0
        self._goal = ZERO_CUT
        """How far this follower has been asked to go: where a store that lost something is brought again."""
        self._rates = Rate(clock())
        self._status_lock = threading.Lock()
        self._reported: FollowerStatus | None = None
        self._told_at = float("-inf")
        """When a commit was last told."""

    @property
    def _sink(self) -> Sink:
        return self._opening.sink

    @property
    def stopped(self) -> bool:
        """In a stop state: an operator has to decide."""
        return self.status.state == "stopped"

    @property
    def on_workers(self) -> bool:
        """Large ranges are for Spark's workers."""
        return self._sink.parallel and self.options.workers_from_rows > 0

    @property
    def by_query(self) -> bool:
        """Large ranges come through a Spark query. Where no workers share them it would only say how far to go, and cost more than the rest."""
        return self.on_workers

    def next_step(self) -> Cut:
        """How far to go now so that the next commit comes in a few seconds."""
        return self._reader.cut_within(self.applied.position, self._stride.rows, self.options.batch_bytes)

    def take_lease(self) -> None:
        """Raises HeadwaterError when another process follows this store. ``start`` does it, too, and waits then."""
        self._opening.take_lease()

    def release_lease(self) -> None:
        self._opening.release()

    def start(self) -> bool:
        """Opens the store, waiting for it as long as it takes. False when the follower must not run (stopped, or asked to stop)."""
        return self._patiently(self._ensure_open)

    def follow_to(self, end: Cut, slices: Slices | None = None) -> None:
        """Applies everything from what the store holds up to ``end`` and commits it there.

        slices: the micro-batch's, used only when they are the whole of a large range and the store takes several writers. Returns
        early, with less applied, only when asked to stop or in a stop state: the store knows, so nothing is lost.
        """
        with self._lock:
            self._goal = max(self._goal, end, key=lambda cut: cut.position)
            self._patiently(lambda: self._advance(end, slices))

    def idle(self) -> None:
        """Looks whether the store still holds what it held, and moves its LSN on when the source commits nothing of ours.

        Does so once a second at most, and never while a range is being applied.
        """
        now = time.monotonic()
        if now - self._idled_at < _LOOK_AT_THE_STORE_S or self.stopped or not self._lock.acquire(blocking=False):
            return
        try:
            self._idled_at = now
            self._patiently(self._keep_up, patience=False)
        finally:
            self._lock.release()

    def settled(self) -> None:
        """Tells of the last commit, unless the log holds more already, or it was told."""
        if self._reader.head().position <= self.applied.position:
            self.report(when_due=True)

    def probe(self) -> None:
        """Asks the log for what comes next. Raises Stopped (PositionGone, LogCorrupt) when there is no way on."""
        if self._reader.head().position > self.applied.position:
            self._reader.cut_within(self.applied.position, 1, 1)

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """No range is being applied inside."""
        with self._lock:
            yield

    def report(self, *, when_due: bool = False) -> None:
        """Writes the status file. when_due: only if something has changed, or nobody has heard of this store for a while."""
        with self._status_lock:
            self.status.rows_per_s = self._rates.per_s(self.status.written + self.status.stale, self._clock())
            if when_due and status.silent_s(self.status) < status.BEAT_S and self.status == self._reported:
                return
            status.stamp(self.status)
            status.write(self._run_dir, f"follow-{self.store}", self.status)
            self._reported = replace(self.status)

    def fail(self, error: HeadwaterError) -> None:
        """Enters the stop state that the error names; it is recorded, and so survives a restart."""
        stopped = (
            error if isinstance(error, Stopped) else Stopped(StopState.STORE_REFUSES, str(error), hint=_then_resume(error.hint))
        )
        stopped.hint = _of_one_part(stopped, f"follow-{self.store}")
        stops.record(self._run_dir, f"follow-{self.store}", stopped)
        self.status.state, self.status.stop, self.status.error = "stopped", str(stopped.state), stopped.line()
        if stopped.state in (StopState.DIVERGED, StopState.OTHER_LOG):
            self._show(ZERO_CUT)  # what it holds is none of this log's
        self.report()

    def close(self) -> None:
        with self._lock:
            self._shut()
            self._opening.release()
            if not self.stopped:
                self.status.state = "exited"
            self.report()

    def _patiently(self, attempt: Callable[[], None], *, patience: bool = True) -> bool:
        """Runs it until it succeeds; while the store is down with longer and longer pauses. False: stopped, or asked to stop."""
        pause_s = FIRST_RETRY_S
        while not self._stop.is_set() and not self.stopped:
            try:
                attempt()
            except StoreError as error:
                self._shut()
                self._stride.failed()
                if not error.retryable:
                    self.fail(error)
                    return False
                self._wait_for_the_store(error)
                if not patience:
                    return False
                # Jitter, so that several followers do not knock at a recovering server in step.
                self._stop.wait(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)
            except Stopped as error:
                self._shut()
                self.fail(error)
                return False
            except ConfigError as error:
                # A store's options do not fit a table as it is by now, such as a key template that names a column which is gone.
                self._shut()
                self.fail(error)
                return False
            else:
                self._say_following()
                return True
        return False

    def _keep_up(self) -> None:
        self._advance(self._goal, None)
        head = self._reader.head()
        if head.position == self.applied.position and head.commit_lsn > self.applied.commit_lsn:
            self._commit(head, Outcome(0))

    def _wait_for_the_store(self, error: StoreError) -> None:
        self.status.state, self.status.error = "waiting", error.line()
        self.report()

    def _say_following(self) -> None:
        if self.status.state in ("starting", "waiting"):  # a stop state stays, whoever has entered it meanwhile
            self.status.state, self.status.error = "following", None
            self.report()

    def _ensure_open(self) -> None:
        if not self._open:
            self._prepared = Prepared()
            applied = self._opening.open()
            self._open = True
            self._believe(applied)
            crashpoint("follower.opened")
        if self.status.state == "starting":
            self._say_following()  # one that waits for its store does so until the store has taken something: its disk may be full

    def _look_at_the_store(self) -> None:
        """A store may be flushed or restored behind our back without a single failing call; and so may the log's folder."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_AT_THE_STORE_S:
            return
        self._opening.check()
        applied = self._sink.applied()
        if (applied.position, applied.commit_lsn) != (self.applied.position, self.applied.commit_lsn):
            # Opened again, so that the sink forgets what it thought to know, too.
            self._shut()
            self._ensure_open()
        self._looked_at = now

    def _believe(self, applied: Cut) -> None:
        lower = applied.position < self.status.position
        self.applied = applied
        if applied.position == 0:
            self.status.dead = 0
        self._looked_at = time.monotonic()
        self._show(applied)
        if lower:
            self.report()  # at once: somebody may be waiting for what the store has lost

    def _advance(self, end: Cut, slices: Slices | None) -> None:
        self._ensure_open()
        self._look_at_the_store()
        while self.applied.position < end.position and not self._stop.is_set():
            began = self._clock()
            after = self.applied.position
            # What the workers get is what Spark has divided among them: the whole.
            rows = self._stride.rows if slices is None or not self.on_workers else self.options.batch_rows
            cut = self._reader.cut_within(after, rows, self.options.batch_bytes)
            if cut.position >= end.position:
                cut = end
            starts = {topic: max(after, self._sink.held(topic)) for topic in self._topics()}
            seen = survey(self._reader, starts, cut.position)
            if (pause := self._pause(seen)) is not None:
                cut = self._cut_before(after, pause)
                seen = survey(self._reader, starts, cut.position)
            # Not where the store stands elsewhere than the micro-batch begins: it was set back, or has taken a part of it here.
            exactly = slices is not None and cut is end and all(start == slices.after for start in (after, *starts.values()))
            whole = slices if exactly else None
            outcome = self._apply(after, cut.position, seen, whole)
            applied = self._clock()
            self._commit(cut, outcome)
            self._stride.took(cut.position - after, applied - began, self._clock() - applied)

    def _topics(self) -> list[str]:
        return [topic.name for topic in selected(self._reader, self.options.tables)]

    def _pause(self, seen: Survey) -> Pause | None:
        changed = [found.topic for found in seen.topics if found.changes]
        shapes = {topic: self._prepared.shape(self._sink, topic) for topic in changed}
        for found in seen.topics:
            if found.changes and shapes[found.topic] is None and found.first is not None:
                shapes[found.topic] = Shape(found.first, Position(0))
        return self._rules.first_pause(seen, shapes)

    def _cut_before(self, after: Position, pause: Pause) -> Cut:
        """The last cut before the change, so that the store waits with everything that came before. Stops when it holds that already."""
        rows = pause.position - 1 - after
        if rows > 0:
            cut = self._reader.cut_within(after, rows, 2**62)
            if cut.position < pause.position:
                return cut
        self.fail(pause.stopped)
        ask(self._run_dir, self.store, pause.topic, pause.position)
        raise pause.stopped

    def _apply(self, after: Position, upto: Position, seen: Survey, slices: Slices | None) -> Outcome:
        if slices is not None and self.on_workers and upto - after >= self.options.workers_from_rows and not seen.barriers:
            for found in seen.topics:
                for table in found.tables:
                    self._prepared.ensure(self._sink, table)
            return outcome_of(slices.frame.mapInArrow(on_workers(self._rules, self._writer()), _RESULT_DDL).toArrow())
        return apply_range(self._sink, self._reader, seen, self._prepared, self._rules)

    def _writer(self) -> Writer:
        return Writer(self._log_dir, self._opening.epoch, self._opening.number)

    def _commit(self, cut: Cut, outcome: Outcome) -> None:
        crashpoint("follower.before_commit")
        self._sink.commit(cut)
        crashpoint("follower.committed")
        self.applied = cut
        self.status.written += outcome.written
        self.status.stale += outcome.stale
        self.status.dead += len(outcome.dead)
        self.status.batches += 1
        news = (self.status.state, self.status.error) != ("following", None)
        if not self.stopped:
            self.status.state, self.status.error = "following", None  # what an accident left there is over
        self._show(cut)
        if news or self._clock() - self._told_at >= _TOLD_S:
            self._told_at = self._clock()
            self.report()

    def _show(self, cut: Cut) -> None:
        self.status.position, self.status.commit_lsn, self.status.commit_ts_us = cut.position, cut.commit_lsn, cut.commit_ts_us

    def _shut(self) -> None:
        if self._open:
            self._open = False
            self._opening.close()


def _beginning(run_dir: Path, store: str, kind: str) -> FollowerStatus:
    """Until the store has been opened, it is where it was last seen."""
    now = FollowerStatus(store=store, kind=kind, pid=os.getpid())
    seen = status.read_follower(run_dir, store)
    if seen is not None and seen.kind == kind:
        now.position, now.commit_lsn, now.commit_ts_us = seen.position, seen.commit_lsn, seen.commit_ts_us
        now.dead = seen.dead  # what was set aside stays so over a restart
    return now


def _of_one_part(stopped: Stopped, part: str) -> str | None:
    """The hint, with this part alone in the command: capture or another store may be stopped for the same reason."""
    command = f"cdc resume {stopped.state}"
    return stopped.hint and stopped.hint.replace(command, f"{command}:{part}").replace(f"{part}:{part}", part)


def _then_resume(hint: str | None) -> str:
    resume = f"cdc resume {StopState.STORE_REFUSES}"
    if hint and resume in hint:
        return hint
    return f"{hint}; then {resume}" if hint else resume
