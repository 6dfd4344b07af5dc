"""A view with a root: the SELECT that each key becomes, and what is refused with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import pytest

from cdc.derive.declarations import declared_views
from cdc.errors import ConfigError
from cdc.model.pgtypes import BYTEA, INT8, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.settings.views import View
from cdc.views.contract import ViewRefused
from cdc.views.definition import define
from cdc.views.rootquery import nested_query
from sinks import options_model


def _table(number: int, name: str, *columns: str, key: str = "id") -> Table:
    kinds = {"name": TEXT, "picture": BYTEA}
    return Table(number, "public", name, tuple(Column(one, kinds.get(one, INT8), key=one == key) for one in columns))


TOPICS: Final = {
    f"public.{one.name}": TopicSchema.of(one)
    for one in (
        _table(1, "orders", "id", "customer_id", "owner_id"),
        _table(2, "customers", "id", "name", "picture"),
        _table(3, "items", "id", "order_id", "qty"),
        _table(4, "tags", "id", "name"),
        _table(5, "order_tags", "id", "order_id", "tag_id"),
    )
}
ROOT: Final = 'root = "public.orders"\nkey = ["id"]\n'
ITEMS: Final = '[many.items]\ntable = "public.items"\non = { id = "order_id" }\n'
CUSTOMER: Final = '[one.customer]\ntable = "public.customers"\non = { customer_id = "id" }\n'

COMPILED: Final = {
    "columns": (ROOT + 'columns = ["owner_id"]', 'SELECT t1."id" AS "id", t1."owner_id" AS "owner_id" FROM "public"."orders" t1'),
    "where": (
        ROOT + 'where = "owner_id > 3"',
        'SELECT t1."id" AS "id" FROM (SELECT "id" FROM "public"."orders" WHERE ( owner_id > 3 ) ) t1',
    ),
    "one": (
        ROOT + CUSTOMER + 'columns = ["name"]',
        """SELECT t1."id" AS "id", CASE WHEN t2."id" IS NOT NULL THEN jsonb_build_object('name', t2."name") END AS "customer" """
        """FROM "public"."orders" t1 LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id\"""",
    ),
    "flat": (
        ROOT + CUSTOMER + 'columns = ["name"]\nflat = "c_"',
        'SELECT t1."id" AS "id", t2."name" AS "c_name" '
        'FROM "public"."orders" t1 LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id"',
    ),
    "as": (
        ROOT + CUSTOMER + 'columns = ["id", "name"]\nas = { name = "text" }',
        """SELECT t1."id" AS "id", CASE WHEN t2."id" IS NOT NULL THEN jsonb_build_object('id', t2."id", 'name', t2."name"::text) END """
        """AS "customer" FROM "public"."orders" t1 LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id\"""",
    ),
    "as of a value": (
        ROOT + CUSTOMER + 'value = "name"\nas = { name = "text" }',
        'SELECT t1."id" AS "id", t2."name"::text AS "customer" '
        'FROM "public"."orders" t1 LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id"',
    ),
    "value": (
        ROOT + CUSTOMER + 'value = "name"',
        'SELECT t1."id" AS "id", t2."name" AS "customer" '
        'FROM "public"."orders" t1 LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id"',
    ),
    "many": (
        ROOT + ITEMS + 'columns = ["qty"]\norder = ["qty desc", "id"]',
        """SELECT t1."id" AS "id", coalesce(t3."_value", '[]'::jsonb) AS "items" FROM "public"."orders" t1 LEFT JOIN ( """
        """SELECT t2."order_id" AS "_1", jsonb_agg(jsonb_build_object('qty', t2."qty") ORDER BY t2."qty" desc, t2."id") AS "_value" """
        """FROM "public"."items" t2 WHERE t2."order_id" IS NOT NULL GROUP BY t2."order_id" ) t3 ON t3."_1" = t1."id\"""",
    ),
    "limit": (
        ROOT + ITEMS + 'value = "qty"\norder = ["id"]\nlimit = 5',
        """SELECT t1."id" AS "id", coalesce(t4."_value", '[]'::jsonb) AS "items" FROM "public"."orders" t1 LEFT JOIN ( """
        """SELECT t3."_1", jsonb_agg(t3."_value" ORDER BY t3."_number") AS "_value" FROM ( SELECT t2."order_id" AS "_1", """
        """t2."qty" AS "_value", row_number() OVER (PARTITION BY t2."order_id" ORDER BY t2."id") AS "_number" FROM "public"."items" t2 """
        """WHERE t2."order_id" IS NOT NULL ) t3 WHERE t3."_number" <= 5 GROUP BY t3."_1" ) t4 ON t4."_1" = t1."id\"""",
    ),
    "totals": (
        ROOT + ITEMS + 'where = "qty > 0"\ntotals = { n = "count(*)", qty = "sum(qty)" }',
        'SELECT t1."id" AS "id", coalesce(t2."n", 0) AS "n", t2."qty" AS "qty" FROM "public"."orders" t1 LEFT JOIN ( '
        'SELECT "order_id" AS "_1" , count(*) AS "n" , sum(qty) AS "qty" FROM "public"."items" WHERE "order_id" IS NOT NULL '
        'AND ( qty > 0 ) GROUP BY "order_id" ) t2 ON t2."_1" = t1."id"',
    ),
    "through": (
        ROOT + '[many.tags]\ntable = "public.tags"\ncolumns = ["name"]\norder = ["name COLLATE \\"C\\"", "through.id"]\n'
        'through = { table = "public.order_tags", on = { id = "order_id" }, to = { tag_id = "id" } }',
        """SELECT t1."id" AS "id", coalesce(t4."_value", '[]'::jsonb) AS "tags" FROM "public"."orders" t1 LEFT JOIN ( """
        """SELECT t3."order_id" AS "_1", jsonb_agg(jsonb_build_object('name', t2."name") ORDER BY t2."name" COLLATE "C", t3."id") """
        """AS "_value" FROM "public"."order_tags" t3 JOIN "public"."tags" t2 ON t2."id" = t3."tag_id" """
        """WHERE t3."order_id" IS NOT NULL GROUP BY t3."order_id" ) t4 ON t4."_1" = t1."id\"""",
    ),
}


