"""A table's living documents as rows, for the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.topic import TopicSchema
from sinks.render.choices import Choices
from sinks.render.jsonrows import DELETED
from sinks.render.jsontext import meant_rows, row_texts
from sinks.render.meaning import plain_key
from sinks.render.rowtext import rows_with_keys, split_keys
from sinks.retry import down
from sinks.search import conditional, fields
from sinks.search.indices import LIVING, Found
from sinks.search.names import HASHED_ID
from sinks.search.pages import Hits
from sinks.search.placement import place_fields, placement_of
from sinks.search.tables import Tables
from sinks.search.wire import Cluster

PAGE_ROWS: Final = 2000
SCROLL_KEEP_ALIVE: Final = "5m"


def _with_keys(rows: pa.RecordBatch, ids: pa.Array, schema: TopicSchema, choices: Choices) -> pa.RecordBatch:
    """The rows with those columns of the key that their documents do not show, out of the ids. Of an id that is a hash only itself is known."""
    texts = meant_rows(split_keys(ids, schema), replace(schema, fields=schema.key), choices.style(schema))
    hidden = [column.name for column in schema.key if not column.shown]
    hashed = pc.starts_with(ids, HASHED_ID)
    for name in hidden:
        at = schema.names.index(name)
        known = pc.if_else(hashed, ids if name == hidden[0] else pa.scalar(None, pa.utf8()), texts.column(name))
        rows = rows.set_column(at, rows.schema.field(at), known)
    return rows


def _as_placed(rows: pa.RecordBatch, found: Found, schema: TopicSchema) -> pa.RecordBatch:
    """The rows of one index. One that lies in another than its values name is none that is expected there: it has no values that name a place."""
    if not plain_key(schema) or (names := placement_of(schema).indices_of_keys(rows)) is None:
        return rows
    astray = pc.not_equal(names, found.name).fill_null(True)
    if not pc.any(astray).as_py():
        return rows
    for name in _place_names(schema):
        at = rows.schema.names.index(name)
        rows = rows.set_column(at, rows.schema.field(at), pc.if_else(astray, pa.scalar(None, pa.utf8()), rows.column(name)))
    return rows


def _any_astray(keys: pa.RecordBatch, schema: TopicSchema) -> bool:
    """Whether one of these keys is of a row that lies where it should not."""
    names = _place_names(schema)
    if not names:
        return False
    unnamed = np.logical_and.reduce([np.asarray(keys.column(name).is_null()) for name in names])
    return bool(unnamed.any())


def _place_names(schema: TopicSchema) -> list[str]:
    """The columns that say in which index a row lies."""
    index, others = placement_of(schema).index, place_fields(schema)
    found = [] if index is None else [others.get(name, name) for name in index.columns_named]
    return [name for name in found if name is not None]


def _pages_of_keys(keys: pa.RecordBatch, schema: TopicSchema, found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of these keys, as ``_mget`` is asked for them: path, body. ``found``: the table's index."""
    placement = placement_of(schema)
    ids, routings, parts = (
        placement.ids_of_keys(keys).to_pylist(),
        placement.routings_of_keys(keys),
        placement.indices_of_keys(keys),
    )
    routed = [{}] * len(ids) if routings is None else [{"routing": one} for one in routings.to_pylist()]
    docs = [{"_id": one, **way} for one, way in zip(ids, routed, strict=True)]
    path = f"/{found.index}/_mget"
    if parts is not None:
        path, there = "/_mget", {one.name: one.index for one in found.parts}
        docs = [{"_index": there[name], **doc} for name, doc in zip(parts.to_pylist(), docs, strict=True) if name in there]
    for page in (slice(start, start + PAGE_ROWS) for start in range(0, len(docs), PAGE_ROWS)):
        yield path, {"ids": ids[page]} if routings is None and parts is None else {"docs": docs[page]}


class Documents:
    """Reads them in one store."""

    def __init__(self, cluster: Cluster, tables: Tables, choices: Choices) -> None:
        self._cluster = cluster
        self._tables = tables
        self._choices = choices

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        found = self._tables.find(schema)
        if found is not None:
            for one in found.parts or (found,):
                yield from (_as_placed(rows, one, schema) for rows in self._scanned(one, schema))

    def _scanned(self, found: Found, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        style = self._choices.style(schema)
        for hits in self._pages(found.index, schema):
            rows, left = hits.rows(schema, style)
            if not all(column.shown for column in schema.key):
                ids = hits.ids()
                left = left if ids is not None else np.ones(len(hits), np.bool_)
                rows = rows if ids is None else _with_keys(rows, ids, schema, self._choices)
            if left.any():
                yield self._texts(hits.parsed(left), schema)
                rows = rows.filter(pa.array(~left))
            yield rows

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(schema):
            return rows_with_keys(self.scan(schema), keys, schema)
        index = self._tables.find(schema)
        if _any_astray(keys, schema):
            return rows_with_keys(self.scan(schema), keys, schema)
        found: list[Any] = []
        for path, page in _pages_of_keys(keys, schema, index) if index is not None else ():
            params = {"stored_fields": DELETED, "_source": "true"}
            docs = conditional.documents(self._cluster, f"reading {schema.topic}", path, page, params)
            found += [doc for doc in docs if doc.get("found") and DELETED not in doc.get("fields", {})]
        return self._texts(found, schema)

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """See ``sinks.contract.Sink``. A key that documents do not show is what their ids say of it."""
        found = meant_rows(rows, schema, self._choices.style(schema))
        if all(column.shown for column in schema.key):
            return found
        return _with_keys(found, placement_of(schema).ids_of_keys(rows), schema, self._choices)

    def _texts(self, hits: list[Any], schema: TopicSchema) -> pa.RecordBatch:
        style = self._choices.style(schema)
        found = row_texts([fields.taken_out(hit["_source"], schema, style) for hit in hits], schema, style)
        if all(column.shown for column in schema.key):
            return found
        return _with_keys(found, pa.array([hit["_id"] for hit in hits], pa.utf8()), schema, self._choices)

    def _pages(self, index: str, schema: TopicSchema) -> Iterator[Hits]:
        """The hits of every living document, as they are now, by pages; while one is read the cluster is at work on the next."""
        body = {"size": PAGE_ROWS, "query": LIVING, "sort": ["_doc"]}
        params = {"scroll": SCROLL_KEEP_ALIVE, "allow_partial_search_results": "false"}
        page = self._page(schema, f"/{index}/_search", body, params)
        try:
            with ThreadPoolExecutor(1, "audit-page") as ahead:
                while len(page):
                    following = {"scroll": SCROLL_KEEP_ALIVE, "scroll_id": page.scroll}
                    coming = ahead.submit(self._page, schema, "/_search/scroll", following)
                    yield page
                    page = coming.result()
        finally:
            self._cluster.ask("closing a scan", "DELETE", "/_search/scroll", {"scroll_id": [page.scroll]})

    def _page(self, schema: TopicSchema, path: str, body: Any, params: Mapping[str, Any] | None = None) -> Hits:
        doing = f"reading {schema.topic}"
        answer = self._cluster.ask(doing, "POST", path, body, params=params)
        try:
            return Hits.of(answer)
        except (TypeError, ValueError):
            raise down(self._cluster.store, self._cluster.where, f"{doing}: an answer that is not a page of rows") from None
