"""How a follower takes hold of its store: its lease, a rebuild that was asked for, and the store's marks compared with the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.errors import AnotherHistory, HeadwaterError, LogReplaced, Stopped, StopState, StoreError
from cdc.follow.apply import StoreWriter
from cdc.follow.leasehold import LeaseHold, TakeLease
from cdc.follow.letters import Deciding
from cdc.follow.rebuild import Rebuilding
from cdc.follow.reporter import Show, written
from cdc.log.contract import COMES_WITH_CAPTURE, selected
from cdc.model.position import Cut, Lsn, Position
from cdc.settings.models import StoreOptions
from cdc.state import rebuilds, status
from cdc.state.lease import LeaseHeld, take
from sinks import make_sink
from sinks.contract import EpochPassed, Returning, Sink
from sinks.deadletters import Letter, LetterBox, box_of
from sinks.heldlog import HeldLog

Done = TypeVar("Done")


def _of_its_kind(store: str, options: StoreOptions) -> Sink:
    return make_sink(store, options)


@dataclass(frozen=True, slots=True)
class Ports:
    """A follower's surroundings, beside its log. ``lease``: as ``cdc.state.lease.take``."""

    clock: Clock = MACHINE
    sink: Callable[[str, StoreOptions], Sink] = _of_its_kind
    lease: TakeLease = take
    show: Show = written
    """Shows others how the follower stands."""


