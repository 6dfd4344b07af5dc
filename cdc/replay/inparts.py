"""A topic's rows as of a cut, found in parts that need nothing of one another but what they hand on: the work of ``rows_as_of`` for several processes.

1. ``keys_of_slice``: one for each slice of the positions. It reads the keys, and divides them among buckets.
2. ``newest_of_bucket``: one for each bucket. It finds each key's last change, and hands its position to the slice in which that stands.
3. ``rows_of_slice``: one for each slice. It reads the slice again, and gives the rows whose positions it was handed.

The slices' rows, one slice after another, are those of ``rows_as_of`` in the same order, however many slices and buckets there are.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.digests import digests
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, is_truncate, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from cdc.replay.state import definition_at
from sinks.barrier import emptied
from sinks.newest import Newest, PositionSet
from sinks.past import behind, rows_only, without_deletes
from sinks.render.rowtext import keys
from sinks.reshape import conformed, rekeyed

BUCKET_ROWS: Final = 2_000_000
"""About so many changes make one bucket."""
KEYS: Final = pa.schema([("key", pa.utf8()), ("number", pa.int64())])
PLACES: Final = pa.schema([("place", pa.int64())])


@dataclass(frozen=True, slots=True)
class TopicParts:
    """How a topic is divided. ``slices``: positions (after, upto], one after another. ``history``: in which they are read."""

    topic: str
    upto: int
    slices: tuple[tuple[int, int], ...]
    history: str
    buckets: int
    seed: int
    """Of the keys' hash: nobody can choose keys that all come into one bucket."""

    @classmethod
    def of(cls, log: LogReader, topic: str, upto: Position, slice_bytes: int, least: int) -> Self:
        """``least``: so many buckets at least. Raises PositionGone."""
        lineage = log.lineage()
        assert lineage is not None
        slices = log.slices([topic], START, upto, slice_bytes, lineage.history)
        buckets = max(least, sum(one.rows for one in slices) // BUCKET_ROWS + 1)
        return cls(topic, upto, tuple((one.after, one.upto) for one in slices), lineage.history, buckets, secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class SliceKeys:
    """The keys of a slice. ``buckets``: for each bucket its keys, each with twice its position, and one more where the row is gone. ``emptied``: no row from before this position
    counts. ``rekeyed``: from this position on, rows are told apart by other columns. 0: neither is so."""

    buckets: Sequence[pa.RecordBatch]
    emptied: int = 0
    rekeyed: int = 0


def keys_of_slice(log: LogReader, parts: TopicParts, number: int) -> SliceKeys:
    """Raises PositionGone."""
    after, upto = map(Position, parts.slices[number])
    held: TopicSchema | None = None
    kept: list[pa.RecordBatch] = []
    emptied_at = rekeyed_at = 0
    for batch in log.read(parts.topic, after, upto, parts.history, keys_only=True):
        change, schema, at = topic_change_of(batch), topic_schema(batch.schema), first_position(batch)
        if change is not None and held is None and at > START + 1:
            held = definition_at(log, parts.topic, Position(at - 1))
        if is_truncate(batch) or (change is not None and emptied(held, change)):
            emptied_at, rekeyed_at, kept = at, 0, []
        elif change is not None:
            rekeyed_at = at if held is not None and rekeyed(held, change.schema) else rekeyed_at
        elif len(batch):
            deleted = pc.equal(batch.column(OP), int(Op.DELETE)).cast(pa.int64())
            numbers = pc.add(pc.multiply(batch.column(POSITION), 2), deleted)
            kept.append(pa.RecordBatch.from_arrays([keys(batch, schema), numbers], schema=KEYS))
        held = schema
    return SliceKeys(_in_buckets(kept, parts), emptied_at, rekeyed_at)


def _in_buckets(kept: Sequence[pa.RecordBatch], parts: TopicParts) -> list[pa.RecordBatch]:
    whole = pa.concat_batches(kept) if kept else pa.RecordBatch.from_pylist([], KEYS)
    mine = (digests(whole.select([0]), (0,), parts.seed).high % np.uint64(parts.buckets)).astype(np.int64)
    whole = whole.take(pa.array(np.argsort(mine, kind="stable")))
    return _cut_up(whole, np.cumsum(np.bincount(mine, minlength=parts.buckets)))


def newest_of_bucket(parts: TopicParts, handed: Iterable[pa.RecordBatch], start: int, memory_bytes: int) -> list[pa.RecordBatch]:
    """For each slice the positions of the rows that are live, rising. ``handed``: what the slices have for one bucket. ``start``: rows up to here do not count."""
    ends = np.array([upto for _, upto in parts.slices], np.int64)
    found: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    with closing(Newest(memory_bytes)) as newest:
        for batch in handed:
            newest.add(batch.column(0), batch.column(1))
        found += [some[some & 1 == 0] >> 1 for some in newest.highest()]
    places = np.sort(np.concatenate(found))
    places = places[np.searchsorted(places, start, "right") :]
    return _cut_up(pa.RecordBatch.from_arrays([pa.array(places)], schema=PLACES), np.searchsorted(places, ends, "right"))


def rows_of_slice(
    log: LogReader, parts: TopicParts, handed: Iterable[pa.RecordBatch], shape: TopicSchema, memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    """One slice's rows under ``shape``, in position order. ``handed``: what the buckets have for it."""
    found = [batch.column(0).to_numpy() for batch in handed if batch.num_rows]
    if not found:
        return
    after, upto = Position(min(int(one[0]) for one in found) - 1), Position(max(int(one[-1]) for one in found))
    chosen = PositionSet(after, upto, memory_bytes)
    for places in found:
        chosen.add(places)
    for batch in without_deletes(chosen.of(rows_only(behind(log, parts.topic, after, upto)))):
        yield conformed(batch, shape)


def _cut_up(whole: pa.RecordBatch, ends: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    bounds = [0, *ends.tolist()]
    return [whole.slice(low, high - low) for low, high in pairwise(bounds)]
