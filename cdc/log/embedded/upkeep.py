"""The way by which compaction and retention reach the log's writer: sealed files that replace segments, and positions that are no longer kept,
the files of which go in the same way.

The order that makes it safe: the new files are written aside, synced and renamed, and their folder is synced; then they are handed over,
and the writer's next commit records them; then the head that says so is synced; and only then, in ``remove_replaced``, do the old files go. A crash
leaves the old files, or both, and recovery removes those that the timeline does not name. Because the head is synced before anything goes, no power
loss brings back one that names what is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.log.contract import ClosedRange
from cdc.log.embedded.away import Moved
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import LogPlaces, Sealed, digest_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import Replaced, Retired
from cdc.log.embedded.sealedsegment import Only, SealedSegment, encode, sealed_in
from cdc.log.embedded.sealer import put
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.topicindex import TopicIndex
from cdc.model.batch import last_position


class _Dropped(NamedTuple):
    """Sealed files of a topic that the log no longer needs: those within [first, last] of an earlier generation."""

    topic: str
    first: int
    last: int
    generation: int


class EmbeddedUpkeep:
    """See ``cdc.log.contract.LogUpkeep``. A topic waits for the writer's next commit once it has handed something over."""

    def __init__(self, dir: Path, disk: Disk | None = None, check_place: Callable[[], None] = lambda: None) -> None:
        """``check_place``: raises HeadwaterError when the log's folder is no longer the writer's: nothing of another log may be touched."""
        self._places = LogPlaces(Path(dir))
        self._disk = disk or Disk()
        self._reader = EmbeddedLogReader(dir)
        self._check_place = check_place
        self._lock = threading.Lock()
        self._given: dict[int, int] = {}
        """The newest generation that files of each topic were written for. None is given twice, whatever became of the files."""
        self._strays: set[tuple[Path, int]] = set()
        """Topics' folders in which files of a generation may have got their names though it was never handed over: none is recorded there while
        they stand."""
        self._dropped: dict[int, _Dropped] = {}
        """What goes once that which waits of a topic is recorded."""
        self._replaced: dict[int, Replaced] = {}
        self._retired: dict[int, Retired] = {}
        self._closing: set[str] = set()
        """The topics whose newest segments the writer is to close."""
        self._recorded: list[tuple[float, _Dropped]] = []
        """Durably dropped, since when (``time.monotonic``); the files are still there."""

    def waiting(self) -> bool:
        return bool(self._replaced or self._retired or self._closing)

    def ranges(self, topic: str) -> list[ClosedRange]:
        found = []
        for run in self._index(topic).segments()[:-1]:
            if not run.generation and not self._reader.is_sealed(topic, run):
                break
            found.append(ClosedRange(topic, run.segment, run.last, run.rows, run.end - run.start, run.generation > 0))
        return found

    def batches(self, closed: ClosedRange, only: Only | None = None) -> Iterator[pa.RecordBatch]:
        index = self._index(closed.topic)
        parts = index.parts["segment"]
        run = index.run(int(parts.searchsorted(closed.first, "left")), int(parts.searchsorted(closed.first, "right")))
        folder, place, done = self._places.folder(closed.topic), self._place(index, run.segment), 0
        try:
            for batch in SealedSegment(folder, run, place).batches(0, run.last, only):
                yield batch
                done = last_position(batch)
        except Moved:  # a file has been brought back
            yield from SealedSegment(folder, run, place).batches(done, run.last, only)

    def rewrite(self, topic: str, first: int, last: int, batches: Iterable[pa.RecordBatch]) -> int:
        self._check_place()
        index = self._index(topic)
        folder, generation = self._places.folder(topic), self.next_generation(topic)
        self._remove_strays(folder)
        self._given[index.number] = generation
        crashpoint("compaction.begun")
        # Noted before there is any: a disk that fails may not even say afterwards what it holds.
        self._strays.add((folder, generation))
        files = put(self._disk, folder, encode(self._place(index, first), batches, generation))
        crashpoint("compaction.written")
        size = sum(size for _, size in files)
        self.replace(topic, first, last, [name for name, _ in files], size, generation)
        self._strays.discard((folder, generation))
        return size

    def _remove_strays(self, folder: Path) -> None:
        """Raises OSError when the disk refuses; they are then still known."""
        strays = {one for one in self._strays if one[0] == folder}
        if not strays:
            return
        for name in sealed_in(folder):
            if (folder, name.generation) in strays:
                with suppress(FileNotFoundError):
                    self._disk.remove(folder / name.file)
        self._disk.sync_folder(folder)
        self._strays -= strays

    def next_generation(self, topic: str) -> int:
        """The number that the next files of this topic have to carry in their names."""
        index = self._index(topic)
        return max(index.generation, self._given.get(index.number, 0)) + 1

    def replace(self, topic: str, first: int, last: int, files: Sequence[Sealed], size: int, generation: int | None = None) -> None:
        """The topic's changes in [first, last], which are whole closed segments, are what these files of a new generation hold; by default
        the next.

        ``size``: their bytes together. Raises ValueError when that contradicts the log, or something of this topic still waits.
        """
        index = self._index(topic)
        generation = generation or self.next_generation(topic)
        if any(name.generation != generation or not first <= name.first <= name.last <= last for name in files):
            raise ValueError(
                f"{topic}: the files are not of generation {generation}, or hold other positions than {first} to {last}"
            )
        new = Replaced(index.number, first, last, size, sum(name.rows for name in files), generation, digest_of(files))
        with self._lock:
            self._check(index, index.refuses(new))
            self._replaced[index.number] = new
            self._dropped[index.number] = _Dropped(topic, first, last, generation)

    def retire(self, topic: str, *, floor: int, clean_from: int, kept_from: int | None = None, whole: bool | None = None) -> None:
        index = self._index(topic)
        kept_from = index.retired.kept_from if kept_from is None else kept_from
        if whole is None:
            whole = index.retired.whole and kept_from == index.retired.kept_from
        crashpoint("compaction.retiring")
        with self._lock:
            raised = self._next_raising() if floor > index.retired.floor else index.retired.raised
            new = Retired(index.number, kept_from, floor, clean_from, index.generation, raised, whole)
            self._check(index, index.refuses_retiring(new))
            self._retired[index.number] = new
            # A segment of which anything is kept stays whole, also where it was sealed as several files.
            last = index.retire(new).first - 1
            if last >= index.first:
                self._dropped[index.number] = _Dropped(topic, index.first, last, index.generation + 1)

    def close_newest(self, topic: str, begun: int) -> None:
        newest = self._index(topic).newest()
        if newest.segment <= begun and not self._reader.is_sealed(topic, newest):
            with self._lock:
                self._closing.add(topic)

    def _next_raising(self) -> int:
        """The caller holds the lock."""
        lineage = self._reader.lineage()
        assert lineage is not None
        return max([lineage.next_raising, *(one.raised + 1 for one in self._retired.values())])

    def remove_replaced(self, grace_s: float = 0.0) -> None:
        since = time.monotonic() - grace_s
        with self._lock:
            recorded = [entry for entry in self._recorded if entry[0] <= since]
        if not recorded:
            return
        self._check_place()
        crashpoint("compaction.recorded")
        fd = self._disk.open(self._places.head)
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        crashpoint("compaction.head_synced")
        refused: OSError | None = None
        for entry in recorded:
            try:
                self._remove(entry[1])
            except OSError as error:
                refused = refused or error  # the others' space may be what is needed
                continue
            with self._lock:
                self._recorded.remove(entry)
        if refused is not None:
            raise refused

    def _remove(self, dropped: _Dropped) -> None:
        folder = self._places.folder(dropped.topic)
        # Listed twice, because a listing may miss both the file and the stub that takes its place meanwhile.
        for name in dict.fromkeys([*sealed_in(folder), *sealed_in(folder)]):
            if name.generation < dropped.generation and dropped.first <= name.first and name.last <= dropped.last:
                # The file first: whoever is putting it away finds that it is gone, and takes back the stub.
                for file in (name.file, name.away):
                    with suppress(FileNotFoundError):
                        self._disk.remove(folder / file)
                crashpoint("compaction.removed")
        self._disk.sync_folder(folder)

    def _check(self, index: TopicIndex, refused: str | None) -> None:
        """The caller holds the lock."""
        if index.number in self._replaced or index.number in self._retired:
            refused = "what was handed over before has not been recorded"
        if refused:
            raise ValueError(f"{index.name}: {refused}")

    def _index(self, topic: str) -> TopicIndex:
        timeline = self._reader.timeline
        if timeline is None or topic not in timeline.numbers:
            raise ValueError(f"the log has no topic {topic}")
        return timeline.topics[timeline.numbers[topic]]

    def _place(self, index: TopicIndex, first: int) -> SegmentPlace:
        timeline = self._reader.timeline
        assert timeline is not None
        return SegmentPlace(timeline.log_id, index.number, index.name, first)

    # --- the writer's side -------------------------------------------------------------------------------------------

    def handed_over(self) -> tuple[tuple[Replaced, ...], tuple[Retired, ...]]:
        with self._lock:
            return tuple(self._replaced.values()), tuple(self._retired.values())

    def to_close(self) -> set[str]:
        """The topics whose newest segments are to be closed; each is named once."""
        with self._lock:
            closing, self._closing = self._closing, set()
            return closing

    def recorded(self, replaced: Sequence[Replaced], retired: Sequence[Retired]) -> None:
        """Takes note that these are durable."""
        with self._lock:
            for new in replaced:
                self._replaced.pop(new.topic)
            for old in retired:
                self._retired.pop(old.topic)
            for topic in ({new.topic for new in replaced} | {old.topic for old in retired}) & self._dropped.keys():
                self._recorded.append((time.monotonic(), self._dropped.pop(topic)))

    def close(self) -> None:
        self._reader.close()
