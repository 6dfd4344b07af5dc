"""Where one topic's changes lie: its segments and each group's share of them, as columns in memory. Pure.

Columns are numpy arrays that grow by doubling, so a reader follows a live log by decoding only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.log.embedded.format import Damaged
from cdc.log.embedded.records import GroupPart, Replaced, Retired

_PARTS: Final = np.dtype(
    [
        ("base", "i8"), ("last", "i8"), ("segment", "i8"), ("start", "i8"), ("end", "i8"),
        ("rows", "i8"), ("bytes", "i8"), ("seed", "u4"), ("chain", "u4"), ("generation", "i8"),
    ]
)  # fmt: skip
"""A part of generation 0 is a segment's. Of any other it is what has replaced whole segments: ``segment`` and ``base`` are its first position, and
``chain`` is the digest of its files' names."""


MAX_REPLACED_BYTES: Final = 2**48


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
    """Bytes [start, end) of one segment: parts that lie one behind the other. ``seed`` and ``chain`` as in ``GroupPart``.

    Of another ``generation`` than 0: the sealed files that have replaced segments from position ``segment`` to ``last``; ``chain`` is their
    names' digest.
    """

    segment: int
    start: int
    end: int
    rows: int
    last: int
    seed: int
    chain: int
    generation: int = 0


def _first_of(one: GroupPart | Replaced) -> tuple[int, int]:
    return (one.first, 0) if isinstance(one, Replaced) else (one.segment, one.start)


