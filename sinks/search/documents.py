"""A table's living documents as rows, for the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.render.choices import Choices
from sinks.render.jsonrows import DELETED
from sinks.render.jsontext import row_texts
from sinks.render.meaning import plain_key
from sinks.render.rowtext import join_key, rows_with_keys
from sinks.search import conditional, fields
from sinks.search.indices import LIVING
from sinks.search.names import document_ids
from sinks.search.tables import Tables
from sinks.search.wire import Cluster

PAGE_ROWS: Final = 2000
SCROLL_KEEP_ALIVE: Final = "5m"


def ids_of_keys(keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The documents' ids. ``keys``: the key's columns as canonical text."""
    parts = [keys.column(column.name) for column in schema.key]
    return document_ids(join_key(parts, ":" if len(parts) > 1 else ""))


class Documents:
    """Reads them in one store."""

    def __init__(self, cluster: Cluster, tables: Tables, choices: Choices) -> None:
        self._cluster = cluster
        self._tables = tables
        self._choices = choices

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        found = self._tables.find(schema)
        if found is not None:
            for hits in self._pages(found.index, schema):
                yield self._texts([hit["_source"] for hit in hits], schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(schema):
            return rows_with_keys(self.scan(schema), keys, schema)
        index = self._tables.find(schema)
        ids = ids_of_keys(keys, schema).to_pylist()
        found: list[Any] = []
        for start in range(0, len(ids) if index is not None else 0, PAGE_ROWS):
            assert index is not None
            params = {"stored_fields": DELETED, "_source": "true"}
            wanted = {"ids": ids[start : start + PAGE_ROWS]}
            docs = conditional.documents(self._cluster, f"reading {schema.topic}", f"/{index.index}/_mget", wanted, params)
            found += [doc["_source"] for doc in docs if doc.get("found") and DELETED not in doc.get("fields", {})]
        return self._texts(found, schema)

    def _texts(self, sources: list[Any], schema: TopicSchema) -> pa.RecordBatch:
        style = self._choices.style(schema)
        return row_texts([fields.taken_out(source, schema, style) for source in sources], schema, style)

    def _pages(self, index: str, schema: TopicSchema) -> Iterator[list[Any]]:
        """The hits of every living document, as they are now, by pages."""
        body = {"size": PAGE_ROWS, "query": LIVING, "sort": ["_doc"]}
        params = {"scroll": SCROLL_KEEP_ALIVE, "allow_partial_search_results": "false"}
        page = self._cluster.ask(f"reading {schema.topic}", "POST", f"/{index}/_search", body, params=params)
        try:
            while hits := page["hits"]["hits"]:
                yield hits
                following = {"scroll": SCROLL_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._cluster.ask(f"reading {schema.topic}", "POST", "/_search/scroll", following)
        finally:
            self._cluster.ask("closing a scan", "DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})
