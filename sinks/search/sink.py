"""The search index: one table is one index behind an alias of the table's name, one row one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from cdc.settings import StoreOptions
from sinks import jsonrows
from sinks.contract import NOTHING, DeadLetter, Outcome, Shape
from sinks.deadletters import check_share
from sinks.jsonrows import DELETED, Style, Texts
from sinks.jsontext import meant_rows, row_texts
from sinks.policy import emptied
from sinks.render.choices import Choices
from sinks.render.meaning import plain_key
from sinks.reshape import reshaped, rewrites
from sinks.retry import Fate
from sinks.rowtext import join_key, rows_with_keys
from sinks.search import bulk, fence, fields, mapping
from sinks.search.ledger import Ledger
from sinks.search.naming import GENERATION, Places, behind, document_ids, places
from sinks.search.wire import Address, Cluster

Positions = npt.NDArray[np.int64]

IN_FLIGHT: Final = 2
"""Bulk requests at once: while the cluster works on one, the next is on its way."""
PAGE_ROWS: Final = 2000
SCROLL_KEEP_ALIVE: Final = "5m"
LIVING: Final[dict[str, Any]] = {"bool": {"must_not": {"term": {DELETED: True}}}}
LOOKUPS_MAX: Final = 10
LOOK_S: Final = 5.0
"""How often ``applied`` looks whether every index is still there."""
DEAD_ROWS_MIN: Final = 20


class Options(Address, StoreOptions):
    """``index`` names the alias that users search; see the documentation of each field's use in ``sinks.search``."""

    renders = True

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
        self._choices = Choices(name, options.as_rules, fields.style_of)
        self._log: LogReader | None = None
        self._covered = 0
        """The highest applied position that this process has seen: rows up to it are in the store."""
        self._fenced: fence.Fenced | None = None
        self._looked_at = float("-inf")
        self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix=f"bulk-{name}")

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:  # noqa: ARG002
        self._log = log
        jsonrows.warm_up()
        self._places.clear()
        self._fenced = None
        self._looked_at = float("-inf")
        self._ledger.create()
        return self.applied()

    def prepare(self, table: Table) -> None:
        self._choices.check(table, self._log)
        found = self._look_up(table)
        if found is None:
            if self._ledger.forget([table.qualified]):
                raise StoreError(f"store {self.name}: the index of {table.qualified} was removed: it is built anew", retryable=True)
            self._create(places(self._options.index, table), table)
            found = self._look_up(table)
            if found is None:
                raise StoreError(f"store {self.name}: the index of {table.qualified} is removed all the time", retryable=True)
        names, held = found
        self._evolve(names, table, held)
        self._places[table.qualified] = Place(table, names, self._writer(names, held), self._ledger.floor(table.qualified))
        self._ledger.set_shape(table, 0)

    def foresee(self, tables: Sequence[Table]) -> None:
        """Raises ConfigError when the configuration says something of a table or column that does not exist."""
        self._choices.foresee(tables)

    def shape(self, topic: str) -> Shape | None:
        return self._ledger.shape(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        table = table_of(changes.schema)
        if len(changes) == 0:
            return NOTHING
        if changes.column(OP)[0].as_py() == Op.TRUNCATE:
            return self._truncate(table, first_position(changes))
        if (change := schema_change_of(changes)) is not None:
            return self._reshape(change, first_position(changes))
        place = self._place(table)
        positions = changes.column(POSITION).to_numpy()
        first = int(np.searchsorted(positions, max(self._covered, place.floor), side="right"))
        fresh, positions = changes.slice(first), positions[first:]
        if len(fresh) == 0:
            return Outcome(0, stale=first)
        body = bulk.actions(fresh, table, self._style(table))
        verdicts = self._write(table, place, body, positions)
        dead = self._bury(table, verdicts, positions)
        return Outcome(verdicts.count(Fate.WRITTEN), verdicts.count(Fate.STALE) + first, dead)

    def commit(self, cut: Cut) -> None:
        self._covered = max(self._covered, self._ledger.commit(cut).position)
        self._purge()

    def applied(self) -> Cut:
        """Nothing, once an index has been removed behind our back: its rows stand in the log only."""
        if self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self._ledger.forget(self._removed())
        return self._recorded()

    def _recorded(self) -> Cut:
        cut = self._ledger.applied()
        self._covered = cut.position
        return cut

    def _removed(self) -> list[str]:
        """The topics that have rows here according to the ledger, and no index."""
        if not (shapes := self._ledger.shapes()):
            return []
        params = {"expand_wildcards": "all", "filter_path": "*.aliases.*.is_hidden,*.aliases.*.filter.bool"}
        held = self._cluster.ask("looking at the indices", "GET", f"/*{GENERATION}*/_alias", params=params)
        aliases = {alias for index in held.values() for alias in index["aliases"]}
        return [table.qualified for table in shapes if places(self._options.index, table).alias not in aliases]

    def make_visible(self) -> None:
        """Refreshes every index of ours, also those of tables that this process has not written."""
        params = {"expand_wildcards": "open,hidden", "allow_no_indices": "true"}
        self._cluster.ask("a refresh", "POST", f"/*{GENERATION}*/_refresh", params=params)

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        return meant_rows(rows, table, self._style(table))

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        names = self._names(table)
        if names is not None:
            for hits in self._pages(names.index, table):
                yield self._rows([hit["_source"] for hit in hits], table)

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(table):
            return rows_with_keys(self.scan(table), keys, table)
        names = self._names(table)
        parts = [keys.column(column.name) for column in table.key]
        ids = document_ids(join_key(parts, ":" if len(parts) > 1 else "")).to_pylist()
        found: list[Any] = []
        for start in range(0, len(ids) if names is not None else 0, PAGE_ROWS):
            assert names is not None
            params = {"stored_fields": DELETED, "_source": "true"}
            answer = self._cluster.send("POST", f"/{names.index}/_mget", {"ids": ids[start : start + PAGE_ROWS]}, params=params)
            if answer.status >= 400 and answer.error_type != "index_not_found_exception":
                raise self._cluster.error(f"reading {table.qualified}", answer)
            found += [
                doc["_source"] for doc in answer.body.get("docs", ()) if doc.get("found") and DELETED not in doc.get("fields", {})
            ]
        return self._rows(found, table)

    def close(self) -> None:
        self._senders.shutdown()
        self._cluster.close()

    def _rows(self, sources: list[Any], table: Table) -> pa.RecordBatch:
        style = self._style(table)
        return row_texts([fields.taken_out(source, table, style) for source in sources], table, style)

    def _style(self, table: Table) -> Style:
        return self._choices.style(table)

    # -- places -------------------------------------------------------------------------------------------------------

    def _place(self, table: Table) -> Place:
        if table.qualified not in self._places:
            self.prepare(table)
        return self._places[table.qualified]

    def _look_up(self, table: Table) -> tuple[Places, dict[str, Any]] | None:
        """The table's places and its index as the cluster describes it; None when there is none yet."""
        alias = places(self._options.index, table).alias
        answer = self._cluster.send("GET", f"/{alias}")
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise self._cluster.error(f"looking up the index of {table.qualified}", answer)
        for index, held in answer.body.items():
            if (names := behind(alias, index)) is not None:
                return names, held
        raise self._not_ours(alias)

    def _names(self, table: Table) -> Places | None:
        found = self._look_up(table)
        return None if found is None else found[0]

    def _not_ours(self, alias: str) -> StoreError:
        hint = f"delete or rename the index {alias}, or set `index` in cdc.toml"
        return StoreError(f"store {self.name}: {alias} exists and is not ours", retryable=False, hint=hint)

    def _create(self, names: Places, table: Table, *, aliased: bool = True) -> str:
        """Makes the index, by default behind its alias. Returns the alias through which documents are written."""
        index: dict[str, Any] = {
            "hidden": True,  # a pattern that matches it would find deleted rows; the alias does not
            "number_of_shards": self._options.shards,
            "refresh_interval": self._options.refresh_interval,
            "mapping": {"total_fields": {"limit": mapping.fields_limit(table)}},
        }
        if self._options.replicas is not None:
            index["number_of_replicas"] = self._options.replicas
        writer = fence.new_writer(names)
        aliases: dict[str, Any] = {writer: {"is_hidden": True}}
        if aliased:
            aliases[names.alias] = {"filter": LIVING, "is_hidden": False}
        definition = {
            "settings": {"index": index},
            "mappings": mapping.mappings(table, self._style(table)),
            "aliases": aliases,
        }
        answer = self._cluster.send("PUT", f"/{names.index}", definition)
        crashpoint("search.index.created")
        if answer.error_type == "invalid_alias_name_exception":
            raise self._not_ours(names.alias)
        if answer.status >= 400 and answer.error_type != "resource_already_exists_exception":
            raise self._cluster.error(f"creating the index of {table.qualified}", answer)
        return writer

    def _evolve(self, names: Places, table: Table, held: dict[str, Any]) -> None:
        wanted, fields = mapping.properties(table, self._style(table)), held["mappings"].get("properties", {})
        if wrong := mapping.contradicted(wanted, fields):
            hint = "a field's type never changes: delete the index, so that it is built anew from the log"
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
            # Looked at before the place: rows that are covered may be of a definition that the place no longer takes.
            covered = positions[rows] <= max(self._recorded().position, self._ledger.floor(table.qualified))
            final.append(bulk.all_of(rows[covered], Fate.STALE))
            rows = rows[~covered]
            if len(rows) == 0:
                return bulk.together(final)
            self.prepare(table)
            place = self._places[table.qualified]
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
        if position <= self._recorded().position:
            return Outcome(0, stale=1)
        place = self._place(table)
        self._ledger.raise_floor(table.qualified, position)
        crashpoint("search.truncate.floor_raised")
        self._replace_writers([place])  # whoever wrote before the TRUNCATE has to read the floor before it writes again
        self.prepare(table)
        crashpoint("search.truncate.before_purge")
        fence.purge(self._cluster, place.names, written_before=position)
        return Outcome(1)

    # -- schema changes -----------------------------------------------------------------------------------------------

    def _reshape(self, change: SchemaChange, position: int) -> Outcome:
        """Documents of an older definition are written again at the change's position; a field that has to change its type takes a new
        index, which replaces the old one at once. Done twice it comes to the same."""
        table, held = change.table, self.shape(change.table.qualified)
        if position <= self._recorded().position or (held is not None and position <= held.position):
            return Outcome(0, stale=1)
        found = self._look_up(table)
        gone = emptied(None if held is None else held.table, change)
        dead: tuple[DeadLetter, ...] = ()
        if found is None:
            self.prepare(table)
        elif mapping.contradicted(mapping.properties(table, self._style(table)), found[1]["mappings"].get("properties", {})):
            dead = self._rebuild(found[0], table, None if gone or held is None else held.table, position)
        elif gone:
            self._truncate(table, position)
        elif held is not None and rewrites(held.table, table):
            self.prepare(table)
            dead = self._write_again(found[0], self._places[table.qualified].writer, held.table, table, position)
            crashpoint("search.schema.rewritten")
            self._truncate(table, position)
        else:
            self.prepare(table)
        self._ledger.set_shape(table, position)
        return Outcome(1, 0, dead)

    def _rebuild(self, names: Places, table: Table, held: Table | None, position: int) -> tuple[DeadLetter, ...]:
        """The next generation of the index takes the documents (none when ``held`` is None) and then the alias."""
        fresh = replace(names, generation=names.generation + 1)
        answer = self._cluster.send("DELETE", f"/{fresh.index}")  # what an attempt before this one has left
        if answer.status >= 400 and answer.status != 404:
            raise self._cluster.error("removing a half-built index", answer)
        writer = self._create(fresh, table, aliased=False)
        dead = () if held is None else self._write_again(names, writer, held, table, position)
        self._cluster.ask("a refresh", "POST", f"/{fresh.index}/_refresh")
        self._ledger.raise_floor(table.qualified, position)
        crashpoint("search.schema.rebuilt")
        actions = [
            {"remove_index": {"index": names.index}},
            {"add": {"index": fresh.index, "alias": fresh.alias, "filter": LIVING, "is_hidden": False}},
        ]
        self._cluster.ask(f"replacing the index of {table.qualified}", "POST", "/_aliases", {"actions": actions})
        self.prepare(table)
        return dead

    def _write_again(self, names: Places, writer: str, held: Table, table: Table, position: int) -> tuple[DeadLetter, ...]:
        dead: tuple[DeadLetter, ...] = ()
        self._cluster.ask("a refresh", "POST", f"/{names.index}/_refresh")
        for hits in self._pages(names.index, held, before=position):
            rows = self._rows([hit["_source"] for hit in hits], held)
            again = reshaped(rows, held, table, position)
            ids = None
            if not table.key:
                former = pa.array([hit["_id"] for hit in hits], pa.utf8())
                # Former keys must not meet the positions that will be the ids of later rows.
                ids = document_ids(pc.binary_join_element_wise("\\=", former, "")) if held.key else former
            verdicts = self._send_all(writer, bulk.actions(again, table, self._style(table), ids), np.arange(len(hits)))
            if verdicts.count(Fate.FENCED):
                raise StoreError(f"store {self.name}: another process replaces the write alias", retryable=True)
            dead += self._bury(table, verdicts, again.column(POSITION).to_numpy())
        return dead

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

    def _pages(self, index: str, table: Table, *, before: int = 2**63 - 1) -> Iterator[list[Any]]:
        """The hits of every living document written before the position, as they are now, by pages."""
        query = {"bool": {**LIVING["bool"], "filter": {"range": {POSITION: {"lt": before}}}}}
        body = {"size": PAGE_ROWS, "query": query, "sort": ["_doc"]}
        params = {"scroll": SCROLL_KEEP_ALIVE, "allow_partial_search_results": "false"}
        answer = self._cluster.send("POST", f"/{index}/_search", body, params=params)
        if answer.status == 404:
            return
        if answer.status >= 400:
            raise self._cluster.error(f"reading {table.qualified}", answer)
        page = answer.body
        try:
            while hits := page["hits"]["hits"]:
                yield hits
                following = {"scroll": SCROLL_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._cluster.ask(f"reading {table.qualified}", "POST", "/_search/scroll", following)
        finally:
            self._cluster.ask("closing a scan", "DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})


def make(name: str, options: Options) -> SearchSink:
    return SearchSink(name, options)
