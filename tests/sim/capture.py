"""One capture process over the model's connection, disk and coordinator: the product's own, but for its sockets and threads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cdc.capture.definitions import Definitions, Outside
from cdc.capture.feedback import Feedback
from cdc.capture.toast import ToastMemory
from cdc.inbox.writerside import Inbox
from cdc.ingest.definitions import first_remembered
from cdc.ingest.intake import Intake
from cdc.ingest.loop import Ingest
from cdc.ingest.round import Round, begun
from cdc.log.contract import SOURCE_NAME, captured
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.orphans import ended_topics
from cdc.model.facts import Facts
from cdc.model.table import Table
from cdc.source.facts import load_facts, save_facts
from cdc.state.status import CaptureStatus
from snapshots.feed import SnapshotFeed
from snapshots.progress import SnapshotProgress
from tests.sim.catalog import PASSWORD
from tests.sim.course import Course
from tests.sim.disk import ModelDisk
from tests.sim.reading import Reader
from tests.sim.source import Source
from tests.sim.walsender import Link, Walsender
from tests.sim.watch import Watch

TOAST: str = "toast.db"


@dataclass(slots=True)
class Silent:
    """A gauge that nobody reads."""

    status: CaptureStatus = field(default_factory=CaptureStatus)

    def write(self) -> None: ...

    def lack(self) -> None: ...

    def say(self, state: str, error: str | None = None) -> None: ...


class _WatchedMemory(ToastMemory):
    """``begun_at``: where it last gave up what it knew."""

    begun_at = 0

    def begin_at(self, position: int) -> None:
        super().begin_at(position)
        self.begun_at = position


class Capture:
    """Alive from construction (which recovers the log) until ``die``. Construction may raise what the disk raises."""

    def __init__(
        self, course: Course, folder: Path, disk: ModelDisk, source: Source, log: EmbeddedLogReader, since_lsn: int
    ) -> None:
        """``since_lsn``: where the slot stood when the log began."""
        self._course = course
        self._source = source
        self._log = log
        self._folder = folder
        self._since_lsn = since_lsn
        self.link: Link | None = None
        self.server: Walsender | None = None
        self.watch: Watch | None = None
        """From its first connection on."""
        self._ingest: Ingest | None = None
        self._round = ExitStack()
        self._steps: Iterator[None] | None = None
        self._idle = False
        ways = course.ways
        with ExitStack() as unless_alive:
            self.writer = EmbeddedLogWriter(
                folder, segment_bytes=ways.segment_bytes, seal=False, disk=disk, sync_threads=1,
                new_log_id=lambda: course.identities.getrandbits(64),
            )  # fmt: skip
            unless_alive.callback(self.writer.abandon)
            self.progress = SnapshotProgress(folder, interval_s=0.0 if ways.eager_progress else float("inf"))
            self._memory = _WatchedMemory(folder / TOAST)
            unless_alive.callback(self._memory.close)
            self.feed = SnapshotFeed(self.progress)
            inbox = None
            if course.rare.producers or course.rare.view:
                run_dir = folder.parent / "run"
                inbox = Inbox(folder, self.writer, run_dir, source=SOURCE_NAME, tables=("public.*",), clock=course.clock)
            self._intake = Intake(folder, self.writer, self._memory, self.feed, Silent(), course.clock, inbox)
            self._intake.catch_up()
            unless_alive.pop_all()
        self.reader = Reader(course, source, self.feed, self.progress, log)

    @property
    def remembered_from(self) -> int:
        """The position up to which what the log has was not learnt."""
        return self._memory.begun_at

    # --- the stream -----------------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.link is not None

    def connect(self) -> Link:
        course, ways = self._course, self._course.ways
        self.link = Link(Feedback(0), course.chance)
        self.server = Walsender(
            self._source,
            course.chance,
            self._since_lsn,
            empty_transactions=ways.empty_transactions,
            streams=ways.streams,
            two_phase=ways.two_phase,
            met=course.met,
        )
        brought = Round(self.link, self._definitions(), self._since_lsn, self._source.slot.confirmed)
        self._ingest = self._round.enter_context(begun(self._intake, brought))
        if self._steps is None:
            self._steps = self.reader.session()
        return self.link

    def _definitions(self) -> Definitions:
        tables, ended = {topic.name: topic.table for topic in captured(self._log)}, ended_topics(self._log)
        facts = load_facts(self._folder)
        watch = self.watch or self._begin_to_watch(tables, ended, facts)
        # What the catalog says now, which the stream may not have come to.
        catalog = self._source.facts
        keep = partial(save_facts, self._folder)
        outside = Outside(look=watch.look_soon, note=watch.note, keep=keep)
        return Definitions(catalog, known=tables.values(), ended=ended, facts=facts, passwords=[PASSWORD], outside=outside)

    def _begin_to_watch(self, tables: Mapping[str, Table], ended: Collection[str], facts: dict[int, Facts]) -> Watch:
        """Remembers the definitions (``facts``) that hold when a table's first row is read, as a process does when it starts."""
        listed = [self._source.facts(oid) for oid, listing in self._source.catalog.items() if listing.way]
        published = [found for found in listed if found is not None]
        if new := first_remembered(published, tables, ended, facts):
            facts.update(new)
            save_facts(self._folder, facts)
        self._source.told |= facts.keys()
        course = self._course
        self.watch = Watch(self._source, course.chance, {*facts, *(table.oid for table in tables.values())}, course.met)
        return self.watch

    def take(self) -> None:
        """One round of ingest. Raises ConnectionError when the stream has ended, and whatever the disk raises."""
        assert self._ingest is not None
        self._idle = False
        self._ingest.turn()

    def wait_for_source(self) -> None:
        """A look at the inbox while the source cannot be reached (``cdc.ingest.process``)."""
        self._intake.serve_inbox()
        self.writer.commit()

    def broken(self) -> None:
        """After the stream has ended. May raise: the process then ends."""
        self._disconnect()
        self._idle = False
        self._intake.back_to_durable()
        self._intake.catch_up()

    # --- the snapshot ---------------------------------------------------------------------------------------------------------------

    @property
    def nothing_to_read(self) -> bool:
        """It found so since bytes last came: but for what somebody asks for, nothing else gives it work."""
        return self._idle and self.reader.finished and not self._course.asking.pending()

    def read_on(self) -> None:
        if self._steps is not None:
            next(self._steps)
            self._idle = self.reader.finished

    def lose_sessions(self) -> None:
        """The coordinator's connections broke; it makes new ones."""
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]
            self._steps = self.reader.session()
            self._idle = False
        if self.watch is not None:
            self.watch.disconnect()

    def complete(self, oid: int) -> bool:
        return self.progress.finished(oid) and not self.feed.held(oid) and oid not in self.feed.to_read_again()

    # --- the end --------------------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Gone at once: nothing is rolled back, nothing is written."""
        self._disconnect()
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]
        self.writer.abandon()
        self._memory.rollback()
        self._memory.close()

    def _disconnect(self) -> None:
        self.link = self.server = self._ingest = None
        self._round.close()
