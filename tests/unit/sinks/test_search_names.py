from __future__ import annotations

import dataclasses

import pytest

from cdc.errors import ConfigError
from cdc.model.pgtypes import TEXT
from cdc.model.table import Column
from cdc.model.topic import TopicSchema
from sinks.search.fields import style_of
from sinks.search.mapping import contradicted, missing, properties
from sinks.search.names import field_names, places, shared
from tests.contract.rows import ORDERS, TYPES


def test_an_ordinary_table_keeps_its_name() -> None:
    assert places("{schema}.{table}", TopicSchema.of(ORDERS)).alias == "public.orders"
    assert places("shop-{table}", TopicSchema.of(ORDERS)).index == "shop-orders@1"


def test_odd_names_are_allowed_and_stay_apart() -> None:
    odd = [
        "T",
        "t",
        "Orders",
        "orders",
        "a b",
        "a/b",
        "../../x",
        "_x",
        "-x",
        ".",
        "..",
        "CON",
        "n" * 63,
        "é" * 63,
        "e\u0301" * 31,
        "*",
        "a#b",
        '"',
    ]
    found = [places("{table}", TopicSchema.of(dataclasses.replace(ORDERS, name=name))).index for name in odd]
    assert len(set(found)) == len(odd)
    for name in found:
        assert name == name.lower()
        assert not set(name) & set('\\/*?"<>| ,#:')
        assert name[0] not in "_-+."
        assert len(name.encode()) <= 255


def test_a_name_that_looks_like_one_of_ours_is_not_taken_for_it() -> None:
    def alias(schema: str, name: str) -> str:
        return places("{schema}.{table}", TopicSchema.of(dataclasses.replace(ORDERS, schema=schema, name=name))).alias

    odd = alias("public", "Orders").removeprefix("public.")
    again = alias("public", odd).removeprefix("public.")
    found = [alias("public", name) for name in ("Orders", odd, again, "x" * 300, "x" * 299)]
    assert len(set(found)) == len(found)
    assert alias("a.b", "c") != alias("a", "b.c")
    assert alias("public", "orders-2024") == "public.orders-2024"


@pytest.mark.parametrize("template", ["{table", "{id}", "{0}", "{}"])
def test_a_template_of_anything_else_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="index ="):
        places(template, TopicSchema.of(ORDERS))


def test_columns_become_fields_of_their_own() -> None:
    odd = ["a.b", "a%2Eb", "a", "_id", "%5Fid", "_source", "*", " ", "_cdc"]
    table = dataclasses.replace(ORDERS, columns=tuple(Column(name, TEXT) for name in odd))
    names = field_names(TopicSchema.of(table))
    fields = [names.get(name, name) for name in odd]
    assert len(set(fields)) == len(odd)
    assert not any("." in field or "*" in field for field in fields)
    assert names["_id"] == "%5Fid"


def test_types_that_never_change() -> None:
    wanted = properties(TopicSchema.of(TYPES), style_of(TopicSchema.of(TYPES), {}))
    assert wanted["big"] == {"type": "long", "ignore_malformed": True}
    assert wanted["money"] == {"type": "double", "ignore_malformed": True}
    assert missing(wanted, {k: v for k, v in wanted.items() if k != "big"}) == {"big": {"type": "long", "ignore_malformed": True}}
    assert contradicted(wanted, {**wanted, "big": {"type": "text"}}) == ["big"]


@pytest.mark.parametrize("template", ["{table}", "all", "{schema}_{table}"])
def test_tables_that_a_template_would_put_into_one_index_are_named(template: str) -> None:
    schemas = [
        TopicSchema.of(dataclasses.replace(ORDERS, schema=schema, name=name))
        for schema, name in (("a", "b_c"), ("a_b", "c"), ("other", "b_c"))
    ]
    found = shared(template, schemas)
    assert found is not None
    assert places(template, found[0]) == places(template, found[1])
    assert shared("{schema}.{table}", schemas) is None