class TopicIndex:
    """One topic's parts. In ``parts``: ``base`` is the group's first position, ``rows`` and ``bytes`` are running totals.

    ``producer``: who brings its changes.
    """

    def __init__(self, number: int, name: str, producer: str) -> None:
        self.number = number
        self.name = name
        self.producer = producer
        self.rows = 0
        self.bytes = 0
        self.first = 0
        """A segment is named after its first change."""
        self.last = 0
        self.newest_segment = 1
        self.generation = 0
        """The newest one of its sealed files."""
        self.retired = Retired(number, 0, 0, 0)
        self.begun_at = 0
        """The last position that a checkpoint told of: parts up to there may be of many groups."""
        self._parts = GrowingArray(_PARTS)

    @property
    def parts(self) -> npt.NDArray[np.void]:
        return self._parts.rows

    def extend(self, new: npt.NDArray[np.void], bases: npt.NDArray[np.int64]) -> None:
        rows = np.empty(len(new), _PARTS)
        for name in ("last", "segment", "start", "end", "seed", "chain"):
            rows[name] = new[name]
        rows["generation"] = 0
        rows["base"] = bases
        rows["rows"] = new["rows"].cumsum(dtype=np.int64) + self.rows
        rows["bytes"] = (rows["end"] - rows["start"]).cumsum() + self.bytes
        self._parts.extend(rows)
        _, last, segment, _, _, total, size, _, _, _ = rows[-1].item()
        self._now_ends(last, segment, total, size)

    def append(self, new: GroupPart, base: int) -> None:
        rows, size = self.rows + new.rows, self.bytes + new.end - new.start
        self._parts.append((base, new.last, new.segment, new.start, new.end, rows, size, new.seed, new.chain, 0))
        self._now_ends(new.last, new.segment, rows, size)

    def begin(self, kept: Sequence[GroupPart | Replaced], retired: Retired | None) -> None:
        """Takes in what a checkpoint says of a topic that has nothing yet: whole segments, and what has replaced such. Raises Damaged."""
        rows = np.zeros(len(kept), _PARTS)
        before = 0
        for number, one in enumerate(sorted(kept, key=_first_of)):
            if isinstance(one, Replaced):
                rows[number] = (one.first, one.last, one.first, 0, one.bytes, one.rows, one.bytes, 0, one.digest, one.generation)
            else:
                size = one.end - one.start
                base = max(one.segment, min(before, one.last - 1) + 1)
                rows[number] = (base, one.last, one.segment, one.start, one.end, one.rows, size, one.seed, one.chain, 0)
            before = one.last
        sized = (rows["bytes"] > 0) | (rows["generation"] > 0)
        rises = (rows["segment"][1:] > rows["last"][:-1]) | (
            (rows["segment"][1:] == rows["segment"][:-1])
            & (rows["start"][1:] == rows["end"][:-1])
            & (rows["last"][1:] > rows["last"][:-1])
        )
        if not sized.all() or (rows["last"] < rows["segment"]).any() or not rises.all():
            raise Damaged(0, "a topic's segments do not rise")
        if not len(kept) or rows["generation"][-1]:
            raise Damaged(0, "a topic without a segment to go on in")
        for name in ("rows", "bytes"):
            rows[name] = rows[name].cumsum()
        self.generation = int(rows["generation"].max())
        if retired is not None and retired.clean_from > int(rows["segment"][-1]):
            raise Damaged(0, "the segment that is written is retired")
        if retired is not None and (retired.raised > 0) != (retired.floor > 0):
            raise Damaged(0, "a floor is raised without a number")
        if retired is not None:
            self.retired, self.generation = retired, max(self.generation, retired.generation)
        self._parts.extend(rows)
        self.begun_at = int(rows[-1]["last"])
        self._now_ends(self.begun_at, int(rows[-1]["segment"]), int(rows[-1]["rows"]), int(rows[-1]["bytes"]))

    def retired_now(self) -> Retired:
        """As a checkpoint says it."""
        return replace(self.retired, generation=self.generation)

    def _now_ends(self, last: int, segment: int, rows: int, size: int) -> None:
        self.first = self.first or int(self.parts["segment"][0])
        self.last, self.newest_segment, self.rows, self.bytes = last, segment, rows, size

    def last_within(self, upto: int) -> int:
        """The last position at or below a cut that was given to a change; 0 when there is none. A part never reaches across a cut."""
        if self.last <= upto:
            return self.last
        before = int(self.parts["last"].searchsorted(upto, "right"))
        return int(self.parts["last"][before - 1]) if before else 0

    def back_from(self, upto: int) -> Iterator[int]:
        """The parts that may hold positions at or below a cut, the last first."""
        parts = self.parts
        number = int(parts["last"].searchsorted(upto, "right"))
        if number < len(parts) and int(parts["segment"][number]) <= upto:
            yield number
        yield from range(number - 1, -1, -1)

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
        _, _, segment, start, _, _, _, seed, _, generation = parts[low].item()
        _, last, _, _, end, rows, _, _, running, _ = parts[high - 1].item()
        before = int(parts["rows"][low - 1]) if low else 0
        return SegmentRun(segment, start, end, rows - before, last, seed, running, generation)

    def divided(self, low: int, high: int, target_bytes: int) -> Iterator[int]:
        """Where to divide the parts [low, high) so that each piece has about ``target_bytes``: the end of each."""
        sizes = self.parts["bytes"][:high]
        while low < high:
            done = int(sizes[low - 1]) if low else 0
            low = min(max(int(sizes.searchsorted(done + target_bytes, "right")), low + 1), high)
            yield low

    def segments(self) -> list[SegmentRun]:
        """Every segment of the topic, whole (header not included), in order; and what has replaced such."""
        return [self.run(low, high) for _, low, high in self.within_segments(0, self._parts.size)]

    def kept(self) -> list[SegmentRun]:
        """The same as a checkpoint names it: with the last group by itself, because its schema is asked for and appends go on behind it."""
        size = self._parts.size
        runs = self.segments()
        low = int(self.parts["segment"].searchsorted(self.newest_segment, "left"))
        return [*runs[:-1], self.run(low, size - 1), self.run(size - 1, size)] if size - 1 > low else runs

    def last_of(self, segment: int) -> int:
        """The last position of a segment, or of what has replaced it."""
        return int(self.parts["last"][int(self.parts["segment"].searchsorted(segment, "right")) - 1])

    def newest(self) -> SegmentRun:
        """The last of ``segments()``."""
        low = int(self.parts["segment"].searchsorted(self.newest_segment, "left"))
        return self.run(low, self._parts.size)

    # --- what is dropped ---------------------------------------------------------------------------------------------

    def refuses(self, new: Replaced) -> str | None:
        """Why it cannot be, or None."""
        parts = self.parts
        low = int(parts["segment"].searchsorted(new.first, "left"))
        high = int(parts["last"].searchsorted(new.last, "right"))
        if low >= high or int(parts["segment"][low]) != new.first or int(parts["last"][high - 1]) != new.last:
            return "what is replaced is not whole segments"
        if high == len(parts) or int(parts["segment"][high]) == int(parts["segment"][high - 1]):
            return "the segment that is written is replaced"
        if new.generation <= self.generation or not 0 <= new.bytes < MAX_REPLACED_BYTES or new.rows > self.totals(low, high)[0]:
            return "what replaces segments has more changes than they, or an old generation"
        return None

    def replaced(self, new: Replaced) -> TopicIndex:
        """The topic from then on; ``refuses`` nothing of it. Whoever reads by this one still finds everything in its place."""
        low = int(self.parts["segment"].searchsorted(new.first, "left"))
        high = int(self.parts["last"].searchsorted(new.last, "right"))
        one = np.zeros(1, _PARTS)
        one[0] = (new.first, new.last, new.first, 0, new.bytes, new.rows, new.bytes, 0, new.digest, new.generation)
        found = self._spliced(low, high, one)
        found.generation = new.generation
        return found

    def refuses_retiring(self, new: Retired) -> str | None:
        """Why it cannot be, or None."""
        before = self.retired
        if not len(self.parts):
            return "a topic without changes is retired"
        now, then = (new.kept_from, new.floor, new.clean_from), (before.kept_from, before.floor, before.clean_from)
        if any(later < earlier for later, earlier in zip(now, then, strict=True)):
            return "a retired position comes back"
        if not 0 <= new.kept_from <= new.floor <= new.clean_from:
            return "retired positions are not in order"
        if new.clean_from > self.newest_segment:
            return "the segment that is written is retired"
        if new.raised < before.raised or (new.raised > before.raised) != (new.floor > before.floor):
            return "a floor is raised without a number, or an old number comes back"
        if new.whole and not 0 < new.kept_from < new.clean_from:
            return "a topic is whole of which nothing is gone"
        return None if new.generation >= self.generation else "an old generation comes back"

    def retire(self, new: Retired) -> TopicIndex:
        """The topic from then on, without the segments that lie wholly below; ``refuses_retiring`` nothing of it."""
        segments = self.parts["segment"]
        high = int(segments.searchsorted(segments[int(self.parts["last"].searchsorted(new.kept_from, "left"))], "left"))
        found = self._spliced(0, high, np.empty(0, _PARTS))
        found.retired, found.generation = new, new.generation
        return found

    def _spliced(self, low: int, high: int, instead: npt.NDArray[np.void]) -> TopicIndex:
        """The same with other parts in the place of [low, high). ``instead`` has its own rows and bytes, not running totals."""
        sized = self.parts.copy()
        for name in ("rows", "bytes"):
            sized[name] = np.diff(self.parts[name], prepend=0)
        now = np.concatenate([sized[:low], instead, sized[high:]])
        for name in ("rows", "bytes"):
            now[name] = now[name].cumsum()
        found = TopicIndex(self.number, self.name, self.producer)
        found.generation, found.retired, found.begun_at = self.generation, self.retired, self.begun_at
        found._parts.extend(now)
        found._now_ends(self.last, self.newest_segment, int(now[-1]["rows"]), int(now[-1]["bytes"]))
        return found
