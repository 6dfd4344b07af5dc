"""Brings on the generations that are kept, as long as they are to be, so that `cdc rollback` has next to nothing left to do; removes them then.

A thread of the followers' process beside the stores' own, so nothing of it holds up what readers see. It takes one generation after the other, a second or so at
a time. Each is a store in itself: it says how far it is, and one that fails is left alone for a while, and said to be by its status, while others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.background import BackgroundPart, Interrupted, Notes
from cdc.clock import MACHINE
from cdc.errors import HeadwaterError, LogReplaced, StoreError
from cdc.follow.ranges import ChangeWaits
from cdc.follow.rules import Rules
from cdc.generations.alone import GenerationInUse, alone, writing
from cdc.generations.follower import GenerationFollower
from cdc.generations.refusals import refuse_beyond
from cdc.generations.reporter import GenerationReporter
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.lookup.former import held_log
from cdc.model.lineage import Lineage
from cdc.model.position import ZERO_CUT, Cut
from cdc.report.currentlog import CurrentLog
from cdc.settings.models import Settings, StoreOptions
from cdc.state import status
from cdc.state.approvals import approved
from sinks import generations_of
from sinks.contract import Sink
from sinks.generations import GenerationEntry, Generations, GenerationState

FED_S: Final = 1.0
"""A store with kept generations is looked at so often,"""
LOOK_S: Final = 10.0
"""one without so often."""
TURN_S: Final = 1.0
"""One generation's turn takes no more than the range at hand beyond that."""
RETRY_S: Final = (5.0, 15.0, 60.0)
"""After the first, second, … failure of a generation in a row."""

_log = structlog.get_logger("generations")


@dataclass(slots=True)
class _Fed:
    """One kept generation."""

    sink: Sink
    follower: GenerationFollower
    reporter: GenerationReporter
    cut: Cut | None = None
    """What it holds; None while its sink is closed."""
    lineage: Lineage | None = None
    """The log's, when it was opened."""
    failures: int = 0
    again_at: float = 0.0
    """Monotonic."""

    def close(self) -> None:
        self.cut = None
        self.sink.close()


@dataclass(slots=True)
class _FedStore:
    """One store's generations, as long as its options stay the same."""

    name: str
    options: StoreOptions
    generations: Generations
    fed: dict[int, _Fed] = field(default_factory=dict)

    def entry(self, number: int) -> GenerationEntry | None:
        return next((one for one in self.generations.entries() if one.number == number), None)

    def leave(self, number: int) -> None:
        if (fed := self.fed.pop(number, None)) is not None:
            fed.close()

    def close(self) -> None:
        for number in list(self.fed):
            self.leave(number)
        self.generations.close()


