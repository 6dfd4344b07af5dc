"""What changes a table as a whole: a TRUNCATE, and a change of its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.batch import POSITION
from cdc.model.evolution import SchemaChange
from cdc.model.position import Position
from cdc.model.table import Table
from sinks.contract import DeadLetter, Outcome, Shape
from sinks.jsontext import row_texts
from sinks.policy import emptied
from sinks.reshape import reshaped, rewrites
from sinks.retry import Fate
from sinks.search import bulk, fence
from sinks.search.naming import Places, document_ids, field_names
from sinks.search.rows import Rows
from sinks.search.tables import Place, Tables
from sinks.search.wire import Cluster

Pages = Callable[..., Iterator[list[Any]]]


class Barriers:
    """``pages``: the living documents of an index that were written before a position."""

    def __init__(self, cluster: Cluster, tables: Tables, rows: Rows, pages: Pages) -> None:
        self._cluster = cluster
        self._tables = tables
        self._rows = rows
        self._pages = pages

    def truncate(self, table: Table, position: int) -> Outcome:
        if position <= self._tables.held_of(table.qualified):
            return Outcome(0, stale=1)
        place = self._tables.place(table)
        self._tables.settle(place)
        self._tables.say(place, position, floor=Position(max(place.floor, position)))
        crashpoint("search.truncate.floor_raised")
        self.replace_writers([place])  # whoever wrote before the TRUNCATE has to read the floor before it writes again
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
            return Outcome(1, 0, self._rebuild(place, table, None if gone or held is None else held.table, position))
        elif gone:
            place = self._tables.prepare(table)
            self.truncate(table, position)
        elif held is not None and rewrites(held.table, table):
            place = self._tables.prepare(table)
            self._tables.begin_alone(place, position)
            dead = self._write_again(place.names, place.writer, held.table, table, position)
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

    def _rebuild(self, place: Place, table: Table, held: Table | None, position: int) -> tuple[DeadLetter, ...]:
        """The next generation of the index takes the documents (none when ``held`` is None) and then the alias."""
        fresh = self._tables.building(place, table, position)
        dead = () if held is None else self._write_again(place.names, fresh.writer, held, table, position)
        self._cluster.ask("a refresh", "POST", f"/{fresh.names.index}/_refresh")
        at = Position(position)
        self._tables.say(fresh, position, floor=at, shape=Shape(table, at), building=False)
        crashpoint("search.schema.rebuilt")
        self._tables.built(place, fresh)
        return dead

    def _write_again(self, names: Places, writer: str, held: Table, table: Table, position: int) -> tuple[DeadLetter, ...]:
        dead: tuple[DeadLetter, ...] = ()
        self._cluster.ask("a refresh", "POST", f"/{names.index}/_refresh")
        for hits in self._pages(names.index, held, before=position):
            rows = row_texts([hit["_source"] for hit in hits], held, field_names(held))
            again = reshaped(rows, held, table, position)
            ids = None
            if not table.key:
                former = pa.array([hit["_id"] for hit in hits], pa.utf8())
                # Former keys must not meet the positions that will be the ids of later rows.
                ids = document_ids(pc.binary_join_element_wise("\\=", former, "")) if held.key else former
            verdicts = self._rows.write_all(writer, bulk.actions(again, table, ids), np.arange(len(hits)))
            if verdicts.count(Fate.FENCED):
                raise StoreError(f"store {self._cluster.store}: another process replaces the write alias", retryable=True)
            dead += self._rows.bury(table, verdicts, again.column(POSITION).to_numpy())
        return dead
