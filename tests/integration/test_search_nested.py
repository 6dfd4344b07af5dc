"""Documents of a view in a real OpenSearch: each list of objects is ``nested`` by itself, and its fields are those of the tables' columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.client.wait import wait
from cdc.derive.declarations import declared_views
from cdc.derive.inforce import ViewWaits, in_force
from cdc.derive.ports import DeclaredView
from cdc.derive.wholeness import mark_in_log
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.views.marks import producer_of
from sinks import options_model
from tests.integration.pipeline import kept_up, service
from tests.waiting import until

pytestmark = pytest.mark.opensearch

DEADLINE_S = 240.0
TABLES = """
create table orders (id bigint primary key, city text, zip text, customer_id bigint);
create table customers (id bigint primary key, name text, since date, prefs jsonb);
create table items (id bigint primary key, order_id bigint, sku text, qty int, price numeric(12,2), gift bool, at timestamptz, free numeric, more jsonb);
create table parts (id bigint primary key, item_id bigint, color text, size int);
create table tags (id bigint primary key, order_id bigint, name text, language text);
insert into customers values (1, 'Ann Lee', '2024-02-29', '[1, {"a": 1}]'), (2, null, 'infinity', '"text"');
insert into orders values (1, 'Berlin', '10115', 1), (2, 'Paris', '75001', 2), (3, 'Rome', null, null);
insert into items values (1, 1, 'a', 1, 10.50, true, '2024-02-29 06:30:00+00', 'NaN', '[1, [2]]'), (2, 1, 'b', 2, 3, false, 'infinity', 1e300, 'null'),
  (3, 2, 'a', 2, 0.01, null, null, null, null), (4, 2, repeat('long ', 10000), null, null, null, '0044-03-15 12:00:00+00 BC', 7, '{"x": "y"}');
