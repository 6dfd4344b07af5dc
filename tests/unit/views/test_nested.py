"""A view with a root: the SELECT that each key becomes, and what is refused with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import pytest

from cdc.derive.declarations import SqlView, declared_views
from cdc.errors import ConfigError
from cdc.model.pgtypes import BYTEA, INT8, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.settings.views import View
from cdc.views.aggregates import _object_of
from cdc.views.contract import ViewRefused
from cdc.views.definition import define
from cdc.views.held import ViewStopped
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
COLUMNS: Final = {name: schema.names for name, schema in TOPICS.items()}
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
    "computed": (
        ROOT + 'columns = ["owner_id", "next"]\ncomputed = { next = "owner_id\\n+ 1", unseen = "id + 2" }\nwhere = "owner_id > 3"',
        'SELECT t1."id" AS "id", t1."owner_id" AS "owner_id", t1."next" AS "next" '
        'FROM (SELECT "id", "owner_id" , ( owner_id + 1 ) AS "next" FROM "public"."orders" WHERE ( owner_id > 3 ) ) t1',
    ),
    "computed, and no columns": (
        ROOT + 'computed = { next = "owner_id + 1" }',
        'SELECT t1."id" AS "id", t1."next" AS "next" FROM (SELECT "id" , ( owner_id + 1 ) AS "next" FROM "public"."orders" ) t1',
    ),
    "exclude": (
        ROOT + 'exclude = ["owner_id"]\n' + CUSTOMER + 'exclude = ["picture"]\ncomputed = { short = "length(name) < 5" }',
        """SELECT t1."id" AS "id", t1."customer_id" AS "customer_id", CASE WHEN t2."id" IS NOT NULL """
        """THEN jsonb_build_object('id', t2."id", 'name', t2."name", 'short', t2."short") END AS "customer" FROM "public"."orders" t1 """
        """LEFT JOIN (SELECT "id", "name" , ( length(name) < 5 ) AS "short" FROM "public"."customers" ) t2 """
        """ON t2."id" = t1."customer_id\"""",
    ),
    "rename": (
        ROOT + 'columns = ["owner_id", "customer_id"]\nrename = { owner_id = "who.owner", customer_id = "who.customer" }',
        """SELECT t1."id" AS "id", jsonb_build_object('owner', t1."owner_id", 'customer', t1."customer_id") AS "who" """
        """FROM "public"."orders" t1""",
    ),
    "rename within a relation, and flat": (
        ROOT + CUSTOMER + 'columns = ["id", "name"]\nrename = { id = "is.number", name = "called" }\nflat = "c_"',
        """SELECT t1."id" AS "id", jsonb_build_object('number', t2."id") AS "c_is", t2."name" AS "c_called" FROM "public"."orders" t1 """
        """LEFT JOIN "public"."customers" t2 ON t2."id" = t1."customer_id\"""",
    ),
    "by": (
        ROOT + ITEMS + 'columns = ["qty"]\norder = ["id"]\nby = "qty"',
        """SELECT t1."id" AS "id", coalesce(t3."_value", '{}'::jsonb) AS "items" FROM "public"."orders" t1 LEFT JOIN ( """
        """SELECT t2."order_id" AS "_1", jsonb_object_agg(t2."qty"::text, jsonb_build_object('qty', t2."qty") ORDER BY t2."id") """
        """AS "_value" FROM "public"."items" t2 WHERE t2."order_id" IS NOT NULL AND t2."qty" IS NOT NULL GROUP BY t2."order_id" ) t3 """
        """ON t3."_1" = t1."id\"""",
    ),
    "by, with a limit": (
        ROOT + ITEMS + 'value = "id"\norder = ["id"]\nby = "qty"\nlimit = 2',
        """SELECT t1."id" AS "id", coalesce(t4."_value", '{}'::jsonb) AS "items" FROM "public"."orders" t1 LEFT JOIN ( """
        """SELECT t3."_1", jsonb_object_agg(t3."_by", t3."_value" ORDER BY t3."_number") AS "_value" FROM ( SELECT t2."order_id" AS "_1", """
        """t2."id" AS "_value", t2."qty"::text AS "_by", row_number() OVER (PARTITION BY t2."order_id" ORDER BY t2."id") AS "_number" """
        """FROM "public"."items" t2 WHERE t2."order_id" IS NOT NULL AND t2."qty" IS NOT NULL ) t3 WHERE t3."_number" <= 2 """
        """GROUP BY t3."_1" ) t4 ON t4."_1" = t1."id\"""",
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
    query = nested_query("order", view, COLUMNS)
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
    (ROOT + 'columns = ["owner_id"]\nexclude = ["customer_id"]', "views.order: says both columns and exclude"),
    (ROOT + 'exclude = ["id"]', "views.order: exclude names id, which is of the key"),
    (ROOT + 'rename = { id = "number" }', "views.order: rename names id, which is of the key"),
    (ROOT + 'rename = { ownr_id = "owner" }\ncolumns = ["owner_id"]', "views.order.rename.ownr_id: ownr_id is not shown"),
    (ROOT + 'rename = { owner_id = "a..b" }\ncolumns = ["owner_id"]', "rename.owner_id: 'a..b' is not a name"),
    (ROOT + 'rename = { owner_id = "id" }\ncolumns = ["owner_id"]', "two fields are called id, of columns and rename.owner_id"),
    (
        ROOT + 'columns = ["owner_id", "customer_id"]\nrename = { owner_id = "x", customer_id = "x.y" }',
        "two fields are called x, of rename.owner_id and rename.customer_id",
    ),
    (
        ROOT + 'columns = ["owner_id"]\nrename = { owner_id = "customer.owner" }\n' + CUSTOMER + 'columns = ["id"]',
        "two fields are called customer, of rename.owner_id and one.customer",
    ),
    (
        ROOT + CUSTOMER + 'columns = ["id", "name"]\nrename = { name = "id" }',
        "views.order.one.customer: two fields are called id, of one.customer.columns and one.customer.rename.name",
    ),
    (ROOT + 'computed = { n = "1) , (2" }', "views.order.computed.n: line 1, column 2"),
    (ROOT + 'computed = { n = "count(id)" }', "views.order.computed.n: 'count(id)' is computed over many rows"),
    (ROOT + 'computed = { "a.b" = "id" }', "computed: 'a.b' is not a name"),
    (ROOT + 'computed = { n = "id" }\nexclude = ["n"]', "computed names n, which exclude leaves out"),
    (ROOT + CUSTOMER + 'value = "name"\nrename = { name = "x" }', "value shows one column by itself"),
    (ROOT + ITEMS + 'by = "id"\ntotals = { n = "count(*)" }', "views.order.many.items: has no array"),
    ('sql = "select 1"\nkey = ["id"]\nexclude = []', "views.order: exclude belongs to a view with root"),
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
    (ROOT + 'exclude = ["ownr_id"]', "view order, exclude: column ownr_id of public.orders does not exist"),
    (ROOT + CUSTOMER + "exclude = []", "view order, one.customer: picture is .*, which no jsonb is made of"),
    (ROOT + 'exclude = []\nrename = { ownr_id = "owner" }', "views.order.rename.ownr_id: ownr_id is not shown"),
    (
        ROOT + CUSTOMER + 'exclude = ["picture"]\nas = { nam = "text" }',
        "views.order.one.customer.as.nam: nam is not shown",
    ),
    (
        ROOT + 'exclude = []\ncomputed = { owner_id = "1" }',
        "two fields are called owner_id, of exclude and computed.owner_id",
    ),
    (ROOT + 'computed = { n = "random()" }', "view order, computed.n: random"),
    (ROOT + 'computed = { n = "nothing + 1" }', "view order, computed.n: column nothing does not exist"),
    (
        ROOT + ITEMS + 'value = "id"\norder = ["id"]\nby = "no"',
        "view order, many.items.*: column no of public.items does not exist",
    ),
    (ROOT + 'where = "customer = 3"', "view order, where: column customer does not exist"),
    (ROOT + '[one.x]\ntable = "public.x"\non = { id = "id" }\nvalue = "id"', "view order, one.x: topic public.x does not exist"),
    (
        ROOT + '[one.x]\ntable = "public.tags"\non = { id = "name" }\nvalue = "id"',
        "view order, one.x: a join of bigint and text is not kept up",
    ),
]


