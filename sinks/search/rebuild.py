"""A search store built again: for each table another index, which takes the place of the one that is there once it is full.

An index that is there cannot be written over: its documents may have versions of another log, beyond all that this log can give, and its fields'
types never change. So the next index is filled beside it, as when a field changes its type (``tables``), with room for both meanwhile. One request
moves the table's alias to it: whoever searches sees all rows as they were, or all as they are now. The former index goes afterwards.

First the ledger is made again, as one of this log and this writer that holds nothing: whoever wrote before commits nothing more, and what his documents
reach are indices that are on their way out. The alias moves only while the new index still has the write alias that this process has made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.lineage import Lineage
from cdc.model.position import ZERO_CUT, Cut
from sinks.contract import CameRows, EpochPassed, Outcome, TopicAsOf
from sinks.retry import Fate
from sinks.search import bulk, conditional, fence
from sinks.search.indices import Found
from sinks.search.ledger import Entry, SearchLedger
from sinks.search.names import Places
from sinks.search.rows import Rows
from sinks.search.standing import Standing
from sinks.search.statements import Place, term_of
from sinks.search.tables import Tables
from sinks.search.wire import Cluster


@dataclass(frozen=True, slots=True)
class SearchRebuild:
    """Over one store. ``settings``: those of a new index."""

    cluster: Cluster
    ledger: SearchLedger
    tables: Tables
    rows: Rows
    settings: Callable[[], Mapping[str, Any]]

    def carry_out(self, lineage: Lineage, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Raises EpochPassed when a later writer of the same log has been there, StoreError."""
        self._refuse_taken(topics)
        self._begin(Entry(lineage.mark(ZERO_CUT), epoch))
        outcome, used = Outcome(0), set[str]()
        for topic in topics:
            fresh, written = self._filled(topic, lineage, cut)
            self._swap(topic, fresh)
            used.add(fresh.names.index)
            outcome += written
        indices = self.tables.indices
        indices.delete(one.index for one in self._ours() if one.index not in used)
        crashpoint("rebuilding.search_others_removed")
        self._refuse_later(epoch)
        conditional.send(self.cluster, "writing the ledger", [self.ledger.change(Entry(lineage.mark(cut), epoch))])
        return outcome

    def _refuse_taken(self, topics: Sequence[TopicAsOf]) -> None:
        for topic in topics:
            schema = topic.shape.schema
            alias = self.tables.overview.names(schema).alias
            self.tables.indices.refuse(alias, self.tables.indices.of(alias), schema.topic)

    def _begin(self, now: Entry) -> None:
        before = self.ledger.read()
        if before is not None and before.mark.log == now.mark.log and before.epoch > now.epoch:
            raise EpochPassed(self.cluster.store, before.epoch)
        self.tables.indices.delete(self.ledger.indices)
        crashpoint("rebuilding.search_ledger_removed")
        self.ledger.create(now.mark.log)
        self.ledger.read()
        conditional.send(self.cluster, "writing the ledger", [self.ledger.change(now)])
        self.rows.letters.reload()
        crashpoint("rebuilding.search_begun")

    def _refuse_later(self, epoch: int) -> None:
        """A later writer has made a ledger of his own."""
        there = self.ledger.peek()
        if there is None or there.epoch != epoch:
            raise StoreError(f"store {self.cluster.store} was taken over while it was built again", retryable=True)

    def _filled(self, topic: TopicAsOf, lineage: Lineage, cut: Cut) -> tuple[Place, Outcome]:
        """A new index with all of the topic's rows, which nobody uses yet."""
        schema, indices = topic.shape.schema, self.tables.indices
        names = self.tables.overview.names(schema)
        there = [one for one in indices.of(names.alias) if one.places is not None and one.places.alias == names.alias]
        live = indices.live(names.alias, there, schema.topic)
        # What an attempt before this one has left is neither used nor, most often, whole.
        indices.delete(
            one.index for one in there if live is not None and one.index != live.index and names.alias not in one.aliases
        )
        fresh = replace(names, number=max((one.number for one in there), default=0) + 1)
        place = self._made(fresh, topic, lineage, cut)
        outcome = Outcome(0)
        for came in topic.rows():
            outcome += self._write(place, topic, came)
            crashpoint("rebuilding.search_written")
        self.cluster.ask("a refresh", "POST", f"/{fresh.index}/_refresh")
        standing = replace(
            place.standing,
            mark=lineage.mark(cut),
            since=cut,
            reach=cut.position,
            shape_since=topic.shape.position,
            writing=False,
            building=False,
        )
        self.tables.statements.tell(self.tables.statements.written(place, standing))
        crashpoint("rebuilding.search_filled")
        return place, outcome

    def _made(self, names: Places, topic: TopicAsOf, lineage: Lineage, cut: Cut) -> Place:
        schema = topic.shape.schema
        self.tables.indices.create(names, schema, self.settings())
        first = Standing.first(self.cluster.store, schema, lineage)
        place = self.tables.begin_to_exist(
            names, schema, replace(first, shape=topic.shape, reach=cut.position, building=True, writing=True)
        )
        if place is None:
            raise StoreError(f"store {self.cluster.store}: the index {names.index} was removed while it was filled", retryable=True)
        place.terms = tuple(term_of(one) for one in place.documents)
        return place

    def _write(self, place: Place, topic: TopicAsOf, came: CameRows) -> Outcome:
        """Rows without a key go by the position of the change that brought them."""
        schema, batch = topic.shape.schema, came.rows
        ids = None if schema.key else came.came.cast(pa.utf8())
        body = bulk.Body(batch, schema, self.tables.indices.style(schema), ids)
        verdicts = self.rows.write_all(place.writer, body, np.arange(len(batch)))
        if verdicts.count(Fate.FENCED):
            raise StoreError(
                f"store {self.cluster.store}: the index {place.names.index} was removed while it was filled", retryable=True
            )
        letters = self.rows.bury(schema, verdicts, came.came.to_numpy(), partial(bulk.ids_of, batch, schema, ids))
        return Outcome(len(batch) - len(letters), 0, tuple(letter.as_outcome() for letter in letters))

    def _swap(self, topic: TopicAsOf, fresh: Place) -> None:
        schema, indices = topic.shape.schema, self.tables.indices
        alias = fresh.names.alias
        others = [one for one in indices.of(alias) if one.index != fresh.names.index and indices.mine(one)]
        moved = fence.alias_actions(fresh.names, fresh.writer, fence.new_writer(fresh.names))
        indices.move(others, fresh.names, schema.topic, moved)
        crashpoint("rebuilding.search_swapped")
        indices.delete(one.index for one in others if one.places is not None and one.places.alias == alias)

    def _ours(self) -> Iterator[Found]:
        """All indices of this store's rows."""
        indices = self.tables.indices
        ledgers = self.ledger.indices
        return (one for one in indices.all(standings=False) if indices.mine(one) and not one.renamed and one.index not in ledgers)
