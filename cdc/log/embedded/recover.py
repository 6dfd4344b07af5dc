"""Recovery: the states in which a writer may find a log when it opens it, and what it does about each.

``recover`` gathers the evidence, decides about everything (``cdc.log.embedded.verdicts``), and only then changes anything.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.log.embedded import plainfile
from cdc.log.embedded.away import read_stub
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import HEAD_BYTES, MAX_EPOCH, Damaged, Head, crc32c, decode_head
from cdc.log.embedded.lastgroup import has_changes, last_group
from cdc.log.embedded.names import ASIDE, LogPlaces, Sealed, away_of, first_of, folder_of, sealed_of, segment_name
from cdc.log.embedded.records import RECORD_BYTES, RecordKind, TimelineHeader, decode_timeline_header, encode_timeline_header
from cdc.log.embedded.sealedsegment import covering
from cdc.log.embedded.segment import Segment, SegmentPlace
from cdc.log.embedded.syncpool import SyncPool
from cdc.log.embedded.timeline import Timeline
from cdc.log.embedded.topicindex import SegmentRun, TopicIndex
from cdc.log.embedded.verdicts import (
    EarlierFileEvidence,
    LastGroupEvidence,
    SealedEvidence,
    SealedVerdict,
    SegmentEvidence,
    SegmentVerdict,
    TimelineEvidence,
    TimelineVerdict,
    is_torn,
    is_whole,
    judge_sealed,
    judge_segment,
    judge_timeline,
)

_log = structlog.get_logger("log")


@dataclass(slots=True)
class Recovered:
    """A log that is whole again, and what the writer goes on with."""

    timeline: Timeline
    epoch: int
    """The new writer's."""
    unsealed: list[tuple[TopicIndex, SegmentRun]] = field(default_factory=list)
    """Closed segments that are not Parquet yet."""


@dataclass(slots=True)
class _Repairs:
    """The repairs decided on, made only when nothing was found corrupt."""

    cut: list[tuple[Path, int]] = field(default_factory=list)
    remove: list[Path] = field(default_factory=list)
    rewrite: list[tuple[Path, int, int]] = field(default_factory=list)


def new_log_id() -> int:
    """One that no other log has: of 64 bits, drawn."""
    return secrets.randbits(64)


def recover(
    places: LogPlaces, disk: Disk, syncs: SyncPool, segment_bytes: int, new_log_id: Callable[[], int] = new_log_id
) -> Recovered:
    """Makes the log whole, or new when there is none. The caller holds the writer's lock.

    Raises LogCorrupt, naming file and byte, before anything is changed.
    """
    if _is_new(places):
        _create(places, disk, new_log_id())
    head = decode_head(plainfile.content(places.head)) if places.head.exists() else None
    repairs = _Repairs()
    timeline = _read_timeline(places, head, repairs)
    if places.aside_timeline.exists():
        repairs.remove.append(places.aside_timeline)
    unsealed = _judge_topics(places, timeline, head, segment_bytes, repairs)
    epoch = max(timeline.epoch, head.epoch if head else 0) + 1
    if epoch > MAX_EPOCH:
        raise LogCorrupt(f"{places.head} at byte 12: no writer has had so high an epoch")
    _repair(repairs, disk)
    recovered = Recovered(timeline, epoch, unsealed)
    crashpoint("recover.repaired")
    disk.make_folder(places.topics)  # a power loss may have taken it while there was no topic
    _sync_topics(places, disk, syncs)
    # Whoever began the timeline's newest file may have died before its name was durable, and the head will name it.
    disk.sync_folder(places.root)
    publish_first(places, disk, head_of(recovered))
    crashpoint("recover.published")
    return recovered


def _sync_topics(places: LogPlaces, disk: Disk, syncs: SyncPool) -> None:
    """Every folder, also where nothing was repaired: whoever removed a segment before may have died before that was durable, which nothing
    shows. Once the head is beyond its positions, a power loss that brings it back would make the log corrupt."""
    syncs.together(disk.sync_folder, [places.topics, *sorted(path for path in places.topics.iterdir() if path.is_dir())])


def head_of(recovered: Recovered) -> Head:
    timeline = recovered.timeline
    cut = timeline.head
    return Head(
        timeline.log_id,
        recovered.epoch,
        cut.position,
        cut.commit_lsn,
        cut.commit_ts_us,
        timeline.number,
        timeline.length,
        timeline.crc,
    )


def _is_new(places: LogPlaces) -> bool:
    """There is no log here yet, or only what a creation that died left behind."""
    if places.former_timeline.exists():
        _refuse_former(places.former_timeline)
    if places.timelines() or places.head.exists():
        return False
    for folder, _, files in os.walk(places.topics):
        if files:
            raise LogCorrupt(f"{places.timeline(1)}: missing, though {folder} holds segments")
    return True


