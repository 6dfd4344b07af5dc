"""The capture process from outside: it starts, takes a step, reads, ends by an error, dies; and its machine loses its power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cdc.errors import HeadwaterError, LogAway, ProtocolError, Stopped
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealer import seal
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Cut, Lsn
from cdc.source.facts import FILE, load_facts
from tests.sim.capture import TOAST, Capture
from tests.sim.checker import Checker, Violation
from tests.sim.course import Course
from tests.sim.disk import ModelDisk
from tests.sim.points import Points
from tests.sim.source import Source
from tests.sim.stores import Died
from tests.sim.upkeep import Compactor, StateMaker


class Process:
    """One at a time. ``points`` decides where it dies; the checker is told of all that it publishes and confirms."""

    def __init__(
        self, course: Course, points: Points, source: Source, disk: ModelDisk, checker: Checker, log: EmbeddedLogReader
    ) -> None:
        self._course = course
        self._points = points
        self._source = source
        self._disk = disk
        self._checker = checker
        self._log = log
        self._compactor = Compactor(course, log, checker)
        self._state_maker = StateMaker(course, log, disk)
        self._folder: Path = disk.root
        self._places = LogPlaces(disk.root)
        self._since_lsn = 0
        self.capture: Capture | None = None
        """The one that lives."""
        self.unrecovered = False
        """The power was lost and no writer has been there since: the head may be older than the timeline, so nobody looks."""
        self._memory_kept: list[tuple[str, bytes]] = []
        """The files of the TOAST memory as they once were."""
        self.taken = 0
        """How often bytes of the stream were taken."""
        self._before: dict[int, int] = {}
        self._completed: dict[int, int] = {}

    def begin(self) -> None:
        """The slot is made: the log begins here."""
        self._since_lsn = self._source.flushed_lsn
        self._checker.begin(self._source.visible)

    @property
    def head(self) -> Cut | None:
        return None if self.capture is None else self.capture.writer.head

    @property
    def received(self) -> object:
        """What has come that was not taken yet."""
        link = None if self.capture is None else self.capture.link
        return None if link is None else (link.waiting, link.broken)

    @property
    def durable(self) -> int:
        """What its stream says that it has."""
        link = None if self.capture is None else self.capture.link
        return 0 if link is None else link.feedback.durable_lsn

    def step(self) -> bool:
        """A step of its stream: it starts, connects, or does one round of ingest. False: nothing had come."""
        try:
            if self.capture is None:
                self._start()
            elif not self.capture.connected and self._source_is_down():
                self._wait_for_source(self.capture)
            elif not self.capture.connected:
                self.capture.connect().on_confirm = lambda lsn: self._checker.check_confirmed(lsn, self._places, self._log)
                self._course.say("connected")
            else:
                return self._take(self.capture)
        except Died:
            self._course.say("the process died")
            self._end()
        except (OSError, HeadwaterError) as error:
            if isinstance(error, ProtocolError | Stopped):
                raise  # nothing that happens here makes the server's bytes wrong, or needs an operator
            self._course.say(f"the process ended: {error}")
            self._course.counts["processes ended by an error"] += 1
            self._end()
        return True

    def _start(self) -> None:
        self._points.a_process_lives()
        lost = self._course.rare.catalog_lost
        if lost and self._course.faulty and not self.unrecovered and self._course.chance.random() < lost:
            self._lose_catalog()
        self.capture = Capture(self._course, self._folder, self._disk, self._source, self._log, self._since_lsn)
        self.unrecovered = False
        if self._course.dangers.memory_lost and self._course.chance.random() < 0.5:
            self._memory_kept = [
                (path.name, path.read_bytes()) for path in self._folder.glob(f"{TOAST}*") if path.suffix != ".db-shm"
            ]
        head, slot = self.capture.writer.head, self._source.slot
        self._course.say(f"a process starts at {head}, the slot is at {slot.confirmed:X}")
        if head.commit_lsn == 0:
            self.capture.writer.commit(Lsn(slot.confirmed), 0)
        elif slot.confirmed > head.commit_lsn:
            raise Violation("a", f"the slot stands at {slot.confirmed:X}, ahead of the log at {head}")
        if self._course.faulty and self._course.chance.random() < self._course.dangers.new_history:
            self._course.met("histories begun")
            self.capture.writer.begin_history()
        self._forget_what_is_read_again()
        self._forget_what_is_outdated(self.capture)
        self._checker.reread(self._log)

    def _source_is_down(self) -> bool:
        """Matters only to those who need it not."""
        return (
            (self._course.rare.producers > 0 or self._course.rare.view)
            and self._course.faulty
            and self._course.chance.random() < 0.6
        )

    def _wait_for_source(self, capture: Capture) -> None:
        self._course.met("looks at the inbox while the source is down")
        try:
            capture.wait_for_source()
        except OSError as error:
            self._course.say(f"the log takes nothing now: {error}")
            self.look(refused=True)
            return
        self.look()

    def _lose_catalog(self) -> None:
        """What capture last saw of the tables. Not where a table was dropped of which the log has nothing yet: nobody could say its key any more."""
        unlogged = load_facts(self._folder).keys() - {topic.table.oid for topic in self._log.topics()}
        if not (self._folder / FILE).exists() or unlogged - self._source.catalog.keys() or unlogged & self._source.dropping():
            return
        (self._folder / FILE).unlink()
        self._source.told -= unlogged
        self._course.fault("catalog.json is lost")

    def _forget_what_is_read_again(self) -> None:
        """The last cut of the process before, which nobody has looked at, may have begun a table again."""
        known = self.completed()
        for whole in (self._checker.complete, self._checker.finished):
            for oid in whole.keys() - known.keys():
                del whole[oid]

    def _forget_what_is_outdated(self, capture: Capture) -> None:
        """Capture may have had to read from the log what it remembers, which does not tell what was held back, and which it does not wait for where it is away."""
        head, away = capture.writer.head.position, capture.remembered_from
        for oid in self._source.tables:
            known = self._checker.forgotten.get(oid, 0)
            self._checker.forgotten[oid] = max(known, head if capture.feed.outdated(oid) else away)

    def _take(self, capture: Capture) -> bool:
        link = capture.link
        assert link is not None
        before, head = link.waiting, capture.writer.head
        if before:
            self.taken += 1
            self._before = self.completed()
        try:
            capture.take()
        except (OSError, HeadwaterError) as error:
            if not isinstance(error, OSError):
                raise
            self._course.say(f"the stream broke: {error}")
            self._course.counts["reconnects"] += 1
            capture.broken()
            self._forget_what_is_outdated(capture)
        if before and self._course.told:
            self._course.say(f"took {before - link.waiting} bytes, the log is at {capture.writer.head}")
        self.look()
        return bool(before) or not capture.connected or capture.writer.head != head

    def read(self) -> bool:
        """A step of its snapshot. False: there was nothing to read, or all of its threads wait."""
        capture = self.capture
        if capture is None or capture.nothing_to_read:
            return False
        reader = capture.reader
        before = reader.refused, reader.not_admitted, reader.chunks
        try:
            capture.read_on()
        except Died:
            self._course.say("the process died")
            self._end()
            return True
        if before == (reader.refused, reader.not_admitted, reader.chunks):
            return reader.moved
        self._course.counts["chunks refused"] += reader.refused - before[0]
        self._course.counts["snapshots not admitted"] += reader.not_admitted - before[1]
        if reader.chunks > before[2]:
            self._course.counts["chunks read"] += 1
            self._course.say(f"chunk {reader.chunks} was read")
        return True

    def watch(self) -> bool:
        """A step of its thread that looks at the catalog. False: there was nothing to look for."""
        return self.capture is not None and self.capture.watch is not None and self.capture.watch.step()

    def _end(self) -> None:
        if self.capture is not None:
            self.capture.die()
        self.capture = None
        self._before = {}

    def die(self) -> None:
        if self.capture is not None:
            self._course.fault("process dies")
            self._end()

    def lose_power(self) -> None:
        """Capture's machine, not the database's."""
        self._course.fault("power lost")
        self._end()
        self._log.close()
        self._disk.lose_power(self._course.chance.choice(("lost", "torn")))
        if self._course.chance.random() < self._course.dangers.memory_lost:
            self._memory_goes_back()
        self.unrecovered = True

    def _memory_goes_back(self) -> None:
        """SQLite syncs at its checkpoints only, so a power loss leaves an earlier commit; or nothing."""
        for path in self._folder.glob(f"{TOAST}*"):
            path.unlink()
        for name, content in self._course.chance.choice(([], self._memory_kept)):
            (self._folder / name).write_bytes(content)

    def seal(self) -> None:
        """What the sealing thread does with closed segments."""
        timeline = self._log.timeline
        if timeline is None or self.capture is None:
            return
        try:
            for index in timeline.topics.values():
                for run in index.segments()[:-1]:
                    if not self._log.is_sealed(index.name, run):
                        self._course.counts["segments sealed"] += 1
                        seal(self._places, self._disk, SegmentPlace(timeline.log_id, index.number, index.name, run.segment), run)
        except OSError:
            return
        except Died:
            self._end()

    def make_state(self) -> None:
        """What the thread does that makes states of topics. A refusal leaves it at that."""
        self.look()
        try:
            self._state_maker.step()
        except OSError as error:
            self._course.say(f"a state was refused: {error}")
        except LogAway:
            self._course.met("states that met a tier which did not answer")
        except Died:
            self._end()

    def compact(self, pins: Sequence[int]) -> None:
        """What the compacting thread does. A refusal in it ends the stream, as one of the writer's own does."""
        assert self.capture is not None
        self.look()
        try:
            try:
                self._compactor.step(self.capture.writer, pins)
            except OSError as error:
                self._course.say(f"compaction was refused: {error}")
                self._course.counts["compactions refused"] += 1
                if self.capture.connected:
                    self.capture.broken()
                    self._forget_what_is_outdated(self.capture)
            except LogAway:
                self._course.met("compactions that met a tier which did not answer")
        except (OSError, HeadwaterError) as error:
            if not isinstance(error, OSError) and isinstance(error, ProtocolError | Stopped):
                raise
            self._end()
        except Died:
            self._end()

    def lives_through(self, work: Callable[[EmbeddedLogWriter], None]) -> bool:
        """Does the work of one of its threads that may go on without its stream. False: it died meanwhile."""
        assert self.capture is not None
        try:
            work(self.capture.writer)
        except Died:
            self._end()
            return False
        return True

    def look(self, *, refused: bool = False) -> None:
        """Has the checker take in what is new in the log. ``refused``: a commit failed; it may be published all the same, and its writer does not know."""
        if self.unrecovered and self._log.head().position <= self._checker.last.position:
            return  # what the power loss took of the head comes back with the recovery
        if not refused and self.capture is not None and self.capture.writer.head == self._checker.last:
            return
        after = self.completed()
        self._checker.finished = self._before
        self._checker.complete = {oid: lsn for oid, lsn in self._before.items() if after.get(oid) == lsn}
        self._checker.log_grew(self._log)

    def completed(self) -> dict[int, int]:
        """Table → where the WAL stood when its snapshot was seen to be finished, by this process or an earlier one."""
        capture = self.capture
        if capture is None:
            return {}
        known, now = self._completed, self._source.wal_lsn
        self._completed = {oid: known.get(oid, now) for oid in self._source.tables if capture.complete(oid)}
        return self._completed

    def close(self) -> None:
        if self.capture is not None:
            self.capture.die()
