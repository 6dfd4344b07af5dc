"""A shop's tables and what happens to them, for queries that were written by hand."""

from __future__ import annotations

import random
from typing import Final

from tests.integration.views.generated import VALUES, GeneratedTable, History

OWN: Final = {
    "bigint": ("0", "1", "2", "3", "4", "-1"),
    "integer": ("-2", "0", "1", "1", "2", "3", "100"),
    "int4": ("0", "1", "2", "3"),
    "varchar": ("new", "paid", "paid", "shipped", "cancelled", "", "NEW"),
    "text": ("", " ", "a", "A", "ab", "a b", "B%", "é", "漢", "_x", 'q"\\', "it's"),
    "numeric(12,2)": ("0.00", "-0.00", "1.10", "-1.10", "2.50", "9999999999.99", "-9999999999.99", "1.00"),
    "numeric(10,4)": ("0", "0.0001", "1.1000", "-3.3333", "999999.9999"),
    "numeric": ("0", "0.00", "1.10", "1.1", "NaN", "12345678901234567890.123", "-7"),
    "date": ("1970-01-01", "2024-02-29", "2024-03-01", "2023-12-31", "2024-12-30"),
    "timestamptz": (
        "1970-01-01 00:00:00+00",
        "2024-02-29 23:30:00.123456+00",
        "2024-03-01 00:10:00+00",
        "2023-12-31 23:59:59.999999+00",
    ),
    "timestamp": ("1969-12-31 23:59:59.999999", "2024-02-29 06:30:00", "2024-02-29 18:00:00"),
    "float8": ("0", "-0", "1.5", "NaN", "Infinity", "1e-7"),
    "jsonb": ("{}", '{"a": 1.10, "b": {"c": [1, "x"]}}', '{"a": "1"}', '{"a": null}', "[1, null]", '{"b": {"c": []}}', '"x"'),
    "text[]": ("{}", "{a,NULL}", '{"",a b}'),
}
"""Few values of each type, so that rows meet, and none that a sum or a cast of theirs has no room for."""

TABLES: Final = [
    GeneratedTable(
        "customers",
        {
            "id": "bigint",
            "name": "text",
            "country": "varchar",
            "active": "bool",
            "credit": "numeric(12,2)",
            "joined": "timestamptz",
            "parent": "bigint",
            "prefs": "jsonb",
            "mood": "mood",
        },
        ("id",),
    ),
    GeneratedTable(
        "orders",
        {
            "id": "bigint",
            "customer_id": "bigint",
            "placed_at": "timestamptz",
            "due": "date",
            "status": "varchar",
            "total": "numeric(12,2)",
            "weight": "float8",
            "free": "numeric",
            "note": "text",
        },
        ("id",),
    ),
    GeneratedTable(
        '"Order Lines"',
        {'"Order Id"': "bigint", '"Line"': "int4", "sku": "text", "qty": "integer", "price": "numeric(10,4)", "gift": "bool"},
        ('"Order Id"', '"Line"'),
    ),
    GeneratedTable(
        "products",
        {
            "sku": "text",
            "title": "text",
            "category": "varchar",
            "cost": "numeric(12,2)",
            "attrs": "jsonb",
            "launched": "timestamp",
            "labels": "text[]",
        },
        ("sku",),
    ),
    GeneratedTable("tags", {"tag_id": "int4", "label": "text"}, ("tag_id",)),
    GeneratedTable("product_tags", {"sku": "text", "tag_id": "int4", "since": "date"}, ("sku", "tag_id")),
]

SETUP: Final = "; ".join(
    ["drop type if exists mood cascade", "create type mood as enum ('sad', '{a,b}', ' ')", *(one.ddl for one in TABLES)]
)


class ShopHistory(History):
    """Transactions over the shop's tables. Every table has rows from the first one on."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, TABLES)

    def _value(self, kind: str, null: bool = True) -> str:
        if null and self._rng.random() < 0.15:
            return "NULL"
        quoted = self._rng.choice(OWN.get(kind) or VALUES[kind]).replace("'", "''")
        return f"'{quoted}'::{kind}"

    def filled(self) -> list[str]:
        """Statements that fill every table."""
        return [one for table in TABLES for _ in range(3) for one in self._insert(table)]
