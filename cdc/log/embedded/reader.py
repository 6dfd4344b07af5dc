"""Reads the embedded log, in any process and any number of times. Believes the head's file only, so it sees durable cuts only."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.errors import LogCorrupt
from cdc.log.contract import Slice, Topic
from cdc.log.embedded.format import RECORD_BYTES, Damaged, Head, decode_timeline_header
from cdc.log.embedded.headfile import HeadFile
from cdc.log.embedded.histories import lineage_of
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.sealedsegment import SealedSegment
from cdc.log.embedded.segment import Segment, SegmentPlace
from cdc.log.embedded.timeline import SegmentRun, Timeline, TopicIndex
from cdc.log.views import alone, clip, joined
from cdc.model.batch import table_of
from cdc.model.lineage import Lineage
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from cdc.state.filewatch import Watch

RUN_BYTES: Final = 4 * 2**20
"""How much is checked and decoded before its first batch is handed out."""
JOINED_ROWS: Final = 65_536
"""Handed out together, where they are small: whoever writes them pays for each batch, and begins the next one with nothing to do."""
OPEN_SEGMENTS: Final = 64
"""Segments that stay open for the next read; a sealed one keeps its disk space until it is pushed out."""
NO_LOG_POLL_S: Final = 0.05


class EmbeddedLogReader:
    """See ``LogReader``. Opens nothing before the first question, so it may be made before the log exists.

    ``read`` joins small neighbours into larger batches and lets a TRUNCATE stand alone in its batch. Several threads may
    share one reader. Every method raises LogCorrupt for damage, naming the file and the byte.
    """

    def __init__(self, dir: Path) -> None:
        self._places = LogPlaces(Path(dir))
        self._lock = threading.RLock()
        self._head_file: HeadFile | None = None
        self._timeline_fd = -1
        self._timeline: Timeline | None = None
        self._seen: Head | None = None
        self._open: OrderedDict[tuple[int, int], Segment | SealedSegment] = OrderedDict()
        self._topics: dict[int, Topic] = {}
        self._watches: list[Watch] = []
        """One for each thread that has waited at the same time as others, while nobody uses it: who has none would have to look again and again."""
        self._closed = 0

    def head(self) -> Cut:
        timeline = self._refreshed()
        return timeline.head if timeline else ZERO_CUT

    def written(self) -> Cut:
        timeline = self._written()
        return ZERO_CUT if timeline is None else timeline.head

    def _written(self) -> Timeline | None:
        """The timeline as the disk has it, whatever the head says; None without one."""
        path = self._places.timeline
        try:
            data = path.read_bytes()
            timeline = Timeline(*decode_timeline_header(data))
            timeline.extend(data[RECORD_BYTES:])
        except FileNotFoundError:
            return None
        except Damaged as damage:
            raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None
        return timeline

    def wait(self, after: Position, timeout_s: float) -> Cut:
        deadline = time.monotonic() + timeout_s
        watch: Watch | None = None
        closed = self._closed
        try:
            while True:
                # The watch stands before the head is read: what is written in between wakes it.
                watch = watch or self._taken_watch()
                cut = self.head()
                left = deadline - time.monotonic()
                if cut.position > after or left <= 0:
                    return cut
                if watch is not None:
                    watch.wait(left)
                else:
                    time.sleep(min(left, NO_LOG_POLL_S))
        finally:
            if watch is not None:
                self._put_back(watch, closed)

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        timeline = self._refreshed()
        return timeline.within(after, max_rows, max_bytes) if timeline else ZERO_CUT

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        timeline = self._refreshed()
        return timeline.at_lsn(lsn) if timeline else None

    def last_commit(self) -> Cut:
        timeline = self._refreshed()
        return timeline.last_commit() if timeline else ZERO_CUT

    def lineage(self) -> Lineage | None:
        timeline = self._refreshed()
        return None if timeline is None else lineage_of(self._places.root, timeline.log_id)

    def last_change(self, topic: str, upto: Position) -> Position:
        index = self._index(topic, upto)
        return Position(0 if index is None else index.last_within(upto))

    def topics(self) -> Sequence[Topic]:
        timeline = self._refreshed()
        if timeline is None:
            return []
        return [self._topic(index) for index in list(timeline.topics.values())]

    def read(self, topic: str, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        index = self._index(topic, upto)
        if index is None or index.last <= after:
            return  # most topics, whenever a follower looks at what is new in all of them
        for batch in joined(self._batches(index, after, upto), upto_rows=JOINED_ROWS):
            yield from alone(batch)

    def slices(self, topics: Sequence[str], after: Position, upto: Position, target_bytes: int) -> Sequence[Slice]:
        found: list[Slice] = []
        for topic in topics:
            index = self._index(topic, upto)
            if index is not None:
                found += _slices(index, after, upto, target_bytes)
        return found

    @property
    def timeline(self) -> Timeline | None:
        """The index behind the answers, brought up to date; None when there is no log yet. For looking into the log."""
        return self._refreshed()

    def is_sealed(self, topic: str, run: SegmentRun) -> bool:
        """Whether a segment (one of ``TopicIndex.segments()``) has become Parquet."""
        return not self._places.segment(topic, run.segment).exists()

    def close(self) -> None:
        with self._lock:
            for segment in self._open.values():
                segment.close()
            self._open.clear()
            self._topics.clear()
            if self._head_file:
                self._head_file.close()
            for watch in self._watches:
                watch.close()
            self._watches.clear()
            self._closed += 1
            if self._timeline_fd >= 0:
                os.close(self._timeline_fd)
            self._head_file, self._timeline_fd, self._timeline, self._seen = None, -1, None, None

    # --- what is durable ---------------------------------------------------------------------------------------------

    def _refreshed(self) -> Timeline | None:
        with self._lock:
            if self._head_file is None:
                try:
                    self._head_file = HeadFile(self._places.head)
                except (FileNotFoundError, NotADirectoryError):
                    return None
            head = self._head_file.read()
            if self._seen is not head and self._seen != head:
                self._catch_up(head)
                self._seen = head
            return self._timeline

    def _catch_up(self, head: Head) -> None:
        """Takes in the timeline's groups up to what the head says."""
        path = self._places.timeline
        try:
            if self._timeline is None:
                self._timeline_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                log_id, crc = decode_timeline_header(os.pread(self._timeline_fd, RECORD_BYTES, 0))
                self._timeline = Timeline(log_id, crc)
            timeline = self._timeline
            start = timeline.length
            if head.log_id != timeline.log_id or head.timeline_bytes < start:
                raise Damaged(0, "the head is of another log, or an older one")
            data = _read_range(self._timeline_fd, start, head.timeline_bytes)
            done = timeline.extend(data)
        except FileNotFoundError:
            raise LogCorrupt(f"{path}: missing") from None
        except Damaged as damage:
            raise LogCorrupt(
                f"{path} at byte {start + damage.offset if self._timeline else damage.offset}: {damage.what}"
            ) from None
        if done < head.timeline_bytes - start:
            raise LogCorrupt(f"{path} at byte {start + done}: the entry is damaged, though it was durable")
        if head.timeline_crc != timeline.crc or head.position != timeline.head.position:
            raise LogCorrupt(f"{path} at byte {timeline.length}: does not end as the head says")

    def _taken_watch(self) -> Watch | None:
        """One that nobody else uses; None as long as there is no log."""
        with self._lock:
            if self._watches:
                return self._watches.pop()
        try:
            return Watch(self._places.head)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _put_back(self, watch: Watch, closed: int) -> None:
        """closed: what ``_closed`` was when it was taken; the log may be another one since."""
        with self._lock:
            if closed == self._closed:
                self._watches.append(watch)
                return
        watch.close()

    # --- where changes lie -------------------------------------------------------------------------------------------

    def _index(self, topic: str, upto: int) -> TopicIndex | None:
        timeline = self._timeline
        if timeline is None or timeline.head.position < upto:
            timeline = self._refreshed()
        if timeline is None or topic not in timeline.numbers:
            return None
        return timeline.topics[timeline.numbers[topic]]

    def _batches(self, index: TopicIndex, after: int, upto: int) -> Iterator[pa.RecordBatch]:
        for first, low, high in index.within_segments(*index.between(after, upto)):
            source = self._segment(index, first)
            if isinstance(source, SealedSegment):
                yield from source.batches(after, upto)
                continue
            whole = index.inside(low, high, after, upto)
            for run in index.runs(low, high, RUN_BYTES):
                for batch in source.batches(run):
                    clipped = batch if whole else clip(batch, after, upto)
                    if clipped.num_rows:
                        yield clipped

    def _segment(self, index: TopicIndex, first: int) -> Segment | SealedSegment:
        key = (index.number, first)
        with self._lock:
            found = self._open.pop(key, None) or self._opened(index, first)
            self._open[key] = found
            while len(self._open) > OPEN_SEGMENTS:
                self._open.popitem(last=False)
            return found

    def _opened(self, index: TopicIndex, first: int) -> Segment | SealedSegment:
        """A segment is either there, or its Parquet files are: they appear before it goes."""
        timeline = self._timeline
        assert timeline is not None
        place = SegmentPlace(timeline.log_id, index.number, index.name, first)
        path = self._places.segment(index.name, first)
        try:
            return Segment(path, place)
        except FileNotFoundError:
            pass
        # The sealed files hold all of the segment, so also what was committed to it since this reader last looked.
        self._refreshed()
        run = next(run for run in index.segments() if run.segment == first)
        # The power loss that set the head back spares what was sealed since: the files may hold more of the segment than the head knows of.
        for known in chain((run,), self._runs_written(index.name, first)):
            with suppress(FileNotFoundError):
                return SealedSegment(path.parent, known, place)
        raise LogCorrupt(f"{path}: missing, and no sealed files hold its positions {first} to {run.last}")

    def _runs_written(self, topic: str, first: int) -> Iterator[SegmentRun]:
        """All that was ever committed to the segment, whatever the head says."""
        timeline = self._written()
        if timeline is not None and topic in timeline.numbers:
            yield from (run for run in timeline.topics[timeline.numbers[topic]].segments() if run.segment == first)

    def _topic(self, index: TopicIndex) -> Topic:
        """Made again only when something has been added to it: all topics are asked for whenever a follower looks at its store."""
        known, last = self._topics.get(index.number), index.last
        if known is None or known.last != last:
            known = Topic(index.name, self._table(index), index.rows, index.bytes, Position(index.first), Position(last))
            self._topics[index.number] = known
        return known

    def _table(self, index: TopicIndex) -> Table:
        size = len(index.parts)
        run = index.run(size - 1, size)
        source = self._segment(index, run.segment)
        return table_of(source.newest_schema(run) if isinstance(source, Segment) else source.newest_schema)


def _read_range(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end), or as many of them as there are."""
    pieces = []
    end = min(end, os.fstat(fd).st_size)  # never room for more than there is, whatever the head says
    while start < end and (piece := os.pread(fd, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _slices(index: TopicIndex, after: Position, upto: Position, target_bytes: int) -> list[Slice]:
    low, high = index.between(after, upto)
    found: list[Slice] = []
    while low < high:
        done = int(index.parts["bytes"][low - 1]) if low else 0
        end = int(index.parts["bytes"][:high].searchsorted(done + target_bytes, "right"))
        end = min(max(end, low + 1), high)
        rows, size = index.totals(low, end)
        until = upto if end == high else Position(min(upto, int(index.parts["last"][end - 1])))
        found.append(Slice(index.name, after, until, rows, size))
        after, low = until, end
    return found
