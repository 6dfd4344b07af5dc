"""One store's follower: applies ranges of the log and keeps the store's word on how far it is above all else.

It repeats one thing: take the range of the log that begins where the store stands, apply it, and have the store commit the cut at its end. The
store alone says how far it is. ``applied`` here is what it said when it was opened or committed last, and it is asked again every second or
two while the follower is at it; Spark's checkpoint is a convenience. From that follows:

- **A crash between any two steps** does no harm. The range was committed, or it is applied again, and the store's guard
  (``sinks.contract``) makes rows that are written twice change nothing.
- **A store that was flushed or restored** says so by a lower cut, also when no call has failed: it is opened again, and filled from there up to
  where it was asked to be before (``_goal``).
- **A store that knows more than the log**, or that another log has filled, is a stop state: there is nothing that could be brought to it.
  An operator may have it built again from the log (``rebuilding``).

A follower is *starting*, *rebuilding*, *following*, *waiting* for a store that is down, or in a stop state; the last is recorded and outlives the process, until
an operator ends it. What an attempt ends with decides (``_retry_while_down``). A retryable StoreError closes the store and tries again, after
pauses that grow up to ``LONGEST_RETRY_S``. Any other error that names what is wrong (StoreError, Stopped, ConfigError) enters a stop state, and
holds up this store only.

What takes long is written as steps, which are driven by the store's thread, by its Spark query, or by the simulator, in which anything may
happen between two of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, HeadwaterError, Stopped, StoreError
from cdc.follow.access import Opening, Ports
from cdc.follow.apply import Slices
from cdc.follow.failures import counted_apart
from cdc.follow.leasehold import LeaseLost
from cdc.follow.ranges import ChangeWaits, Opened, Ranges
from cdc.follow.rebuild import Rebuilding
from cdc.follow.reporter import Reporter
from cdc.follow.rules import Rules
from cdc.log.contract import LogReader
from cdc.lookup.former import held_log
from cdc.model.position import ZERO_CUT, Cut
from cdc.settings.models import Contract, StoreOptions
from cdc.state.approvals import approved
from cdc.state.status import FollowerStatus
from sinks.contract import Deferring, Outcome, Sink

FIRST_RETRY_S: Final = 0.2
LONGEST_RETRY_S: Final = 15.0
LARGE_ROWS: Final = 20_000
"""A range of so many rows is work for a Spark query, in micro-batches with their limits on rows and bytes, where Spark's workers apply it."""
_LOOK_AT_THE_STORE_S: Final = 1.0
"""While changes come. A store for which there are none is looked at half as often: nearly all that standing by costs is these looks."""


class Step(StrEnum):
    """A step that a follower has just taken. Anything may happen before the next one."""

    OPENED = "opened"
    APPLIED = "applied"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Rest:
    """The store is down: it is tried again after so long."""

    seconds: float


