"""What cannot be kept up exactly is refused when a view is defined: the construct, its line and column, and what to write instead."""

from __future__ import annotations

from typing import Final

import pytest

from cdc.model.pgtypes import BPCHAR, FLOAT8, INT4, INT8, JSONB, NUMERIC
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.views.contract import ViewRefused
from cdc.views.definition import define
from tests.contract.rows import ORDERS

_ITEMS: Final = Table(
    3,
    "public",
    "items",
    (
        Column("order_id", INT8, key=True),
        Column("number", INT4, key=True),
        Column("price", NUMERIC),
        Column("weight", FLOAT8),
        Column("tags", JSONB),
        Column("code", BPCHAR),
        Column("flag", 16),
    ),
)
_KEYLESS: Final = Table(4, "public", "events", (Column("at", INT8),), "n")
_OTHER: Final = Table(5, "sales", "parts", (Column("id", INT8, key=True),))
_SAME: Final = Table(6, "stock", "parts", (Column("id", INT8, key=True),))
TOPICS: Final = {f"{one.schema}.{one.name}": TopicSchema.of(one) for one in (ORDERS, _ITEMS, _KEYLESS, _OTHER, _SAME)}

REFUSED: Final = [
    # what can never be kept up
    ("SELECT id FROM orders LIMIT 5", "line 1, column 23", "LIMIT is not kept up", "row_number()"),
    ("SELECT id FROM orders\nORDER BY id", "line 2, column 1", "ORDER BY has no meaning", "leave it out"),
    ("SELECT id FROM orders OFFSET 5", "line 1, column 23", "OFFSET is not kept up", "row_number()"),
    ("SELECT o.id FROM orders o CROSS JOIN items i", "line 1, column 27", "CROSS JOIN is not kept up", "JOIN … ON"),
    ("SELECT o.id FROM orders o, items i", "line 1, column 26", "a comma in FROM is a cross join", "JOIN … ON"),
    ("SELECT o.id FROM orders o JOIN items i ON o.id > i.order_id", "line 1, column 27", "without an equality", "a.x = b.x"),
    ("SELECT o.id FROM orders o NATURAL JOIN items i", "line 1, column 27", "NATURAL JOIN", "a.x = b.x"),
    ("SELECT o.id FROM orders o, LATERAL (SELECT 1) x", "line 1, column 26", "a comma in FROM", "JOIN"),
    ("WITH RECURSIVE x AS (SELECT id FROM orders) SELECT id FROM x", "line 1, column 6", "RECURSIVE is not kept up", ""),
    ("SELECT id FROM orders UNION SELECT id FROM orders", "line 1, column 23", "UNION without ALL", "UNION ALL with a column"),
    ("SELECT id FROM orders EXCEPT SELECT id FROM orders", "line 1, column 23", "EXCEPT is not kept up", "LEFT JOIN"),
    ("SELECT id FROM orders INTERSECT SELECT id FROM orders", "line 1, column 23", "INTERSECT is not kept up", "JOIN"),
    ("SELECT id, rank() OVER (ORDER BY id) AS n FROM orders", "line 1, column 12", "rank is not kept up", "only row_number()"),
    (
        "SELECT id, sum(id) OVER () AS n FROM orders",
        "line 1, column 12",
        "sum as a window function is not kept up",
        "only row_number()",
    ),
    ("SELECT * FROM orders", "line 1, column 8", "* is not possible", "name the columns"),
    ("SELECT o.* FROM orders o", "line 1, column 8", "* is not possible: name the column", ""),
    ("SELECT id FROM orders FOR UPDATE", "line 1, column 23", "FOR UPDATE", "leave it out"),
    (
        "SELECT id FROM orders WHERE id IN (SELECT order_id FROM items)",
        "line 1, column 36",
        "SELECT within an expression",
        "a join",
    ),
    ("SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM items)", "line 1, column 29", "EXISTS within an expression", "a join"),
    ("SELECT id FROM generate_series(1, 5)", "line 1, column 16", "functions in FROM", "name a topic"),
    (
        "SELECT count(*) AS n FROM orders GROUP BY ROLLUP (status)",
        "line 1, column 43",
        "ROLLUP is not kept up",
        "one view for each",
    ),
    ("SELECT id FROM " + "(" * 400 + "orders", "line 1, column 36", "joins are nested more than 20 levels deep", ""),
    ("VALUES (1)", "line 1, column 1", "VALUES is not kept up", "SELECT"),
    # what changes by itself
    ("SELECT id FROM orders WHERE created_at > now()", "line 1, column 42", "its answer changes with time", "depend on the row"),
    ("SELECT id, random() AS r FROM orders", "line 1, column 12", "not the same twice", ""),
    ("SELECT id FROM orders WHERE created_at > current_timestamp", "line 1, column 42", "current_timestamp is not the same", ""),
    # types
    (
        "SELECT order_id, sum(weight) AS w FROM items GROUP BY order_id",
        "line 1, column 18",
        "depends on the order of its rows",
        "numeric(20, 4)",
    ),
    (
        "SELECT order_id, avg(weight) AS w FROM items GROUP BY order_id",
        "line 1, column 18",
        "depends on the order of its rows",
        "numeric(20, 4)",
    ),
    ("SELECT weight, count(*) AS n FROM items GROUP BY weight", "line 1, column 50", "GROUP BY of double precision", "cast"),
    (
        "SELECT price, count(*) AS n FROM items GROUP BY price",
        "line 1, column 49",
        "1.0 and 1.00 are equal and look different",
        "cast",
    ),
    ("SELECT DISTINCT tags FROM items", "line 1, column 17", "DISTINCT of jsonb is not kept up", "cast"),
    (
        "SELECT order_id, max(price) AS p FROM items GROUP BY order_id",
        "line 1, column 18",
        "max of numeric without a scale",
        "numeric(20, 4)",
    ),
    (
        "SELECT customer_id, min(status) AS s FROM orders GROUP BY customer_id",
        "line 1, column 21",
        "database's collation",
        'COLLATE "C"',
    ),
    ("SELECT order_id, bool_and(number) AS n FROM items GROUP BY order_id", "line 1, column 18", "bool_and takes booleans", ""),
    ("SELECT order_id, max(flag) AS n FROM items GROUP BY order_id", "line 1, column 18", "max of boolean", "bool_and"),
    ("SELECT order_id, sum(flag) AS n FROM items GROUP BY order_id", "line 1, column 18", "sum of boolean", "integers"),
    ("SELECT o.id FROM orders o JOIN items i ON o.status = i.code", "line 1, column 52", "a join of", "cast"),
    ("SELECT o.id FROM orders o JOIN items i ON o.status = i.number", "line 1, column 52", "a join of text and integer", "cast"),
    (
        "SELECT order_id, array_agg(code ORDER BY number) AS n FROM items GROUP BY order_id",
        "line 1, column 18",
        "array_agg of a type that is not known is not kept up",
        "it is of bool",
    ),
    (
        "SELECT s.f, array_agg(s.n ORDER BY s.o) AS n FROM (SELECT flag AS f, order_id AS o, array_agg(number ORDER BY number) AS n "
        "FROM items GROUP BY flag, order_id) s GROUP BY s.f",
        "line 1, column 13",
        "array_agg of integer[] is not kept up",
        "it is of bool",
    ),
    (
        "SELECT order_id, array_agg(number) AS n FROM items GROUP BY order_id",
        "line 1, column 18",
        "array_agg without ORDER BY is not kept up",
        "write array_agg(x ORDER BY …)",
    ),
    (
        "SELECT flag, array_agg(price ORDER BY number) AS n FROM items GROUP BY flag",
        "line 1, column 39",
        "the order is not total",
        "key's columns",
    ),
    (
        "SELECT order_id, array_agg(DISTINCT number ORDER BY number) AS n FROM items GROUP BY order_id",
        "line 1, column 18",
        "array_agg(DISTINCT …) is not kept up",
        "SELECT DISTINCT in a subquery",
    ),
    (
        "SELECT 'all' AS k, array_agg(number ORDER BY order_id, number) AS n FROM items",
        "line 1, column 20",
        "array_agg of all rows is not kept up",
        "add GROUP BY",
    ),
    (
        "SELECT DISTINCT s.n FROM (SELECT order_id, array_agg(number ORDER BY number) AS n FROM items GROUP BY order_id) s",
        "line 1, column 17",
        "DISTINCT of integer[] is not kept up",
        "",
    ),
    (
        "SELECT order_id, stddev(number) AS n FROM items GROUP BY order_id",
        "line 1, column 18",
        "stddev is not kept up",
        "the aggregates are",
    ),
    # orders that are not total
    (
        "SELECT s.id FROM (SELECT id, status, row_number() OVER (PARTITION BY status ORDER BY amount) AS n FROM orders) s WHERE s.n = 1",
        "line 1, column 38",
        "the order is not total: rows can be equal in it, as id is not in it",
        "the key's columns at the end",
    ),
    (
        "SELECT DISTINCT ON (status) status, id FROM orders ORDER BY status, amount",
        "line 1, column 1",
        "the order is not total",
        "key",
    ),
    (
        "SELECT customer_id, string_agg(status, ',' ORDER BY amount) AS s FROM orders GROUP BY customer_id",
        "line 1, column 53",
        "the order is not total",
        "key",
    ),
    (
        "SELECT customer_id, string_agg(status, ',') AS s FROM orders GROUP BY customer_id",
        "line 1, column 21",
        "without ORDER BY",
        "ORDER BY",
    ),
    (
        "SELECT customer_id, string_agg(status, ',' ORDER BY status) AS s FROM orders GROUP BY customer_id",
        "line 1, column 53",
        "order of texts depends on the database's collation",
        'COLLATE "C"',
    ),
    ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders", "line 1, column 12", "a numbering of all rows", "PARTITION BY"),
    # unbounded slices
    ("SELECT 'all' AS k, max(id) AS m FROM orders", "line 1, column 20", "max of all rows is not kept up", "add GROUP BY"),
    # groups
    (
        "SELECT status, note FROM orders GROUP BY status",
        "line 1, column 16",
        "column note is neither in GROUP BY nor in an aggregate",
        "add it",
    ),
    ("SELECT id FROM orders WHERE count(*) > 1", "line 1, column 29", "count cannot stand in WHERE", "HAVING"),
    ("SELECT status, sum(count(*)) AS n FROM orders GROUP BY status", "line 1, column 20", "within each other", "subquery"),
    (
        "SELECT status, sum(DISTINCT id) AS n FROM orders GROUP BY status",
        "line 1, column 16",
        "sum(DISTINCT …) is not kept up",
        "SELECT DISTINCT",
    ),
    # UNION ALL
    (
        "SELECT id FROM orders UNION ALL SELECT order_id FROM items",
        "line 1, column 33",
        "tells the branches apart",
        "'a' AS branch",
    ),
    (
        "SELECT 'a' AS b, id FROM orders UNION ALL SELECT 'b', order_id FROM items",
        "line 1, column 43",
        "the branch lacks its rows' key: number and order_id",
        "select it",
    ),
    (
        "SELECT 'a' AS b, id FROM orders UNION ALL SELECT 'b', number FROM items",
        "line 1, column 55",
        "a branch has integer here",
        "cast",
    ),
    # names
    ("SELECT id FROM order_s", "line 1, column 16", "topic order_s does not exist", ""),
    ("SELECT id FROM parts", "line 1, column 16", "parts could be sales.parts or stock.parts", "schema"),
    ("SELECT idd FROM orders", "line 1, column 8", "column idd does not exist", "do you mean id?"),
    ("SELECT o.id FROM orders o JOIN orders p ON id = p.id", "line 1, column 44", "column id is ambiguous", "o.id"),
    ("SELECT o.id FROM orders o JOIN orders o ON o.id = o.id", "line 1, column 32", "o stands in FROM twice", "AS"),
    ("SELECT id, id + 1 FROM orders", "line 1, column 12", "the column has no name", "AS"),
    ("SELECT id, status AS id FROM orders", "line 1, column 12", "two columns are called id", "AS"),
    ("SELECT at FROM events", "line 1, column 16", "topic public.events has no key", "primary key"),
    # joins
    (
        "SELECT o.id FROM orders o RIGHT JOIN items i ON o.id = i.order_id AND o.id = i.number",
        "line 1, column 76",
        "a RIGHT JOIN by one column twice",
        "subquery",
    ),
    (
        "SELECT o.id FROM orders o LEFT JOIN items i ON o.id = i.order_id AND o.status = 'x'",
        "line 1, column 79",
        "ON of a LEFT JOIN",
        "subquery",
    ),
]