insert into parts values (1, 1, 'red', 1), (2, 1, 'blue', 2), (3, 3, 'red', 2);
insert into tags values (1, 1, 'quick', 'en'), (2, 1, 'schnell', 'de'), (3, 2, 'slow', 'en');
"""
VIEW = """
[views.basket]
root = "public.orders"
key = ["id"]
columns = ["city", "zip"]
rename = {{ city = "address.city", zip = "address.zip" }}
[views.basket.one.customer]
table = "public.customers"
on = {{ customer_id = "id" }}
columns = ["name", "since", "prefs"]
[views.basket.many.items]
table = "public.items"
on = {{ id = "order_id" }}
order = ["id"]
columns = ["sku", "qty", "price", "gift", "at", "free", "more"{more}]
{items}
[views.basket.many.items.many.parts]
table = "public.parts"
on = {{ id = "item_id" }}
order = ["id"]
columns = ["color", "size"]
[views.basket.many.tags]
table = "public.tags"
on = {{ id = "order_id" }}
order = ["id"]
value = "name"
[views.basket.many.names]
table = "public.tags"
on = {{ id = "order_id" }}
order = ["id"]
by = "language"
value = "name"
[views.again]
sql = "select id, items from views.basket"
key = ["id"]
"""


def _gone_over(log: LogReader, name: str, view: DeclaredView) -> bool:
    mark = mark_in_log(log, producer_of(name))
    with suppress(ViewWaits):
        return mark is not None and mark.done is None and mark.digest == in_force(view, log, log.head().position).digest
    return False


class Documents:
    """A service whose search index has documents of views. ``options``: further lines of the store."""

    def __init__(self, folder: Path, server: Postgres, search: OpenSearch) -> None:
        self._folder, self._server, self._search = folder, server, search
        with self.source() as source:
            source.execute(TABLES)

    def source(self) -> psycopg.Connection:
        return psycopg.connect(self._server.dsn(), autocommit=True)

    def settings(self, more: str = "", items: str = "", options: str = "") -> Settings:
        config = self._folder / "cdc.toml"
        config.touch(0o600)
        config.write_text(
            f'run_dir = "run"\n[source]\ndsn = "{self._server.dsn()}"\n[log]\ndir = "log"\n{VIEW.format(more=more, items=items)}'
            f'[stores.search]\nkind = "opensearch"\nurl = "{self._search.url}"\nviews = ["basket", "again"]\n{options}'
        )
        return load(config, options_model)

    def wait(self, settings: Settings) -> None:
        """Until the index shows the views as they are declared now: a former definition is followed until its next generation is there."""
        with closing(open_reader(settings.log.dir)) as log:
            for name, view in declared_views(settings).items():
                until(partial(_gone_over, log, name, view), f"view {name} as it is declared", timeout_s=DEADLINE_S)
            with self.source() as source:
                source.execute("update orders set zip = zip || '0' where id = 2")
            wait(settings, log, "search", timeout_s=DEADLINE_S)
        self._search.request("POST", "/_refresh")

    def properties(self, index: str = "views.basket") -> dict[str, Any]:
        [found] = self._search.request("GET", f"/{index}/_mapping").values()
        made: dict[str, Any] = found["mappings"]["properties"]
        return made

    def found(self, query: dict[str, Any], index: str = "views.basket") -> list[str]:
        answer = self._search.request("POST", f"/{index}/_search", {"query": query})
        return sorted(hit["_id"] for hit in answer["hits"]["hits"])

    def same_item(self, sku: str, qty: int, index: str = "views.basket") -> list[str]:
        both = {"bool": {"must": [{"term": {"items.sku.keyword": sku}}, {"term": {"items.qty": qty}}]}}
        return self.found({"nested": {"path": "items", "query": both}}, index)

    def source_of(self, identity: str) -> dict[str, Any]:
        found: dict[str, Any] = self._search.request("GET", f"/views.basket/_doc/{identity}")["_source"]
        return found


@pytest.fixture
def documents(postgres_server: Postgres, opensearch: OpenSearch, tmp_path: Path) -> Iterator[Documents]:
    return Documents(tmp_path, postgres_server, opensearch)


def test_each_object_of_a_list_is_searched_by_itself(documents: Documents) -> None:
    settings = documents.settings()
    with service(settings), kept_up(settings):
        documents.wait(settings)
        made = documents.properties()
        assert (made["items"]["type"], made["items"]["dynamic"], made["items"]["properties"]["parts"]["type"]) == (
            "nested",
            "false",
            "nested",
        )
        kinds = {name: one.get("type", "object") for name, one in made["items"]["properties"].items()}
        assert kinds == {
            "sku": "text",
            "qty": "long",
            "price": "double",
            "gift": "boolean",
            "at": "date",
            "free": "double",
            "more": "object",
            "parts": "nested",
        }
        assert {name: one["type"] for name, one in made["address"]["properties"].items()} == {"city": "text", "zip": "text"}
        assert (made["tags"]["type"], made["names"]["type"]) == ("text", "flat_object")
        assert documents.same_item("a", 1) == ["1"]
        assert documents.same_item("a", 2) == ["2"], "not order 1, of whose items one is a and another has 2"
        part = {"bool": {"must": [{"term": {"items.parts.color.keyword": "red"}}, {"term": {"items.parts.size": 2}}]}}
        within = {"nested": {"path": "items", "query": {"nested": {"path": "items.parts", "query": part}}}}
        assert documents.found(within) == ["2"]
        assert documents.found({"match": {"customer.name": "lee"}}) == ["1"]
        assert documents.found({"range": {"customer.since": {"gte": "2024-01-01", "lt": "2025-01-01"}}}) == ["1"]
        assert documents.found({"match": {"tags": "schnell"}}) == ["1"]
        assert documents.found({"term": {"names.en": "slow"}}) == ["2"]
        early = {"range": {"items.at": {"gte": "2024-02-29T00:00:00Z", "lt": "2024-03-01T00:00:00Z"}}}
        assert documents.found({"nested": {"path": "items", "query": early}}) == ["1"]
        assert documents.same_item("a", 2, "views.again") == ["2"], "a view that carries it knows it, too"
        shown = documents.source_of("1")["items"][0]
        assert (shown["free"], shown["more"], shown["at"]) == ("NaN", [1, [2]], "2024-02-29T06:30:00+00:00")
        assert documents.source_of("3")["items"] == []
        with documents.source() as source:
            source.execute(
                "update items set qty = 1 where id = 3; delete from items where id = 1; insert into parts values (9, 2, 'red', 2)"
            )
        documents.wait(settings)
        assert (documents.same_item("a", 2), documents.same_item("a", 1), documents.found(within)) == ([], ["2"], ["1", "2"])


def test_another_definition_adds_fields_or_makes_another_index(documents: Documents) -> None:
    settings = documents.settings()
    with service(settings), kept_up(settings):
        documents.wait(settings)
    settings = documents.settings(more=', "id"')
    with service(settings), kept_up(settings):
        documents.wait(settings)
        assert documents.properties()["items"]["properties"]["id"]["type"] == "long"
        assert documents.found({"nested": {"path": "items", "query": {"term": {"items.id": 4}}}}) == ["2"]
    settings = documents.settings(items='as = { qty = "text" }')
    with service(settings), kept_up(settings):
        documents.wait(settings)
        assert documents.properties()["items"]["properties"]["qty"]["type"] == "text"
        both = {"bool": {"must": [{"term": {"items.sku.keyword": "a"}}, {"match": {"items.qty": "2"}}]}}
        assert documents.found({"nested": {"path": "items", "query": both}}) == ["2"]
        assert documents.properties("views.again")["items"]["properties"]["qty"]["type"] == "text", "a view that carries it"
        assert documents.found({"nested": {"path": "items", "query": both}}, "views.again") == ["2"]


def test_what_the_configuration_says_comes_first(documents: Documents) -> None:
    said = '[stores.search.tables."views.basket"]\nmapping = { items = { type = "flat_object" }, tags = { type = "keyword" } }\nas = { customer = "text" }\n'
    settings = documents.settings(options=said)
    with service(settings), kept_up(settings):
        documents.wait(settings)
        made = documents.properties()
        assert (made["items"]["type"], made["tags"]["type"], made["customer"]["type"]) == ("flat_object", "keyword", "keyword")
        assert "properties" in made["address"]
        assert documents.found({"term": {"items.value.sku": "a"}}) == ["1"], "a flat_object has no room for the other's words"
