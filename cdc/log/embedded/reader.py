"""Reads the embedded log, in any process and any number of times. Believes the head's file only, so it sees durable cuts only."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import LogCorrupt, LogReplaced, PositionGone
from cdc.log.contract import Slice, Topic, TopicState, retired_before
from cdc.log.embedded import plainfile
from cdc.log.embedded.away import Moved
from cdc.log.embedded.format import Damaged, Head
from cdc.log.embedded.headfile import HeadFile
from cdc.log.embedded.histories import lineage_of
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.pieces import Pieces, of_sealed, of_segment
from cdc.log.embedded.sealedsegment import Only, SealedSegment
from cdc.log.embedded.segment import Segment, SegmentPlace
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.topicindex import SegmentRun, TopicIndex
from cdc.log.embedded.topicstates import EmbeddedStates
from cdc.log.embedded.volumes import EARLIER, Volumes
from cdc.log.views import alone, clip, joined
from cdc.model.batch import keys_schema, last_position, only_keys, table_of
from cdc.model.lineage import Lineage
from cdc.model.oldrows import schema_without_old_rows, without_old_rows
from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from cdc.state.filewatch import Watch

RUN_BYTES: Final = 4 * 2**20
"""How much is checked and decoded before its first batch is handed out."""
JOINED_ROWS: Final = 65_536
"""Handed out together, where they are small: whoever writes them pays for each batch, and begins the next one with nothing to do."""
OPEN_SEGMENTS: Final = 64
"""Segments that stay open for the next read; a sealed one keeps its disk space until it is pushed out."""
NO_LOG_POLL_S: Final = 0.05
LONGEST_WAIT_S: Final = 60.0
"""So long at most nobody looks whether the log is still the one that stands there: what is written into another wakes nobody."""


class EmbeddedLogReader:
    """See ``LogReader``. Opens nothing before the first question, so it may be made before the log exists.

    ``read`` joins small neighbours into larger batches and lets a TRUNCATE stand alone in its batch. Several threads may
    share one reader. Every method raises LogCorrupt for damage, naming the file and the byte, and LogReplaced, once, when it finds that another folder
    stands in the log's place: what was read before and what is read next may be two logs.
    """

    def __init__(self, dir: Path) -> None:
        self._places = LogPlaces(Path(dir))
        self._lock = threading.RLock()
        self._head_file: HeadFile | None = None
        self._volumes = Volumes(self._places)
        self._seen: Head | None = None
        self._open: OrderedDict[tuple[int, int, int], Segment | SealedSegment] = OrderedDict()
        self._topics: dict[int, Topic] = {}
        self._watches: list[Watch] = []
        """One for each thread that has waited at the same time as others, while nobody uses it: who has none would have to look again and again."""
        self._closed = 0
        self._pieces = Pieces()

    def head(self) -> Cut:
        timeline = self._refreshed()
        return timeline.head if timeline else ZERO_CUT

    def written(self) -> Cut:
        timeline = self._written()
        return ZERO_CUT if timeline is None else timeline.head

    def _written(self) -> Timeline | None:
        """The timeline as the disk has it, whatever the head says; None without one."""
        numbers = self._places.timelines()
        if not numbers:
            return None
        path = self._places.timeline(numbers[-1])
        try:
            return Timeline.whole(plainfile.content(path))
        except Damaged as damage:
            raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None

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
                    watch.wait(min(left, LONGEST_WAIT_S))
                else:
                    time.sleep(min(left, NO_LOG_POLL_S))
        finally:
            if watch is not None:
                self._put_back(watch, closed)

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        with self._lock:
            self._refreshed()
            return self._volumes.within(after, max_rows, max_bytes) or ZERO_CUT

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        with self._lock:
            self._refreshed()
            timeline = self._volumes.reaching(lsn)
            return timeline.at_lsn(lsn) if timeline else None

    def cut_before_lsn(self, lsn: Lsn) -> Cut:
        """The last cut before the first that reaches the LSN; the head when none does."""
        with self._lock:
            self._refreshed()
            timeline = self._volumes.reaching(lsn)
            return timeline.cut(timeline.number_at_lsn(lsn) - 1) if timeline else ZERO_CUT

    def cuts(self, since: int = 0) -> list[Cut]:
        """Every cut from the one with this number on. For looking into the log: there may be very many."""
        with self._lock:
            self._refreshed()
            return list(self._volumes.cuts(since))

    def marks(self, upto: Position | None = None) -> Mapping[str, bytes]:
        with self._lock:
            timeline = self._refreshed()
            if upto is not None:
                timeline = self._volumes.behind(upto)
            return timeline.marks(upto) if timeline else {}

    def last_commit(self) -> Cut:
        with self._lock:
            timeline = self._refreshed()
            return timeline.last_commit() if timeline else ZERO_CUT

    def lineage(self) -> Lineage | None:
        timeline = self._refreshed()
        return None if timeline is None else lineage_of(self._places.root, timeline.log_id, timeline.raised)

    def last_change(self, topic: str, upto: Position) -> Position:
        index = self._index(topic, upto)
        while index is not None:
            try:
                return Position(self._last_within(index, upto))
            except _Superseded:
                index = self._index(topic, upto)
        return START

    def topics(self) -> Sequence[Topic]:
        with self._lock:  # else a topic may be named already by what another thread takes in, and have no changes yet
            timeline = self._refreshed()
            return [] if timeline is None else [self._topic(index) for index in timeline.topics.values()]

    def read(
        self,
        topic: str,
        after: Position,
        upto: Position,
        history: str | None = None,
        *,
        old_rows: bool = False,
        keys_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        index = self._index(topic, upto)
        if index is None or index.last <= after:
            return  # most topics, whenever a follower looks at what is new in all of them
        self._check_kept(index, after, history)
        only = keys_schema if keys_only else None if old_rows else schema_without_old_rows
        for batch in joined(self._batches(index, after, upto, only), upto_rows=JOINED_ROWS):
            yield from alone(only_keys(batch) if keys_only else batch)

    def changes_at(self, topic: str, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        index = self._index(topic, int(positions[-1])) if len(positions) else None
        while index is not None and len(positions):
            try:
                for first, low, high in index.within_segments(*index.between(int(positions[0]) - 1, int(positions[-1]))):
                    last = int(index.parts["last"][high - 1])
                    mine = positions[: int(positions.searchsorted(last, "right"))]
                    if len(mine):
                        for batch in self._at(index, first, int(index.parts["generation"][low]), mine):
                            yield batch
                            positions = positions[int(positions.searchsorted(last_position(batch), "right")) :]
                    positions = positions[int(positions.searchsorted(last, "right")) :]
                return
            except _Superseded:
                index = self._index(topic, int(positions[-1]))

    def state(self, topic: str, upto: Position) -> TopicState | None:
        return EmbeddedStates(self._places.root, self).newest(topic, upto)

    def slices(
        self, topics: Sequence[str], after: Position, upto: Position, target_bytes: int, history: str | None = None
    ) -> Sequence[Slice]:
        found: list[Slice] = []
        for topic in topics:
            index = self._index(topic, upto)
            if index is not None:
                self._check_kept(index, after, history)
                found += self._slices(index, after, upto, target_bytes) if after < upto else ()
        return found

    def _slices(self, index: TopicIndex, after: Position, upto: Position, target_bytes: int) -> list[Slice]:
        found: list[Slice] = []
        for topic, low, high in self._groups(index, *index.between(after, upto), after, upto):
            # Of a checkpoint's part that is not resolved only the positions tell how many rows of it are meant.
            for end in topic.divided(low, high, target_bytes):
                rows, size = topic.totals(low, end)
                until = Position(min(upto, int(topic.parts["last"][end - 1])))
                one = Slice(index.name, after, until, min(rows, until - after), size)
                if found and found[-1].bytes + size <= target_bytes:
                    before = found.pop()
                    one = replace(one, after=before.after, rows=before.rows + one.rows, bytes=before.bytes + size)
                found.append(one)
                after, low = until, end
        if found:
            found[-1] = replace(found[-1], upto=upto)
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
            self._pieces.clear()
            if self._head_file:
                self._head_file.close()
            for watch in self._watches:
                watch.close()
            self._watches.clear()
            self._closed += 1
            self._volumes.close()
            self._head_file = self._seen = None

    # --- what is durable ---------------------------------------------------------------------------------------------

    def _refreshed(self) -> Timeline | None:
        with self._lock:
            if self._head_file is None:
                try:
                    self._head_file = HeadFile(self._places.head)
                except (FileNotFoundError, NotADirectoryError):
                    return None
            if not self._head_file.stands():
                self.close()  # the next question is answered from what stands there now
                raise LogReplaced(self._places.root)
            head = self._head_file.read()
            if self._seen is not head and self._seen != head:
                self._volumes.catch_up(head)
                self._seen = head
            return self._volumes.newest

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

    def _check_kept(self, index: TopicIndex, after: int, history: str | None) -> None:
        """Raises PositionGone."""
        if _is_kept(index, after):
            return
        lineage = self.lineage()
        if lineage is None or not _is_kept(index, after, lineage.raised_at(history)):
            raise _gone(index, after)

    def _index(self, topic: str, upto: int) -> TopicIndex | None:
        timeline = self._volumes.newest
        if timeline is None or timeline.head.position < upto:
            timeline = self._refreshed()
        if timeline is None or topic not in timeline.numbers:
            return None
        return timeline.topics[timeline.numbers[topic]]

    def _last_within(self, index: TopicIndex, upto: int) -> int:
        """The last position at or below a cut that the topic still has, or the last below its floor; 0 when there is none. Raises _Superseded."""
        dropped = index.retired.floor - 1
        least = dropped if 0 < dropped <= upto else 0
        for number in index.back_from(upto):
            if found := self._last_of_part(index, number, upto):
                return max(found, least)
        return least

    def _last_of_part(self, index: TopicIndex, number: int, upto: int) -> int:
        _, last, segment, *_, generation = index.parts[number].item()
        if generation:
            source = self._segment(index, segment, generation)
            try:
                return source.last_within(upto) if isinstance(source, SealedSegment) else 0
            except Moved:
                self._forget(source)
                raise _Superseded from None
        if last <= upto:
            return int(last)
        if last > index.begun_at:
            return 0  # a group's part never reaches across a cut
        with self._lock:
            timeline = self._volumes.behind(upto)
        earlier = timeline.topics.get(index.number) if timeline else None
        found = earlier.last_within(upto) if earlier else 0
        return found if found >= segment else 0

    def _batches(self, index: TopicIndex | None, after: int, upto: int, only: Only | None) -> Iterator[pa.RecordBatch]:
        """``only``: these columns of what has to be decoded; of the rest at least these."""
        while index is not None:
            try:
                for first, low, high in index.within_segments(*index.between(after, upto)):
                    source = self._segment(index, first, int(index.parts["generation"][low]))
                    if isinstance(source, SealedSegment):
                        for batch in self._of_sealed(source, after, upto, only):
                            yield batch
                            after = last_position(batch)  # its next file may have been moved
                    else:
                        batches = self._of_segment(index, source, low, high, after, upto)
                        yield from batches if only is None else map(without_old_rows, batches)
                    after = max(after, int(index.parts["last"][high - 1]))
                return
            except _Superseded:
                # Other files hold the rest of it by now.
                known, index = index.retired.raised, self._index(index.name, upto)
                if index is not None and not _is_kept(index, after, known):
                    raise _gone(index, after) from None

    def _of_sealed(self, source: SealedSegment, after: int, upto: int, only: Only | None) -> Iterator[pa.RecordBatch]:
        try:
            yield from source.batches(after, upto, only)
        except Moved:
            self._forget(source)
            raise _Superseded from None

    def _of_segment(
        self, index: TopicIndex, source: Segment, low: int, high: int, after: int, upto: int
    ) -> Iterator[pa.RecordBatch]:
        for parts, begin, end in self._groups(index, low, high, after, upto):
            whole = parts.inside(begin, end, after, upto)
            for run in parts.runs(begin, end, RUN_BYTES):
                for batch in source.batches(run):
                    clipped = batch if whole else clip(batch, after, upto)
                    if clipped.num_rows:
                        yield clipped

    def _at(self, index: TopicIndex, first: int, generation: int, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Those of one segment. Raises _Superseded."""
        source, key = self._segment(index, first, generation), (index.number, first, generation)
        if isinstance(source, SealedSegment):
            try:
                yield from of_sealed(self._pieces, key, source, positions)
            except Moved:
                self._forget(source)
                raise _Superseded from None
        else:
            segments = index.parts["segment"]
            own = int(segments.searchsorted(first, "left")), int(segments.searchsorted(first, "right"))
            yield from of_segment(self._pieces, key, source, (index, *own), positions)

    def _groups(self, index: TopicIndex, low: int, high: int, after: int, upto: int) -> Iterator[tuple[TopicIndex, int, int]]:
        """The parts [low, high); where only some of what a checkpoint sums up is wanted, as the groups that the files before it tell of.
        Who follows a log is a little behind its newest file whenever one begins, and must not read a whole segment for that."""
        if low >= high:
            return
        first, last = int(index.parts["base"][low]), int(index.parts["last"][low])
        if last <= index.begun_at and not index.inside(low, low + 1, after, upto):
            low_end, high_end = max(after, first - 1), min(upto, last)
            with self._lock:
                files = self._volumes.over(low_end, high_end, EARLIER)
            if files is not None:
                for file in files:
                    topic, begun = file.topics.get(index.number), file.before.head.position
                    if topic is not None:
                        yield (topic, *topic.between(max(low_end, begun), high_end))
                low += 1
        if low < high:
            yield index, low, high

    def _segment(self, index: TopicIndex, first: int, generation: int) -> Segment | SealedSegment:
        key = (index.number, first, generation)
        with self._lock:
            found = self._open.pop(key, None)
            if found is None or (isinstance(found, SealedSegment) and found.last < index.last_of(first)):
                # What was sealed is opened as far as the head knows it, and a power loss may have set the head back.
                found = self._opened(index, first, generation)
            self._open[key] = found
            while len(self._open) > OPEN_SEGMENTS:
                self._open.popitem(last=False)
            return found

    def _forget(self, source: Segment | SealedSegment) -> None:
        """It is opened again by whoever asks next."""
        with self._lock:
            for key in [key for key, found in self._open.items() if found is source]:
                del self._open[key]

    def _opened(self, index: TopicIndex, first: int, generation: int) -> Segment | SealedSegment:
        """A segment is either there, or its Parquet files are: they appear before it goes. Raises _Superseded once others have taken their place."""
        timeline = self._volumes.newest
        assert timeline is not None
        place = SegmentPlace(timeline.log_id, index.number, index.name, first)
        path = self._places.segment(index.name, first)
        if not generation:
            with suppress(FileNotFoundError):
                return Segment(path, place)
        # The sealed files hold all of the segment, so also what was committed to it since this reader last looked.
        timeline = self._refreshed()
        assert timeline is not None
        newest = timeline.topics[index.number]
        known = [run for run in newest.segments() if (run.segment, run.generation) == (first, generation)]
        # The power loss that set the head back spares what was sealed since: the files may hold more of the segment than the head knows of.
        for run in chain(known, self._runs_written(index.name, first, generation)):
            with suppress(FileNotFoundError):
                return SealedSegment(path.parent, run, place)
        if not known:
            raise _Superseded
        raise LogCorrupt(f"{path}: missing, and no sealed files hold its positions {first} to {known[0].last}")

    def _runs_written(self, topic: str, first: int, generation: int) -> Iterator[SegmentRun]:
        """All that was ever committed to the segment, whatever the head says."""
        timeline = self._written()
        if timeline is not None and topic in timeline.numbers:
            runs = timeline.topics[timeline.numbers[topic]].segments()
            yield from (run for run in runs if (run.segment, run.generation) == (first, generation))

    def _topic(self, index: TopicIndex) -> Topic:
        """Made again only when something has been added to it: all topics are asked for whenever a follower looks at its store."""
        known, last = self._topics.get(index.number), index.last
        retired = index.retired
        now = (last, index.rows, retired.clean_from, retired.floor, retired.kept_from, retired.whole)
        if known is None or (known.last, known.rows, known.clean_from, known.floor, known.kept_from, known.whole) != now:
            known = Topic(
                index.name, self._table(index), index.rows, index.bytes, Position(index.first), Position(last),
                index.producer, Position(retired.clean_from), Position(retired.floor), retired.raised,
                Position(retired.kept_from), retired.whole,
            )  # fmt: skip
            self._topics[index.number] = known
        return known

    def _table(self, index: TopicIndex) -> Table:
        size = len(index.parts)
        run = index.run(size - 1, size)
        source = self._segment(index, run.segment, run.generation)
        return table_of(source.newest_schema(run) if isinstance(source, Segment) else source.newest_schema)


class _Superseded(Exception):
    """What a reader looked for has been replaced or retired since it last asked where changes lie."""


def _is_kept(index: TopicIndex, after: int, known: int = 0) -> bool:
    """Whether reading may begin behind a position, by somebody who has missed nothing up to the raising ``known``."""
    retired = index.retired
    knows = retired.raised <= known
    return (after + 1 >= retired.kept_from or (retired.whole and knows)) and (not 0 < after < retired.floor - 1 or knows)


def _gone(index: TopicIndex, after: int) -> PositionGone:
    retired = index.retired
    if after + 1 < retired.kept_from:
        return retired_before(index.name, after, retired.kept_from)
    return PositionGone(
        f"the log no longer keeps all of {index.name} from position {after} on: DELETEs before {retired.floor} may be gone",
    )