class Opening:
    """One store's sink, opened under this follower's lease. Not thread-safe."""

    def __init__(
        self,
        store: str,
        options: StoreOptions,
        log_dir: Path,
        reader: HeldLog,
        run_dir: Path,
        ports: Ports,
        rebuilding: Rebuilding,
    ) -> None:
        self.number = 0
        """Rises each time that the store is opened: what others knew of it before no longer counts."""
        self._store = store
        self._options = options
        self._reader = reader
        self._run_dir = run_dir
        self._ports = ports
        self._rebuilding = rebuilding
        self.lease = LeaseHold(store, log_dir, ports.lease, ports.clock)
        self.is_open = False
        self.history: str | None = None
        """The log's, when the store was opened."""

    @cached_property
    def sink(self) -> Sink:
        """Made when it is opened: options that no store can be made with, such as an invalid address, are this store's concern alone."""
        return self._ports.sink(self._store, self._options)

    @cached_property
    def _box(self) -> LetterBox | None:
        return box_of(self.sink)

    def letters(self) -> Sequence[Letter]:
        """The open store's dead letters: the same object for as long as they do not change."""
        return () if self._box is None else self._box.letters()

    def returns_to(self) -> Position | None:
        """As ``sinks.contract.Returning`` says; None of any other store."""
        return self.sink.returns_to() if isinstance(self.sink, Returning) else None

    def decide_letters(self, applied: Cut) -> None:
        """Carries out what operators have asked about dead letters. Raises StoreError."""
        if self._box is not None and Deciding(self.sink, self._box, self._reader, applied, self._options.tables).carry_out(
            self._run_dir
        ):
            self.number += 1  # so that workers read them again

    @property
    def writer(self) -> StoreWriter:
        """As whom Spark's workers write to the store while it is open."""
        return StoreWriter(self.lease.log_dir, self.lease.epoch, self.number, self.history)

    def check(self) -> None:
        """Raises LogReplaced when the log's folder was: what is being read may be the one that was there before; LeaseLost."""
        try:
            self.lease.check()
        except LogReplaced:
            self._reader.close()  # it opens what stands there now
            raise

    def outdated(self) -> bool:
        """Whether the log has begun another history since the store was opened, or raised a floor: its marks have to be compared with that."""
        lineage = self._reader.lineage()
        return lineage is not None and lineage.history != self.history

    def open(self) -> Cut:
        """Returns from where the store is to be brought on, once it was built again where that was asked for, or built because it holds nothing and
        that is much less than all changes. Raises StoreError, Stopped, ConfigError, ChangeWaits, LeaseLost."""
        try:
            self.lease.take()
        except LeaseHeld as error:
            raise StoreError(str(error), retryable=True, hint=error.hint) from error
        lineage = self._reader.lineage()
        if lineage is None:
            raise StoreError(
                f"there is no log in {self.lease.log_dir} yet",
                retryable=True,
                hint=COMES_WITH_CAPTURE,
            )
        asked = rebuilds.requested(self._run_dir, self._store)
        self._reader.forget()
        if asked is not None:
            self._above_others(lambda: self._rebuilding.carry_out(self.sink, self.lease.epoch))
            crashpoint("rebuild.written")
            self._reader.forget()
        if self.sink.traits.events and (seen := status.read_follower(self._run_dir, self._store)) is not None:
            # What it may have to read again it has not handed on.
            position = seen.position if seen.returns_to is None else min(seen.position, seen.returns_to - 1)
            self.sink.close()  # one whose last opening was broken off behind its own part would take this for a commit
            self.sink.commit(Cut(Position(position), Lsn(seen.commit_lsn), seen.commit_ts_us))
        applied = self._above_others(lambda: self.sink.open(self._reader, self.lease.epoch))
        if self._reader.lineage() != lineage:
            self.sink.close()
            raise AnotherHistory(self._store)
        self.history = lineage.history
        self._refuse_what_the_log_lacks(applied)
        self._settle()
        if asked is not None:
            crashpoint("rebuild.opened")
            self._rebuilding.name_failed(self.sink)
            rebuilds.carried_out(self._run_dir, self._store)
            crashpoint("rebuild.done")
        elif self._is_empty(applied) and self._saves_most():
            # Asked durably: one that was built in part has rows of which the log may lose the DELETEs, so it is built to its end.
            rebuilds.request(self._run_dir, self._store, None)
            crashpoint("newstore.asked")
            self.sink.close()
            return self.open()
        self.number += 1
        self.is_open = True
        return applied

    def asked_to_rebuild(self) -> bool:
        """Whether an operator has asked for a rebuild that was not carried out yet. Raises StoreError when nobody can tell."""
        return rebuilds.requested(self._run_dir, self._store) is not None

    def close(self) -> None:
        """Closes the sink if it is open; the lease is kept."""
        if self.is_open:
            self.is_open = False
            self.sink.close()

    def _above_others(self, work: Callable[[], Done]) -> Done:
        """Does it as the latest writer."""
        try:
            return work()
        except EpochPassed as passed:
            self.lease.go_above(passed.seen)
        return work()

    def _refuse_what_the_log_lacks(self, applied: Cut) -> None:
        held = max([applied.position, *(self.sink.held(topic) for topic in self._topics())])
        if held <= self._reader.head().position:
            return
        if held <= self._reader.written().position:
            raise StoreError(
                f"store {self._store} holds position {held}; the log has that, but has not been opened for writing since the power was lost",
                retryable=True,
                hint="start capture, which recovers the log",
            )
        raise Stopped(
            StopState.DIVERGED,
            f"store {self._store} holds position {held}, the log ends at {self._reader.head().position}: the log or the store was restored",
            hint=f"put the right copy back; or cdc resume {StopState.DIVERGED} --rebuild, which builds the store again from the log",
        )

    def _settle(self) -> None:
        """Refuses other columns than those that the store holds; by these alone what was left unfinished is read from the log."""
        try:
            self._reader.settle(self.sink)
            self.sink.finish()
        except HeadwaterError:
            self.sink.close()
            raise

    def _is_empty(self, applied: Cut) -> bool:
        """Whether the store holds nothing of the log; never of one that keeps no rows, which is given every change."""
        return self.sink.traits.keeps_rows and not (applied.position or any(self.sink.held(topic) for topic in self._topics()))

    def _saves_most(self) -> bool:
        try:
            return self._rebuilding.saves_most()
        except HeadwaterError:
            self.sink.close()
            raise

    def _topics(self) -> Iterable[str]:
        return [topic.name for topic in selected(self._reader, self._options.tables)]
