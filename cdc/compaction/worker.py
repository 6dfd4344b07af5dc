"""The thread that compacts and retires: it looks at every topic now and then, while capture goes on beside it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from cdc.background import BackgroundPart, Interrupted, Notes
from cdc.compaction import retention
from cdc.compaction.ages import AgeKeeper
from cdc.compaction.bounds import WHILE_SCARCE, Settled, TopicPoints, Worth, bounds, due
from cdc.compaction.merge import Merged, compact
from cdc.compaction.oldness import old_upto
from cdc.compaction.pins import Pins, StorePin
from cdc.compaction.space import Space
from cdc.compaction.wholeness import Emptied, made_whole
from cdc.diskspace import FULL, free_bytes
from cdc.log.contract import ClosedRange, LogReader, LogUpkeep, Topic
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.settings.models import Cleanup, Log, Settings

LOOK_S: Final = 60.0
SPACE_S: Final = 5.0
"""The disk's free space is looked at this often: where it falls below the reserve, what may go goes at once."""
GRACE_S: Final = 600.0
"""What was replaced stays for so long, for whoever is reading it; unless the disk has refused something."""
LONGEST_PAUSE_S: Final = 3600.0
RECORDED_S: Final = 0.02
FREED_S: Final = 0.5
"""While a commit is waited for, what may go is freed this often."""

_log = structlog.get_logger("compaction")


def settled(reader: LogReader, log: Log, topic: Topic, ranges: Sequence[ClosedRange], now_us: int) -> Settled:
    """The topic's changes up to these positions are old enough to be dropped once superseded. ``ranges``: its closed ones. Raises OSError."""
    changes, deletes = (
        old_upto(reader, log, topic, [one for one in ranges if one.first >= begin], now_us, hours)
        for begin, hours in ((topic.clean_from, log.history_hours), (topic.floor, log.deletes_hours))
    )
    return Settled(changes, min(changes, deletes))


def wanted(reader: LogReader, upkeep: LogUpkeep, topic: Topic, old_enough: Settled, holding: Sequence[StorePin]) -> TopicPoints:
    """The points that the topic may get now."""
    schema = topic.schema
    held = [reader.last_change(topic.name, Position(pin.position)) if pin.position else 0 for pin in holding if pin.holds(schema)]
    return bounds(upkeep.ranges(topic.name), old_enough, held, TopicPoints(topic.clean_from, topic.floor))


