"""The in-memory twin of the embedded log: the same contract in few lines, for tests and as its specification."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import PositionGone
from cdc.log.contract import SOURCE_NAME, Slice, Topic, TopicState, retired_before
from cdc.log.views import alone, clip, picked
from cdc.model.batch import POSITION, only_keys, table_of
from cdc.model.lineage import History, Lineage
from cdc.model.oldrows import completed, without_old_rows
from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position, format_lsn


@dataclass(frozen=True)
class MemoryState:
    """See ``TopicState``."""

    cut: Position
    changes: tuple[pa.RecordBatch, ...]

    def batches(self, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        for batch in self.changes:
            for one in alone(batch):
                if (clipped := clip(one, after, upto)).num_rows:
                    yield clipped


class MemoryLog:
    """One log in this process. ``writer()`` and ``reader()`` give the two sides of it."""

    def __init__(self, source: str = SOURCE_NAME) -> None:
        self.source = source
        self.changed = threading.Condition()
        self.cuts: list[Cut] = []
        self.batches: list[pa.RecordBatch] = []
        """Every durable batch, in the order of the appends."""
        self.marks: list[tuple[int, str, bytes]] = []
        """Of the producers beside the source: the number of the cut that brought each, the producer and its value."""
        self.producers: dict[str, str] = {}
        """Topic → who brings its changes."""
        self.floors: dict[str, tuple[Position, int]] = {}
        """Topic → its floor, and the raising that made it so."""
        self.clean_from: dict[str, Position] = {}
        """Topic → the position below which changes are gone that later ones superseded."""
        self.kept_from: dict[str, Position] = {}
        """Topic → the position below which its changes are gone."""
        self.whole: set[str] = set()
        """Those of them that were emptied since."""
        self.states: dict[str, list[MemoryState]] = {}
        """Topic → its states."""
        identity = uuid.uuid4().hex[:16]
        self.lineage = Lineage(identity, (History(identity * 2, START),))

    @property
    def head(self) -> Cut:
        return self.cuts[-1] if self.cuts else ZERO_CUT

    def raise_floor(self, topic: str, floor: Position) -> None:
        """DELETEs below may be gone."""
        self.lineage = replace(self.lineage, raised=self.lineage.next_raising)
        self.floors[topic] = floor, self.lineage.raised

    def retire(self, topic: str, kept_from: Position) -> None:
        """The topic's batches that lie wholly below are gone."""
        self.kept_from[topic] = kept_from
        self.whole.discard(topic)
        if kept_from > self.floors.get(topic, (START, 0))[0]:
            self.raise_floor(topic, kept_from)
        self.batches = [one for one in self.batches if _topic(one) != topic or positions_of(one)[-1] >= kept_from]

    def keep_state(self, topic: str, cut: Position, batches: Iterable[pa.RecordBatch]) -> None:
        """The topic's state as of the cut is there from now on."""
        self.states.setdefault(topic, []).append(MemoryState(cut, tuple(batches)))

    def writer(self) -> MemoryWriter:
        return MemoryWriter(self)

    def reader(self) -> MemoryReader:
        return MemoryReader(self)


