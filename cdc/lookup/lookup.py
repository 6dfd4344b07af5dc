"""Answers look-ups: which change of each key counts, and its row from the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError, LogReplaced, LookupBehind
from cdc.log.contract import LogReader
from cdc.log.views import joined
from cdc.lookup.entries import I64, Entries, hashed, newest
from cdc.lookup.shelf import Shelf, folder_of, is_of_another, opened, remove
from cdc.lookup.standing import AsOf, Turn, as_of, definitions_between, tells_rows_apart
from cdc.lookup.tail import TAIL_ROWS, Tail
from cdc.model.batch import META_FIELDS, OP, Op, first_position, topic_batch_schema, topic_schema
from cdc.model.pgtypes import canonical_text
from cdc.model.position import START, Position
from cdc.replay.former import taken
from cdc.replay.state import refuse_compacted_topic
from sinks.past import brought_to
from sinks.render.rowtext import SEPARATOR, join_key, keys
from sinks.reshape import conformed


class FoundRows(NamedTuple):
    """The answer: one row for each key that was asked for, in the order of the question."""

    rows: pa.RecordBatch
    """Schema: ``cdc.model.batch.topic_batch_schema`` of the definition as of the cut; of a topic that had none, our own five columns only. Each row is
    its last change: position, operation, LSN and time are that change's. Where a key had no row, every column of the table is NULL, and position,
    operation and LSN are 0."""
    found: npt.NDArray[np.bool_]

    @property
    def positions(self) -> I64:
        """The position of each row's last change; 0 where there is none."""
        positions: I64 = self.rows.column(0).to_numpy()
        return positions


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Keys as ``Lookup.rows`` is asked for them: the key's columns in the table's order, each in its Arrow type (``cdc.model.pgtypes.arrow_type``)
    or as text exactly as Postgres prints it. Returns utf8."""
    return join_key([canonical_text(column) for column in columns], SEPARATOR if len(columns) > 1 else "")


@dataclass(slots=True)
class _Topic:
    """What is open of one topic."""

    shelf: Shelf
    tail: Tail
    turns: list[Turn] = field(default_factory=list)
    """Up to ``turned``."""
    turned: tuple[int, int] = (-1, -1)

    def at(self, cut: int) -> AsOf:
        reach = self.shelf.standing.at, self.tail.high
        if self.turned != reach:
            end = reach[0]
            self.turns, self.turned = [*self.shelf.turns, *(turn for turn in self.tail.turns if turn.at > end)], reach
        return as_of(self.turns, cut)

    def entries(self, now: AsOf, cut: int) -> list[Entries]:
        """Those that may hold what counts as of the cut, from the oldest on."""
        runs = [*self.shelf.runs, *self.tail.runs]
        return [run.entries for run in runs if run.chapter == now.chapter and run.low < cut and run.high > now.floor]


class Lookup:
    """The rows of keys as of a cut, for any number of threads. ``folder``: the log's. Where nobody keeps runs for a topic everything is read from the log,
    as far as ``tail_rows`` changes allow."""

    def __init__(self, log: LogReader, folder: Path, *, tail_rows: int = TAIL_ROWS) -> None:
        self._log = log
        self._folder = folder
        self._tail_rows = tail_rows
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()

    def rows(self, topic: str, cut: Position, asked: pa.Array) -> FoundRows:
        """The rows of these keys (utf8, as ``sinks.render.rowtext.keys`` or ``key_texts`` make them; NULL and repeated ones are allowed) as of ``cut``.

        Takes memory for the rows that it returns. Raises ConfigError for a topic in which no key tells rows apart, ValueError for a cut behind the
        log's head, PositionGone when the log no longer has all that it had at the cut, LookupBehind while what it needs is being made, LogAway while the
        tier does not give a file, LogReplaced once when another log stands in its place, LogCorrupt.
        """
        try:
            return self._rows(topic, cut, asked)
        except LogReplaced:
            self.close()  # what is in memory is of the log before
            raise

    def _rows(self, topic: str, cut: Position, asked: pa.Array) -> FoundRows:
        if cut > self._log.head().position:
            raise ValueError(f"position {cut} is not in the log yet")
        self._refuse_compacted(topic, cut)
        with self._lock:
            held = self._open(topic, cut)
            now = held.at(cut)
            entries, seed, turns = held.entries(now, cut), held.tail.seed, held.turns
        if now.shape is None:
            return _nothing(len(asked))
        if not tells_rows_apart(now.shape):
            raise ConfigError(f"rows of {topic} cannot be looked up: no key tells them apart", hint="give the table a primary key")
        search = _Search(self._log, topic, now, turns, asked)
        found = search.run(entries, seed, cut)
        clean = self._refuse_compacted(topic, cut)  # it may have been meanwhile, and then rows were missing
        lacking = search.lacking if search.lacking >= clean else 0
        if search.false or lacking:
            self._distrust(topic, search.false or lacking)
        return found

    def _refuse_compacted(self, topic: str, cut: Position) -> Position:
        """See ``refuse_compacted``. Returns where the topic's clean point is, as ``clean_from``."""
        found = next((one for one in self._log.topics() if one.name == topic), None)
        refuse_compacted_topic(found, cut)
        return found.clean_from if found else START

    def close(self) -> None:
        with self._lock:
            self._topics.clear()

    def _open(self, topic: str, cut: int) -> _Topic:
        """The topic's runs, with a tail that reaches the cut. The caller holds the lock."""
        before = self._topics.get(topic)
        shelf = opened(self._log, folder_of(self._folder, topic), topic, before.shelf if before else None)
        remove(shelf.damaged)  # what is only of another log is left to whoever keeps the runs
        if before is not None and not self._stands(topic, before, shelf):
            before = None
        if before is None or not (_same(before.shelf, shelf) or before.tail.goes_on(shelf)):
            before = _Topic(shelf, Tail(self._log, topic, shelf, self._tail_rows))
        before.shelf = shelf
        self._topics[topic] = before
        before.tail.reach(cut)
        return before

    def _stands(self, topic: str, before: _Topic, now: Shelf) -> bool:
        """Whether what was read into memory is of the log as it is: asked of its last change whenever the log's head has moved."""
        if not before.shelf.of_the_log_of(now):
            return False
        return before.shelf.seen == now.seen or not before.tail.runs or not is_of_another(self._log, topic, before.tail.runs[-1])

    def _distrust(self, topic: str, position: int) -> None:
        """Removes the topic's runs. Raises LookupBehind."""
        with self._lock:
            held = self._topics.pop(topic, None)
        if held is not None:
            files = [held.shelf.folder / name.file for name in held.shelf.names]
            remove(dict.fromkeys(files, "it, or another beside it, names a change that the log does not have"))
        raise LookupBehind(
            f"the look-up of {topic} named position {position}, where the log has no change of it; it is made again",
            hint="ask again; cdc run makes it",
        )


