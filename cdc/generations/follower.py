"""Brings a generation on that readers do not see, in the thread that asks: while it is built, before it is put back, and while it is kept.

It writes under the epoch that the generation has seen last. What keeps two of them apart is a lock (``cdc.generations.alone.writing``); once the generation is
live, the store's own follower takes over, by an epoch that is as high or higher, under the store's lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.clock import MACHINE
from cdc.errors import AnotherHistory, StoreError
from cdc.follow.apply import StoreWriter
from cdc.follow.ranges import Opened, Ranges
from cdc.follow.rules import Rules
from cdc.model.position import Cut
from sinks.contract import EpochPassed, Sink
from sinks.heldlog import HeldLog

BUILDER_EPOCH: Final = 1
"""No follower's is lower."""
CLOSE_S: Final = 1.0
"""A pass over what the log has got that took no longer leaves little for the time while the live generation is held."""
PASSES_MAX: Final = 20


@dataclass(slots=True)
class GenerationFollower:
    """Works on one generation's sink. ``show``: called with what it holds, and with how many changes of how many have been taken. ``stop`` ends it, with a retryable
    StoreError."""

    log_dir: Path
    reader: HeldLog
    rules: Rules
    stop: threading.Event
    show: Callable[[Cut, int, int], None] = lambda *_: None
    _epoch: int = field(default=BUILDER_EPOCH, init=False)
    _ranges: Ranges = field(init=False)

    def __post_init__(self) -> None:
        self._ranges = Ranges(self.rules.options, self.reader, self.rules, MACHINE)

    def open(self, sink: Sink) -> Cut:
        """Returns what it holds. Raises as ``Sink.open`` does, but for EpochPassed, and as ``HeldLog.settle``."""
        self._ranges.forget()
        self._epoch = BUILDER_EPOCH
        try:
            cut = self.reader.opened(sink, self._epoch)
        except EpochPassed as passed:
            self._epoch = passed.seen
            cut = self.reader.opened(sink, self._epoch)
        sink.finish()
        return cut

    def step(self, sink: Sink, cut: Cut, end: Cut) -> Cut:
        """Takes one range that begins at ``cut``, and commits it; returns its end. Raises ChangeWaits, StoreError, Stopped, ConfigError."""
        lineage = self.reader.lineage()
        history = None if lineage is None else lineage.history
        taken = self._ranges.take(Opened(sink, StoreWriter(self.log_dir, self._epoch, 1, history)), cut.position, end, None)
        sink.commit(taken.cut)
        self._ranges.committed(taken)
        return taken.cut

    def follow(self, sink: Sink, cut: Cut, end: Cut) -> Cut:
        """Takes all of it. Raises as ``step`` does, but for AnotherHistory unless that comes again and again."""
        begin, again = cut.position, 0
        while cut.position < end.position:
            if self.stop.is_set():
                raise StoreError(f"store {self.rules.store}: its other generation was not brought on to the end", retryable=True)
            self.show(cut, cut.position - begin, end.position - begin)
            try:
                cut, again = self.step(sink, cut, end), 0
            except AnotherHistory:
                if (again := again + 1) == PASSES_MAX:
                    raise
                cut = self.open(sink)
        return cut

    def catch_up(self, sink: Sink, cut: Cut) -> Cut:
        """Takes what the log has, until a pass over it has taken little time. Raises as ``step`` does."""
        for _ in range(PASSES_MAX):
            began = MACHINE.monotonic()
            cut = self.follow(sink, cut, self.reader.head())
            if MACHINE.monotonic() - began < CLOSE_S:
                return cut
        raise StoreError(
            f"store {self.rules.store}: its other generation does not catch up with the log",
            retryable=True,
            hint="run it again when less is written",
        )