def retired(
    reader: LogReader,
    upkeep: LogUpkeep,
    log: Log,
    topic: Topic,
    pins: Callable[[], Sequence[StorePin]],
    recorded: Callable[[], None],
) -> int:
    """Retires what of the topic is beyond its limits. Returns how many changes that were. ``pins``: asked just before anything is given up."""
    ranges = upkeep.ranges(topic.name)
    old = retention.old(reader, log, topic, ranges, time.time_ns() // 1000)
    if old.upto > 0:
        upkeep.close_newest(topic.name, old.upto)  # else a table with few changes would keep all of them
    if retention.kept_from(topic, ranges, old, ()) <= topic.kept_from:
        return 0
    held = [pin.position for pin in pins() if pin.holds(topic.schema)]
    return retention.retire(upkeep, topic, retention.kept_from(topic, ranges, old, held), recorded)


class _HeldBack(Exception):
    """A store has begun to need what was to be dropped."""


class Postponed(NamedTuple):
    """A topic that could not be compacted is left alone for ``pause_s``, ``until`` then (``time.monotonic``)."""

    pause_s: float
    until: float
    problem: str


NONE: Final = Postponed(0.0, 0.0, "")


class Compaction(BackgroundPart):
    """``start`` and ``join`` from the thread that owns the writer; the writer has to commit whenever ``upkeep.waiting()``."""

    def __init__(
        self,
        settings: Settings,
        upkeep: LogUpkeep,
        stop: threading.Event,
        *,
        in_force: Callable[[], Settings] | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """``in_force``: says the configuration as it is now, whose stores count (default: always these settings); asked by the thread that is
        started here. ``free``: the bytes that are free on the disk of a folder."""
        super().__init__("compaction")
        self._settings = settings
        self._upkeep = upkeep
        self._stop = stop
        self._examined: dict[str, int] = {}
        """Where the last look at each topic ended: a restart looks once more."""
        self._pins = Pins(in_force or (lambda: settings))
        self._failed: dict[str, Postponed] = {}
        """The topics that could not be compacted when they were tried last."""
        self._notes = Notes("the log is not being compacted", "compaction failed", _log)
        self._space = Space(settings.log, free)
        self._emptied = Emptied(upkeep)
        self._ages = AgeKeeper(settings.log)

    @property
    def _look_s(self) -> float:
        """Where nothing is kept for its age's sake there is nothing to wait for either."""
        return min(LOOK_S, max(0.2, 360.0 * self._settings.log.history_hours))

    def _run(self) -> None:
        next_look = time.monotonic() + self._look_s
        with closing(open_reader(self._settings.log.dir)) as reader:
            while not self._stop.wait(min(self._look_s, SPACE_S)):
                if time.monotonic() < next_look and not self._has_become_scarce():
                    continue
                next_look = time.monotonic() + self._look_s
                problems: list[str] = []
                with self._noting(problems):
                    self._look(reader, problems)
                self._problem = next(iter((*problems, *(one.problem for one in self._failed.values()))), None)

    @contextlib.contextmanager
    def _noting(self, problems: list[str]) -> Iterator[None]:
        """Notes what went wrong inside, for ``alarm``; whatever it is, capture goes on."""
        with self._notes.noting(problems):
            try:
                yield
            except OSError as error:
                self._space.refused |= error.errno in FULL
                raise

    def _look(self, reader: LogReader, problems: list[str]) -> None:
        with self._noting(problems):
            self._free()  # one that cannot go keeps no topic waiting
        self._recorded()
        now = time.monotonic()
        self._look_at_space(reader, problems)
        with self._noting(problems):
            self._ages.look(reader)
        ready = [topic for topic in reader.topics() if self._failed.get(topic.name, NONE).until <= now]
        for topic in ready:
            if self._cleanup(topic) == "delete":
                with self._postponing(topic, problems):
                    self._retire(reader, topic)
                    self._make_whole(reader, next(one for one in reader.topics() if one.name == topic.name))
        topics = [topic for topic in ready if self._due(topic, topic.last)]
        if not topics:
            return  # telling how old positions are reads some of the timeline
        before = len(problems)
        with self._noting(problems):
            self._space.check()
        if len(problems) > before:
            return
        holding = self._pins.look(now, reader)
        for topic in topics:
            with self._postponing(topic, problems):
                old_enough = settled(reader, self._settings.log, topic, self._upkeep.ranges(topic.name), time.time_ns() // 1000)
                points = wanted(reader, self._upkeep, topic, old_enough, holding)
                if self._due(topic, points.clean_from):
                    self._compact(reader, topic, points, old_enough)

    def _has_become_scarce(self) -> bool:
        with contextlib.suppress(OSError):  # the next look says it
            return self._space.scarce is None and self._space.short()
        return False

    def _look_at_space(self, reader: LogReader, problems: list[str]) -> None:
        """Where the disk has just become scarce, what was put off is due at once."""
        with self._noting(problems):
            if self._space.look():
                self._failed.clear()
                self._examined.clear()
        scarce = self._space.scarce
        if scarce is not None and any(self._cleanup(topic) != "keep" for topic in reader.topics()):
            if scarce != self._problem:
                _log.warning(scarce)
            problems.append(scarce)

    @property
    def _worth(self) -> Worth:
        return Worth() if self._space.scarce is None else WHILE_SCARCE

    @contextlib.contextmanager
    def _postponing(self, topic: Topic, problems: list[str]) -> Iterator[None]:
        """Where something goes wrong inside, the topic is left alone for a while."""
        self._go_on()
        before = len(problems)
        with self._noting(problems):
            yield
        if len(problems) > before:
            # What failed once may fail again, and each attempt reads the whole topic.
            pause_s = min(max(2 * self._failed.get(topic.name, NONE).pause_s, self._look_s), LONGEST_PAUSE_S)
            self._failed[topic.name] = Postponed(pause_s, time.monotonic() + pause_s, problems[-1])
        else:
            self._failed.pop(topic.name, None)

    def _cleanup(self, topic: Topic) -> Cleanup:
        return self._pins.cleanup(self._settings.log, topic)

    def _retire(self, reader: LogReader, topic: Topic) -> None:
        gone = retired(
            reader, self._upkeep, self._settings.log, topic, lambda: self._pins.look(time.monotonic(), reader), self._recorded
        )
        if gone:
            _log.info(f"retired {gone} changes of {topic.name}", facts={"topic": topic.name, "retired": gone})

    def _make_whole(self, reader: LogReader, topic: Topic) -> None:
        """Where the topic was emptied since its beginning went, it can be read from 0 on again."""
        if topic.kept_from <= 1 or topic.whole:
            return
        pins = [pin.position for pin in self._pins.every(time.monotonic(), reader) if pin.holds(topic.schema)]
        lacking = any(pin + 1 < topic.kept_from for pin in pins)
        at = self._emptied.at(topic.name, everywhere=lacking, go_on=self._go_on)
        if at < topic.kept_from:
            if lacking and self._emptied.in_newest(reader, topic):
                self._upkeep.close_newest(topic.name, topic.last)
            return
        holding = [pin.position for pin in self._pins.look(time.monotonic(), reader) if pin.holds(topic.schema)]
        if made_whole(self._upkeep, topic, at, holding, self._recorded):
            _log.info(f"{topic.name} can be read from its beginning again", facts={"topic": topic.name, "emptied_at": at})

    def _due(self, topic: Topic, clean_from: int) -> bool:
        if self._cleanup(topic) != "compact":
            return False
        return due(self._upkeep.ranges(topic.name), clean_from, self._examined.get(topic.name, 0), self._worth.new)

    def _compact(self, reader: LogReader, topic: Topic, points: TopicPoints, old_enough: Settled) -> None:
        size = self._settings.log.segment_bytes
        begun = False

        def go_on(more: int) -> None:
            nonlocal begun
            self._go_on(more)
            if more and not begun:
                # Choosing has taken its time: a store may have been added, or restored, meanwhile.
                begun = True
                now = wanted(reader, self._upkeep, topic, old_enough, self._pins.look(time.monotonic(), reader))
                if now.clean_from < points.clean_from or now.floor < points.floor:
                    raise _HeldBack

        try:
            share = self._worth.dropped
            done = compact(self._upkeep, topic.name, points, self._recorded, go_on=go_on, at_least=share, target_bytes=size)
        except _HeldBack:
            return  # the next look reckons with it
        self._examined[topic.name] = points.clean_from - 1
        if done.dropped:
            said(done)

    def _go_on(self, more: int = 0) -> None:
        """``more``: bytes that are about to be written."""
        if self._stop.is_set():
            raise Interrupted
        if more and self._space.short(more):
            self._upkeep.remove_replaced(0.0)
            self._space.check(more)

    def _free(self) -> None:
        """Whoever is reading what was replaced may go on, unless its space is needed. Raises OSError."""
        needed = self._space.refused or self._space.short()
        self._upkeep.remove_replaced(0.0 if needed else min(GRACE_S, 3600.0 * self._settings.log.history_hours))
        self._space.refused = False

    def _recorded(self) -> None:
        """The commit may be waiting for the very space that was replaced before."""
        freed_at = time.monotonic()
        while self._upkeep.waiting():
            if self._stop.wait(RECORDED_S):
                raise Interrupted
            if time.monotonic() - freed_at >= FREED_S:
                freed_at = time.monotonic()
                with contextlib.suppress(OSError):  # the next look says it
                    self._free()


def said(done: Merged) -> None:
    _log.info(
        f"compacted {done.topic}: {done.dropped} of {done.read} changes were superseded",
        facts={"topic": done.topic, "dropped": done.dropped, "read": done.read, "written_bytes": done.written},
    )
