"""The timeline's records as an index in memory: which cuts there are, the producers' marks, and where each topic's changes lie. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from cdc.log.embedded import checkpoint
from cdc.log.embedded.checkpoint import NOTHING, Before
from cdc.log.embedded.format import Damaged
from cdc.log.embedded.marks import MarkHistory
from cdc.log.embedded.records import (
    CUT_DTYPE,
    PART_DTYPE,
    RECORD_BYTES,
    SOURCE,
    TEXTS,
    GroupEntry,
    GroupPart,
    Listed,
    NewMark,
    NewProducer,
    NewTopic,
    RecordKind,
    Replaced,
    TimelineHeader,
    decode_group,
    decode_timeline_header,
    text_at,
    whole_records,
)
from cdc.log.embedded.topicindex import GrowingArray, TopicIndex
from cdc.model.position import Cut, Lsn, Position, format_lsn

_CUT_KIND, _PART_KIND = int(RecordKind.CUT), int(RecordKind.PART)
_TEXT_KINDS: Final = np.array(sorted(TEXTS), np.uint16)
NO_TEXTS: Final = np.empty(0, np.intp)
_RARE_KIND: Final = int(RecordKind.REPLACED)
"""Records of this kind and those behind it: they are taken in group by group, which refuses the others."""
_CUTS: Final = np.dtype([("last", "i8"), ("lsn", "i8"), ("ts", "i8"), ("bytes", "i8")])

FEW_RECORDS: Final = 16
"""Up to this many are taken in group by group: what a follower of a live log has to do at every commit. Numpy's calls cost the same for one record
as for hundreds."""


class Timeline:
    """Everything that one of the timeline's files says, decoded so far: what came before it, and its groups. ``length`` bytes of it are in it."""

    def __init__(self, log_id: int, crc: int, number: int = 1, before: Before = NOTHING) -> None:
        """``crc``: the checksum of the file's header, or of its checkpoint; see ``beginning``."""
        self._header = TimelineHeader(log_id, number)
        self.before = before
        self.crc = crc
        self.length = self.begun = RECORD_BYTES
        """``begun``: where the first group stands."""
        self.epoch = before.epoch
        self.topics: dict[int, TopicIndex] = {}
        self.numbers: dict[str, int] = {}
        self.lsns_rise_from = before.lsns_rise_from
        """See ``Before``."""
        self._marks = MarkHistory()
        self._cuts = GrowingArray(_CUTS)
        self._head = before.head

    @classmethod
    def beginning(cls, data: bytes) -> Timeline:
        """A file that begins with these bytes, as it is before its first group. Raises Damaged, and HeadwaterError for another version."""
        header, crc = decode_timeline_header(data)
        if header.number == 1:
            return cls(header.log_id, crc)
        before, found, length, crc = checkpoint.decode(data, crc)
        end = before.volumes[-1]
        if len(before.volumes) != header.number - 1 or (end["length"], end["end_crc"]) != (
            header.previous_bytes,
            header.previous_crc,
        ):
            raise Damaged(0, "the checkpoint does not go on where the file before it ends")
        timeline = cls(header.log_id, crc, header.number, before)
        timeline.length = timeline.begun = length
        timeline._take_kept(found, length - RECORD_BYTES)
        return timeline

    @classmethod
    def whole(cls, data: bytes) -> Timeline:
        """All whole groups of a file's bytes. Raises as ``beginning``, with offsets in the file."""
        timeline = cls.beginning(data)
        try:
            timeline.extend(data[timeline.begun :])
        except Damaged as damage:
            raise Damaged(timeline.begun + damage.offset, damage.what) from None
        return timeline

    def _take_kept(self, found: Listed, at: int) -> None:
        """What a checkpoint lists."""
        for producer in found.producers:
            self._take_producer(producer, at)
        for name in found.names:
            self._take_name(name, at)
        for mark in found.marks:
            self._take_mark(mark, -1, at)
        kept: dict[int, list[GroupPart | Replaced]] = {number: [] for number in self.topics}
        for one in found.kept():
            if one.topic not in kept:
                raise Damaged(at, "a topic without a name")
            kept[one.topic].append(one)
        retired = {one.topic: one for one in found.retired}
        for number, index in self.topics.items():
            index.begin(kept[number], retired.get(number))
            if not len(index.parts) or index.last > self.before.head.position:
                raise Damaged(at, "a topic without segments, or with some that are still to come")

    @property
    def log_id(self) -> int:
        return self._header.log_id

    @property
    def number(self) -> int:
        """The file's."""
        return self._header.number

    @property
    def producers(self) -> list[str]:
        """Their names; the first one's number is 1."""
        return self._marks.producers

    @property
    def cuts(self) -> npt.NDArray[np.void]:
        """One row per group of this file: last position, commit LSN and time, running bytes."""
        return self._cuts.rows

    @property
    def groups(self) -> int:
        """How many there are, those of earlier files included."""
        return self.before.groups + self._cuts.size

    @property
    def total_bytes(self) -> int:
        """The length of all files up to this one."""
        return self.length + int(self.before.volumes["length"].sum())

    @property
    def appended(self) -> int:
        """Bytes of changes, those of earlier files included."""
        return int(self.cuts["bytes"][-1]) if self._cuts.size else self.before.appended

    @property
    def head(self) -> Cut:
        return self._head

    def cut(self, number: int) -> Cut:
        """The cut of one of this file's groups, by its number there; -1: the last one before it."""
        if number < 0:
            return self.before.head
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
        kinds = raw[:whole].reshape(-1).view(CUT_DTYPE)["kind"]
        cut_at = (kinds == _CUT_KIND).nonzero()[0]
        rare = kinds >= _RARE_KIND
        done = 0
        # Groups that drop something are taken in one by one: what they mean depends on what stood before them.
        for group in np.unique(cut_at.searchsorted(rare.nonzero()[0])).tolist() if rare.any() else ():
            if group == len(cut_at):
                break
            begin, end = int(cut_at[group - 1]) + 1 if group else 0, int(cut_at[group]) + 1
            self._take_many(data, raw, done, begin)
            self._extend_by_group(data[: end * RECORD_BYTES], begin * RECORD_BYTES)
            done = end
        end = int(cut_at[-1]) + 1 if len(cut_at) else 0
        self._take_many(data, raw, done, end)
        return end * RECORD_BYTES

    def _take_many(self, data: bytes, raw: npt.NDArray[np.uint8], begin: int, end: int) -> None:
        """Takes in the records [begin, end), which are whole groups."""
        if begin == end:
            return
        try:
            self._take_groups(data[begin * RECORD_BYTES : end * RECORD_BYTES] if begin else data, raw[begin:end])
        except Damaged as damage:
            raise Damaged(begin * RECORD_BYTES + damage.offset, damage.what) from None

    def _take_groups(self, data: bytes, raw: npt.NDArray[np.uint8]) -> None:
        cut_records = raw.reshape(-1).view(CUT_DTYPE)
        kinds = cut_records["kind"]
        cut_at = (kinds == _CUT_KIND).nonzero()[0]
        part_at = (kinds == _PART_KIND).nonzero()[0]
        texts = NO_TEXTS if len(cut_at) + len(part_at) == len(raw) else np.isin(kinds, _TEXT_KINDS).nonzero()[0]
        cuts, parts = cut_records[cut_at], raw.reshape(-1).view(PART_DTYPE)[part_at]
        group_of = cut_at.searchsorted(part_at)
        self._check(cuts, cut_at, parts, group_of, len(raw) - len(texts))
        self._take_texts(data, texts, cut_at)
        self._take_parts(parts, cuts["first"][group_of], part_at)
        self._take_cuts(cuts, parts, group_of)
        self._head = self.cut(self._cuts.size - 1)
        self.crc = int(cuts["crc"][-1])
        self.epoch = int(cuts["epoch"][-1])
        self.length += len(raw) * RECORD_BYTES

    def _extend_by_group(self, data: bytes, done: int = 0) -> int:
        """The same, one group after the other."""
        while (found := decode_group(data, done, self.crc)) is not None:
            group, end, crc = found
            self._check_group(group, end - RECORD_BYTES)
            cut = self._cuts.size
            if group.producers or group.names or group.marks:
                for producer in group.producers:
                    self._take_producer(producer, end - RECORD_BYTES)
                for name in group.names:
                    self._take_name(name, end - RECORD_BYTES)
                for mark in group.marks:
                    self._take_mark(mark, cut, end - RECORD_BYTES)
            for part in group.parts:
                self.topics[part.topic].append(part, group.first)
            if group.replaced or group.retired:
                self._take_dropped(group, end - RECORD_BYTES)
            size = self.appended + sum(part.end - part.start for part in group.parts)
            if group.commit_lsn < self._head.commit_lsn:
                self.lsns_rise_from = self.groups
            self._cuts.append((group.last, group.commit_lsn, group.commit_ts_us, size))
            self._head = Cut(Position(group.last), Lsn(group.commit_lsn), group.commit_ts_us)
            self.crc, self.epoch = crc, group.epoch
            self.length += end - done
            done = end
        return done

    def _check_group(self, group: GroupEntry, at: int) -> None:
        """``_check`` and what taking the parts in finds out."""
        before = self._head.position
        if group.first != before + 1 or group.last - before != sum(part.rows for part in group.parts):
            raise Damaged(at, "a group's positions are not dense")
        named = {name.number for name in group.names}
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

    # --- producers, names, marks -------------------------------------------------------------------------------------

    def _take_producer(self, new: NewProducer, at: int) -> None:
        if new.number != len(self.producers) + 1 or new.name in self.producers:
            raise Damaged(at, "a producer is named twice")
        self.producers.append(new.name)

    def _take_name(self, new: NewTopic, at: int) -> None:
        if new.number in self.topics or new.name in self.numbers:
            raise Damaged(at, "a topic is named twice")
        self.topics[new.number] = TopicIndex(new.number, new.name, self._producer(new.producer, at))
        self.numbers[new.name] = new.number

    def _take_mark(self, new: NewMark, cut: int, at: int) -> None:
        self._marks.take(self._producer(new.producer, at), new.value, cut)

    def _producer(self, number: int, at: int) -> str:
        if not 0 < number <= len(self.producers):
            raise Damaged(at, "a producer without a name")
        return self.producers[number - 1]

    def marks(self, upto: int | None = None) -> dict[str, bytes]:
        """See ``LogReader.marks``."""
        number = self._cuts.size if upto is None else int(self.cuts["last"].searchsorted(upto, "right"))
        if not number and not self.before.groups:
            return {}
        found = self._marks.at(number - 1)
        if self.producers:
            found[self.producers[SOURCE - 1]] = format_lsn(self.cut(number - 1).commit_lsn).encode()
        return found

    def stored_marks(self) -> dict[str, bytes]:
        """Those of the head that MARK records say: of all producers but the source."""
        return self._marks.at(self._cuts.size)

    # --- what is dropped ---------------------------------------------------------------------------------------------

    @property
    def raised(self) -> int:
        """The last raising of a topic's floor (``cdc.model.lineage``); 0 when there was none."""
        return max((index.retired.raised for index in self.topics.values()), default=0)

    def _take_dropped(self, group: GroupEntry, at: int) -> None:
        for replaced in group.replaced:
            index = self._named(replaced.topic, at)
            if refused := index.refuses(replaced):
                raise Damaged(at, refused)
            self.topics[replaced.topic] = index.replaced(replaced)
        for retired in group.retired:
            index = self._named(retired.topic, at)
            if refused := index.refuses_retiring(retired):
                raise Damaged(at, refused)
            self.topics[retired.topic] = index.retire(retired)

    def _named(self, number: int, at: int) -> TopicIndex:
        if number not in self.topics:
            raise Damaged(at, "a topic without a name")
        return self.topics[number]

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

    def _take_texts(self, data: bytes, text_records: npt.NDArray[np.intp], cut_at: npt.NDArray[np.intp]) -> None:
        """Producers, names and marks, in the order in which they stand."""
        end = 0
        for at in (text_records * RECORD_BYTES).tolist():
            if at < end:
                continue  # a piece that has been read
            text = text_at(data, at, len(data))
            end = text.at
            match text.kind:
                case RecordKind.PRODUCER:
                    self._take_producer(NewProducer(text.number, text.name()), at)
                case RecordKind.NAME:
                    self._take_name(NewTopic(text.number, text.name(), text.producer), at)
                case _:
                    cut = self._cuts.size + int(cut_at.searchsorted(at // RECORD_BYTES))
                    self._take_mark(NewMark(text.number, text.value), cut, at)

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
        rows["bytes"] = sizes.cumsum() + self.appended
        lsns = rows["lsn"]
        falls = (lsns < np.concatenate(([self._head.commit_lsn], lsns[:-1]))).nonzero()[0]
        if len(falls):
            self.lsns_rise_from = self.groups + int(falls[-1])
        self._cuts.extend(rows)

    # --- questions about this file's cuts ----------------------------------------------------------------------------

    def following(self, after: int) -> tuple[Cut, int] | None:
        """The first cut behind a position, and the running bytes before it; None when there is none."""
        number = int(self.cuts["last"].searchsorted(after, "right"))
        if number >= self._cuts.size:
            return None
        return self.cut(number), int(self.cuts["bytes"][number - 1]) if number else self.before.appended

    def furthest(self, position: int, running_bytes: int) -> Cut:
        """The last cut up to a position and to so many running bytes; the one before this file when there is none in it."""
        by_rows = int(self.cuts["last"].searchsorted(position, "right"))
        by_bytes = int(self.cuts["bytes"].searchsorted(running_bytes, "right"))
        return self.cut(min(by_rows, by_bytes) - 1)

    def at_lsn(self, lsn: int) -> Cut | None:
        """See ``LogReader.cut_at_lsn``."""
        number = self.number_at_lsn(lsn)
        return self.cut(number) if number < self._cuts.size else None

    def number_at_lsn(self, lsn: int) -> int:
        """The number of the first cut that reaches the LSN; the number of all cuts when none does."""
        first = max(0, self.lsns_rise_from - self.before.groups)
        return first + int(np.searchsorted(self.cuts["lsn"][first:], lsn, "left"))

    def last_commit(self) -> Cut:
        """The last cut that brought changes together with a new LSN (ZERO_CUT: none has), so that it is one of the source's commits."""
        cuts = self.cuts
        lasts = np.concatenate(([self.before.head.position], cuts["last"]))
        lsns = np.concatenate(([self.before.head.commit_lsn], cuts["lsn"]))
        at = ((lasts[1:] > lasts[:-1]) & (lsns[1:] != lsns[:-1])).nonzero()[0]
        return self.cut(int(at[-1])) if len(at) else self.before.last_commit