def _declared(folder: Path, text: str) -> SqlView:
    below = text.replace("[one.", "[views.order.one.").replace("[many.", "[views.order.many.")
    file = folder / "cdc.toml"
    file.write_text(f'[source]\ndsn = "dbname=shop"\n[views.order]\n{below}\n')
    return declared_views(load(file, options_model))["order"]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_wrong_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        _declared(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(("text", "message"), OF_TABLES)
def test_what_does_not_fit_the_tables_is_refused_with_its_place(text: str, message: str) -> None:
    view = _view(text)
    declared = SqlView("order", view, nested_query("order", view), tuple(TOPICS))
    with pytest.raises(ViewRefused, match=message):
        declared.bind(TOPICS)


def test_what_is_excluded_is_part_of_the_declaration(tmp_path: Path) -> None:
    """A view that stopped is tried again with another declaration, which the text alone would not show."""
    texts = [ROOT + CUSTOMER + f"exclude = [{names}]" for names in ('"picture"', '"picture", "name"')]
    one, other = (_declared(tmp_path, text) for text in texts)
    assert one.declaration != other.declaration
    assert one.topics == ("public.orders", "public.customers")


def test_of_rows_with_one_name_the_last_is_shown_and_a_name_that_is_null_is_refused() -> None:
    assert _object_of(["b", 'a"', "b"], ["1", "null", "2"]) == r'{"b": 2, "a\"": null}'
    with pytest.raises(ViewStopped, match="a name of jsonb_object_agg is NULL"):
        _object_of([None], ["1"])


def test_the_page_s_example_is_a_view() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/views.md").read_text(encoding="utf-8")
    snippet = page.partition("## Nest related rows")[2].partition("```toml\n")[2].partition("```")[0]
    view = View(**tomllib.loads(snippet)["views"]["order"])
    kinds = {"name": TEXT, "sku": TEXT, "language": TEXT}
    keys = {"product_names": ("product_id", "language")}
    columns = {
        "orders": ("id", "customer_id", "placed_at", "deleted_at", "city", "zip", "shipping"),
        "customers": ("id", "name"),
        "order_items": ("id", "order_id", "product_id", "position", "qty", "price", "cancelled_at"),
        "products": ("id", "sku", "name", "cost"),
        "product_names": ("product_id", "language", "name"),
        "tags": ("id", "name"),
        "order_tags": ("id", "order_id", "tag_id"),
    }
    tables = [
        Table(number, "public", name, tuple(Column(one, kinds.get(one, INT8), key=one in keys.get(name, ("id",))) for one in names))
        for number, (name, names) in enumerate(columns.items(), 1)
    ]
    topics = {f"public.{one.name}": TopicSchema.of(one) for one in tables}
    query = nested_query("order", view, {name: schema.names for name, schema in topics.items()})
    made = define("order", query.sql, view.key, topics, query.places)
    assert list(made.columns) == ["id", "placed_at", "address", "free", "customer", "items", "item_count", "revenue", "tags"]