def _same(before: Shelf, now: Shelf) -> bool:
    return before.standing == now.standing and before.origin == now.origin


class _Search:
    """One question. ``lacking``: the highest position that was looked for and is not in the log. ``false``: one at which the log has a row whose key has
    another digest than the one that named it; 0: none."""

    def __init__(self, log: LogReader, topic: str, now: AsOf, turns: Sequence[Turn], asked: pa.Array) -> None:
        self._log = log
        self._topic = topic
        self._now = now
        self._turns = turns
        self._asked = asked
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self.lacking = self.false = 0

    def run(self, entries: Sequence[Entries], seed: int, cut: int) -> FoundRows:
        """``seed``: of the entries' digests."""
        hashes = hashed(self._asked, seed)
        numbers = np.full(len(hashes), -1, np.int64)
        order = np.argsort(hashes)
        left = order[self._asked.is_valid().to_numpy(zero_copy_only=False)[order]]
        below = np.full(len(hashes), cut + 1, np.int64)
        while len(left):
            positions = newest(entries, hashes[left], below[left])
            counts = positions > self._now.floor
            left, positions = left[counts], positions[counts]
            if not len(left):
                break
            unique, which = np.unique(positions, return_inverse=True)
            rows, texts, lives = self._fetched(unique)
            own = texts.take(pa.array(which))
            mine = pc.fill_null(pc.equal(own, self._asked.take(pa.array(left))), False).to_numpy(zero_copy_only=False)
            row = np.where(lives, rows, -1)[which]
            numbers[left[mine]] = row[mine]
            others = np.flatnonzero(~mine & own.is_valid().to_numpy(zero_copy_only=False))
            differ = others[hashed(own.take(pa.array(others)), seed) != hashes[left[others]]]
            if len(differ):
                self.false = int(positions[differ[0]])
                break
            # The others' digests are equal by accident, or their changes are gone: an older one may be the key's.
            below[left] = positions
            left = left[~mine]
        return self._answer(numbers)

    def _fetched(self, positions: I64) -> tuple[I64, pa.Array, npt.NDArray[np.bool_]]:
        """For each of the positions (rising): its row's number in ``_parts`` (-1: the log has it no longer), its key, whether it leaves a row."""
        rows, lives = np.full(len(positions), -1, np.int64), np.zeros(len(positions), np.bool_)
        texts: list[pa.Array] = []
        present: list[I64] = []
        for batch in self._changes(positions):
            at = positions.searchsorted(batch.column(0).to_numpy())
            rows[at] = np.arange(self._rows, self._rows + len(at))
            lives[at] = batch.column(OP).to_numpy() != int(Op.DELETE)
            texts.append(self._keys(batch))
            present.append(at)
            self._parts.append(_under(batch, self._now))
            self._rows += len(at)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            self.lacking = max(self.lacking, int(positions[missing[-1]]))
        number = np.full(len(positions), -1, np.int64)
        if present:
            place = np.concatenate(present)
            number[place] = np.arange(len(place))
        keys_there = pa.chunked_array(texts, pa.utf8()).combine_chunks()
        return rows, keys_there.take(pa.array(number, mask=number < 0)), lives

    def _changes(self, positions: I64) -> Iterator[pa.RecordBatch]:
        """In few batches; but of those before the chapter each has its own past."""
        begin = int(positions.searchsorted(self._now.chapter))
        if begin:
            yield from self._log.changes_at(self._topic, positions[:begin])
        yield from joined(self._log.changes_at(self._topic, positions[begin:]))

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        """The keys by which the present chapter knows these changes."""
        schema, chapter = topic_schema(batch.schema), self._now.chapter
        first = first_position(batch)
        if first < chapter:
            batch = brought_to(batch, definitions_between(self._turns, first, chapter), Position(chapter))
            schema = topic_schema(batch.schema)
        return keys(batch, schema)

    def _answer(self, numbers: I64) -> FoundRows:
        assert self._now.shape is not None
        whole = pa.Table.from_batches(self._parts, topic_batch_schema(self._now.shape))
        return FoundRows(taken(whole, pa.array(numbers, mask=numbers < 0)), numbers >= 0)


def _under(batch: pa.RecordBatch, now: AsOf) -> pa.RecordBatch:
    assert now.shape is not None
    return pa.RecordBatch.from_arrays(conformed(batch, now.shape).columns, schema=topic_batch_schema(now.shape))


def _nothing(count: int) -> FoundRows:
    schema = pa.schema(META_FIELDS)
    return FoundRows(taken(pa.Table.from_batches([], schema), pa.nulls(count, pa.int64())), np.zeros(count, np.bool_))