class MemoryWriter:
    """See ``LogWriter``."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._staged: list[pa.RecordBatch] = []
        self._producers: dict[str, str] = {}
        self._marks: dict[str, bytes] = {}

    @property
    def head(self) -> Cut:
        return self._log.head

    @property
    def next_position(self) -> Position:
        return Position(self.head.position + len(self._positions()) + 1)

    def begin_history(self) -> None:
        before = self._log.lineage
        self._log.lineage = replace(before, histories=(*before.histories, History(uuid.uuid4().hex, self.head.position)))

    def append(self, batch: pa.RecordBatch, producer: str | None = None) -> None:
        topic, new = _topic(batch), positions_of(batch)
        producer = producer or self._log.source
        if (known := {**self._log.producers, **self._producers}.get(topic, producer)) != producer:
            raise ValueError(f"topic {topic} is brought by {known!r}, not {producer!r}")
        before = [self.head.position, *self._positions(topic)]
        if any(left >= right for left, right in pairwise([before[-1], *new])):
            raise ValueError(f"positions of {topic} go backwards: {new} after {before[-1]}")
        if new:
            self._staged.append(completed(batch, table_of(batch.schema)))
            self._producers[topic] = producer

    def mark(self, producer: str, value: bytes) -> None:
        if producer == self._log.source or not producer or len(value) > 4096:
            raise ValueError("not a mark of a producer beside the source")
        self._marks[producer] = value

    def marks(self) -> Mapping[str, bytes]:
        return {producer: value for _, producer, value in self._log.marks}

    def commit(self, commit_lsn: Lsn | None = None, commit_ts_us: int = 0) -> Cut:
        if commit_lsn is None:
            commit_lsn, commit_ts_us = self.head.commit_lsn, self.head.commit_ts_us
        first, positions = self.head.position + 1, self._positions()
        if sorted(positions) != list(range(first, first + len(positions))):
            self.rollback()
            raise ValueError("the staged positions are not dense")
        before = {producer: value for _, producer, value in self._log.marks}
        new = [(producer, value) for producer, value in self._marks.items() if before.get(producer) != value]
        if not self._staged and not new and commit_lsn == self.head.commit_lsn:
            return self.head
        cut = Cut(Position(self.head.position + len(positions)), commit_lsn, commit_ts_us)
        with self._log.changed:
            self._log.batches += self._staged
            self._log.producers |= self._producers
            self._log.marks += [(len(self._log.cuts), producer, value) for producer, value in new]
            self._log.cuts.append(cut)
            self._log.changed.notify_all()
        self.rollback()
        return cut

    def rollback(self) -> None:
        self._staged, self._producers, self._marks = [], {}, {}

    def _positions(self, topic: str | None = None) -> list[int]:
        """The staged ones, in the order of the appends."""
        return [position for batch in self._staged if topic in (None, _topic(batch)) for position in positions_of(batch)]

    def alarm(self) -> str | None:
        return None

    def close(self) -> None:
        self.rollback()


def _topic(batch: pa.RecordBatch) -> str:
    """Raises ValueError for what is not a batch of changes."""
    try:
        return table_of(batch.schema).qualified
    except (KeyError, TypeError):
        raise ValueError("not a batch of changes: see cdc.model.batch") from None


def positions_of(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column(POSITION).to_pylist()
    return found


class MemoryReader:
    """See ``LogReader``."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def head(self) -> Cut:
        return self._log.head

    def written(self) -> Cut:
        return self._log.head

    def wait(self, after: Position, timeout_s: float) -> Cut:
        deadline = time.monotonic() + timeout_s
        with self._log.changed:
            while self._log.head.position <= after and (left := deadline - time.monotonic()) > 0:
                self._log.changed.wait(left)
            return self._log.head

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        following = [cut for cut in self._log.cuts if cut.position > after]
        if not following:
            return self.head()
        fitting = [
            cut
            for cut in following
            if cut.position - after <= max_rows and sum(b.nbytes for b in self._between(after, cut.position)) <= max_bytes
        ]
        return fitting[-1] if fitting else following[0]

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        present: list[Cut] = []
        for cut in self._log.cuts:
            if present and cut.commit_lsn < present[-1].commit_lsn:
                present.clear()
            present.append(cut)
        return next((cut for cut in present if cut.commit_lsn >= lsn), None)

    def marks(self, upto: Position | None = None) -> Mapping[str, bytes]:
        cuts = [cut for cut in self._log.cuts if upto is None or cut.position <= upto]
        if not cuts:
            return {}
        others = {producer: value for number, producer, value in self._log.marks if number < len(cuts)}
        return {**others, self._log.source: format_lsn(cuts[-1].commit_lsn).encode()}

    def last_commit(self) -> Cut:
        cuts = [ZERO_CUT, *self._log.cuts]
        commits = [cut for before, cut in pairwise(cuts) if cut.position > before.position and cut.commit_lsn != before.commit_lsn]
        return commits[-1] if commits else ZERO_CUT

    def lineage(self) -> Lineage:
        return self._log.lineage

    def last_change(self, topic: str, upto: Position) -> Position:
        positions = [positions_of(b)[-1] for b in self._between(0, upto) if table_of(b.schema).qualified == topic]
        dropped, _ = self._floor(topic)
        return Position(max([*positions[-1:], dropped - 1 if 0 < dropped <= upto + 1 else 0]))

    def _floor(self, topic: str) -> tuple[Position, int]:
        return self._log.floors.get(topic, (START, 0))

    def topics(self) -> Sequence[Topic]:
        found: dict[str, list[pa.RecordBatch]] = {}
        for batch in list(self._log.batches):
            found.setdefault(table_of(batch.schema).qualified, []).append(batch)
        return [
            Topic(
                name=name,
                table=table_of(batches[-1].schema),
                rows=sum(batch.num_rows for batch in batches),
                bytes=sum(batch.nbytes for batch in batches),
                first=Position(positions_of(batches[0])[0]),
                last=Position(positions_of(batches[-1])[-1]),
                producer=self._log.producers.get(name, self._log.source),
                clean_from=max(self._floor(name)[0], self._log.clean_from.get(name, START)),
                floor=self._floor(name)[0],
                raised=self._floor(name)[1],
                kept_from=self._log.kept_from.get(name, START),
                whole=name in self._log.whole,
            )
            for name, batches in found.items()
        ]

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
        floor, raised = self._floor(topic)
        kept_from = self._log.kept_from.get(topic, START)
        knows = self.lineage().raised_at(history) >= raised
        if after + 1 < kept_from and not (topic in self._log.whole and knows):
            raise retired_before(topic, after, kept_from)
        if 0 < after < floor - 1 and not knows:
            raise PositionGone(f"the log no longer keeps all of {topic} from position {after} on")
        for batch in self._between(after, upto):
            if table_of(batch.schema).qualified == topic:
                yield from alone(only_keys(batch) if keys_only else batch if old_rows else without_old_rows(batch))

    def changes_at(self, topic: str, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        for batch in self._between(0, self._log.head.position):
            if table_of(batch.schema).qualified == topic and len(found := picked(batch, positions)):
                yield without_old_rows(found)

    def state(self, topic: str, upto: Position) -> TopicState | None:
        whole = any(one.name == topic and not (one.kept_from or one.floor) for one in self.topics())
        found = [one for one in self._log.states.get(topic, ()) if whole and one.cut <= upto]
        return max(found, key=lambda one: one.cut, default=None)

    def slices(
        self,
        topics: Sequence[str],
        after: Position,
        upto: Position,
        target_bytes: int,
        history: str | None = None,
    ) -> Sequence[Slice]:
        found: list[Slice] = []
        for topic in topics:
            start, rows, size, last = after, 0, 0, after
            for batch in self.read(topic, after, upto, history):
                if rows and size + batch.nbytes > target_bytes:
                    found.append(Slice(topic, start, last, rows, size))
                    start, rows, size = last, 0, 0
                rows, size, last = rows + batch.num_rows, size + batch.nbytes, Position(positions_of(batch)[-1])
            if rows:
                found.append(Slice(topic, start, upto, rows, size))
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _between(self, after: int, upto: int) -> list[pa.RecordBatch]:
        clipped = (clip(batch, after, min(upto, self._log.head.position)) for batch in list(self._log.batches))
        return [batch for batch in clipped if batch.num_rows]
