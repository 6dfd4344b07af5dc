"""The parts that a worker has sent into the stream and not seen durable yet: what it has to wait for next, and when it has to begin again. Waits for nothing.

The worker asks it (``reading``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.model.batch import EXACT, Op
from cdc.model.pgtypes import canonical_text
from snapshots.feed import Chunk, SnapshotFeed, State
from snapshots.fence import Window
from snapshots.jobs import Job, Task
from snapshots.plan import KeyList
from snapshots.steps import Started

IN_FLIGHT: Final = 3
"""So many parts of a worker may be on their way to their watermarks, and so in memory."""
ARRIVED: Final = frozenset({State.ENTERED, State.DURABLE, State.REFUSED})
SAFE: Final = frozenset({State.DURABLE, State.REFUSED})


class Again(Exception):
    """A part was refused at its watermark, or its table has changed: the job has to be recreated from what is durable."""


@dataclass(slots=True, eq=False)
class Reading:
    """A task of which parts may still be on their way."""

    task: Task
    window: Window
    rows: int = 0
    left: int = 0
    """Parts that are not durable yet."""
    whole: bool = False
    """No more parts come."""


@dataclass(slots=True, eq=False)
class Part:
    reading: Reading
    chunk: Chunk
    emitting: Started
    """The emission of its watermark."""


class Flight:
    """One worker's parts of one job, in the order in which they were read."""

    def __init__(self, feed: SnapshotFeed, job: Job) -> None:
        self._feed = feed
        self.job = job
        self.parts: deque[Part] = deque()

    def add(self, reading: Reading, chunk: Chunk, emitting: Started, rows: int) -> None:
        self.parts.append(Part(reading, chunk, emitting))
        reading.left += 1
        reading.rows += rows

    def whole(self, reading: Reading) -> None:
        """Every part of it has been added."""
        reading.whole = True
        if reading.left == 0:
            self._complete(reading)

    def late(self, most: int) -> Part | None:
        """The part that has to arrive before at most so many are on their way; None when that is so. Raises Again."""
        self._settle()
        waiting = [part for part in self.parts if part.chunk.state not in ARRIVED]
        if len(waiting) > most:
            return waiting[0]
        if any(part.chunk.state is State.REFUSED for part in self.parts):
            raise Again
        if self.job.over or self.job.source.table.oid in self._feed.to_read_again():
            raise Again
        return None

    def unsafe(self) -> Part | None:
        """The first part that is not durable; None when all are. Raises Again."""
        self._settle()
        return self.parts[0] if self.parts else None

    def give_up(self) -> None:
        """Gives up what has not been seen durable: it is read again, or is not needed."""
        for part in self.parts:
            self._feed.abandon(part.chunk)
        self.parts.clear()

    def held(self, most: int) -> Iterator[Task | None]:
        """Rows that are held and lie in no part that is still to come (their key was changed to one on a page that had been read already)
        are read back by their keys, at most so many at once; after each None everything has to be durable."""
        source = self.job.source
        while (held := self._feed.held_keys(source.table.oid, most)) is not None:
            columns = [canonical_text(held.column(name)).to_pylist() for name in source.index]
            keys = []
            for exact, texts in zip(held.column(EXACT).to_pylist(), zip(*columns, strict=True), strict=True):
                instead = dict(exact or ())
                keys.append(tuple(instead.get(name, text) for name, text in zip(source.index, texts, strict=True)))
            yield Task(((KeyList(keys), Op.READ),))
            yield None

    def finished(self) -> bool:
        """Ends the job, after everything that was ``held``; False when more is held by now. Raises Again."""
        if self.job.purpose.finish():
            return True
        if not self._feed.held(self.job.source.table.oid):
            raise Again
        return False

    def _settle(self) -> None:
        while self.parts and self.parts[0].chunk.state in SAFE:
            part = self.parts.popleft()
            if part.chunk.state is State.REFUSED:
                raise Again
            part.reading.left -= 1
            self.job.purpose.show(part.chunk.rows)
            if part.reading.whole and part.reading.left == 0:
                self._complete(part.reading)

    def _complete(self, reading: Reading) -> None:
        self._feed.close(reading.window)
        crashpoint("snapshot.chunk.before_record")
        self.job.purpose.advance(reading.task, reading.rows)
