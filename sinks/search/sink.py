"""The search index: one table is one index behind an alias of the table's name, one row one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydantic import Field

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.lineage import believed
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.table import Table
from cdc.settings.models import StoreOptions
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape
from sinks.render import jsonrows
from sinks.render.choices import Choices
from sinks.render.jsonrows import DELETED
from sinks.render.jsontext import meant_rows, row_texts
from sinks.render.meaning import plain_key
from sinks.render.rowtext import join_key, rows_with_keys
from sinks.retry import Fate
from sinks.search import bulk, conditional, fence, fields
from sinks.search.barriers import Barriers
from sinks.search.conditional import Conflict
from sinks.search.indices import APART, LIVING
from sinks.search.ledger import Entry, Ledger
from sinks.search.naming import GENERATION, document_ids, shared
from sinks.search.rows import Rows
from sinks.search.standing import order
from sinks.search.tables import Tables
from sinks.search.wire import Address, Cluster

PAGE_ROWS: Final = 2000
SCROLL_KEEP_ALIVE: Final = "5m"
LOOK_S: Final = 5.0
"""How often ``applied`` looks for indices and aliases that came or moved, and for a reader at what the indices say; where one lacked
something, it looks again sooner."""
LACKING_LOOK_S: Final = 0.5


class Options(Address, StoreOptions):
    """The options that only a search index has."""

    renders = True

    index: str = "{schema}.{table}"
    """The alias to search. A template under which two tables would share an index is refused."""
    shards: int = Field(1, ge=1)
    """Primary shards of a new index."""
    replicas: int | None = Field(None, ge=0)
    """Replicas of a new index; the cluster's own default when left out."""
    refresh_interval: str = "1s"
    """How often a new index makes changes visible to searches."""
    request_bytes: int = Field(5_000_000, ge=1)
    """Size of one bulk request, about."""
    purge_after_s: float = Field(120.0, ge=0)
    """How long documents of deleted rows stay after their name was fenced; no request may live longer inside the cluster."""
    dead_share_max: float = Field(0.1, ge=0, le=1)
    """A batch of which a larger share cannot be held stops the store instead of filling the dead letters."""
    workers_from_rows: int = Field(0, ge=0)
    """As for every store. By default never: building requests is a small part of their cost, and two of them are under way at once
    anyway. A cluster of several nodes may want Spark's workers."""