def _refuse_former(path: Path) -> None:
    """Raises HeadwaterError for a log of an earlier format, LogCorrupt for anything else under that name."""
    try:
        decode_timeline_header(plainfile.content(path))
    except Damaged as damage:
        raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None
    raise LogCorrupt(f"{path}: a timeline of this format has no file of this name")


def _create(places: LogPlaces, disk: Disk, log_id: int) -> None:
    disk.make_folder(places.topics)
    disk.sync_folder(places.root.parent)
    record, _ = encode_timeline_header(TimelineHeader(log_id))
    aside = places.aside_timeline
    aside.unlink(missing_ok=True)
    fd = disk.create(aside)
    try:
        disk.write(fd, [record], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(aside, places.timeline(1))
    crashpoint("recover.timeline_created")
    disk.sync_folder(places.root)


def publish_first(places: LogPlaces, disk: Disk, head: Head) -> None:
    """Rewrites the head. It keeps its inode where it has one, because readers watch that."""
    if not places.head.exists():
        aside = places.root / f"{ASIDE}{places.head.name}"
        aside.unlink(missing_ok=True)
        fd = disk.create(aside)
        try:
            disk.write(fd, [head.encode()], 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(aside, places.head)
    else:
        fd = disk.open(places.head)
        try:
            disk.write(fd, [head.encode()], 0)
            disk.truncate(fd, HEAD_BYTES)
            disk.sync(fd)
        finally:
            disk.close(fd)
    # Also of names that are there already: the process that made them may have ended because this was refused.
    disk.sync_folder(places.root)


def _read_timeline(places: LogPlaces, head: Head | None, repairs: _Repairs) -> Timeline:
    """Reads the newest of the timeline's files; of the others, its checkpoint says how long they are."""
    numbers = places.timelines()
    path = places.timeline(numbers[-1] if numbers else 1)
    try:
        data = plainfile.content(path)
        timeline = Timeline.beginning(data)
        _check_files(places, numbers, timeline, head)
        published = head.timeline_bytes if head and head.timeline == timeline.number else None
        if head and (head.log_id != timeline.log_id or (published is not None and published < timeline.begun)):
            raise Damaged(0, "the head is of another log")
        body = data[timeline.begun :]
        # First what was published, so that its checksum can be held against the head's.
        first = timeline.extend(body[: max(0, published - timeline.begun)] if published is not None else b"")
        if head and published == timeline.begun + first and head.timeline_crc != timeline.crc:
            raise Damaged(timeline.length, "does not end as the head says")
        timeline.extend(body[first:])
    except FileNotFoundError:
        raise LogCorrupt(f"{path}: missing, though the log has a head") from None
    except Damaged as damage:
        raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None
    evidence = TimelineEvidence(len(data), timeline.length, published, _group_follows(data, timeline.length))
    verdict = judge_timeline(evidence)
    if verdict is TimelineVerdict.CORRUPT:
        raise LogCorrupt(f"{path} at byte {timeline.length}: the entry is damaged or missing, and it is not the last")
    if verdict is TimelineVerdict.CUT:
        repairs.cut.append((path, timeline.length))
    vouched = None if head is None else published is not None and published >= timeline.length
    timeline = _without_torn_group(places, path, data, timeline, vouched, repairs)
    start = published if published is not None else timeline.begun
    if timeline.length > start:
        repairs.rewrite.append((path, start, timeline.length))
    return timeline


def _without_torn_group(
    places: LogPlaces, path: Path, data: bytes, timeline: Timeline, vouched: bool | None, repairs: _Repairs
) -> Timeline:
    """The timeline without its last group, where the power went while that was being written."""
    followed = len(data) > timeline.length
    found = last_group(data, timeline)
    if found is None:
        return timeline
    begin, group = found
    settled = vouched is not False or followed
    if not is_torn(LastGroupEvidence(vouched, followed, settled or has_changes(places, timeline, group))):
        return timeline
    _log.warning(
        "the group that was being written when the power went is dropped", log=str(places.root), first=group.first, last=group.last
    )
    repairs.cut.append((path, begin))
    return Timeline.whole(data[:begin])


def _check_files(places: LogPlaces, numbers: list[int], newest: Timeline, head: Head | None) -> None:
    """Holds the timeline's files against the newest one's checkpoint, and what the head says of them. Raises LogCorrupt."""
    earlier = newest.before.volumes
    first = newest.number - len(earlier)
    for number, volume in enumerate(earlier, first):
        path = places.timeline(number)
        evidence = EarlierFileEvidence(
            length=path.stat().st_size if number in numbers else None,
            recorded=int(volume["length"]),
            published=head.timeline_bytes if head and head.timeline == number else None,
            ends_as_published=head is not None and head.timeline_crc == volume["end_crc"],
        )
        if not is_whole(evidence):
            raise LogCorrupt(f"{path}: not as long as the file after it says, or it does not end as the head says")
    if numbers != list(range(first, newest.number + 1)):
        raise LogCorrupt(f"{places.timeline(numbers[-1])}: the timeline's files are not those that its newest one names")
    if head is not None and not first <= head.timeline <= newest.number:
        raise LogCorrupt(f"{places.timeline(head.timeline)}: missing, though the head names it")


def _group_follows(data: bytes, whole: int) -> bool:
    """Whether another group begins beyond the damage at ``whole``: then the damage is not a torn tail.

    Only one group is ever written between two syncs. Records are checked against the stored checksum of the one before.
    """
    cut_seen = False
    for at in range(whole + RECORD_BYTES, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        seed = int.from_bytes(data[at - 4 : at], "little")
        if crc32c(data[at : at + RECORD_BYTES - 4], seed) != int.from_bytes(
            data[at + RECORD_BYTES - 4 : at + RECORD_BYTES], "little"
        ):
            continue
        if cut_seen:
            return True
        cut_seen = int.from_bytes(data[at : at + 2], "little") == RecordKind.CUT
    return False


def _judge_topics(
    places: LogPlaces, timeline: Timeline, head: Head | None, segment_bytes: int, repairs: _Repairs
) -> list[tuple[TopicIndex, SegmentRun]]:
    """Holds every file against the timeline. Fills in the repairs; returns the closed segments that wait to be sealed."""
    unsealed: list[tuple[TopicIndex, SegmentRun]] = []
    folders: dict[str, TopicIndex] = {}
    for topic in timeline.topics.values():
        other = folders.setdefault(folder_of(topic.name), topic)
        if other is not topic:
            raise LogCorrupt(f"{places.folder(topic.name)}: the folder of two topics, {other.name} and {topic.name}")
    present = [path.name for path in places.topics.iterdir()] if places.topics.exists() else []
    for name in sorted({*present, *folders}):
        index = folders.get(name)
        folder = places.topics / name
        files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        held = _HeldPositions(index, timeline.log_id)
        unseal = _judge_files(folder, files, held, timeline.head.position, repairs)
        if index is None:
            continue
        before: SegmentRun | None = None
        for run in held.runs:
            if not run.generation and segment_name(run.segment) in files:
                newest = run is held.runs[-1]
                segment = Segment(
                    folder / segment_name(run.segment), SegmentPlace(timeline.log_id, index.number, index.name, run.segment)
                )
                try:
                    _check_segment(segment, index, run, before, newest=newest, unseal=run.segment in unseal)
                finally:
                    segment.close()
                if not newest or run.end >= segment_bytes:
                    unsealed.append((index, run))
            before = run
        _rewrite_unpublished(folder, index, head, repairs)
    return unsealed


class _HeldPositions:
    """A topic's positions, and which segments or sealed files hold them."""

    def __init__(self, index: TopicIndex | None, log_id: int) -> None:
        self.log_id = log_id
        self.runs = index.segments() if index else []
        self._starts = [run.segment for run in self.runs]
        self._kept_from = index.retired.kept_from if index else 0
        self.generation = index.generation if index else 0

    def holder(self, position: int) -> SegmentRun | None:
        number = bisect_right(self._starts, position) - 1
        return self.runs[number] if number >= 0 and position <= self.runs[number].last else None

    def sealed(self, name: Sealed) -> SealedEvidence:
        holder = self.holder(name.first)
        return SealedEvidence(
            generation=name.generation,
            newest=self.generation,
            held=holder is not None and holder.generation == name.generation,
            dropped=holder.generation > name.generation if holder else name.last < self._kept_from,
        )

    def segment_dropped(self, first: int) -> bool:
        holder = self.holder(first)
        return holder.generation > 0 if holder else first < self._kept_from


def _judge_files(folder: Path, files: list[str], held: _HeldPositions, head: int, repairs: _Repairs) -> set[int]:
    """Judges one topic's files by name and length; returns the segments whose Parquet files go."""
    unseal: set[int] = set()
    sealed = _judge_sealed(folder, files, held, repairs)
    known = {run.segment: run for run in held.runs}
    for first in sorted({*known, *(first for first in map(first_of, files) if first is not None)}):
        run = known.get(first)
        path = folder / segment_name(first)
        mine = sealed.get(first, [])
        whole = run is not None and covering(mine, run) is not None
        if run is not None and run.generation:
            if not whole:
                raise LogCorrupt(f"{folder}: positions {run.segment} to {run.last} are not in the sealed files that were recorded")
            run = None
        evidence = SegmentEvidence(
            committed=run.end if run else None,
            newest=run is not None and run is held.runs[-1],
            length=path.stat().st_size if path.name in files else None,
            parquet=bool(mine),
            parquet_whole=whole,
            beyond_head=first > head,
            dropped=run is None and held.segment_dropped(first),
        )
        if run is None and evidence.length is None:
            continue
        match judge_segment(evidence):
            case SegmentVerdict.KEEP:
                pass
            case SegmentVerdict.CUT:
                assert evidence.committed is not None
                repairs.cut.append((path, evidence.committed))
            case SegmentVerdict.REMOVE:
                repairs.remove.append(path)
            case SegmentVerdict.UNSEAL:
                repairs.remove += [folder / (name.file if name.file in files else name.away) for name in mine]
                unseal.add(first)
            case SegmentVerdict.CORRUPT:
                raise LogCorrupt(_what_is_wrong(path, evidence))
            case never:
                assert_never(never)
    return unseal


def _judge_sealed(folder: Path, files: list[str], held: _HeldPositions, repairs: _Repairs) -> dict[int, list[Sealed]]:
    """Judges one topic's sealed files, and those that are neither they nor segments; returns those that stay by the beginning of what they hold."""
    stay: dict[int, list[Sealed]] = {}
    for file in files:
        away = away_of(file)
        if away is not None and away.file in files:
            repairs.remove.append(folder / file)  # putting it away, or bringing it back, died halfway: the file itself is there
            continue
        name = away or sealed_of(file)
        if name is None:
            if file.startswith(ASIDE):
                repairs.remove.append(folder / file)
            elif first_of(file) is None:
                raise LogCorrupt(f"{folder / file}: the timeline knows nothing of this file")
            continue
        holder = held.holder(name.first)
        verdict = judge_sealed(held.sealed(name))
        if verdict is SealedVerdict.KEEP and holder is not None:
            if away is not None:
                read_stub(folder / file, name, held.log_id)
            stay.setdefault(holder.segment, []).append(name)
        elif verdict is SealedVerdict.REMOVE:
            repairs.remove.append(folder / file)
        else:
            raise LogCorrupt(f"{folder / file}: the timeline knows nothing of this file")
    return stay


def _what_is_wrong(path: Path, found: SegmentEvidence) -> str:
    if found.committed is None:
        return f"{path}: the timeline knows nothing of this segment (renamed, or a duplicate)"
    if found.length is None:
        return f"{path}: missing, and no sealed files hold its positions"
    at = min(found.length, found.committed)
    return f"{path} at byte {at}: the file has {found.length} bytes where {found.committed} were committed"


def _check_segment(
    segment: Segment, index: TopicIndex, run: SegmentRun, before: SegmentRun | None, *, newest: bool, unseal: bool
) -> None:
    """Its header names what came before it. The newest one's last part is read, because that is where appends go on; and all of
    one whose Parquet files are about to go."""
    header = segment.header
    previous = (header.previous, header.previous_last, header.previous_chain)
    if before is None:
        follows = previous == (0, 0, 0) or (header.previous_last < run.segment and bool(index.retired.kept_from))
    elif before.generation:
        follows = header.previous_last == before.last
    else:
        follows = previous == (before.segment, before.last, before.chain)
    try:
        if not follows:
            raise Damaged(0, "does not follow the segment before it")
        if (segment.header_bytes, segment.header_crc) != (run.start, run.seed):
            raise Damaged(0, "the header is not the one that was committed")
        if unseal:
            _check_frames(segment, run)
        elif newest:
            size = len(index.parts)
            _check_frames(segment, index.run(size - 1, size))
    except Damaged as damage:
        raise segment.corrupt(damage) from None


def _check_frames(segment: Segment, run: SegmentRun) -> None:
    for _ in segment.frames(run):
        pass


def _rewrite_unpublished(folder: Path, index: TopicIndex, head: Head | None, repairs: _Repairs) -> None:
    """After a failed fsync the system may hold pages as clean that never reached the disk, and a new fsync would say nothing.
    So what no head has vouched for is written once more before it is synced."""
    low, high = index.between(head.position if head else 0, 2**62)
    for first, start, end in index.within_segments(low, high):
        path = folder / segment_name(first)
        if path.exists():
            run = index.run(start, end)
            repairs.rewrite.append((path, run.start, run.end))


def _repair(repairs: _Repairs, disk: Disk) -> None:
    for path, length in repairs.cut:
        fd = disk.open(path)
        try:
            crashpoint("recover.before_cut")
            disk.truncate(fd, length)
            disk.sync(fd)
        finally:
            disk.close(fd)
    for path, start, end in repairs.rewrite:
        fd = disk.open(path)
        try:
            disk.write(fd, [os.pread(fd, end - start, start)], start)
            disk.sync(fd)
        finally:
            disk.close(fd)
    for path in repairs.remove:
        disk.remove(path)
        crashpoint("recover.removed")