@pytest.mark.parametrize(("sql", "place", "message", "hint"), REFUSED, ids=[one[0][:60] for one in REFUSED])
def test_a_view_is_refused_by_construct_and_place(sql: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(ViewRefused) as refused:
        define("v", sql, ["id"], TOPICS)
    assert str(refused.value).startswith(f"view v, {place}: "), str(refused.value)
    assert message in str(refused.value)
    assert hint in (refused.value.hint or "")


KEYS: Final = [
    ("SELECT id FROM orders", [], "has no key", "name columns"),
    ("SELECT id FROM orders", ["nr"], "nr of its key is not one of its columns", "they are id"),
    (
        "SELECT customer_id FROM orders",
        ["customer_id"],
        "two rows can have one key (customer_id), as orders.id is not in it",
        "select orders.id",
    ),
    (
        "SELECT o.id, i.number FROM orders o JOIN items i ON o.id = i.order_id",
        ["id"],
        "as number is not in it",
        "add it to the key",
    ),
    (
        "SELECT status, flag, count(*) AS n FROM orders o JOIN items i ON o.id = i.order_id GROUP BY 1, 2",
        ["status"],
        "as flag is not in it",
        "",
    ),
    ("SELECT o.id FROM orders o FULL JOIN items i ON o.id = i.order_id", ["id"], "two rows can have one key", "items.number"),
    (
        "SELECT i.order_id FROM orders o RIGHT JOIN items i ON o.id = i.order_id",
        ["order_id"],
        "two rows",
        "items.number",
    ),
]


@pytest.mark.parametrize(("sql", "key", "message", "hint"), KEYS)
def test_a_key_that_is_not_unique_is_refused(sql: str, key: list[str], message: str, hint: str) -> None:
    with pytest.raises(ViewRefused) as refused:
        define("v", sql, key, TOPICS)
    assert message in str(refused.value)
    assert hint in (refused.value.hint or "")


UNIQUE: Final = [
    ("SELECT id FROM orders", ["id"]),
    ("SELECT id, status FROM orders", ["id", "status"]),
    ("SELECT i.order_id, i.number, o.status FROM items i LEFT JOIN orders o ON o.id = i.order_id", ["order_id", "number"]),
    ("SELECT o.id, i.number FROM items i JOIN orders o ON o.id = i.order_id", ["id", "number"]),
    ("SELECT i.order_id, i.number FROM orders o RIGHT JOIN items i ON o.id = i.order_id", ["order_id", "number"]),
    ("SELECT DISTINCT status, note FROM orders", ["status", "note"]),
    (
        "SELECT o.id, s.n FROM orders o LEFT JOIN (SELECT order_id, count(*) AS n FROM items GROUP BY order_id) s ON s.order_id = o.id",
        ["id"],
    ),
    ("SELECT DISTINCT ON (status) status, id FROM orders ORDER BY status, amount DESC, id", ["status"]),
    ("WITH big AS (SELECT id FROM orders WHERE amount > 5) SELECT a.id FROM big a JOIN big b ON a.id = b.id", ["id"]),
    ("SELECT 'all' AS k, count(*) AS n FROM orders", ["k"]),
    ("SELECT 'o' AS b, id, 0 AS n FROM orders UNION ALL SELECT 'i', order_id, number FROM items", ["b", "id", "n"]),
]


@pytest.mark.parametrize(("sql", "key"), UNIQUE)
def test_a_key_that_follows_from_the_topics_keys_is_taken(sql: str, key: list[str]) -> None:
    found = define("v", sql, key, TOPICS)
    assert [one.name for one in found.fields if one.key] == key


def test_fields_have_the_types_that_postgres_gives() -> None:
    found = define(
        "v",
        "SELECT customer_id, count(*) AS n, sum(id) AS s, avg(amount) AS a, max(created_at) AS m, min(amount) AS least, "
        "bool_or(amount > 5) AS b, jsonb_agg(status ORDER BY id) AS j, sum(length(note)) AS l FROM orders GROUP BY customer_id",
        ["customer_id"],
        TOPICS,
    )
    assert {one.name: one.type_name for one in found.fields} == {
        "customer_id": "int8",
        "n": "bigint",
        "s": "numeric",
        "a": "numeric",
        "m": "timestamptz",
        "least": "numeric",
        "b": "boolean",
        "j": "jsonb",
        "l": "bigint",
    }
    assert found.reads == {"public.orders": ("id", "customer_id", "amount", "created_at", "status", "note")}
