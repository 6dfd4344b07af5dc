"""One range of a table's keys in a store, against what the log says that the store holds. The source is not asked.

Both sides are of one position: what the store had applied before anything was read. The log's rows are those as of it; the store's are of it, or of
later changes, which its follower goes on writing meanwhile. So a key that does not agree counts only if

- the log has no change of it behind that position, up to a head that was read after the store's rows were, and
- two later looks at it in the store show the same, and it still has not changed, and
- the store then still holds the position: it was not emptied, restored or built again meanwhile.

A key that did change was written as a whole by that change. A TRUNCATE or a change of definition meanwhile ends the comparison (``Unsteady``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.audit.budget import Budget
from cdc.audit.deadletters import KnownLetters, without
from cdc.audit.engine import Side, key_indices, suspects
from cdc.audit.keyrange import KeyRange
from cdc.audit.settlement import FETCH_KEYS
from cdc.audit.suspects import Differing, KeyLook, Mask, joined, key_bytes, look
from cdc.follow.rebuild import as_held, shapes_of
from cdc.follow.rules import Rules
from cdc.kernels.digests import digests
from cdc.log.contract import Topic
from cdc.model.batch import is_truncate, topic_schema
from cdc.model.evolution import Kind, topic_change_of
from cdc.model.position import Cut, Position
from cdc.replay.state import refuse_compacted
from cdc.state.auditstate import Drift
from sinks.contract import Expiring, Shape, Sink, audit_schema
from sinks.heldlog import HeldLog
from sinks.past import definitions, live_rows
from sinks.render.rowtext import row_text
from sinks.reshape import conformed

MEMORY_BYTES: Final = 16 << 20
SPILL_ROWS: Final = 250_000
SUSPECTS_MAX: Final = 100_000
"""So many keys that do not agree are looked at again; that there were more is said."""
LOOKS_APART_S: Final = 1.0

Reached = Callable[[int, int], None]
"""Called with how many rows of the log and of the store have been read."""


class Unsteady(Exception):
    """The store, or the table, is not what it was when the comparison began. It is made again another time."""


class TableGone(Exception):
    """The table was dropped or renamed: there is nothing to compare."""


class NotHeld(Exception):
    """Why the store has no rows of the table to compare, or none of its present definition."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that was opened to read, at what it had applied then. ``rules``: its follower's."""

    sink: Sink
    log: HeldLog
    rules: Rules
    applied: Cut
    budget: Budget

    def compare(self, topic: Topic, part: KeyRange, seed: int, reached: Reached) -> Drift:
        """Raises Unsteady, TableGone, NotHeld, PositionGone, StoreError, Interrupted."""
        shapes = self._shapes(topic)
        return RangeComparison(self, topic, shapes, seed).carry_out(part, reached)

    def check(self) -> None:
        """Raises Unsteady where the store no longer holds what it did."""
        if self.sink.applied().position < self.applied.position:
            raise Unsteady

    def _shapes(self, topic: Topic) -> list[Shape]:
        name, upto = topic.name, self.applied.position
        found = definitions(self.log, name, upto, go_on=self.budget.rest)
        if not found:
            raise NotHeld("the store has not come to its first rows")
        last = found[-1].change
        if last is not None and last.kind in (Kind.DROPPED, Kind.RENAMED):
            raise TableGone
        held = self.sink.shape(name)
        shapes = shapes_of(self.rules, found)
        if held is None:
            raise NotHeld("the store has not come to its first rows")
        if not shapes or shapes[-1].schema != held.schema:
            raise NotHeld("the store holds it in a definition that the log does not give it at this position")
        box = KnownLetters.of(self.sink).box
        if box is not None and any(one.whole_table and one.table == name for one in box.letters()):
            raise NotHeld("it is set aside as a whole")
        return shapes


