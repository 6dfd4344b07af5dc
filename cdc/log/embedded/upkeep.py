"""The way by which compaction and retention reach the log's writer: sealed files that replace segments, and positions that are no longer kept.

The order that makes it safe: the new files are written aside, synced and renamed, and their folder is synced; then they are handed over here,
and the writer's next commit records them; only then, when nothing is ``waiting`` any more, do the old files go. A crash leaves the old files, or both, and
recovery removes those that the timeline does not name.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from cdc.log.embedded.names import Sealed, digest_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import Replaced, Retired
from cdc.log.embedded.topicindex import TopicIndex


class LogUpkeep:
    """May be used by any thread. A topic waits for the writer's next commit once it has handed something over."""

    def __init__(self, dir: Path) -> None:
        self._reader = EmbeddedLogReader(dir)
        self._lock = threading.Lock()
        self._replaced: dict[int, Replaced] = {}
        self._retired: dict[int, Retired] = {}

    def waiting(self) -> bool:
        """Whether the next commit has something to record, so that one has to be made also when there are no changes."""
        return bool(self._replaced or self._retired)

    def next_generation(self, topic: str) -> int:
        """The number that the next files of this topic have to carry in their names."""
        return self._index(topic).generation + 1

    def replace(self, topic: str, first: int, last: int, files: Sequence[Sealed], size: int) -> None:
        """The topic's changes in [first, last], which are whole closed segments, are what these files of the next generation hold.

        ``size``: their bytes together. Raises ValueError when that contradicts the log, or something of this topic still waits.
        """
        index = self._index(topic)
        generation = index.generation + 1
        if any(name.generation != generation or not first <= name.first <= name.last <= last for name in files):
            raise ValueError(
                f"{topic}: the files are not of generation {generation}, or hold other positions than {first} to {last}"
            )
        new = Replaced(index.number, first, last, size, sum(name.rows for name in files), generation, digest_of(files))
        with self._lock:
            self._check(index, index.refuses(new))
            self._replaced[index.number] = new

    def retire(self, topic: str, *, kept_from: int, floor: int, clean_from: int) -> None:
        """See ``Retired``. Raises ValueError when that contradicts the log, or something of this topic still waits."""
        index = self._index(topic)
        new = Retired(index.number, kept_from, floor, clean_from, index.generation)
        with self._lock:
            self._check(index, index.refuses_retiring(new))
            self._retired[index.number] = new

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

    # --- the writer's side -------------------------------------------------------------------------------------------

    def handed_over(self) -> tuple[tuple[Replaced, ...], tuple[Retired, ...]]:
        with self._lock:
            return tuple(self._replaced.values()), tuple(self._retired.values())

    def recorded(self, replaced: Sequence[Replaced], retired: Sequence[Retired]) -> None:
        """Takes note that these are durable."""
        with self._lock:
            for new in replaced:
                self._replaced.pop(new.topic)
            for old in retired:
                self._retired.pop(old.topic)

    def close(self) -> None:
        self._reader.close()
