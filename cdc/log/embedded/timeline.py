"""The timeline's records as an index in memory: which cuts there are, the producers' marks, and where each topic's changes lie. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from cdc.log.embedded.format import Damaged
from cdc.log.embedded.marks import MarkHistory
from cdc.log.embedded.records import (
    CUT_DTYPE,
    PART_DTYPE,
    RECORD_BYTES,
    SOURCE,
    TEXTS,
    GroupEntry,
    NewMark,
    NewProducer,
    NewTopic,
    RecordKind,
    Replaced,
    decode_group,
    text_at,
    whole_records,
)
from cdc.log.embedded.topicindex import GrowingArray, TopicIndex
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position, format_lsn

_CUT_KIND, _PART_KIND = int(RecordKind.CUT), int(RecordKind.PART)
_TEXT_KINDS: Final = np.array(sorted(TEXTS), np.uint16)
_RARE_KINDS: Final = np.array([RecordKind.REPLACED, RecordKind.RETIRED], np.uint16)
_CUTS: Final = np.dtype([("last", "i8"), ("lsn", "i8"), ("ts", "i8"), ("bytes", "i8")])

FEW_RECORDS: Final = 16
"""Up to this many are taken in group by group: what a follower of a live log has to do at every commit. Numpy's calls cost the same for one record
as for hundreds."""


class Timeline:
    """Everything that the timeline's groups say, decoded so far. ``length`` bytes of the file are in it."""

    def __init__(self, log_id: int, header_crc: int) -> None:
        self.log_id = log_id
        self.crc = header_crc
        self.length = RECORD_BYTES
        self.epoch = 0
        self.topics: dict[int, TopicIndex] = {}
        self.numbers: dict[str, int] = {}
        self.producers: list[str] = []
        """Their names; the first one's number is 1."""
        self._marks = MarkHistory()
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
        kinds = raw[:whole].reshape(-1).view(CUT_DTYPE)["kind"]
        cut_at = (kinds == _CUT_KIND).nonzero()[0]
        rare = (kinds == _RARE_KINDS[0]) | (kinds == _RARE_KINDS[1])
        done = 0
        # Groups that drop something are taken in one by one: what they mean depends on what stood before them.
        for group in np.unique(cut_at.searchsorted(rare.nonzero()[0])).tolist():
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
        texts = np.isin(kinds, _TEXT_KINDS).nonzero()[0]
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
            before = self.cuts[-1].item() if cut else (0, 0, 0, 0)
            size = before[3] + sum(part.end - part.start for part in group.parts)
            if group.commit_lsn < before[1]:
                self._lsns_rise_from = cut
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
        if not number:
            return {}
        found = self._marks.at(number - 1)
        if self.producers:
            found[self.producers[SOURCE - 1]] = format_lsn(self.cut(number - 1).commit_lsn).encode()
        return found

    # --- what is dropped ---------------------------------------------------------------------------------------------

    def _take_dropped(self, group: GroupEntry, at: int) -> None:
        for replaced in group.replaced:
            self.topics[replaced.topic] = self._replaced(replaced, at)
        for retired in group.retired:
            index = self.topics.get(retired.topic)
            refused = "a topic without a name" if index is None else index.refuses_retiring(retired)
            if index is None or refused or retired.clean_from > group.last + 1:
                raise Damaged(at, refused or "what is still to come is retired")
            self.topics[retired.topic] = index.retire(retired)

    def _replaced(self, new: Replaced, at: int) -> TopicIndex:
        index = self.topics.get(new.topic)
        refused = "a topic without a name" if index is None else index.refuses(new)
        if index is None or refused:
            raise Damaged(at, refused or "")
        return index.replaced(new)

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
