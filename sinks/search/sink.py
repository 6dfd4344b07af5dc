"""The search index: one table is one index behind an alias of the table's name, one row one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.batch import OP, POSITION, Op, first_position, table_of
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from cdc.settings import StoreOptions
from sinks import jsonrows
from sinks.contract import NOTHING, DeadLetter, Outcome
from sinks.deadletters import check_share
from sinks.jsonrows import DELETED, Texts
from sinks.jsontext import row_texts
from sinks.retry import Fate
from sinks.rowtext import join_key
from sinks.search import bulk, fence, mapping
from sinks.search.ledger import Ledger
from sinks.search.naming import GENERATION, Places, document_ids, field_names, places
from sinks.search.wire import Address, Cluster

Positions = npt.NDArray[np.int64]

IN_FLIGHT: Final = 2
"""Bulk requests at once: while the cluster works on one, the next is on its way."""
PAGE_ROWS: Final = 2000
PIT_KEEP_ALIVE: Final = "5m"
LOOKUPS_MAX: Final = 10
DEAD_ROWS_MIN: Final = 20


class Options(Address, StoreOptions):
    """``index`` names the alias that users search; see the documentation of each field's use in ``sinks.search``."""

    index: str = "{schema}.{table}"
    shards: int = Field(1, ge=1)
    replicas: int | None = Field(None, ge=0)
    refresh_interval: str = "1s"
    request_bytes: int = Field(5_000_000, ge=1)
    """Size of one bulk request, about."""
    purge_after_s: float = Field(120.0, ge=0)
    """How long documents of deleted rows stay after their name was fenced; no request may live longer inside the cluster."""
    dead_share_max: float = Field(0.1, ge=0, le=1)
    """A batch of which a larger share cannot be held stops the store instead of filling the dead letters."""
    workers_from_rows: int = Field(0, ge=0)
    """Never by default: building requests is a small part of their cost, and two of them are under way at once anyway. A cluster of
    several nodes may want Spark's workers."""


@dataclass(slots=True)
class Place:
    """What this process knows of one table's index. ``floor``: the position of the table's last TRUNCATE."""

    table: Table
    names: Places
    writer: str
    floor: int


