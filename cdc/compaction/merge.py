"""Compacts one topic: finds what stays, records how far it may be relied on, and writes the stretches again, from the topic's beginning on.

The rows that changes replaced (``cdc.model.oldrows``) go from every range that is written again; one of which nothing goes keeps them, though below the
clean point nobody may rely on them. What is left before a change need not be the row that it replaced, and whoever takes one away
and adds the other would come to rows that were never there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from cdc.compaction.bounds import DROPPED_SHARE, TopicPoints, groups
from cdc.compaction.survivors import MEMORY_BYTES, Survivors, only_keys
from cdc.crashpoint import crashpoint
from cdc.log.contract import ClosedRange, LogUpkeep
from cdc.log.views import alone
from cdc.model.oldrows import schema_without_old_rows

TARGET_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one compaction of a topic. ``read``, ``dropped``: changes, and ``why`` these went; ``written``: bytes."""

    topic: str
    read: int = 0
    dropped: int = 0
    written: int = 0
    why: str = "superseded"


def compact(
    upkeep: LogUpkeep,
    topic: str,
    wanted: TopicPoints,
    recorded: Callable[[], None],
    *,
    go_on: Callable[[int], None] = lambda _: None,
    at_least: float = DROPPED_SHARE,
    target_bytes: int = TARGET_BYTES,
    memory_bytes: int = MEMORY_BYTES,
) -> Merged:
    """``recorded`` returns when the writer has recorded what was handed over, or raises Interrupted. ``go_on`` may raise whatever is to
    end this. It is asked before each stretch, with about the bytes that will be written, and for every batch, with 0. ``at_least``: the share
    of the changes below the clean point that has to be superseded; with less nothing is done.

    Raises LogCorrupt, and OSError when the disk refuses: the log is then as readable as before.
    """
    ranges = [closed for closed in upkeep.ranges(topic) if closed.last < wanted.clean_from]
    read = sum(closed.rows for closed in ranges)
    if not read:
        return Merged(topic)
    with closing(Survivors(wanted.clean_from, wanted.floor, memory_bytes)) as survivors:
        for batch in _batches(upkeep, ranges, go_on, only_keys):
            for one in alone(batch):
                survivors.take(one)
        chosen = survivors.chosen()
    stay = [chosen.count(closed.first, closed.last) for closed in ranges]
    if sum(stay) == read or read - sum(stay) < at_least * read:
        return Merged(topic, read)
    stretches = groups(ranges, stay, target_bytes)
    go_on(_size(*stretches[0]))  # before anything is given up for it
    crashpoint("compaction.chosen")
    upkeep.retire(topic, floor=wanted.floor, clean_from=wanted.clean_from)
    recorded()
    written = 0
    for some, rows in stretches:
        go_on(_size(some, rows))
        written += upkeep.rewrite(
            topic, some[0].first, some[-1].last, chosen.of(_batches(upkeep, some, go_on, schema_without_old_rows))
        )
        recorded()
    return Merged(topic, read, read - sum(stay), written)


def _size(ranges: Sequence[ClosedRange], rows: int) -> int:
    """About the bytes of so many of their changes, were they all alike; as Parquet they are fewer."""
    return sum(closed.bytes for closed in ranges) * rows // max(1, sum(closed.rows for closed in ranges))


def _batches(
    upkeep: LogUpkeep,
    ranges: Sequence[ClosedRange],
    go_on: Callable[[int], None],
    only: Callable[[pa.Schema], pa.Schema],
) -> Iterator[pa.RecordBatch]:
    for closed in ranges:
        for batch in upkeep.batches(closed, only):
            go_on(0)
            yield batch