class GenerationFeeder(BackgroundPart):
    """``wanted``: gives the stores that are followed here by now; asked by this thread. ``stop`` ends it."""

    def __init__(self, settings: Settings, wanted: Callable[[], Mapping[str, StoreOptions]], stop: threading.Event) -> None:
        super().__init__("feed-generations", nice=0)
        self._settings = settings
        self._wanted = wanted
        self._stop = stop
        self._stores: dict[str, _FedStore] = {}
        self._again_at: dict[str, float] = {}
        """When each store is looked at next: monotonic."""
        self._notes = Notes("kept generations are not fed", "feeding kept generations failed", _log)

    def _run(self) -> None:
        try:
            while True:
                with self._notes.noting([]), closing(open_reader(self._settings.log.dir)) as reader:
                    log = CurrentLog(reader, self._settings.log.dir)
                    while True:
                        began = MACHINE.monotonic()
                        with log.looked_at():
                            behind = self._round(reader)
                        # One that is behind leaves half of the time to those that readers see.
                        self._rest(min(MACHINE.monotonic() - began, TURN_S) if behind else FED_S)
                self._rest(RETRY_S[0])
        finally:
            for one in self._stores.values():
                one.close()

    def _rest(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Interrupted

    def _round(self, reader: LogReader) -> bool:
        """Every store's generations have a turn. Returns whether one of them is still behind."""
        behind = False
        wanted = {name: options for name, options in self._wanted().items() if options.generational}
        for name in [name for name, one in self._stores.items() if wanted.get(name) != one.options]:
            self._stores.pop(name).close()
            self._again_at.pop(name, None)
        for name, options in wanted.items():
            if MACHINE.monotonic() < self._again_at.get(name, 0.0):
                continue
            problems: list[str] = []
            with self._notes.noting(problems):
                behind |= self._turn(name, options, reader)
            fed = name in self._stores and self._stores[name].fed
            self._again_at[name] = MACHINE.monotonic() + (RETRY_S[0] if problems else 0.0 if fed else LOOK_S)
        return behind

    def _turn(self, name: str, options: StoreOptions, reader: LogReader) -> bool:
        if name not in self._stores:
            self._stores[name] = _FedStore(name, options, generations_of(name, options))
        return self._look(self._stores[name], reader)

    def _look(self, store: _FedStore, reader: LogReader) -> bool:
        try:
            entries = {one.number: one for one in store.generations.entries()}
        except StoreError as error:
            if not error.retryable:
                raise
            for fed in store.fed.values():
                fed.close()
                fed.reporter.fails(error.line())
            return False  # it is down, as its follower says
        kept = [one for one in entries.values() if one.state is GenerationState.KEPT]
        for number in set(store.fed) - {one.number for one in kept}:
            store.leave(number)
        self._forget(store.name, entries)
        behind = False
        for one in kept:
            if self._stop.is_set():
                raise Interrupted
            with suppress(GenerationInUse):
                if one.until is not None and one.until <= time.time():
                    self._remove(store, one.number)
                else:
                    behind |= self._feed(store, one.number, reader)
        return behind

    def _forget(self, name: str, entries: Mapping[int, GenerationEntry]) -> None:
        """The status of generations that there are no more, or that readers see."""
        for told in status.read_generations(self._settings.run_dir, name):
            entry = entries.get(told.number)
            # One that was just begun is not in the register yet.
            if entry.state is GenerationState.LIVE if entry is not None else not status.reports(told):
                status.remove(self._settings.run_dir, told.part)

    def _remove(self, store: _FedStore, number: int) -> None:
        log_dir, name = self._settings.log.dir, store.name
        with alone(log_dir, name), writing(log_dir, name, number, patience_s=0.0):
            entry = store.entry(number)
            if entry is None or entry.state is not GenerationState.KEPT or entry.until is None or entry.until > time.time():
                return
            store.leave(number)
            store.generations.drop(number)
            GenerationReporter(self._settings.run_dir, name, number, "kept").gone()
        _log.info(
            f"store {name}: generation {number} was removed, as the time for which it was kept is over", facts={"store": name}
        )

    def _feed(self, store: _FedStore, number: int, reader: LogReader) -> bool:
        fed = store.fed.get(number)
        if fed is None:
            fed = store.fed[number] = self._fed(store, number, reader)
        if MACHINE.monotonic() < fed.again_at:
            return False
        with writing(self._settings.log.dir, store.name, number, patience_s=0.0):
            entry = store.entry(number)
            if entry is None or entry.state is not GenerationState.KEPT:
                store.leave(number)  # it was put back or removed just now
                return False
            try:
                behind = self._brought_on(store.name, number, fed)
            except (HeadwaterError, ChangeWaits) as error:
                fed.close()
                fed.again_at = MACHINE.monotonic() + RETRY_S[min(fed.failures, len(RETRY_S) - 1)]
                fed.failures += 1
                fed.reporter.fails(error.pause.stopped.line() if isinstance(error, ChangeWaits) else error.line())
                if isinstance(error, LogReplaced):
                    raise
                return False
            fed.failures = 0
            fed.reporter.holds(fed.cut or ZERO_CUT, entry.until)
        return behind

    def _fed(self, store: _FedStore, number: int, reader: LogReader) -> _Fed:
        run_dir, held = self._settings.run_dir, held_log(reader, store.name, store.options, self._settings.log.dir)
        rules = Rules(store.name, store.options, self._settings.contracts, approved(run_dir, store.name))
        follower = GenerationFollower(self._settings.log.dir, held, rules, self._stop)
        return _Fed(store.generations.sink(number), follower, GenerationReporter(run_dir, store.name, number, "kept"))

    def _brought_on(self, name: str, number: int, fed: _Fed) -> bool:
        """Takes what the log has, for a turn. Returns whether there is more."""
        until, reader = MACHINE.monotonic() + TURN_S, fed.follower.reader
        if fed.cut is not None and (fed.lineage != reader.lineage() or fed.sink.applied().position < fed.cut.position):
            fed.close()  # the log was restored, or the store, or it has lost something
        if fed.cut is None:
            fed.lineage = reader.lineage()
            opened = fed.follower.open(fed.sink)
            refuse_beyond(reader.head(), opened, f"generation {number} of store {name}")
            fed.cut = opened
        head = reader.head()
        while fed.cut.position < head.position:
            if self._stop.is_set():
                raise Interrupted
            fed.cut = fed.follower.step(fed.sink, fed.cut, head)
            if MACHINE.monotonic() >= until:
                return fed.cut.position < head.position
        return False
