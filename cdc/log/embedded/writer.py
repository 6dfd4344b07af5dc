"""The log's only writer: appends stage frames in the topics' segments, a commit makes them exist.

Order of a commit: new names are synced, the group's timeline entry is written, every touched segment and the timeline are synced at the
same time, then the head is published. Readers believe the head only, so they never see what a power loss could take back. A power loss
between the syncs may leave the entry without its changes: recovery sees it (``cdc.log.embedded.lastgroup``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.diskspace import FULL, GOES_ON, described
from cdc.errors import HeadwaterError, LogCorrupt
from cdc.log.contract import SOURCE_NAME
from cdc.log.embedded import histories
from cdc.log.embedded.away import TierPlace
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import (
    FRAME_HEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_SEGMENT_BYTES,
    FrameKind,
    SegmentHeader,
    chain,
    encode_frame,
    padding,
)
from cdc.log.embedded.groupfiles import FILE_BYTES, GroupFiles
from cdc.log.embedded.lock import hold, is_held
from cdc.log.embedded.message import LARGE_BYTES, message_of
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.openfiles import OpenFiles
from cdc.log.embedded.records import GroupEntry
from cdc.log.embedded.recover import head_of, new_log_id, recover
from cdc.log.embedded.register import Register
from cdc.log.embedded.sealer import Sealer
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.syncpool import SyncPool
from cdc.log.embedded.tail import Density, OpenPart, OpenTopic, OpenTopics, Positions, Staged, Tip, positions_of, run_of
from cdc.log.embedded.tierfiles import EmbeddedTiering
from cdc.log.embedded.topicindex import SegmentRun, TopicIndex
from cdc.log.embedded.upkeep import EmbeddedUpkeep
from cdc.model.batch import table_of
from cdc.model.oldrows import completed
from cdc.model.position import Cut, Lsn, Position

SPLIT_BYTES: Final = 2**29
"""A batch larger than this becomes several frames."""
MAX_SEGMENT_OPTION_BYTES: Final = 2**30
SYNC_THREADS: Final = 32
"""The number of files synced at once."""


class EmbeddedLogWriter:
    """See ``LogWriter``. Not thread-safe: one thread appends and commits.

    ``segment_bytes``: a segment that has grown to this is closed and (``seal``) becomes Parquet in the background.
    Opening recovers the log (see ``cdc.log.embedded.recover``). Raises HeadwaterError when another process writes here, LogCorrupt,
    OSError. After a sync has failed nothing more is taken: what the disk holds is then unknown until the log is opened again.
    """

    def __init__(
        self,
        dir: Path,
        *,
        segment_bytes: int = 64 * 2**20,
        seal: bool = True,
        disk: Disk | None = None,
        sync_threads: int = SYNC_THREADS,
        source: str = SOURCE_NAME,
        new_log_id: Callable[[], int] = new_log_id,
    ) -> None:
        """``sync_threads``: the most files that are synced at once; 1: one after the other, by the caller's own thread. ``source``: the name of
        the producer whose LSNs the cuts carry. ``new_log_id``: asked once, when there is no log yet."""
        if not 0 < segment_bytes <= MAX_SEGMENT_OPTION_BYTES:
            raise ValueError("segment_bytes is between 1 and 2**30")
        self._places = LogPlaces(Path(dir))
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._files = OpenFiles(self._places, self._disk)
        self._broken: str | None = None
        self._syncs = SyncPool(sync_threads)
        self._lock_fd = hold(self._places, self._disk)
        try:
            recovered = recover(self._places, self._disk, self._syncs, segment_bytes, new_log_id)
            self._register = Register(self._places.root, source, recovered.timeline, self._disk, self._check_place)
            self._published = GroupFiles(
                self._places, self._disk, head_of(recovered),
                file_bytes=min(FILE_BYTES, segment_bytes // 8), begun=recovered.timeline.begun,
            )  # fmt: skip
        except BaseException:
            self._syncs.close()
            os.close(self._lock_fd)
            raise
        self._topics = OpenTopics([self._resumed(index) for index in recovered.timeline.topics.values()])
        self._staged = Staged(Density(self.head.position))
        self._sealer: Sealer | None = None
        if seal:
            self._sealer = Sealer(self._places, self._disk)
            for index, run in recovered.unsealed:
                self._sealer.add(self._place(index.number, index.name, run.segment), run)

    @property
    def head(self) -> Cut:
        return self._published.head.cut

    @property
    def next_position(self) -> Position:
        return Position(self.head.position + self._staged.density.rows + 1)

    def tiering(self, tier: TierPlace) -> EmbeddedTiering:
        """How sealed files of this log move to a tier and back. To be closed before the writer. Raises ConfigError."""
        return EmbeddedTiering(self._places.root, tier, self._disk, self._check_place)

    @property
    def upkeep(self) -> EmbeddedUpkeep:
        """Takes what compaction and retention have made; the next commit records it."""
        return self._register.upkeep

    def alarm(self) -> str | None:
        """Why the disk refuses to take sealed files, with what helps, while it does; the log itself goes on."""
        refused = self._sealer.refused if self._sealer else None
        if refused is None:
            return None
        helps = GOES_ON if refused.errno in FULL else "let the account of cdc run write there; it then goes on by itself"
        return f"the log's segments in {self._places.root} are not being sealed and stay large: {described(refused)} → {helps}"

    def begin_history(self) -> None:
        """See ``LogWriter``."""
        self._check_usable()
        histories.begin(self._places.root, self._published.head.log_id, self.head.position)

    def append(self, batch: pa.RecordBatch, producer: str | None = None) -> None:
        """See ``LogWriter``. Raises ValueError for a batch that cannot be staged (what was staged stays), OSError when the disk
        refuses (everything staged is then dropped)."""
        self._check_usable()
        positions = positions_of(batch)
        if not len(positions):
            return
        table = table_of(batch.schema)
        name, batch = table.qualified, completed(batch, table)
        self._staged.density.check(name, positions)
        try:
            crashpoint("log.append.begun")
            self._write(self._topic(name, producer or self._register.producers.source), batch, positions)
        except OSError as error:
            self.rollback()
            raise self._located(error) from error
        self._staged.density.add(name, positions)

    def mark(self, producer: str, value: bytes) -> None:
        """See ``LogWriter``."""
        self._check_usable()
        self._register.producers.stage(producer, value)

    def marks(self) -> Mapping[str, bytes]:
        """See ``LogWriter``."""
        return self._register.producers.durable

    def commit(self, commit_lsn: Lsn | None = None, commit_ts_us: int = 0) -> Cut:
        """See ``LogWriter``. A commit of nothing is recorded when its LSN or a mark is new, or something waits in ``upkeep``. Raises LogCorrupt
        when sealing met damage."""
        self._check_usable()
        if self._sealer and self._sealer.corrupt:
            raise self._sealer.corrupt
        if not self._staged.topics:
            self._close_asked_for()
        staged, before = self._staged, self._published.head
        if commit_lsn is None:
            commit_lsn, commit_ts_us = before.cut.commit_lsn, before.commit_ts_us
        if not staged.density.dense:
            self.rollback()
            raise ValueError(f"the staged positions are not dense behind {before.position}")
        if not staged.parts and commit_lsn == before.commit_lsn and not self._register.waiting:
            return self.head
        cut = Cut(Position(before.position + staged.density.rows), commit_lsn, commit_ts_us)
        group = self._register.entry(staged, before.position + 1, cut, before.epoch)
        try:
            self._begin_next_file()
            self._sync_names()
            self._publish(group)
        except OSError as error:
            raise self._located(error) from error
        for topic in staged.topics.values():
            topic.durable = topic.tip
        # From here on nothing of it may be taken back, whatever else goes wrong.
        self._staged = Staged(Density(self.head.position))
        self._register.recorded(group)
        self._refuse_another_place()
        crashpoint("log.commit.published")
        self._close_full(staged)
        self._close_asked_for()
        return self.head

    def rollback(self) -> None:
        """See ``LogWriter``. Raises OSError when the disk refuses; the log must then be opened again."""
        self._check_usable()
        staged = self._staged
        self._staged = Staged(Density(self.head.position), left=self._unsynced_folders())
        self._register.producers.take_back()
        with self._fatal():
            crashpoint("log.rollback.begun")
            for topic, segment in staged.created:
                self._files.forget(topic.number, segment)
                self._disk.remove(self._places.segment(topic.name, segment))
            for topic in staged.topics.values():
                # Also where the tip has not moved: a write that failed may have left bytes behind it.
                if not topic.durable.closed:
                    self._disk.truncate(self._files.of(topic, topic.durable.segment), topic.durable.end)
                topic.tip = topic.durable
            self._topics.take_back(staged.named)

    def close(self) -> None:
        """Drops what is staged and releases the log. Sealing in progress is finished first."""
        if self._sealer:
            self._sealer.close()
            self._sealer = None
        try:
            if self._broken is None:
                self.rollback()
        finally:
            self._broken = self._broken or "it was closed"
            self._syncs.close()
            self._files.close()
            self._published.close()
            self._register.upkeep.close()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def abandon(self) -> None:
        """Lets go of the log as a process that is killed does: nothing is taken back, and what is staged is left to the next recovery."""
        self._broken = self._broken or "it was abandoned"
        self.close()

    def drain_seals(self) -> None:
        """Returns when every closed segment is sealed (or cannot be)."""
        if self._sealer:
            self._sealer.drain()

    def sealed(self) -> bool:
        """Whether every closed segment is sealed, or cannot be now."""
        return self._sealer is None or self._sealer.idle()

    # --- staging -----------------------------------------------------------------------------------------------------

    def _topic(self, name: str, producer: str) -> OpenTopic:
        """Raises ValueError for a topic that another producer brings."""
        staged = self._staged
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics.begin(name, producer)
            staged.named.append(topic)
        elif topic.producer != producer:
            raise ValueError(f"topic {name} is brought by {topic.producer!r}, not {producer!r}")
        staged.topics[name] = topic
        return topic

    def _write(self, topic: OpenTopic, batch: pa.RecordBatch, positions: Positions) -> None:
        body = message_of(batch)
        length = sum(map(len, body))
        if length > SPLIT_BYTES and len(positions) > 1:
            middle = len(positions) // 2
            self._write(topic, batch.slice(0, middle), positions[:middle])
            self._write(topic, batch.slice(middle), positions[middle:])
            return
        if length > MAX_BODY_BYTES:
            raise ValueError("a single row is larger than 2 GiB")
        first, last = int(positions[0]), int(positions[-1])
        tip = topic.tip
        if tip.closed or tip.end >= self._segment_bytes or tip.end + length > MAX_SEGMENT_BYTES - 2**20:
            tip = self._begin_segment(topic, first)
        part = self._part(topic, tip)
        out: list[bytes | pa.Buffer] = []
        end, running, schema_at = tip.end, tip.chain, tip.schema_at
        schema = batch.schema
        if tip.schema is None or not tip.schema.equals(schema, check_metadata=True):
            schema_at = end
            message = _padded(schema.serialize())
            head, crc = encode_frame(FrameKind.SCHEMA, [message], offset=end, schema_at=end, topic=topic.number)
            out += (head, message)
            end, running = end + len(head) + len(message), chain(running, crc)
        fd = self._files.of(topic, tip.segment)
        if length >= LARGE_BYTES:
            self._disk.write_early(fd, body, end + FRAME_HEADER_BYTES)  # the disk works while the checksum is made
        head, crc = encode_frame(
            FrameKind.BATCH, body, offset=end, schema_at=schema_at, topic=topic.number, first=first, last=last, rows=len(positions)
        )
        out += (head,) if length >= LARGE_BYTES else (head, *body)
        end, running = end + len(head) + length, chain(running, crc)
        self._disk.write(fd, out, tip.end)
        crashpoint("log.append.written")
        part.end, part.last, part.chain = end, last, running
        part.rows += len(positions)
        rows = tip.rows + len(positions)
        topic.tip = Tip(
            tip.segment, tip.begin, tip.begin_seed, end, last, running, rows, closed=False, schema=schema, schema_at=schema_at
        )

    def _part(self, topic: OpenTopic, tip: Tip) -> OpenPart:
        part = self._staged.newest.get(topic.number)
        if part is None or part.segment != tip.segment:
            part = self._staged.newest[topic.number] = OpenPart(topic, tip.segment, tip.end, tip.chain)
            self._staged.parts.append(part)
        return part

    def _begin_segment(self, topic: OpenTopic, first: int) -> Tip:
        old = topic.tip
        if old.segment and not old.closed:
            self._staged.closed.append((topic, run_of(old)))
        header = SegmentHeader(
            self._published.head.log_id, topic.number, topic.name, first,
            previous=old.segment, previous_last=old.last, previous_chain=old.chain,
        )  # fmt: skip
        raw, crc = header.encode()
        fd = self._files.create(topic, first)
        self._staged.created.append((topic, first))
        crashpoint("log.segment.created")
        self._disk.write(fd, [raw], 0)
        crashpoint("log.segment.header_written")
        topic.tip = Tip(first, len(raw), crc, len(raw), old.last, crc, 0, closed=False)
        return topic.tip

    # --- commit ------------------------------------------------------------------------------------------------------

    def _sync_names(self) -> None:
        """Makes the names of what was staged durable, and removals before it: the entry never names a file that a power loss could take."""
        created, folders = self._staged.created, self._unsynced_folders()
        if not folders:
            return
        with self._fatal():
            crashpoint("log.commit.before_folder_fsync")
            self._syncs.together(self._disk.sync_folder, list(folders))
            if any(not topic.folder_exists for topic, _ in created):
                self._disk.sync_folder(self._places.topics)
            for topic, _ in created:
                topic.folder_exists = True

    def _unsynced_folders(self) -> set[Path]:
        """Those in which a name that is not durable yet was made, now or before a rollback."""
        return self._staged.left | {self._places.folder(topic.name) for topic, _ in self._staged.created}

    def _begin_next_file(self) -> None:
        """… of the timeline, where the one at hand is long. Before the group, so that nothing has become durable when it fails."""
        published = self._published
        if not published.full:
            return
        # The file gets a name that another writer's may have by now.
        self._refuse_another_writer()
        self._refuse_another_place()
        try:
            head = published.write_next()
        except OSError:
            return  # the file at hand grows on
        except LogCorrupt as error:
            self._broken = str(error)
            raise
        with self._fatal():
            published.begin_next(head)

    def _refuse_another_writer(self) -> None:
        if not self._published.is_ours():
            self._broken = "another writer has taken the log over"
            self._check_usable()

    def _publish(self, group: GroupEntry) -> None:
        published = self._published
        self._refuse_another_writer()
        try:
            head = published.enter(group)
        except OSError:
            with self._fatal():
                published.take_back(durably=True)
            self.rollback()
            raise
        with self._fatal():
            self._sync_staged()
            published.advance(head)

    def _sync_staged(self) -> None:
        """Makes the changes and their entry durable. An error takes the entry back: nobody may find it later and take it for durable."""
        try:
            crashpoint("log.commit.before_fsync")
            touched = [self._files.of(part.topic, part.segment) for part in self._staged.parts]
            self._syncs.together(self._disk.sync, [*touched, self._published.timeline_fd])
            crashpoint("log.commit.fsynced")
        except OSError:
            self._published.take_back()
            raise

    def _close_asked_for(self) -> None:
        """Closes the segments that ``upkeep`` has asked for. Nothing may be staged."""
        for name in self._register.upkeep.to_close():
            topic = self._topics.get(name)
            if topic is None or topic.tip.closed:
                continue
            run = run_of(topic.tip)
            topic.tip = topic.durable = replace(topic.tip, closed=True, schema=None)
            self._hand_to_sealing(topic, run)

    def _close_full(self, staged: Staged) -> None:
        """Hands full segments to sealing, and keeps the number of open files bounded."""
        for topic in staged.topics.values():
            if topic.tip.end >= self._segment_bytes and not topic.tip.closed:
                staged.closed.append((topic, run_of(topic.tip)))
                topic.tip = topic.durable = replace(topic.tip, closed=True, schema=None)
        for topic, run in staged.closed:
            crashpoint("log.segment.closed")
            self._hand_to_sealing(topic, run)
        self._files.trim()

    def _hand_to_sealing(self, topic: OpenTopic, run: SegmentRun) -> None:
        self._files.forget(topic.number, run.segment)
        if self._sealer:
            self._sealer.add(self._place(topic.number, topic.name, run.segment), run)

    # --- files -------------------------------------------------------------------------------------------------------

    def _resumed(self, index: TopicIndex) -> OpenTopic:
        newest = index.newest()
        # One that was full when segments were shorter is sealed, and its file gone.
        closed = newest.end >= self._segment_bytes or not self._places.segment(index.name, newest.segment).exists()
        tip = Tip(
            newest.segment, newest.start, newest.seed, newest.end, newest.last, newest.chain, newest.rows, closed=closed
        )  # fmt: skip
        return OpenTopic(index.number, index.name, index.producer, tip, tip, folder_exists=True)

    def _place(self, number: int, name: str, segment: int) -> SegmentPlace:
        return SegmentPlace(self._published.head.log_id, number, name, segment)

    def _located(self, error: OSError) -> OSError:
        """Writing by descriptor, the system does not say where."""
        return OSError(error.errno, f"cannot write the log in {self._places.root}: {error.strerror}")

    def _fatal(self) -> _Fatal:
        return _Fatal(self)

    def _refuse_another_place(self) -> None:
        try:
            self._check_place()
        except HeadwaterError:
            self._broken = "its folder was moved, deleted or replaced"
            raise

    def _check_place(self) -> None:
        """Also from another thread. Raises HeadwaterError."""
        if not is_held(self._places, self._lock_fd):
            raise HeadwaterError(
                f"the log's folder {self._places.root} was moved, deleted or replaced while it was being written; what came since is not confirmed",
                hint="stop cdc run, put the folder back in place of what stands there now, or point log.dir at it, and start again",
            )

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise HeadwaterError(
                f"the log's writer takes nothing more: {self._broken}", hint="restart capture, which recovers the log"
            )


class _Fatal:
    """Any error inside means that nobody knows what the disk holds: the writer is over, the error goes on."""

    def __init__(self, writer: EmbeddedLogWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            code = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else type(error).__name__
            self._writer._broken = f"the disk failed before ({code})"


def _padded(message: pa.Buffer) -> bytes | pa.Buffer:
    return message.to_pybytes() + bytes(rest) if (rest := padding(message.size)) else message