class SearchSink:
    """See ``sinks.contract.Sink``. Its units are the ledger and each table's index."""

    parallel = True
    sequenced = False

    def __init__(self, name: str, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._options = options
        self._clock = clock
        self._cluster = Cluster(name, options)
        self._ledger = Ledger(self._cluster)
        self._choices = Choices(name, options.as_rules, fields.style_of)
        self._log: LogReader | None = None
        self._tables = Tables(self._cluster, options.index, options.tables, self._index_settings, self._choices.style)
        self._rows = Rows(
            self._cluster, self._ledger, self._tables, request_bytes=options.request_bytes, dead_share_max=options.dead_share_max
        )
        self._barriers = Barriers(self._cluster, self._tables, self._rows)
        self._epoch: int | None = None
        self._following = False
        """Whether there is a log to compare with."""
        self._fenced: fence.Fenced | None = None
        self._look_at = float("-inf")
        self._holds = ZERO_CUT
        self._lacking = False
        """Whether the last look found less than the ledger claims."""
        self._claiming: Cut | None = None
        """The cut of a commit whose answer has not come."""

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self._log = log
        jsonrows.warm_up()
        self._epoch, self._fenced, self._claiming = None, None, None
        lineage = log.lineage()
        self._following = lineage is not None
        if lineage is None:
            if epoch is not None:
                raise StoreError(f"store {self.name}: there is no log yet", retryable=True, hint="start capture")
            return ZERO_CUT
        self._tables.open(log, lineage, writing=epoch is not None)
        entry = self._ledger.read()
        if entry is not None:
            believed(entry.mark, lineage, f"store {self.name}")
            if epoch is not None and entry.epoch > epoch:
                raise EpochPassed(self.name, entry.epoch)
        applied = self._tables.applied = self._look(entry, point=epoch is not None)
        if epoch is not None:
            self._take_over(entry, Entry(lineage.mark(applied), epoch))
        self._epoch = epoch
        return applied

    def _take_over(self, entry: Entry | None, now: Entry) -> None:
        """The ledger names this writer, and claims no more than is there."""
        self._ledger.create(now.mark.log)
        if entry != now:
            crashpoint("search.opening.before_write")
            conditional.send(self._cluster, "writing the ledger", [self._ledger.change(now)])
            crashpoint("search.opening.written")

    def _look(self, entry: Entry | None, *, point: bool) -> Cut:
        holding = self._tables.look(None if entry is None else entry.mark, point=point)
        self._tables.held = dict(holding.held)
        self._lacking = entry is not None and holding.applied != entry.mark.cut
        self._look_at = self._clock() + (LACKING_LOOK_S if self._lacking else LOOK_S)
        self._holds = holding.applied
        return holding.applied

    def held(self, topic: str) -> Position:
        return self._tables.held_of(topic)

    def erase(self) -> None:
        indices = self._tables.indices
        made = [one.index for one in indices.all(standings=False) if indices.mine(one) and not one.renamed]
        indices.delete(made)
        crashpoint("erasing.indices")
        indices.delete(self._ledger.indices)
        self._tables.known.clear()

    def prepare(self, table: Table) -> None:
        self._writes()
        self._choices.check(table, self._log)
        self._tables.prepare(table)

    def foresee(self, tables: Sequence[Table]) -> None:
        """Raises ConfigError when two of these tables, which are to come, would have the same index, or when the configuration
        says something of a table or column that does not exist."""
        self._choices.foresee(tables)
        if (both := shared(self._options.index, tables)) is not None:
            names = " and ".join(table.qualified for table in both)
            raise ConfigError(
                f"store {self.name}: index = {self._options.index!r} gives {names} the same index", hint=f"set {APART} in cdc.toml"
            )

    def shape(self, topic: str) -> Shape | None:
        return self._tables.shape(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        self._writes()
        table = table_of(changes.schema)
        if len(changes) == 0:
            return NOTHING
        self._tables.failed.add(table.qualified)  # unless it gets to the end
        outcome = self._taken(table, changes)
        self._tables.failed.discard(table.qualified)
        return outcome

    def _taken(self, table: Table, changes: pa.RecordBatch) -> Outcome:
        if changes.column(OP)[0].as_py() == Op.TRUNCATE:
            return self._barriers.truncate(table, first_position(changes))
        if (change := schema_change_of(changes)) is not None:
            return self._barriers.reshape(change, first_position(changes))
        place = self._tables.place(table)
        positions = changes.column(POSITION).to_numpy()
        first = int(np.searchsorted(positions, max(self._tables.held_of(table.qualified), place.floor), side="right"))
        fresh, positions = changes.slice(first), positions[first:]
        if len(fresh) == 0:
            return Outcome(0, stale=first)
        verdicts = self._rows.write(table, place, bulk.actions(fresh, table, self._choices.style(table)), positions)
        dead = self._rows.bury(table, verdicts, positions)
        return Outcome(verdicts.count(Fate.WRITTEN), verdicts.count(Fate.STALE) + first, dead)

    def commit(self, cut: Cut) -> None:
        epoch, tables = self._writes(), self._tables
        self._settle()
        if self._options.workers_from_rows:
            tables.join(cut)
        if order(cut) < order(tables.applied) or (cut == tables.applied and not tables.begun):
            return
        self._record(Entry(tables.lineage().mark(cut), epoch))
        tables.applied = self._holds = cut
        self._purge()

    def _record(self, entry: Entry) -> None:
        """One request: what each index with changes says of itself, and the ledger. Whichever of them are taken, what counts is what all of
        them say."""
        cut, tables = entry.mark.cut, self._tables
        passed_over = tables.passed_over(cut, by_workers=self._options.workers_from_rows > 0)
        ended = [tables.end(place, cut) for place in (*tables.begun, *passed_over)]
        ledger = self._ledger.change(entry)
        crashpoint("search.ledger.before_write")
        self._claiming = cut
        try:
            tables.send(ended, ledger)
        except Conflict:
            there = None if ledger.taken else self._ledger.peek()
            if there is None or there.mark.log != entry.mark.log or order(there.mark.cut) < order(cut):
                raise
            tables.known.clear()  # somebody else has come as far: this cut adds nothing
        self._claiming = None
        crashpoint("search.ledger.written")

    def _settle(self) -> None:
        """Finds out what became of a commit, and of what indices were to say, where the answer was lost."""
        if self._claiming is not None:
            if self._ledger.settle():
                self._tables.applied = max(self._tables.applied, self._claiming, key=order)
            self._claiming = None
        for place in list(self._tables.known.values()):
            self._tables.settle(place)

    def applied(self) -> Cut:
        if not self._following:
            return ZERO_CUT
        entry = self._ledger.peek()
        if entry is None or self._clock() >= self._look_at:
            return self._look(entry, point=self._epoch is not None)
        if self._epoch is not None:
            return self._tables.glance(entry.mark).applied  # a follower asks once a second at most
        recorded = believed(entry.mark, self._tables.lineage(), f"store {self.name}")
        return min(recorded, self._holds, key=order) if self._lacking else recorded

    def make_visible(self) -> None:
        """Refreshes every index of ours, also those of tables that this process has not written."""
        params = {"expand_wildcards": "open,hidden", "allow_no_indices": "true"}
        self._cluster.ask("a refresh", "POST", f"/*{GENERATION}*/_refresh", params=params)

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        return meant_rows(rows, table, self._choices.style(table))

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        found = self._tables.find(table)
        if found is not None:
            for hits in self._pages(found.index, table):
                yield self._texts([hit["_source"] for hit in hits], table)

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(table):
            return rows_with_keys(self.scan(table), keys, table)
        index = self._tables.find(table)
        parts = [keys.column(column.name) for column in table.key]
        ids = document_ids(join_key(parts, ":" if len(parts) > 1 else "")).to_pylist()
        found: list[Any] = []
        for start in range(0, len(ids) if index is not None else 0, PAGE_ROWS):
            assert index is not None
            params = {"stored_fields": DELETED, "_source": "true"}
            wanted = {"ids": ids[start : start + PAGE_ROWS]}
            docs = conditional.documents(self._cluster, f"reading {table.qualified}", f"/{index.index}/_mget", wanted, params)
            found += [doc["_source"] for doc in docs if doc.get("found") and DELETED not in doc.get("fields", {})]
        return self._texts(found, table)

    def close(self) -> None:
        self._rows.close()
        self._cluster.close()

    def _texts(self, sources: list[Any], table: Table) -> pa.RecordBatch:
        style = self._choices.style(table)
        return row_texts([fields.taken_out(source, table, style) for source in sources], table, style)

    def _writes(self) -> int:
        if self._epoch is None:
            raise StoreError(f"store {self.name} is not open for writing", retryable=True)
        return self._epoch

    def _index_settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "number_of_shards": self._options.shards,
            "refresh_interval": self._options.refresh_interval,
        }
        if self._options.replicas is not None:
            found["number_of_replicas"] = self._options.replicas
        return found

    def _purge(self) -> None:
        """Fences what is applied now; removes what was fenced long enough ago. Costs nothing most of the time."""
        now, places = self._clock(), list(self._tables.known.values())
        if self._fenced is None and places and self._barriers.replace_writers(places):
            self._fenced = fence.Fenced(self._tables.applied.position, now)
        if self._fenced is not None and now - self._fenced.at_s >= self._options.purge_after_s:
            for place in places:
                fence.purge(self._cluster, place.names, deleted_before=self._fenced.position, written_before=place.floor)
            self._fenced = None

    def _pages(self, index: str, table: Table) -> Iterator[list[Any]]:
        """The hits of every living document, as they are now, by pages."""
        body = {"size": PAGE_ROWS, "query": LIVING, "sort": ["_doc"]}
        params = {"scroll": SCROLL_KEEP_ALIVE, "allow_partial_search_results": "false"}
        page = self._cluster.ask(f"reading {table.qualified}", "POST", f"/{index}/_search", body, params=params)
        try:
            while hits := page["hits"]["hits"]:
                yield hits
                following = {"scroll": SCROLL_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._cluster.ask(f"reading {table.qualified}", "POST", "/_search/scroll", following)
        finally:
            self._cluster.ask("closing a scan", "DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})


def make(name: str, options: Options) -> SearchSink:
    return SearchSink(name, options)
