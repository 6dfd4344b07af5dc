"""The changes appended since the last commit: where they lie, and what has to hold for them (rising within a topic, and together dense behind
the head). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.log.embedded.names import folder_of
from cdc.log.embedded.topicindex import SegmentRun
from cdc.model.batch import POSITION, TABLE_METADATA

Positions = npt.NDArray[np.int64]


def positions_of(batch: pa.RecordBatch) -> Positions:
    """The batch's positions, without a copy. Raises ValueError when it is not a batch of changes, or they do not rise."""
    schema = batch.schema
    if TABLE_METADATA not in (schema.metadata or ()) or schema.field(0).name != POSITION:
        raise ValueError("not a batch of changes: see cdc.model.batch")
    positions: Positions = batch.column(0).to_numpy()
    if len(positions) > 1 and not (positions[1:] > positions[:-1]).all():
        raise ValueError("positions rise strictly within a batch")
    return positions


class Density:
    """Follows the staged positions: ``dense`` once they are exactly head + 1 … head + rows, each of them once.

    Remembers only positions that stand apart from the dense front, so a large transaction costs nothing here.
    """

    def __init__(self, head: int) -> None:
        self._head = head
        self._front = head
        self._apart: list[Positions] = []
        self._apart_rows = 0
        self._apart_last = 0
        self._last_of: dict[str, int] = {}
        self.rows = 0

    def check(self, topic: str, positions: Positions) -> None:
        """Raises ValueError when this batch can never become part of a dense group."""
        if positions[0] <= self._last_of.get(topic, self._head):
            raise ValueError(f"positions of {topic} go backwards: {positions[0]} after {self._last_of.get(topic, self._head)}")

    def add(self, topic: str, positions: Positions) -> None:
        count = len(positions)
        self.rows += count
        self._last_of[topic] = int(positions[-1])
        if not self._apart and positions[0] == self._front + 1 and positions[-1] == self._front + count:
            self._front += count
            return
        self._apart.append(positions)
        self._apart_rows += count
        self._apart_last = max(self._apart_last, int(positions[-1]))
        if self._apart_last == self._front + self._apart_rows:
            self._close_gaps()

    def _close_gaps(self) -> None:
        seen = np.zeros(self._apart_rows, bool)
        for piece in self._apart:
            if piece[0] <= self._front:
                return
            seen[piece - (self._front + 1)] = True
        if seen.all():
            self._front += self._apart_rows
            self._apart, self._apart_rows = [], 0

    @property
    def dense(self) -> bool:
        return not self._apart


@dataclass(frozen=True, slots=True)
class Tip:
    """Where a topic's bytes end: its newest segment. ``segment`` is 0 before the first; ``schema`` None when a new one is due."""

    segment: int = 0
    begin: int = 0
    begin_seed: int = 0
    end: int = 0
    last: int = 0
    chain: int = 0
    rows: int = 0
    closed: bool = True
    schema: pa.Schema | None = None
    schema_at: int = 0


@dataclass(slots=True)
class OpenTopic:
    """One that the writer has written to."""

    number: int
    name: str
    producer: str
    tip: Tip
    """As staged."""
    durable: Tip
    folder_exists: bool


class OpenTopics:
    """The topics that the log has, and those that are being staged, by name. Numbers rise, and each topic has a folder of its own."""

    def __init__(self, topics: Iterable[OpenTopic]) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._holders = {folder_of(name): name for name in self._topics}
        """Whose each folder is."""
        self._next_number = max((topic.number for topic in self._topics.values()), default=0) + 1

    def get(self, name: str) -> OpenTopic | None:
        return self._topics.get(name)

    def begin(self, name: str, producer: str) -> OpenTopic:
        """A new topic. Raises HeadwaterError where its folder would be another's: files of two topics in one could never be told apart again."""
        holder = self._holders.setdefault(folder_of(name), name)
        if holder != name:
            raise HeadwaterError(
                f"table {name} cannot be logged: its folder in the log is that of {holder}",
                hint="rename the table, or leave it out: [source] tables",
            )
        topic = self._topics[name] = OpenTopic(self._next_number, name, producer, Tip(), Tip(), folder_exists=False)
        self._next_number += 1
        return topic

    def take_back(self, topics: Sequence[OpenTopic]) -> None:
        """The newest, none of which was committed."""
        for topic in topics:
            del self._topics[topic.name], self._holders[folder_of(topic.name)]
        self._next_number -= len(topics)


@dataclass(slots=True)
class OpenPart:
    """The share of one segment that the group being staged has written so far."""

    topic: OpenTopic
    segment: int
    start: int
    seed: int
    end: int = 0
    last: int = 0
    rows: int = 0
    chain: int = 0


@dataclass(slots=True)
class Staged:
    """A group between two commits."""

    density: Density
    topics: dict[str, OpenTopic] = field(default_factory=dict)
    """Every topic that the group touches."""
    named: list[OpenTopic] = field(default_factory=list)
    parts: list[OpenPart] = field(default_factory=list)
    newest: dict[int, OpenPart] = field(default_factory=dict)
    """Each topic's last part, by its number: a search would cost as much as there are topics."""
    created: list[tuple[OpenTopic, int]] = field(default_factory=list)
    closed: list[tuple[OpenTopic, SegmentRun]] = field(default_factory=list)
    left: set[Path] = field(default_factory=set)
    """Folders of segments that were taken back. Their removal has to be durable before the positions in their names are anybody's: a power loss
    would bring them back as segments that nobody knows of."""


def run_of(tip: Tip) -> SegmentRun:
    return SegmentRun(tip.segment, tip.begin, tip.end, tip.rows, tip.last, tip.begin_seed, tip.chain)