def _view(text: str) -> View:
    return View(**tomllib.loads(text))


@pytest.mark.parametrize("key", COMPILED)
def test_a_key_becomes_this_sql(key: str) -> None:
    text, sql = COMPILED[key]
    view = _view(text)
    query = nested_query("order", view)
    assert " ".join(query.sql.split()) == sql
    assert len(query.places) == len(query.sql.splitlines())
    define("order", query.sql, view.key, TOPICS, query.places)


REFUSED: Final = [
    (ROOT + CUSTOMER + 'columns = ["id"]\nas = { name = "text" }', "as names name, which is not shown"),
    (ROOT + 'sql = "select 1"', "views.order: has both sql and root"),
    ('key = ["id"]', "views.order: has neither sql nor root"),
    ('sql = "select 1"\nkey = ["id"]\ncolumns = ["id"]', "views.order: columns belongs to a view with root"),
    ('root = "orders"\nkey = ["id"]', "views.order.root: names a topic with its schema"),
    (ROOT + '[one.customer]\ntable = "public.customers"\ncolumns = ["name"]', "views.order.one.customer: on is missing"),
    (ROOT + CUSTOMER, "views.order.one.customer: shows nothing"),
    (ROOT + CUSTOMER + 'colums = ["name"]', "views.order.one.customer.colums: unknown key"),
    (ROOT + CUSTOMER + 'value = "name"\ncolumns = ["name"]', "views.order.one.customer: value shows one column by itself"),
    (ROOT + CUSTOMER + 'value = "name"\nflat = ""', "flat and value cannot stand together"),
    (ROOT + ITEMS + 'columns = ["qty"]', "views.order.many.items: order is missing"),
    (ROOT + ITEMS + 'columns = ["qty"]\norder = ["qty + 1"]', "'qty + 1' is not an order: write a column"),
    (ROOT + ITEMS + 'columns = ["qty"]\norder = ["through.id"]', "through is not given"),
    (ROOT + ITEMS + 'limit = 3\ntotals = { n = "count(*)" }', "views.order.many.items: has no array"),
    (ROOT + ITEMS + 'totals = { n = "count(*) + 1" }', "views.order.many.items.totals.n: 'count(*) + 1' is not one aggregate"),
    (ROOT + ITEMS + 'totals = { n = "count(" }', "views.order.many.items.totals.n: line 1, column 7"),
    (ROOT + 'where = "id = 1) or (true"', "views.order.where: line 1, column 7"),
    (
        ROOT + CUSTOMER + 'columns = ["id"]\nflat = ""',
        "views.order: two fields are called id, of columns and one.customer.columns",
    ),
]
OF_TABLES: Final = [
    (ROOT + 'where = "random() > 0.5"', "view order, where: random"),
    (ROOT + 'columns = ["sum"]', "view order, columns: column sum of public.orders does not exist"),
    (
        ROOT + ITEMS + 'columns = ["qty"]\norder = ["qty"]',
        "view order, many.items.order: the order is not total: rows can be equal in it, as id is not in it",
    ),
    (
        ROOT + ITEMS + 'value = "qty"\norder = ["no", "id"]',
        "view order, many.items.order: column no of public.items does not exist",
    ),
    (ROOT + CUSTOMER + 'columns = ["picture"]', "view order, one.customer: picture is .*, which no jsonb is made of"),
    (ROOT + '[one.item]\ntable = "public.items"\non = { id = "order_id" }\nvalue = "qty"', "view order: two rows can have one key"),
    (ROOT + 'where = "customer = 3"', "view order, where: column customer does not exist"),
    (ROOT + '[one.x]\ntable = "public.x"\non = { id = "id" }\nvalue = "id"', "view order, one.x: topic public.x does not exist"),
    (
        ROOT + '[one.x]\ntable = "public.tags"\non = { id = "name" }\nvalue = "id"',
        "view order, one.x: a join of bigint and text is not kept up",
    ),
]