Steps = Generator[Step | Rest, None, bool]
"""Returns whether it succeeded."""


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
        ports: Ports | None = None,
    ) -> None:
        ports = ports or Ports()
        self.options = options
        self.applied: Cut = ZERO_CUT
        reader = held_log(reader, store, options, log_dir)
        self._reader = reader
        self._reporter = Reporter(run_dir, store, options.kind, ports.clock, ports.show)
        self._reporter.status.version_days = dict(options.version_days)
        rules = Rules(store, options, contracts or {}, approved(run_dir, store))
        self._ranges = Ranges(options, reader, rules, ports.clock)
        rebuilding = Rebuilding(rules, reader, stop, self._reporter.rebuilding)
        self._opening = Opening(store, options, log_dir, reader, run_dir, ports, rebuilding)
        self._clock = ports.clock
        self._stop = stop
        self._lock = threading.RLock()
        self._looked_at = 0.0
        self._idled_at = 0.0
        self._goal = ZERO_CUT
        """How far this follower has been asked to go: where a store that lost something is brought again."""

    @property
    def _sink(self) -> Sink:
        return self._opening.sink

    @property
    def store(self) -> str:
        return self.status.store

    @property
    def status(self) -> FollowerStatus:
        return self._reporter.status

    @property
    def history(self) -> str | None:
        """The log's, when the store was opened (``LogReader.read``)."""
        return self._opening.history

    @property
    def stopped(self) -> bool:
        """In a stop state: an operator has to decide."""
        return self._reporter.stopped

    @property
    def by_query(self) -> bool:
        """Large ranges come through a Spark query, whose workers share them. Elsewhere it would only say how far to go, and cost more than the rest."""
        return self._ranges.on_workers(self._sink)

    def next_step(self) -> Cut:
        """How far to go now so that the next commit comes in a few seconds."""
        return self._ranges.within(self.applied.position)

    def take_lease(self) -> None:
        """Raises HeadwaterError when another process follows this store. ``start`` does it, too, and waits then."""
        self._opening.lease.take()

    def release_lease(self) -> None:
        self._opening.lease.release()

    @property
    def lost(self) -> bool:
        """Another process follows the store from now on; this follower has ended by itself, and says no more of the store."""
        return self._opening.lease.lost

    def start(self) -> bool:
        """Opens the store, waiting for it as long as it takes. False when the follower must not run (stopped, or asked to stop)."""
        return self._drive(self._retry_while_down(self._ensure_open))

    def follow_to(self, end: Cut, slices: Slices | None = None) -> None:
        """Applies everything from what the store holds up to ``end`` and commits it there.

        slices: the micro-batch's, used only when they are the whole of a large range and the store takes several writers. Returns
        early, with less applied, only when asked to stop or in a stop state: the store knows, so nothing is lost.
        """
        with self._lock:
            self._drive(self.pursue(end, slices))

    def pursue(self, end: Cut, slices: Slices | None = None) -> Steps:
        """``follow_to`` as steps, for who drives them in a thread that has more to do. Nothing of this follower may be called between two."""
        self._goal = max(self._goal, end, key=lambda cut: cut.position)
        return self._retry_while_down(lambda: self._advance(end, slices))

    def idle(self) -> None:
        """Looks whether the store still holds what it held, and moves its LSN on when the source commits nothing of ours.

        Does so every two seconds at most, and never while a range is being applied.
        """
        now = self._clock.monotonic()
        if now - self._idled_at < 2 * _LOOK_AT_THE_STORE_S or self.stopped or not self._lock.acquire(blocking=False):
            return
        try:
            self._idled_at = now
            self._drive(self.keep_up())
        finally:
            self._lock.release()

    def keep_up(self) -> Steps:
        """``idle`` as steps, whatever the time."""
        return self._retry_while_down(self._kept_up, once=True)

    def settled(self) -> None:
        """Reports the last commit, unless the log holds more already, or it was reported."""
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

    @property
    def counted(self) -> int:
        """Changes that came to the store, or would have: written, known already, or set aside."""
        return self.status.written + self.status.stale + self.status.dead

    def report(self, *, when_due: bool = False) -> None:
        """Writes the status file. when_due: only if something has changed, or nobody has heard of this store for a while."""
        self._reporter.report(when_due=when_due)

    def fail(self, error: HeadwaterError) -> None:
        """Enters the stop state that the error names; it is recorded, and so survives a restart."""
        self._reporter.failed(error)

    def close(self) -> None:
        with self._lock:
            self._opening.close()
            self._opening.lease.release()
            if not self.lost:
                self._reporter.exited()

    def _drive(self, steps: Steps) -> bool:
        """Takes all of them in this thread."""
        while True:
            try:
                step = next(steps)
            except StopIteration as ended:
                return bool(ended.value)
            if isinstance(step, Rest):
                self._clock.wait(self._stop, step.seconds)

    def _retry_while_down(self, attempt: Callable[[], Iterator[Step]], *, once: bool = False) -> Steps:
        """Runs it until it succeeds, while the store is down with longer and longer pauses; once: until it has failed once. False: it did not
        succeed, as the follower is stopped or asked to stop, or the store is down."""
        pause_s = FIRST_RETRY_S
        while not self._stop.is_set() and not self.stopped:
            try:
                try:
                    yield from attempt()
                except HeadwaterError:
                    self._opening.lease.refuse_lost()  # whatever it was, it is the next one's by now
                    raise
            except LeaseLost:
                self._opening.close()
                self._stop.set()
                return False
            except StoreError as error:
                self._opening.close()
                self._ranges.failed()
                if not error.retryable:
                    self.fail(error)
                    return False
                self._reporter.waiting(error)
                if once:
                    return False
                # Jitter, so that several followers do not knock at a recovering server in step.
                yield Rest(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)
            except Stopped as error:
                self._opening.close()
                self.fail(error)
                return False
            except ConfigError as error:
                # A store's options do not fit a table as it is by now, such as a key template that names a column which is gone.
                self._opening.close()
                self.fail(error)
                return False
            else:
                self._reporter.following()
                return True
        return False

    def _kept_up(self) -> Iterator[Step]:
        yield from self._advance(self._goal, None)
        head = self._reader.head()
        if head.position == self.applied.position and head.commit_lsn > self.applied.commit_lsn:
            self._commit(head, Outcome(0))
            yield Step.COMMITTED

    def _ensure_open(self) -> Iterator[Step]:
        if self._opening.is_open and self._opening.outdated():
            self._opening.close()
        if not self._opening.is_open:
            self._ranges.forget()
            try:
                self._adopt(self._opening.open())
            except ChangeWaits as waits:
                self._reporter.asks(waits.pause)
                raise waits.pause.stopped from None
            crashpoint("follower.opened")
            self._decide_letters()
            yield Step.OPENED
        if self.status.state in ("starting", "rebuilding"):
            self._reporter.following()  # one that waits for its store does so until the store has taken something: its disk may be full

    def _look_at_the_store(self) -> Iterator[Step]:
        """A store may be flushed or restored behind our back without a single failing call; and so may the log's folder."""
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK_AT_THE_STORE_S:
            return
        self._opening.check()
        if self._opening.asked_to_rebuild():
            self._opening.close()
            yield from self._ensure_open()
        applied = self._sink.applied()
        if (applied.position, applied.commit_lsn) != (self.applied.position, self.applied.commit_lsn):
            # Opened again, so that the sink forgets what it thought to know, too.
            self._opening.close()
            yield from self._ensure_open()
        self._decide_letters()
        self._looked_at = now

    def _decide_letters(self) -> None:
        self._opening.decide_letters(self.applied)
        self._report_what_is_left()

    def _report_what_is_left(self) -> None:
        """Before anything that was committed is reported: so nobody thinks meanwhile that all of it is done with."""
        self._reporter.returns_to(self._opening.returns_to())
        self._reporter.letters(self._opening.letters())

    def _adopt(self, applied: Cut) -> None:
        """What the store itself says that it holds."""
        self.applied = applied
        self._looked_at = self._clock.monotonic()
        self._reporter.found(applied)
        self._report_what_is_left()

    def _advance(self, end: Cut, slices: Slices | None) -> Iterator[Step]:
        yield from self._ensure_open()
        yield from self._look_at_the_store()
        while self.applied.position < end.position and not self._stop.is_set():
            yield from self._ensure_open()
            opened = Opened(self._sink, self._opening.writer)
            try:
                taken = self._ranges.take(opened, self.applied.position, end, slices)
            except ChangeWaits as waits:
                self._reporter.asks(waits.pause)
                raise waits.pause.stopped from None
            yield Step.APPLIED
            self._commit(taken.cut, taken.outcome)
            self._ranges.committed(taken)
            yield Step.COMMITTED

    def _commit(self, cut: Cut, outcome: Outcome) -> None:
        crashpoint("follower.before_commit")
        self._sink.commit(cut)
        crashpoint("follower.committed")
        if isinstance(self._sink, Deferring) and (refused := self._sink.refused()):
            outcome = counted_apart(outcome, refused)
        self.applied = cut
        self._report_what_is_left()
        self._reporter.committed(cut, outcome)
