"""The timeline's records as an index in memory: which cuts there are, and where each topic's changes lie. Pure.

Columns are numpy arrays that grow by doubling, so a reader follows a live log by decoding only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.log.embedded.format import (
    CUT_DTYPE,
    PART_DTYPE,
    RECORD_BYTES,
    Damaged,
    GroupEntry,
    GroupPart,
    RecordKind,
    decode_group,
    name_piece,
    whole_records,
)
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position

_CUT_KIND, _PART_KIND, _NAME_KIND = int(RecordKind.CUT), int(RecordKind.PART), int(RecordKind.NAME)
_CUTS: Final = np.dtype([("last", "i8"), ("lsn", "i8"), ("ts", "i8"), ("bytes", "i8")])
_PARTS: Final = np.dtype(
    [
        ("base", "i8"), ("last", "i8"), ("segment", "i8"), ("start", "i8"), ("end", "i8"),
        ("rows", "i8"), ("bytes", "i8"), ("seed", "u4"), ("chain", "u4"),
    ]
)  # fmt: skip

FEW_RECORDS: Final = 16
"""Up to this many are taken in group by group: what a follower of a live log has to do at every commit. Numpy's calls cost the same for one record
as for hundreds."""


class GrowingArray:
    """A structured array that grows at its end; what was handed out before stays valid."""

    __slots__ = ("_room", "size")

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._room = np.empty(8, dtype)
        self.size = 0

    def extend(self, rows: npt.NDArray[np.void]) -> None:
        size = self.size + len(rows)
        self._reserve(size)
        self._room[self.size : size] = rows
        self.size = size

    def append(self, row: tuple[int, ...]) -> None:
        self._reserve(self.size + 1)
        self._room[self.size] = row
        self.size += 1

    def _reserve(self, size: int) -> None:
        if size > len(self._room):
            room = np.empty(max(size, 2 * len(self._room)), self._room.dtype)
            room[: self.size] = self._room[: self.size]
            self._room = room

    @property
    def rows(self) -> npt.NDArray[np.void]:
        return self._room[: self.size]


class SegmentRun(NamedTuple):
    """Bytes [start, end) of one segment: parts that lie one behind the other. ``seed`` and ``chain`` as in ``GroupPart``."""

    segment: int
    start: int
    end: int
    rows: int
    last: int
    seed: int
    chain: int


class TopicIndex:
    """One topic's parts. In ``parts``: ``base`` is the group's first position, ``rows`` and ``bytes`` are running totals."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.rows = 0
        self.bytes = 0
        self.first = 0
        """A segment is named after its first change."""
        self.last = 0
        self.newest_segment = 1
        self._parts = GrowingArray(_PARTS)

    @property
    def parts(self) -> npt.NDArray[np.void]:
        return self._parts.rows

    def extend(self, new: npt.NDArray[np.void], bases: npt.NDArray[np.int64]) -> None:
        rows = np.empty(len(new), _PARTS)
        for name in ("last", "segment", "start", "end", "seed", "chain"):
            rows[name] = new[name]
        rows["base"] = bases
        rows["rows"] = new["rows"].cumsum(dtype=np.int64) + self.rows
        rows["bytes"] = (rows["end"] - rows["start"]).cumsum() + self.bytes
        self._parts.extend(rows)
        _, last, segment, _, _, total, size, _, _ = rows[-1].item()
        self._now_ends(last, segment, total, size)

    def append(self, new: GroupPart, base: int) -> None:
        rows, size = self.rows + new.rows, self.bytes + new.end - new.start
        self._parts.append((base, new.last, new.segment, new.start, new.end, rows, size, new.seed, new.chain))
        self._now_ends(new.last, new.segment, rows, size)

    def _now_ends(self, last: int, segment: int, rows: int, size: int) -> None:
        self.first = self.first or int(self.parts["segment"][0])
        self.last, self.newest_segment, self.rows, self.bytes = last, segment, rows, size

    def last_within(self, upto: int) -> int:
        """The last position at or below a cut; 0 when there is none. A part never reaches across a cut."""
        if self.last <= upto:
            return self.last
        before = int(self.parts["last"].searchsorted(upto, "right"))
        return int(self.parts["last"][before - 1]) if before else 0

    def between(self, after: int, upto: int) -> tuple[int, int]:
        """The parts [from, to) that may hold positions in (after, upto]."""
        parts = self.parts
        lasts = parts["last"]
        low = int(lasts.searchsorted(after, "right"))
        high = min(int(parts["base"].searchsorted(upto, "right")), int(lasts.searchsorted(upto, "left")) + 1)
        return low, max(low, high)

    def inside(self, low: int, high: int, after: int, upto: int) -> bool:
        """Whether all that the parts [low, high) hold has positions in (after, upto]: so it is between two cuts."""
        parts = self.parts
        return high <= low or (int(parts["base"][low]) > after and int(parts["last"][high - 1]) <= upto)

    def totals(self, low: int, high: int) -> tuple[int, int]:
        """(rows, bytes) of the parts [low, high)."""
        if high <= low:
            return 0, 0
        parts = self.parts
        rows, size = int(parts["rows"][high - 1]), int(parts["bytes"][high - 1])
        return (rows - int(parts["rows"][low - 1]), size - int(parts["bytes"][low - 1])) if low else (rows, size)

    def within_segments(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """The parts [low, high) by segment: (segment, its low, its high)."""
        segments = self.parts["segment"][:high]
        while low < high:
            end = low + int(segments[low:].searchsorted(segments[low], "right"))
            yield int(segments[low]), low, end
            low = end

    def runs(self, low: int, high: int, target_bytes: int) -> Iterator[SegmentRun]:
        """The parts [low, high) of one segment as runs of about ``target_bytes`` each."""
        sizes = self.parts["bytes"][:high]
        while low < high:
            done = int(sizes[low - 1]) if low else 0
            end = max(int(sizes.searchsorted(done + target_bytes, "right")), low + 1)
            yield self.run(low, end)
            low = end

    def run(self, low: int, high: int) -> SegmentRun:
        parts = self.parts
        _, _, segment, start, _, _, _, seed, _ = parts[low].item()
        _, last, _, _, end, rows, _, _, running = parts[high - 1].item()
        before = int(parts["rows"][low - 1]) if low else 0
        return SegmentRun(segment=segment, start=start, end=end, rows=rows - before, last=last, seed=seed, chain=running)

    def segments(self) -> list[SegmentRun]:
        """Every segment of the topic, whole (header not included), in order."""
        return [self.run(low, high) for _, low, high in self.within_segments(0, self._parts.size)]


class Timeline:
    """Everything that the timeline's groups say, decoded so far. ``length`` bytes of the file are in it."""

    def __init__(self, log_id: int, header_crc: int) -> None:
        self.log_id = log_id
        self.crc = header_crc
        self.length = RECORD_BYTES
        self.epoch = 0
        self.topics: dict[int, TopicIndex] = {}
        self.numbers: dict[str, int] = {}
        self._cuts = GrowingArray(_CUTS)
        self._head = ZERO_CUT
        self._lsns_rise_from = 0
        """The first cut of the source's present history: an LSN of an earlier one (the database was restored, or is another) says nothing."""

    @property
    def cuts(self) -> npt.NDArray[np.void]:
        """One row per group: last position, commit LSN and time, running bytes."""
        return self._cuts.rows

    @property
    def head(self) -> Cut:
        return self._head

    def cut(self, number: int) -> Cut:
        last, lsn, ts_us, _ = self.cuts[number].item()
        return Cut(Position(last), Lsn(lsn), ts_us)

    def extend(self, data: bytes) -> int:
        """Takes in all whole groups that stand at the beginning of ``data`` (the file from ``length`` on); returns their bytes.

        What follows them may be torn. Raises Damaged (offset within ``data``) when whole records contradict each other.
        """
        count = len(data) // RECORD_BYTES
        if count <= FEW_RECORDS:
            return self._extend_by_group(data)
        raw = np.frombuffer(data, np.uint8, count * RECORD_BYTES).reshape(count, RECORD_BYTES)
        whole = whole_records(raw, self.crc)
        cut_records = raw[:whole].reshape(-1).view(CUT_DTYPE)
        kinds = cut_records["kind"]
        cut_at = (kinds == _CUT_KIND).nonzero()[0]
        if not len(cut_at):
            return 0
        whole = int(cut_at[-1]) + 1
        parts = raw[:whole].reshape(-1).view(PART_DTYPE)
        part_at = (kinds[:whole] == _PART_KIND).nonzero()[0]
        name_at = (kinds[:whole] == _NAME_KIND).nonzero()[0]
        cuts, parts = cut_records[cut_at], parts[part_at]
        group_of = cut_at.searchsorted(part_at)
        self._check(cuts, cut_at, parts, group_of, whole - len(name_at))
        self._take_names(data, name_at)
        self._take_parts(parts, cuts["first"][group_of], part_at)
        self._take_cuts(cuts, parts, group_of)
        self._head = self.cut(self._cuts.size - 1)
        self.crc = int(cuts["crc"][-1])
        self.epoch = int(cuts["epoch"][-1])
        self.length += whole * RECORD_BYTES
        return whole * RECORD_BYTES

    def _extend_by_group(self, data: bytes) -> int:
        """The same, one group after the other."""
        done = 0
        while (found := decode_group(data, done, self.crc)) is not None:
            group, end, crc = found
            self._check_group(group, end - RECORD_BYTES)
            for number, name in group.names:
                self.topics[number] = TopicIndex(number, name)
                self.numbers[name] = number
            for part in group.parts:
                self.topics[part.topic].append(part, group.first)
            before = self.cuts[-1].item() if self._cuts.size else (0, 0, 0, 0)
            size = before[3] + sum(part.end - part.start for part in group.parts)
            if group.commit_lsn < before[1]:
                self._lsns_rise_from = self._cuts.size
            self._cuts.append((group.last, group.commit_lsn, group.commit_ts_us, size))
            self._head = Cut(Position(group.last), Lsn(group.commit_lsn), group.commit_ts_us)
            self.crc, self.epoch = crc, group.epoch
            self.length += end - done
            done = end
        return done

    def _check_group(self, group: GroupEntry, at: int) -> None:
        """``_check`` and what taking the names and parts in finds out."""
        before = self._head.position
        if group.first != before + 1 or group.last - before != sum(part.rows for part in group.parts):
            raise Damaged(at, "a group's positions are not dense")
        named: dict[int, str] = {}
        for number, name in group.names:
            if number in self.topics or name in self.numbers or number in named or name in named.values():
                raise Damaged(at, "a topic is named twice")
            named[number] = name
        tips: dict[int, tuple[int, int]] = {}
        for part in group.parts:
            if part.end <= part.start or part.last < part.segment:
                raise Damaged(at, "a part without bytes")
            if not group.first <= part.last <= group.last:
                raise Damaged(at, "a part that ends outside its group")
            topic = self.topics.get(part.topic)
            if topic is None and part.topic not in named:
                raise Damaged(at, "a topic without a name")
            last, segment = tips.get(part.topic) or ((topic.last, topic.newest_segment) if topic is not None else (0, 1))
            if part.last <= last or part.segment < segment:
                raise Damaged(at, "a topic's parts do not rise")
            tips[part.topic] = part.last, part.segment

    def _check(
        self,
        cuts: npt.NDArray[np.void],
        cut_at: npt.NDArray[np.intp],
        parts: npt.NDArray[np.void],
        group_of: npt.NDArray[np.intp],
        expected: int,
    ) -> None:
        """The chain says that a writer of ours wrote this; these say that it kept the log's promises."""
        firsts, lasts = cuts["first"], cuts["last"]
        before = np.concatenate(([self._head.position], lasts[:-1]))
        rows = np.zeros(len(cuts), np.int64)
        np.add.at(rows, group_of, parts["rows"].astype(np.int64))
        good = (firsts == before + 1) & (lasts - before == rows) & (np.bincount(group_of, minlength=len(cuts)) == cuts["parts"])
        if not good.all():
            raise Damaged(int(cut_at[int(np.argmin(good))]) * RECORD_BYTES, "a group's positions are not dense")
        if len(cuts) + len(parts) != expected:
            raise Damaged(0, "a record of unknown kind")
        ends = parts["last"]
        if (parts["end"] <= parts["start"]).any() or (ends < parts["segment"]).any():
            raise Damaged(0, "a part without bytes")
        if (ends < firsts[group_of]).any() or (ends > lasts[group_of]).any():
            raise Damaged(0, "a part that ends outside its group")

    def _take_names(self, data: bytes, name_at: npt.NDArray[np.intp]) -> None:
        name = b""
        for at in name_at:
            topic, piece, follow = name_piece(data[at * RECORD_BYTES : (at + 1) * RECORD_BYTES])
            name += piece
            if follow == 0:
                try:
                    text = name.decode()
                except UnicodeDecodeError:
                    raise Damaged(int(at) * RECORD_BYTES, "a topic's name is not text") from None
                if topic in self.topics or text in self.numbers:
                    raise Damaged(int(at) * RECORD_BYTES, "a topic is named twice")
                self.topics[topic] = TopicIndex(topic, text)
                self.numbers[text] = topic
                name = b""

    def _take_parts(self, parts: npt.NDArray[np.void], bases: npt.NDArray[np.int64], part_at: npt.NDArray[np.intp]) -> None:
        if not len(parts):
            return
        order = parts["topic"].argsort(kind="stable")
        numbers = parts["topic"][order]
        edges = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
        for begin, end in pairwise((0, *edges.tolist(), len(order))):
            chosen = order[begin:end]
            topic = self.topics.get(int(numbers[begin]))
            if topic is None:
                raise Damaged(int(part_at[chosen[0]]) * RECORD_BYTES, "a topic without a name")
            new = parts[chosen]
            lasts, segments = new["last"], new["segment"]
            if (
                lasts[0] <= topic.last
                or segments[0] < topic.newest_segment
                or (lasts[1:] <= lasts[:-1]).any()
                or (segments[1:] < segments[:-1]).any()
            ):
                raise Damaged(int(part_at[chosen[0]]) * RECORD_BYTES, "a topic's parts do not rise")
            topic.extend(new, bases[chosen])

    def _take_cuts(self, cuts: npt.NDArray[np.void], parts: npt.NDArray[np.void], group_of: npt.NDArray[np.intp]) -> None:
        rows = np.empty(len(cuts), _CUTS)
        for name in ("last", "lsn", "ts"):
            rows[name] = cuts[name]
        sizes = np.zeros(len(cuts), np.int64)
        np.add.at(sizes, group_of, parts["end"].astype(np.int64) - parts["start"])
        before = self.cuts[-1] if self._cuts.size else None
        rows["bytes"] = sizes.cumsum() + (before["bytes"] if before is not None else 0)
        lsns = rows["lsn"]
        earlier = np.concatenate(([before["lsn"] if before is not None else 0], lsns[:-1]))
        falls = (lsns < earlier).nonzero()[0]
        if len(falls):
            self._lsns_rise_from = self._cuts.size + int(falls[-1])
        self._cuts.extend(rows)

    def within(self, after: int, max_rows: int, max_bytes: int) -> Cut:
        """See ``LogReader.cut_within``."""
        cuts = self.cuts
        lasts = cuts["last"]
        following = int(lasts.searchsorted(after, "right"))
        if following >= len(cuts):
            return self.head
        done = int(cuts["bytes"][following - 1]) if following else 0
        by_rows = int(lasts.searchsorted(after + max_rows, "right")) - 1
        by_bytes = int(cuts["bytes"].searchsorted(done + max_bytes, "right")) - 1
        return self.cut(max(following, min(by_rows, by_bytes)))

    def at_lsn(self, lsn: int) -> Cut | None:
        """See ``LogReader.cut_at_lsn``."""
        number = self.number_at_lsn(lsn)
        return self.cut(number) if number < self._cuts.size else None

    def number_at_lsn(self, lsn: int) -> int:
        """The number of the first cut that reaches the LSN; the number of all cuts when none does."""
        first = self._lsns_rise_from
        return first + int(np.searchsorted(self.cuts["lsn"][first:], lsn, "left"))

    def last_commit(self) -> Cut:
        """The last cut that brought changes together with a new LSN (ZERO_CUT: none has), so that it is one of the source's commits."""
        cuts = self.cuts
        lasts, lsns = cuts["last"], cuts["lsn"]
        at = ((lasts[1:] > lasts[:-1]) & (lsns[1:] != lsns[:-1])).nonzero()[0]
        if len(at):
            return self.cut(int(at[-1]) + 1)
        return self.cut(0) if len(cuts) and lasts[0] > 0 and lsns[0] != 0 else ZERO_CUT
