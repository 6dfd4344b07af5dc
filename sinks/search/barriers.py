"""Changes of a table as a whole: a TRUNCATE, and a change of its definition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.batch import POSITION
from cdc.model.evolution import SchemaChange
from cdc.model.position import Position
from cdc.model.table import Table
from sinks.contract import DeadLetter, Outcome, Shape
from sinks.past import live_rows, rows_under
from sinks.policy import emptied
from sinks.reshape import rewrites
from sinks.retry import Fate
from sinks.search import bulk, fence
from sinks.search.rows import Rows
from sinks.search.tables import Place, Tables
from sinks.search.wire import Cluster


class Barriers:
    """Applies them to one store. Each may be done again after a failure at any point."""

    def __init__(self, cluster: Cluster, tables: Tables, rows: Rows) -> None:
        self._cluster = cluster
        self._tables = tables
        self._rows = rows

    def truncate(self, table: Table, position: int) -> Outcome:
        """Raises the floor, turns away writers that do not know it, and deletes every document from before ``position``."""
        if position <= self._tables.held_of(table.qualified):
            return Outcome(0, stale=1)
        place = self._tables.place(table)
        self._tables.settle(place)
        self._tables.say(place, position, floor=Position(max(place.floor, position)))
        crashpoint("search.truncate.floor_raised")
        self.replace_writers([place])  # a writer from before the TRUNCATE has to read the floor before it writes again
        crashpoint("search.truncate.before_purge")
        fence.purge(self._cluster, place.names, written_before=position)
        return Outcome(1)

    def reshape(self, change: SchemaChange, position: int) -> Outcome:
        """Documents of an older definition are written again at the change's position; a field that has to change its type takes a new
        index, which replaces the old one at once. Done twice it comes to the same."""
        table, held = change.table, self._tables.shape(change.table.qualified)
        if position <= self._tables.held_of(table.qualified) or (held is not None and position <= held.position):
            return Outcome(0, stale=1)
        found = self._tables.find(table)
        gone = emptied(None if held is None else held.table, change)
        dead: tuple[DeadLetter, ...] = ()
        if found is None or not found.said:
            place = self._tables.prepare(table)
        elif self._tables.indices.contradicted(found, table):
            place = self._tables.adopt(found, table)
            return Outcome(1, 0, self._rebuild(place, table, kept=not gone and held is not None, position=position))
        elif gone:
            place = self._tables.prepare(table)
            self.truncate(table, position)
        elif held is not None and rewrites(held.table, table):
            place = self._tables.prepare(table)
            self._tables.begin_alone(place, position)
            dead = self._write_again(place.writer, table, position)
            crashpoint("search.schema.rewritten")
            self.truncate(table, position)
        else:
            place = self._tables.prepare(table)
        self._tables.say(place, position, shape=Shape(table, Position(position)))
        return Outcome(1, 0, dead)

    def replace_writers(self, which: list[Place]) -> bool:
        """False when somebody else has replaced one meanwhile: then the names are looked up, and our fence comes with a later commit."""
        fresh = fence.replace_writers(self._cluster, {place.names: place.writer for place in which})
        for place in which:
            if fresh is None:
                self._tables.prepare(place.table)
            else:
                place.write_through(fresh[place.names])
        return fresh is not None

    def _rebuild(self, place: Place, table: Table, *, kept: bool, position: int) -> tuple[DeadLetter, ...]:
        """The next generation of the index takes the rows (where they are ``kept``) and then the alias."""
        fresh = self._tables.building(place, table, position)
        dead = self._write_again(fresh.writer, table, position) if kept else ()
        self._cluster.ask("a refresh", "POST", f"/{fresh.names.index}/_refresh")
        at = Position(position)
        self._tables.say(fresh, position, floor=at, shape=Shape(table, at), building=False)
        crashpoint("search.schema.rebuilt")
        self._tables.built(place, fresh)
        return dead

    def _write_again(self, writer: str, table: Table, position: int) -> tuple[DeadLetter, ...]:
        """Every row that was there before the position, as it stands at the position under the table's definition."""
        dead: tuple[DeadLetter, ...] = ()
        for batch, ids in self._rows_before(table, position):
            verdicts = self._rows.write_all(
                writer, bulk.actions(batch, table, self._tables.style(table), ids), np.arange(len(batch))
            )
            if verdicts.count(Fate.FENCED):
                raise StoreError(f"store {self._cluster.store}: another process replaces the write alias", retryable=True)
            dead += self._rows.bury(table, verdicts, batch.column(POSITION).to_numpy())
        return dead

    def _rows_before(self, table: Table, position: int) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """From the log, never from documents: those hold what values mean, not what Postgres says. With the documents' ids where those are not
        the keys: rows without a key go by the position of the change that brought them."""
        log, upto = self._tables.log, Position(position - 1)
        rows = rows_under(log, table, upto, Position(position))
        if table.key:
            yield from ((batch, None) for batch in rows)
            return
        for own, batch in zip(live_rows(log, table.qualified, upto), rows, strict=True):
            yield batch, own.column(POSITION).cast(pa.utf8())
