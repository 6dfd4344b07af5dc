"""The tier of a run: what the thread that moves sealed files does, over a model of the bucket that they lie in, and the cache beside the log.

The bucket refuses, is slow, gives a part or another byte, keeps half of what it is given, loses its answers, and is gone for a while. At each step of
a move the process may die, or the power go; other threads of the process may remove there what compaction has replaced. The cache
loses copies at any time, and a power loss damages them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from cdc.errors import LogAway
from cdc.log.embedded import tierstore
from cdc.log.embedded.away import TierPlace, key_of
from cdc.log.embedded.names import LogPlaces, away_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.tierstore import TierStore
from cdc.log.embedded.writer import EmbeddedLogWriter
from tests.sim.clock import Clock
from tests.sim.course import Course
from tests.sim.points import Points
from tests.sim.process import Process
from tests.sim.violation import Violation

URL: Final = "file:///simulated"
CACHE_BYTES: Final = (1, 20_000, 2**20)
"""The first: of one copy at most."""
DEADLIER: Final = 0.02
"""At each operation of the disk and each point of a move."""
POWER: Final = 0.5
"""Of the processes that die in a move, how many because the power is lost."""
GONE_S: Final = (2.0, 40.0)
"""By the run's clock; a step takes 0.2."""


class Bucket(TierStore):
    """``chance``: what befalls it. ``met``: is told of it."""

    def __init__(self, chance: Random, clock: Clock, met: Callable[[str], None]) -> None:
        self.url = URL
        self.files: dict[str, bytes] = {}
        self.troubled = False
        self._chance = chance
        self._clock = clock
        self._met = met
        self._likely = {
            what: chance.choice((0.0, 0.05, 0.25))
            for what in ("says 503", "loses its answer", "keeps a half", "gives a half", "is slow", "gives another byte", "forgets")
        }
        self._goes = chance.choice((0.0, 0.02))
        self._gone_until = 0.0
        self._wrong: set[str] = set()
        """What was given with another byte: twice would be damage."""

    # --- the port ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: pa.Buffer) -> None:
        self._asked()
        content = data.to_pybytes()
        self.files[key] = content[: len(content) // 2] if self._happens("keeps a half") else content
        self._answered()

    def size(self, key: str) -> int | None:
        self._asked()
        known = self.files.get(key)
        return None if known is None or self._happens("forgets") else len(known)

    def chunks(self, key: str) -> Generator[bytes]:
        self._asked()
        data = self.files[key]
        half = len(data) // 2
        if key not in self._wrong and self._happens("gives another byte"):
            self._wrong.add(key)
            yield data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
            return
        yield data[:half]
        if self._happens("is slow"):
            raise LogAway("it did not answer in time", hint="wait")
        if not self._happens("gives a half"):
            yield data[half:]
            self._wrong.discard(key)

    def keys(self, under: str) -> list[str]:
        self._asked()
        return [key for key in self.files if key.startswith(f"{under}/")]

    def remove(self, key: str) -> None:
        self._asked()
        self.files.pop(key, None)
        self._answered()

    # --- what befalls it --------------------------------------------------------------------------------------------

    def _asked(self) -> None:
        if not self.troubled:
            return
        if self._chance.random() < self._goes:
            self._met("the tier is gone for a while")
            self._gone_until = self._clock.now + self._chance.uniform(*GONE_S)
        if self._clock.now < self._gone_until or self._happens("says 503"):
            raise LogAway("the tier does not answer", hint="wait")

    def _answered(self) -> None:
        if self._happens("loses its answer"):
            raise LogAway("the tier did not answer", hint="wait")

    def _happens(self, what: str) -> bool:
        if not self.troubled or self._chance.random() >= self._likely[what]:
            return False
        self._met(f"the tier {what}")
        return True


class Tier:
    """``step`` and ``lose_power`` from the world. Its chance is its own, so that other runs are what they would be without a tier."""

    def __init__(self, course: Course, seed: int, log: EmbeddedLogReader, folder: Path, points: Points, process: Process) -> None:
        self._course = course
        self._log = log
        self._chance = chance = Random(f"{seed} tier")
        self._places = LogPlaces(folder)
        self._points = points
        self._process = process
        self._bucket = Bucket(chance, course.clock, course.fault)
        self._place = TierPlace(URL, chance.choice(CACHE_BYTES))
        self._back = chance.choice((0.0, 0.2, 0.5))
        """Of the looks, in how many files come back."""
        self._moved = False
        self.dark = False
        """The power was lost in the last step."""

    @contextmanager
    def given(self) -> Iterator[None]:
        """The process's tier is this one, and things befall it until the faults stop."""
        self._bucket.troubled = True
        with tierstore.made_by(lambda _: self._bucket):
            yield

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Meanwhile it does what it is asked: for whoever checks the log."""
        before, self._bucket.troubled = self._bucket.troubled, False
        try:
            yield
        finally:
            self._bucket.troubled = before

    def step(self) -> bool:
        """Says whether anything moved."""
        chance, process = self._chance, self._process
        self._bucket.troubled = self._course.faulty
        self._moved = self.dark = False
        if self._course.faulty and chance.random() < 0.3:
            self._evict()
        if process.capture is not None and not process.lives_through(self._look):
            self.dark = chance.random() < POWER
        return self._moved

    def lose_power(self) -> None:
        """Copies are not synced: of each something is left, or nothing."""
        for copy in self._copies():
            data = copy.read_bytes()
            left = self._chance.choice((data, data[: len(data) // 2], bytes(len(data)), None))
            if left is None:
                copy.unlink()
            else:
                copy.write_bytes(left)

    def conclude(self) -> None:
        """When all is done: what is away is in the bucket, and nothing else is there once it was swept."""
        if self._process.capture is None:
            raise Violation("i", "nothing writes the log")
        with self.answers(), closing(self._process.capture.writer.tiering(self._place)) as moves:
            moves.begin()
            moves.sweep()
        timeline = self._log.timeline
        assert timeline is not None
        named = {
            key_of(timeline.log_id, folder.name, name)
            for folder in self._places.topics.iterdir()
            for name in (away_of(path.name) for path in folder.iterdir())
            if name is not None
        }
        if named != self._bucket.files.keys():
            raise Violation("c", f"the tier holds {sorted(self._bucket.files)}, what is away is {sorted(named)}")
        self._course.counts["runs in which files were moved to the tier"] += bool(self._course.counts["files moved to the tier"])

    # --- inside -----------------------------------------------------------------------------------------------------

    def _look(self, writer: EmbeddedLogWriter) -> None:
        """What the thread does when it looks, with another age each time."""
        chance, head = self._chance, writer.head.position
        with closing(writer.tiering(self._place)) as moves, self._disturbed(writer):
            moves.begin()
            back = self._course.faulty and chance.random() < self._back
            upto = chance.choice((head, chance.randrange(head + 1)))
            for place in list(moves.closed(upto)):
                if place.away is back and chance.random() < 0.8:
                    move = moves.bring_back if back else moves.put_away
                    if self._tried(lambda move=move, place=place: move(place)):
                        self._course.met(f"files moved {'back from' if back else 'to'} the tier")
            if chance.random() < 0.3:
                self._tried(moves.sweep)

    def _tried(self, move: Callable[[], int]) -> int:
        """0 as well when the tier or the disk refuses: the thread says so, and goes on."""
        try:
            done = move()
        except (LogAway, OSError) as error:
            self._course.say(f"nothing moved: {error}")
            self._course.met("files that could not be moved")
            return 0
        self._moved |= done > 0
        return done

    def _disturbed(self, writer: EmbeddedLogWriter) -> AbstractContextManager[None]:
        """Compaction removes what it has replaced, in its own thread."""
        within = False

        def meanwhile(point: str) -> None:
            nonlocal within
            if point.startswith("tier.") and not within and self._chance.random() < 0.3:
                within = True
                with suppress(OSError):
                    writer.upkeep.remove_replaced()
                within = False

        return self._points.within(DEADLIER if self._course.faulty else 0.0, meanwhile)

    def _evict(self) -> None:
        for copy in self._copies():
            if self._chance.random() < 0.5:
                self._course.met("copies pushed out of the cache")
                copy.unlink()

    def _copies(self) -> list[Path]:
        return sorted(self._places.cache.glob("*.parquet")) if self._places.cache.exists() else []