class RangeComparison:
    """One table's. ``shapes``: those that its rows have in the store, one after the other."""

    def __init__(self, store: OpenedStore, topic: Topic, shapes: Sequence[Shape], seed: int) -> None:
        self._store = store
        self._topic = topic
        self._shapes = shapes
        self._seed = seed
        self._schema = shapes[-1].schema
        self._key = key_indices(self._schema)
        self._distinct = topic.table.whole_rows

    def carry_out(self, part: KeyRange, reached: Reached) -> Drift:
        store, texts = self._store, audit_schema(self._schema)
        log, sink, name, upto = store.log, store.sink, self._topic.name, store.applied.position
        refuse_compacted(log, name, upto)
        with (
            closing(Side(texts, self._key, self._seed, distinct=self._distinct, spill_rows=SPILL_ROWS)) as ours,
            closing(Side(texts, self._key, self._seed, distinct=self._distinct, spill_rows=SPILL_ROWS)) as theirs,
        ):
            seen = 0
            for rows in self._rows_of_the_log():
                ours.add(part.rows(rows, self._key, self._seed))
                seen += rows.num_rows
                reached(seen, 0)
            refuse_compacted(log, name, upto)  # it may have been meanwhile, and then rows were missing
            sink.make_visible()
            found = 0
            for rows in sink.scan(self._schema):
                theirs.add(part.rows(rows, self._key, self._seed))
                found += rows.num_rows
                reached(seen, found)
                store.budget.rest()
            store.check()
            keys = suspects(ours, theirs)
            compared = ours.rows - ours.repeated
        store.budget.rest()
        if not keys.num_rows:
            return Drift(compared)
        unchanged = ~self._changed(keys, log.head().position)
        in_flight = int((~unchanged).sum())
        left = keys.filter(pa.array(unchanged))
        more = left.num_rows > SUSPECTS_MAX
        drift, moved = self._settled(left.slice(0, SUSPECTS_MAX))
        return drift + Drift(compared, in_flight=in_flight + moved, at_least=more and drift.differing > 0)

    def _rows_of_the_log(self) -> Iterator[pa.RecordBatch]:
        """The topic's rows at the position, as the store gives its own."""
        store, name = self._store, self._topic.name
        keeps = store.rules.policy(name) == "ignore"
        upto, rest = store.applied.position, store.budget.rest
        for own in live_rows(store.log, name, upto, memory_bytes=MEMORY_BYTES, go_on=rest):
            yield self._as_held(as_held(own, self._shapes, keeps_shape=keeps).rows)
            rest()

    def _as_held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._store.sink.as_held(row_text(rows, self._schema), self._schema)

    def _changed(self, keys: pa.RecordBatch, head: Position) -> Mask:
        """Which of the keys have changes behind the position, up to this one."""
        changed, wanted = np.zeros(keys.num_rows, np.bool_), self._digests(keys.columns)
        for batch in self._store.log.read(self._topic.name, self._store.applied.position, head):
            if is_truncate(batch) or topic_change_of(batch) is not None:
                raise Unsteady
            rows = self._as_held(batch if topic_schema(batch.schema) == self._schema else conformed(batch, self._schema))
            theirs = self._digests([rows.column(at) for at in self._key])
            changed |= pc.is_in(wanted, value_set=theirs).to_numpy(zero_copy_only=False)
            self._store.budget.rest()
        return changed

    def _digests(self, columns: Sequence[pa.Array]) -> pa.Array:
        names = [str(at) for at in range(len(columns))]
        return key_bytes(digests(pa.RecordBatch.from_arrays(list(columns), names=names), range(len(columns)), self._seed))

    def _settled(self, keys: pa.RecordBatch) -> tuple[Drift, int]:
        """What really differs, and how many of the keys do not agree and have not held still."""
        if not keys.num_rows:
            return Drift(), 0
        store, sink = self._store, self._store.sink
        letters = KnownLetters.of(sink)
        expected = self._look(keys, self._rows_of_the_log())
        first = self._store_look(keys)
        store.budget.pause(LOOKS_APART_S)
        store.check()  # between the looks: after both, it may have been built again since
        second = self._store_look(keys)
        changed = self._changed(keys, store.log.head().position)
        steady = first.same_content(second) & ~changed
        agrees = expected.same_content(second)
        differs = ~agrees & steady
        surplus = (expected.rows - second.rows)[differs]
        differing = Differing(keys.filter(pa.array(differs)), surplus)
        differing = without(differing, letters.also(sink).among(differing, self._schema))
        differing = self._without_expired(differing)
        surplus = differing.surplus
        missing, extra = int(surplus[surplus > 0].sum()), -int(surplus[surplus < 0].sum())
        return Drift(missing=missing, extra=extra, different=int((surplus == 0).sum())), int((~agrees & ~steady).sum())

    def _without_expired(self, differing: Differing) -> Differing:
        sink = self._store.sink
        missing = np.flatnonzero(differing.surplus > 0)
        if not isinstance(sink, Expiring) or not len(missing):
            return differing
        gone = missing[sink.expired(differing.keys.take(missing), self._schema)]
        return differing.only(np.setdiff1d(np.arange(differing.keys.num_rows), gone))

    def _store_look(self, keys: pa.RecordBatch) -> KeyLook:
        pieces = [keys.slice(start, FETCH_KEYS) for start in range(0, keys.num_rows, FETCH_KEYS)]
        return joined([self._look(piece, [self._fetched(piece)]) for piece in pieces])

    def _fetched(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = self._store.sink.fetch(self._schema, keys)
        self._store.budget.rest()
        return found

    def _look(self, keys: pa.RecordBatch, rows: Iterable[pa.RecordBatch]) -> KeyLook:
        seen = look(keys, rows, self._key, len(self._schema.fields), self._seed)
        return seen.distinct() if self._distinct else seen


def ranges_of(topic: Topic, rows_before: int, range_rows: int) -> int:
    """Into how many ranges a table's keys are divided, so that one has about so many rows at most: each of them reads both sides whole.

    The log's number counts changes, of which a row may have had any number: so the rows that were compared the last time (0: never) count, and as many more.
    """
    rows = min(topic.rows, 2 * rows_before) if rows_before else topic.rows
    return max(1, -(-rows // range_rows))
