"""What is known of the documents that a view makes, from its SQL alone."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.model.outline import Items, ObjectOutline, Outline, outline_of, outline_text
from cdc.model.structure import ScalarType
from cdc.views.definition import define
from tests.unit.views.test_refusals import TOPICS

ITEM = ObjectOutline({"n": ScalarType.INT4, "p": ScalarType.NUMERIC, "t": None})
LIST = "SELECT order_id, jsonb_agg(jsonb_build_object('n', number, 'p', price, 't', tags) ORDER BY number) AS x FROM items GROUP BY order_id"


@pytest.mark.parametrize(
    ("sql", "outline"),
    [
        ("SELECT id, jsonb_build_object('s', status, 'o', jsonb_build_object('id', id)) AS x FROM orders", ObjectOutline({"s": ScalarType.TEXT, "o": ObjectOutline({"id": ScalarType.INT8})})),
        (LIST, Items(ITEM)),
        (f"SELECT s.order_id, coalesce(s.x, '[]'::jsonb) AS x FROM ({LIST}) s", Items(ITEM)),
        (f"SELECT o.id, jsonb_build_object('list', coalesce(s.x, '[]'::jsonb)) AS x FROM orders o LEFT JOIN ({LIST}) s ON s.order_id = o.id", ObjectOutline({"list": Items(ITEM)})),
        ("SELECT id, CASE WHEN id > 1 THEN jsonb_build_object('id', id) END AS x FROM orders", ObjectOutline({"id": ScalarType.INT8})),
        ("SELECT order_id, jsonb_agg(number ORDER BY number) AS x FROM items GROUP BY order_id", Items(ScalarType.INT4)),
        ("SELECT 'a' AS b, id, jsonb_build_object('i', id) AS x FROM orders UNION ALL SELECT 'b', id, jsonb_build_object('i', id) FROM orders", ObjectOutline({"i": ScalarType.INT8})),
        # nothing is known
        ("SELECT 'a' AS b, id, jsonb_build_object('i', id) AS x FROM orders UNION ALL SELECT 'b', id, jsonb_build_object('i', status) FROM orders", None),
        (f"SELECT s.order_id, coalesce(s.x, '{{}}'::jsonb) AS x FROM ({LIST}) s", None),
        ("SELECT id, CASE WHEN id > 1 THEN jsonb_build_object('id', id) ELSE '{}'::jsonb END AS x FROM orders", None),
        ("SELECT order_id, jsonb_object_agg(number::text, price ORDER BY number) AS x FROM items GROUP BY order_id", None),
        ("SELECT order_id, number, tags AS x FROM items", None),
        ("SELECT order_id, number, tags -> 'a' AS x FROM items", None),
    ],
    ids=str,
)  # fmt: skip
def test_an_outline_follows_from_the_query(sql: str, outline: Outline) -> None:
    key = {"items": ["order_id"], "orders": ["id"]}["items" if "order_id" in sql.partition("FROM")[0] else "orders"]
    key = [*(["b"] if "UNION" in sql else []), *key, *(["number"] if " number, tags" in sql else [])]
    definition = define("v", sql, key, TOPICS)
    assert definition.outlines["x"] == outline
    [field] = [one for one in definition.fields if one.name == "x"]
    assert outline_of(field.outline) == outline
    # A view of the view knows it, too.
    topic = dataclasses.replace(TOPICS["public.orders"], namespace="views", name="v", fields=definition.fields)
    assert define("w", f"SELECT {', '.join(key)}, x AS y FROM views.v", key, {"views.v": topic}).outlines["y"] == outline


def test_what_is_too_large_is_not_kept() -> None:
    outline: Outline = ScalarType.TEXT
    for _ in range(20):
        outline = Items(outline)
    assert outline_of(outline_text(outline)) == outline
    assert outline_text(Items(outline)) == ""
    assert outline_text(ObjectOutline({f"member {number}": ScalarType.TEXT for number in range(10_000)})) == ""