def _declared(folder: Path, text: str) -> None:
    below = text.replace("[one.", "[views.order.one.").replace("[many.", "[views.order.many.")
    file = folder / "cdc.toml"
    file.write_text(f'[source]\ndsn = "dbname=shop"\n[views.order]\n{below}\n')
    declared_views(load(file, options_model))


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_wrong_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        _declared(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(("text", "message"), OF_TABLES)
def test_what_does_not_fit_the_tables_is_refused_with_its_place(text: str, message: str) -> None:
    view = _view(text)
    query = nested_query("order", view)
    with pytest.raises(ViewRefused, match=message):
        define("order", query.sql, view.key, TOPICS, query.places)


def test_the_page_s_example_is_a_view() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/views.md").read_text(encoding="utf-8")
    snippet = page.partition("## Nest related rows")[2].partition("```toml\n")[2].partition("```")[0]
    view = View(**tomllib.loads(snippet)["views"]["order"])
    kinds = {"name": TEXT, "sku": TEXT}
    columns = {
        "orders": ("id", "customer_id", "placed_at", "deleted_at"),
        "customers": ("id", "name"),
        "order_items": ("id", "order_id", "product_id", "position", "qty", "price", "cancelled_at"),
        "products": ("id", "sku", "name"),
        "tags": ("id", "name"),
        "order_tags": ("id", "order_id", "tag_id"),
    }
    tables = [
        Table(number, "public", name, tuple(Column(one, kinds.get(one, INT8), key=one == "id") for one in names))
        for number, (name, names) in enumerate(columns.items(), 1)
    ]
    query = nested_query("order", view)
    made = define("order", query.sql, view.key, {f"public.{one.name}": TopicSchema.of(one) for one in tables}, query.places)
    assert list(made.columns) == ["id", "placed_at", "customer", "items", "item_count", "revenue", "tags"]
