"""A cache on a Redis Cluster: a sink of its own for each lane, and one that drives them all.

Each lane (``sinks.cache.lane``) is a whole cache in one slot: rows, ledger, dead letters and fence, with its own position. A batch is divided by its rows' keys;
barriers, commits and everything else that concerns a table or the store as a whole goes to every lane. What is applied is what every lane has: a lane that lost
something goes back by itself, and what the others have already they skip. So nothing here is atomic across lanes, and nothing needs to be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.log.contract import LogReader
from cdc.model.batch import ALONE, OP, POSITION, topic_schema
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.cache.cluster import ClusterMap, LaneShare, SlotRoute
from sinks.cache.lane import Lane, Numbers, joined, numbers, warm_up
from sinks.cache.options import Options
from sinks.cache.sink import CacheSink
from sinks.contract import NOTHING, CameRows, DeadLetter, Outcome, Shape, TopicAsOf, audit_schema
from sinks.deadletters import Letter, LetterState
from sinks.render.meaning import plain_key
from sinks.render.rowtext import keys as row_keys
from sinks.render.rowtext import rows_with_keys
from sinks.reshape import conformed

_TAG: Final = re.compile(r"\{([0-9]{1,4})\}")


class DividedCacheSink:
    """See ``sinks.contract.Sink``."""

    traits = CacheSink.traits

    def __init__(self, name: str, options: Options) -> None:
        """``options``: with ``lanes``."""
        assert options.lanes is not None
        self.name = name
        self._options = options
        self._cluster = ClusterMap(name, options)
        self._lanes = [self._sink(number) for number in range(options.lanes)]
        self._log: LogReader | None = None
        self._letters: tuple[tuple[tuple[Letter, ...], ...], tuple[Letter, ...]] = (), ()
        """Those of the lanes when they were last put together, and all of them."""

    def _sink(self, number: int) -> CacheSink:
        assert self._options.lanes is not None
        lane = Lane(number, self._options.lanes)
        return CacheSink(
            self.name,
            self._options,
            share=LaneShare(lane, SlotRoute(self._cluster, lane.slot), lambda: self._letters_beside(number)),
        )

    def _letters_beside(self, number: int) -> int:
        others = (one for at, lane in enumerate(self._lanes) if at != number for one in lane.letters())
        return sum(one.state is not LetterState.ACCEPTED for one in others)

    # -- the store as a whole -------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        warm_up()
        self._cluster.forget()
        self._log = log
        if epoch is not None:
            # Where one of them refuses this log, none may become its own.
            for lane in self._lanes:
                lane.open(log)
        return _least([lane.open(log, epoch) for lane in self._lanes])

    def finish(self) -> None:
        for lane in self._lanes:
            lane.finish()
        for topic in {one.table for one in self.letters() if one.failed}:
            self._move_letters(topic)

    def applied(self) -> Cut:
        return _least([lane.applied() for lane in self._lanes])

    def held(self, topic: str) -> Position:
        return min(lane.held(topic) for lane in self._lanes)

    def commit(self, cut: Cut) -> None:
        for lane in self._lanes:
            lane.commit(cut)
            crashpoint("lanes.committed")

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        self._cluster.forget()
        self._erase_others()
        rest = [
            lane.begin_rebuild(log, epoch, cut, [self._of_lane(topic, number) for topic in topics])
            for number, lane in enumerate(self._lanes)
        ]
        crashpoint("lanes.rebuild_begun")
        return sum((one() for one in rest), NOTHING)

    def _of_lane(self, topic: TopicAsOf, number: int) -> TopicAsOf:
        def rows() -> Iterator[CameRows]:
            for came in topic.rows():
                mine = pa.array(self._numbers(row_keys(came.rows, topic.shape.schema)) == number)
                yield CameRows(came.rows.filter(mine), came.came.filter(mine))

        return replace(topic, rows=rows)

    def erase(self) -> None:
        self._erase_others()
        for lane in self._lanes:
            lane.erase()

    def _erase_others(self) -> None:
        """Lanes that the store had when it was divided into more of them."""
        for number in range(len(self._lanes), max(lane.lanes_before() for lane in self._lanes)):
            other = self._sink(number)
            try:
                other.erase()
            finally:
                other.close()

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        self._lanes[0].foresee(schemas)

    def projected(self) -> str | None:
        return self._lanes[0].projected()

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        which = self._numbers(row_keys(rows, topic_schema(rows.schema)))
        for row, number in enumerate(which.tolist()):
            yield from self._lanes[number].preview(rows.slice(row, 1))

    def make_visible(self) -> None: ...

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    # -- tables ---------------------------------------------------------------------------------------------------------

    def prepare(self, schema: TopicSchema) -> None:
        for lane in self._lanes:
            lane.prepare(schema)

    def shape(self, topic: str) -> Shape | None:
        """Where they differ, as in the middle of a change of the definition, that of the lane that is furthest behind: None where one has lost its own, as
        whoever follows the store takes every change before its shape for applied."""
        found = [lane.shape(topic) for lane in self._lanes]
        there = [shape for shape in found if shape is not None]
        return min(there, key=lambda shape: shape.position) if len(there) == len(found) else None

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if len(changes) == 0:
            return NOTHING
        if changes.column(OP)[0].as_py() in ALONE:
            outcomes = [lane.apply(changes) for lane in self._lanes]
            self._move_letters(topic_schema(changes.schema).topic)
            return Outcome(max(one.written for one in outcomes), min(one.stale for one in outcomes), _distinct(outcomes))
        which = self._numbers(row_keys(changes, topic_schema(changes.schema)))
        order = np.argsort(which, kind="stable")
        sorted_rows = changes if len(changes) == 1 else changes.take(pa.array(order))
        ends = np.searchsorted(which[order], np.arange(len(self._lanes) + 1))
        outcome = NOTHING
        for lane, start, end in zip(self._lanes, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if start < end:
                outcome += lane.apply(sorted_rows.slice(start, end - start))
                crashpoint("lanes.written")
            else:
                lane.pass_over(changes)
        return outcome

    def _numbers(self, texts: pa.Array) -> Numbers:
        return numbers(texts, len(self._lanes))

    # -- reading --------------------------------------------------------------------------------------------------------

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        return self._lanes[0].as_held(rows, schema)

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        for lane in self._lanes:
            yield from lane.scan(schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(schema):
            return rows_with_keys(self.scan(schema), keys, schema)
        found = [self._lanes[number].fetch(schema, mine) for number, _, mine in self._divided(keys, joined(keys, schema))]
        whole = pa.Table.from_batches(found, audit_schema(schema)).combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], audit_schema(schema))

    def expired(self, keys: pa.RecordBatch, schema: TopicSchema) -> npt.NDArray[np.bool_]:
        """See ``sinks.contract.Expiring``."""
        found = np.zeros(keys.num_rows, np.bool_)
        if plain_key(schema):
            for number, at, mine in self._divided(keys, joined(keys, schema)):
                found[at] = self._lanes[number].expired(mine, schema)
        return found

    def _divided(self, rows: pa.RecordBatch, texts: pa.Array) -> Iterator[tuple[int, Numbers, pa.RecordBatch]]:
        """(lane, where its rows are, these rows). ``texts``: the rows' keys."""
        which = self._numbers(texts)
        for number in np.unique(which).tolist():
            at = np.flatnonzero(which == number)
            yield number, at, rows.take(pa.array(at))

    # -- dead letters (``sinks.deadletters.LetterBox``) -----------------------------------------------------------------

    def letters(self) -> tuple[Letter, ...]:
        of_lanes = tuple(lane.letters() for lane in self._lanes)
        before, together = self._letters
        if len(before) != len(of_lanes) or any(a is not b for a, b in zip(before, of_lanes, strict=True)):
            together = _together(of_lanes)
            self._letters = of_lanes, together
        return together

    def _move_letters(self, topic: str) -> None:
        """A row that an expression fails for has only its letter, which a change of the table's key leaves where it was. Brings it to the row's lane."""
        log = self._log
        if log is None:
            return
        for number, lane in enumerate(self._lanes):
            failed = {int(one.position): one for one in lane.letters() if one.failed and one.table == topic}
            shape = lane.shape(topic)
            if not failed or shape is None:
                continue
            for batch in log.changes_at(topic, np.array(sorted(failed), np.int64)):
                rows = conformed(batch, shape.schema)
                which = self._numbers(row_keys(rows, shape.schema))
                for row in np.flatnonzero(which != number).tolist():
                    letter = failed[rows.column(POSITION)[row].as_py()]
                    right = self._lanes[which[row]]
                    right.keep([replace(letter, key=right.places(rows.slice(row, 1))[0].as_py())])
                    lane.forget([letter.id])

    def keep(self, letters: Collection[Letter]) -> None:
        there = [{one.id for one in lane.letters()} for lane in self._lanes]
        for number, lane in enumerate(self._lanes):
            lane.keep([one for one in letters if number in self._lanes_of(one, there)])

    def _lanes_of(self, letter: Letter, there: Sequence[Collection[str]]) -> Collection[int]:
        """``there``: the ids of each lane's letters."""
        if having := [number for number, ids in enumerate(there) if letter.id in ids]:
            return having
        tag = _TAG.search(letter.key or "")
        return [int(tag[1]) if tag is not None and int(tag[1]) < len(self._lanes) else 0]

    def forget(self, ids: Collection[str]) -> None:
        for lane in self._lanes:
            lane.forget([one.id for one in lane.letters() if one.id in ids])

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:
        number = int(self._numbers(row_keys(row, topic_schema(row.schema)))[0])
        return self._lanes[number].put(row, at)

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        return self._named(rows, row_keys(rows, topic_schema(rows.schema)), CacheSink.places)

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        return self._named(keys, joined(keys, schema), lambda lane, mine: lane.named(mine, schema))

    def _named(self, rows: pa.RecordBatch, texts: pa.Array, names: Callable[[CacheSink, pa.RecordBatch], pa.Array]) -> pa.Array:
        found: list[str | None] = [None] * len(rows)
        for number, at, mine in self._divided(rows, texts):
            for row, name in zip(at.tolist(), names(self._lanes[number], mine).to_pylist(), strict=True):
                found[row] = name
        return pa.array(found, pa.utf8())


def make(name: str, options: Options) -> CacheSink | DividedCacheSink:
    return CacheSink(name, options) if options.lanes is None else DividedCacheSink(name, options)


def _least(cuts: Sequence[Cut]) -> Cut:
    return min(cuts, key=lambda cut: (cut.position, cut.commit_lsn))


def _together(of_lanes: Sequence[Sequence[Letter]]) -> tuple[Letter, ...]:
    """By position. A table that is set aside as a whole has one letter, whichever lanes its rows are of; and one that is brought from a lane to another may
    stand in both."""
    found: dict[str, Letter] = {}
    for one in sorted((letter for letters in of_lanes for letter in letters), key=lambda letter: letter.position):
        before = found.get(one.id)
        found[one.id] = one if before is None or not one.whole_table else replace(before, rows=before.rows + one.rows)
    return tuple(found.values())


def _distinct(outcomes: Sequence[Outcome]) -> tuple[DeadLetter, ...]:
    return tuple(dict.fromkeys(one for outcome in outcomes for one in outcome.dead))
