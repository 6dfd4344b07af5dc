"""Changes of a table as a whole (``sinks.barrier``): made in the index that is there, or by filling another one that takes its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.batch import POSITION, topic_schema
from cdc.model.position import START, Position
from sinks.barrier import RowsBefore, Steps, TableBarrier, barrier_of, carry_out
from sinks.contract import DeadLetter, Outcome
from sinks.past import rows_and_under
from sinks.retry import Fate
from sinks.search import bulk, fence
from sinks.search.rows import Rows
from sinks.search.statements import Place
from sinks.search.tables import Tables
from sinks.search.wire import Cluster

_Again = tuple[pa.RecordBatch, pa.Array | None, pa.Array]
"""Rows to be written again, with their documents' ids where those are not the keys, and the positions of the changes that brought them."""


class SearchBarriers:
    """Carries them out in one store."""

    def __init__(self, cluster: Cluster, tables: Tables, rows: Rows) -> None:
        self._cluster = cluster
        self._tables = tables
        self._rows = rows

    def carry_out(self, changes: pa.RecordBatch) -> Outcome:
        """``changes``: one barrier's record."""
        topic = topic_schema(changes.schema).topic
        held = self._tables.shape(topic)
        barrier = barrier_of(changes, None if held is None else held.schema)
        assert barrier is not None
        if barrier.position <= max(self._tables.held.of(topic), held.position if held is not None and barrier.defines else START):
            return Outcome(0, stale=1)
        barrier, steps = self._steps(barrier, new=held is None)
        if barrier.rows is RowsBefore.GONE:
            self._rows.letters.end(topic, barrier.position, emptied=True)
        return carry_out(barrier, steps)

    def replace_writers(self, which: list[Place]) -> bool:
        """False when somebody else has replaced one meanwhile: then the names are looked up, and our fence comes with a later commit."""
        fresh = fence.replace_writers(self._cluster, {place.names: place.writer for place in which})
        for place in which:
            if fresh is None:
                self._tables.prepare(place.schema)
            else:
                place.write_through(fresh[place.names])
        return fresh is not None

    def _steps(self, barrier: TableBarrier, *, new: bool) -> tuple[TableBarrier, Steps[_Again]]:
        """How it is carried out, and what becomes of the rows that way. ``new``: there are no rows yet, as far as is known."""
        tables, schema = self._tables, barrier.schema
        if not barrier.defines:
            tables.place(schema)
            return barrier, self._in_place()
        found = tables.find(schema)
        if found is not None and found.said and tables.indices.contradicted(found, schema):
            old = tables.adopt(found, schema)
            fresh = tables.building(old, schema, barrier.position)
            fate = RowsBefore.GONE if new or barrier.rows is RowsBefore.GONE else RowsBefore.AGAIN
            return replace(barrier, rows=fate), _Another(self._cluster, tables, self._rows, old, fresh)
        tables.prepare(schema)
        empty = found is None or not found.said
        return replace(barrier, rows=RowsBefore.KEPT) if empty else barrier, self._in_place()

    def _in_place(self) -> _InPlace:
        return _InPlace(self._cluster, self._tables, self._rows, self)


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """Rows from before a barrier: from the log, never from documents, which hold what values mean and not what Postgres says."""

    cluster: Cluster
    tables: Tables
    rows: Rows

    def rows_before(self, barrier: TableBarrier) -> Iterator[_Again]:
        """Rows without a key go by the position of the change that brought them."""
        log, schema, upto = self.tables.followed.log, barrier.schema, Position(barrier.position - 1)
        for own, batch in rows_and_under(log, schema, upto, barrier.position):
            came = own.column(POSITION)
            yield batch, None if schema.key else came.cast(pa.utf8()), came

    def write_into(self, writer: str, barrier: TableBarrier, rows: Iterable[_Again]) -> tuple[DeadLetter, ...]:
        dead: tuple[DeadLetter, ...] = ()
        for batch, ids, came in rows:
            body = bulk.Body(batch, barrier.schema, self.tables.indices.style(barrier.schema), ids)
            verdicts = self.rows.write_all(writer, body, np.arange(len(batch)))
            if verdicts.count(Fate.FENCED):
                raise StoreError(f"store {self.cluster.store}: another process replaces the write alias", retryable=True)
            named = partial(bulk.ids_of, batch, barrier.schema, ids)
            letters = self.rows.bury(barrier.schema, verdicts, came.to_numpy(), named)
            dead += tuple(letter.as_outcome() for letter in letters)
        self.rows.letters.end(barrier.schema.topic, barrier.position, emptied=False, again={one.position for one in dead})
        return dead


@dataclass(frozen=True, slots=True)
class _InPlace(_Rewriting):
    """In the index that is there: its floor turns away writers that do not know it, and documents from before are deleted."""

    barriers: SearchBarriers

    def write_again(self, barrier: TableBarrier, rows: Iterable[_Again]) -> tuple[DeadLetter, ...]:
        place = self.tables.place(barrier.schema)
        self.tables.statements.begin_alone(place, barrier.position)
        dead = self.write_into(place.writer, barrier, rows)
        crashpoint("search.schema.rewritten")
        return dead

    def raise_floor(self, barrier: TableBarrier) -> None:
        place = self.tables.place(barrier.schema)
        self.tables.statements.settle(place)
        self.tables.statements.say(place, barrier.position, floor=Position(max(place.floor, barrier.position)))
        crashpoint("search.truncate.floor_raised")
        self.barriers.replace_writers([place])  # a writer from before the barrier has to read the floor before it writes again
        crashpoint("search.truncate.before_purge")
        fence.purge(self.cluster, place.names, written_before=barrier.position)

    def set_shape(self, barrier: TableBarrier) -> None:
        if barrier.defines:
            self.tables.statements.say(self.tables.place(barrier.schema), barrier.position, shape=barrier.shape)


@dataclass(frozen=True, slots=True)
class _Another(_Rewriting):
    """A field that has to change its type takes another index, which nobody uses before it replaces the old one at once."""

    old: Place
    fresh: Place

    def write_again(self, barrier: TableBarrier, rows: Iterable[_Again]) -> tuple[DeadLetter, ...]:
        return self.write_into(self.fresh.writer, barrier, rows)

    def raise_floor(self, barrier: TableBarrier) -> None:
        """Nothing from before is in it."""

    def set_shape(self, barrier: TableBarrier) -> None:
        self.cluster.ask("a refresh", "POST", f"/{self.fresh.names.index}/_refresh")
        self.tables.statements.say(self.fresh, barrier.position, floor=barrier.position, shape=barrier.shape, building=False)
        crashpoint("search.schema.rebuilt")
        self.tables.built(self.old, self.fresh)