class SearchSink:
    """See ``sinks.contract.Sink``."""

    parallel = True

    def __init__(self, name: str, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._options = options
        self._clock = clock
        self._cluster = Cluster(name, options)
        self._ledger = Ledger(self._cluster)
        self._places: dict[str, Place] = {}
        self._covered = 0
        """The highest applied position that this process has seen: rows up to it are in the store."""
        self._fenced: fence.Fenced | None = None
        self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix=f"bulk-{name}")

    def open(self) -> Cut:
        jsonrows.warm_up()
        self._places.clear()
        self._fenced = None
        self._ledger.create()
        return self.applied()

    def prepare(self, table: Table) -> None:
        names = places(self._options.index, table)
        answer = self._cluster.send("GET", f"/{names.index}")
        if answer.status == 404:
            self._create(names, table)
            answer = self._cluster.send("GET", f"/{names.index}")
        if answer.status >= 400:
            raise self._cluster.error(f"looking up the index of {table.qualified}", answer)
        held = answer.body[names.index]
        self._evolve(names, table, held)
        self._places[table.qualified] = Place(table, names, self._writer(names, held), self._ledger.floor(table.qualified))

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        table = table_of(changes.schema)
        if len(changes) == 0:
            return NOTHING
        if changes.column(OP)[0].as_py() == Op.TRUNCATE:
            return self._truncate(table, first_position(changes))
        place = self._place(table)
        positions = changes.column(POSITION).to_numpy()
        first = int(np.searchsorted(positions, max(self._covered, place.floor), side="right"))
        fresh, positions = changes.slice(first), positions[first:]
        if len(fresh) == 0:
            return Outcome(0, stale=first)
        body = bulk.actions(fresh, table)
        verdicts = self._write(table, place, body, positions)
        dead = self._bury(table, verdicts, positions)
        return Outcome(verdicts.count(Fate.WRITTEN), verdicts.count(Fate.STALE) + first, dead)

    def commit(self, cut: Cut) -> None:
        self._covered = max(self._covered, self._ledger.commit(cut).position)
        self._purge()

    def applied(self) -> Cut:
        cut = self._ledger.applied()
        self._covered = cut.position
        return cut

    def make_visible(self) -> None:
        """Refreshes every index of ours, also those of tables that this process has not written."""
        params = {"expand_wildcards": "open,hidden", "allow_no_indices": "true"}
        self._cluster.ask("a refresh", "POST", f"/*{GENERATION}/_refresh", params=params)

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        index = places(self._options.index, table).index
        answer = self._cluster.send("POST", f"/{index}/_search/point_in_time", params={"keep_alive": PIT_KEEP_ALIVE})
        if answer.status == 404:
            return
        if answer.status >= 400:
            raise self._cluster.error(f"reading {table.qualified}", answer)
        pit = answer.body["pit_id"]
        try:
            yield from self._pages(table, pit)
        finally:
            self._cluster.ask("closing a scan", "DELETE", "/_search/point_in_time", {"pit_id": [pit]})

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        index = places(self._options.index, table).index
        parts = [keys.column(column.name) for column in table.key]
        ids = document_ids(join_key(parts, ":" if len(parts) > 1 else "")).to_pylist()
        found: list[Any] = []
        for start in range(0, len(ids), PAGE_ROWS):
            answer = self._cluster.send("POST", f"/{index}/_mget", {"ids": ids[start : start + PAGE_ROWS]})
            if answer.status >= 400 and answer.error_type != "index_not_found_exception":
                raise self._cluster.error(f"reading {table.qualified}", answer)
            found += [doc["_source"] for doc in answer.body.get("docs", ()) if doc.get("found") and DELETED not in doc["_source"]]
        return row_texts(found, table, field_names(table))

    def close(self) -> None:
        self._senders.shutdown()
        self._cluster.close()

    # -- places -------------------------------------------------------------------------------------------------------

    def _place(self, table: Table) -> Place:
        if table.qualified not in self._places:
            self.prepare(table)
        return self._places[table.qualified]

    def _create(self, names: Places, table: Table) -> None:
        index: dict[str, Any] = {
            "hidden": True,  # a pattern that matches it would find deleted rows; the alias does not
            "number_of_shards": self._options.shards,
            "refresh_interval": self._options.refresh_interval,
            "mapping": {"total_fields": {"limit": mapping.fields_limit(table)}},
        }
        if self._options.replicas is not None:
            index["number_of_replicas"] = self._options.replicas
        living = {"bool": {"must_not": {"term": {DELETED: True}}}}
        definition = {
            "settings": {"index": index},
            "mappings": {"dynamic": "strict", "properties": mapping.properties(table)},
            "aliases": {names.alias: {"filter": living, "is_hidden": False}, fence.new_writer(names): {"is_hidden": True}},
        }
        answer = self._cluster.send("PUT", f"/{names.index}", definition)
        crashpoint("search.index.created")
        if answer.error_type == "invalid_alias_name_exception":
            hint = f"delete or rename the index {names.alias}, or set `index` in cdc.toml"
            raise StoreError(f"store {self.name}: {names.alias} exists and is not ours", retryable=False, hint=hint)
        if answer.status >= 400 and answer.error_type != "resource_already_exists_exception":
            raise self._cluster.error(f"creating the index of {table.qualified}", answer)

    def _evolve(self, names: Places, table: Table, held: dict[str, Any]) -> None:
        wanted, fields = mapping.properties(table), held["mappings"].get("properties", {})
        if wrong := mapping.contradicted(wanted, fields):
            hint = "a field's type never changes: build the index anew from the log"
            raise StoreError(f"store {self.name}: {table.qualified} has a new type for {wrong[0]}", retryable=False, hint=hint)
        if not (added := mapping.missing(wanted, fields)):
            return
        limit = int(held["settings"]["index"].get("mapping", {}).get("total_fields", {}).get("limit", mapping.FIELDS_DEFAULT_MAX))
        if mapping.fields_limit(table) > limit:
            raised = {"index.mapping.total_fields.limit": mapping.fields_limit(table)}
            self._cluster.ask("allowing more fields", "PUT", f"/{names.index}/_settings", raised)
        self._cluster.ask(f"adding columns of {table.qualified}", "PUT", f"/{names.index}/_mapping", {"properties": added})

    def _writer(self, names: Places, held: dict[str, Any]) -> str:
        found: list[str] = [alias for alias in held["aliases"] if alias.startswith(names.writers)]
        if found:
            return max(found)
        fresh = fence.new_writer(names)
        action = {"add": {"index": names.index, "alias": fresh, "is_hidden": True}}
        self._cluster.ask("adding the write alias", "POST", "/_aliases", {"actions": [action]})
        return fresh

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, table: Table, place: Place, body: Texts, positions: Positions) -> bulk.Verdicts:
        """A final verdict on every row. Rows that met a fence are sent again under the new name, unless they are stale by now."""
        rows = np.arange(len(positions))
        final: list[bulk.Verdicts] = []
        for _ in range(LOOKUPS_MAX):
            judged = self._send_all(place.writer, body, rows)
            crashpoint("search.bulk.answered")
            final.append(judged.without(Fate.FENCED))
            rows = np.sort(judged.of(Fate.FENCED))
            if len(rows) == 0:
                return bulk.together(final)
            self.applied()
            self.prepare(table)
            place = self._places[table.qualified]
            covered = positions[rows] <= max(self._covered, place.floor)
            final.append(bulk.all_of(rows[covered], Fate.STALE))
            rows = rows[~covered]
            if len(rows) == 0:
                return bulk.together(final)
        hint = f"another process replaces it all the time: see GET _alias/{place.names.writers}*"
        raise StoreError(f"store {self.name}: the write alias of {table.qualified} keeps changing", retryable=True, hint=hint)

    def _send_all(self, writer: str, body: Texts, rows: bulk.Rows) -> bulk.Verdicts:
        requests = bulk.split(body, rows, self._options.request_bytes)
        crashpoint("search.bulk.before_send")
        if len(requests) == 1:
            return bulk.send(self._cluster, writer, body, requests[0])
        # All are awaited even when one fails, so that none is still under way when we say so.
        sent = [self._senders.submit(bulk.send, self._cluster, writer, body, request) for request in requests]
        failures = [error for future in sent if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return bulk.together([future.result() for future in sent])

    def _bury(self, table: Table, verdicts: bulk.Verdicts, positions: Positions) -> tuple[DeadLetter, ...]:
        dead = np.sort(verdicts.of(Fate.DEAD)).tolist()
        letters = tuple(DeadLetter(table.qualified, Position(int(positions[row])), verdicts.reasons[row]) for row in dead)
        if letters:
            check_share(self.name, letters, len(positions), share_max=self._options.dead_share_max, rows_min=DEAD_ROWS_MIN)
            self._ledger.bury(letters)
        return letters

    def _truncate(self, table: Table, position: int) -> Outcome:
        if position <= self.applied().position:
            return Outcome(0, stale=1)
        place = self._place(table)
        self._ledger.raise_floor(table.qualified, position)
        crashpoint("search.truncate.floor_raised")
        self._replace_writers([place])  # whoever wrote before the TRUNCATE has to read the floor before it writes again
        self.prepare(table)
        crashpoint("search.truncate.before_purge")
        fence.purge(self._cluster, place.names, written_before=position)
        return Outcome(1)

    # -- deleted rows -------------------------------------------------------------------------------------------------

    def _purge(self) -> None:
        """Fences what is applied now; removes what was fenced long enough ago. Costs nothing most of the time."""
        now = self._clock()
        if self._fenced is None and self._places and self._replace_writers(list(self._places.values())):
            self._fenced = fence.Fenced(self._covered, now)
        if self._fenced is not None and now - self._fenced.at_s >= self._options.purge_after_s:
            for place in self._places.values():
                fence.purge(self._cluster, place.names, deleted_before=self._fenced.position, written_before=place.floor)
            self._fenced = None

    def _replace_writers(self, which: list[Place]) -> bool:
        """False when somebody else has replaced one meanwhile: then the names are looked up, and our fence comes with a later commit."""
        fresh = fence.replace_writers(self._cluster, {place.names: place.writer for place in which})
        for place in which:
            if fresh is None:
                self.prepare(place.table)
            else:
                place.writer = fresh[place.names]
        return fresh is not None

    def _pages(self, table: Table, pit: str) -> Iterator[pa.RecordBatch]:
        names = field_names(table)
        body: dict[str, Any] = {
            "size": PAGE_ROWS,
            "pit": {"id": pit, "keep_alive": PIT_KEEP_ALIVE},
            "query": {"bool": {"must_not": {"term": {DELETED: True}}}},
            "sort": [{POSITION: "asc"}],  # no two documents of a table share one
            "track_total_hits": False,
        }
        while True:
            hits = self._cluster.ask(f"reading {table.qualified}", "POST", "/_search", body)["hits"]["hits"]
            if hits:
                yield row_texts([hit["_source"] for hit in hits], table, names)
                body["search_after"] = hits[-1]["sort"]
            if len(hits) < PAGE_ROWS:
                return


def make(name: str, options: Options) -> SearchSink:
    return SearchSink(name, options)
