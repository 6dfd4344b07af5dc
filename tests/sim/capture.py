"""One capture process over the model's connection, disk and snapshot reader: ``cdc.ingest.process`` without its sockets and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from cdc.capture.continuity import Continuity
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.feedback import Feedback
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spools
from cdc.capture.toast import ToastMemory
from cdc.ingest import process as capturing
from cdc.ingest.loop import Ingest
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.facts import FactColumn, Facts, Leaf, Publishing
from cdc.state.status import CaptureStatus
from snapshots.feed import SnapshotFeed
from snapshots.progress import SnapshotProgress
from tests.sim.disk import ModelDisk
from tests.sim.reading import Reader
from tests.sim.source import Source
from tests.sim.walsender import Link, Meet, RoundOver, Walsender

TOAST: str = "toast.db"


class OneAfterTheOther:
    """Stands in for the writer's pool of threads: the same calls, in this thread, in order."""

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(call, items)

    def shutdown(self) -> None: ...


@dataclass(slots=True)
class Silent:
    """The meter, to nobody."""

    status: CaptureStatus = field(default_factory=CaptureStatus)

    def write(self, *, force: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Ways:
    """What differs between runs without being a fault."""

    segment_bytes: int
    chunk_rows: int
    workers: int
    empty_transactions: bool
    """As servers before version 15 send them."""
    streams: bool
    """Transactions are sent before they have ended (protocol 2)."""
    two_phase: bool
    """Prepared transactions are told of when they are prepared."""
    eager_progress: bool


class Capture:
    """Alive from construction (which recovers the log) until ``die``. Construction may raise what the disk raises."""

    def __init__(
        self,
        folder: Path,
        disk: ModelDisk,
        source: Source,
        chance: Random,
        ways: Ways,
        log: EmbeddedLogReader,
        since_lsn: int,
        met: Meet,
    ) -> None:
        """``since_lsn``: where the slot stood when the log began. ``met``: told of rare things that happen."""
        self._met = met
        self._folder = folder
        self._source = source
        self._chance = chance
        self._ways = ways
        self._log = log
        self._since_lsn = since_lsn
        self.link: Link | None = None
        self.server: Walsender | None = None
        self._ingest: Ingest | None = None
        self._spools: Spools | None = None
        self._steps: Iterator[None] | None = None
        self._idle = False
        self._stop = Event()
        with ExitStack() as unless_alive:
            self.writer = EmbeddedLogWriter(folder, segment_bytes=ways.segment_bytes, seal=False, disk=disk)
            self.writer._pool = OneAfterTheOther()  # type: ignore[assignment]
            unless_alive.callback(self._lose_the_log)
            self.progress = SnapshotProgress(folder, interval_s=0.0 if ways.eager_progress else float("inf"))
            self._memory = ToastMemory(folder / TOAST)
            unless_alive.callback(self._memory.close)
            capturing._catch_up(self._memory, self.writer, folder)
            unless_alive.pop_all()
        self.feed = SnapshotFeed(self.progress)
        self.reader = Reader(source, self.feed, self.progress, chance, ways.chunk_rows, ways.workers)

    # --- the stream -----------------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.link is not None

    def connect(self) -> Link:
        head, slot, ways = self.writer.head, self._source.slot, self._ways
        prepared = PreparedFiles(self._folder)
        prepared.settle(head.commit_lsn)
        self.link = Link(Feedback(0), self._chance)
        self.server = Walsender(
            self._source,
            self._chance,
            self._since_lsn,
            empty_transactions=ways.empty_transactions,
            streams=ways.streams,
            two_phase=ways.two_phase,
            met=self._met,
        )
        last = self._log.last_commit()
        continuity = Continuity(last, head, max(self._since_lsn, slot.confirmed))
        durable_lsn = head.commit_lsn if continuity.done else max(last.commit_lsn, continuity.start_lsn)
        self._spools = Spools(self._folder)
        self._ingest = Ingest(
            self.link,  # type: ignore[arg-type]
            self._decoder(durable_lsn, prepared),
            self.writer,
            self._memory,
            self.feed,
            Silent(),  # type: ignore[arg-type]
            continuity,
        )
        if self._steps is None:
            self._steps = self.reader.session()
        return self.link

    def _decoder(self, durable_lsn: int, prepared: PreparedFiles) -> Decoder:
        definitions = Definitions(self._facts, known=[topic.table for topic in self._log.topics()])
        return Decoder(
            definitions, self._memory, capturing._hold(self.feed), durable_lsn, self._spools, prepared, self.feed.expects
        )

    def _facts(self, oid: int) -> Facts:
        """What the catalog says of a table now, which the stream may not have come to."""
        table = self._source.tables[oid]
        return Facts(
            oid=oid,
            schema=table.schema,
            name=table.name,
            partitioned=False,
            identity=table.identity,
            columns=tuple(
                FactColumn(column.attnum, column.name, column.type_oid, column.typmod, column.type_name, "", False, "")
                for column in table.columns
            ),
            index=tuple(column.attnum for column in table.columns if column.key),
            leaves={oid: Leaf(oid, False)},
            publishing=Publishing(True),
        )

    def take(self) -> None:
        """One round of ingest. Raises ConnectionError when the stream has ended, and whatever the disk raises."""
        assert self._ingest is not None
        assert self.link is not None
        self.link.may_take = True
        self._idle = False
        try:
            self._ingest.run(self._stop)
        except RoundOver:
            return

    def broken(self) -> None:
        """After the stream has ended: what ``cdc.ingest.process`` does before it connects again. May raise: the process then ends."""
        self.link = self.server = self._ingest = None
        self._idle = False
        self._close_spools()
        self.writer.rollback()
        self._memory.rollback()
        capturing._catch_up(self._memory, self.writer, self._folder)
        self.feed.reset()
        self.feed.check()

    # --- the snapshot ---------------------------------------------------------------------------------------------------------------

    @property
    def nothing_to_read(self) -> bool:
        """It found so since bytes last came: nothing else gives it work."""
        return self._idle and self.reader.finished

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

    def complete(self, oid: int) -> bool:
        return self.progress.finished(oid) and not self.feed.held(oid) and oid not in self.feed.to_read_again()

    # --- the end --------------------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Gone at once: nothing is rolled back, nothing is written."""
        self.link = self.server = None
        self._close_spools()
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]
        self._lose_the_log()
        self._memory.rollback()
        self._memory.close()

    def _close_spools(self) -> None:
        if self._spools is not None:
            self._spools.close()
            self._spools = None

    def _lose_the_log(self) -> None:
        self.writer._broken = "the process is gone"
        self.writer.close()
