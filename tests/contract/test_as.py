"""``as`` in a store's configuration: a column as Postgres prints it, or a text column as the JSON that it holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.model.pgtypes import INT4, JSONB, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.contract import Outcome
from tests.contract.labs import Lab
from tests.contract.rows import Row, upserts
from tests.contract.test_sinks import cut, expect, feed, held, meant

TABLE = Table(
    16600,
    "public",
    "products",
    (
        Column("id", TEXT, key=True),
        Column("payload", JSONB),
        Column("doc", TEXT),
        Column("n", INT4),
        Column("price", NUMERIC),
        Column("at", TIMESTAMPTZ),
        Column("sizes", 1007),
    ),
)
CHOSEN = {"payload": "text", "doc": "json", "n": "text", "price": "text", "at": "text", "sizes": "text"}
ROWS: list[Row] = [
    {"id": "1", "payload": '{"a": 1.10}', "doc": ' {"x" : [1.50,\n2]} ', "n": "7", "price": "1.10", "at": "2024-02-29 06:30:00+00", "sizes": "{1}"},
    {"id": "2", "payload": "null", "doc": "no JSON", "n": None, "price": "NaN", "at": "infinity", "sizes": "{}"},
    {"id": "3", "payload": None, "doc": None, "n": "0", "price": "1" + "0" * 1200, "at": None, "sizes": None},
    {"id": "4", "payload": "[" * 300 + "]" * 300, "doc": "null", "n": "0", "price": "0.00", "at": None, "sizes": "[0:0]={1}"},
    {"id": "5", "payload": '""', "doc": '{"a":1,"a":2}', "n": "0", "price": "0", "at": None, "sizes": "{NULL}"},
]  # fmt: skip
RENDER = ("redis", "opensearch", "console")


def chosen(lab: Lab, columns: dict[str, str], table: str = "public.products") -> dict[str, Any]:
    if lab.kind not in RENDER:
        pytest.skip("holds the types of the database")
    return {"tables": {table: {"as": columns}}}


def test_columns_are_shown_as_is_asked_for(lab: Lab) -> None:
    sink = lab.opened(**chosen(lab, CHOSEN))
    sink.prepare(TopicSchema.of(TABLE))
    assert feed(lab, sink, upserts(TABLE, 1, ROWS)) == Outcome(len(ROWS))
    sink.commit(cut(len(ROWS)))
    expect(lab, sink, TABLE, ROWS)
    if lab.readable:
        found = {row["id"]: row for row in held(sink, TABLE)}
        for row in ROWS:
            texts = [name for name, as_ in CHOSEN.items() if as_ == "text"]
            assert {name: found[row["id"]][name] for name in texts} == {name: row[name] for name in texts}, "the very text"
        assert found["1"]["doc"] == '{"x":[1.5,2]}'
        assert (found["2"]["doc"], found["4"]["doc"], found["5"]["doc"]) == ('"no JSON"', "null", '"{\\"a\\":1,\\"a\\":2}"')


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"paylod": "text"}, "has no column paylod"),
        ({"n": "json"}, "n is not a text that could hold JSON"),
        ({"payload": "json"}, "payload is not a text"),
        ({"id": "json"}, "id is part of the key"),
    ],
)
def test_what_cannot_be_is_refused_when_the_table_is_prepared(lab: Lab, columns: dict[str, str], said: str) -> None:
    sink = lab.opened(**chosen(lab, columns))
    with pytest.raises(ConfigError, match=said) as refused:
        sink.prepare(TopicSchema.of(TABLE))
    assert 'tables."public.products".as' in str(refused.value)
    assert refused.value.hint is not None


def test_a_pattern_of_tables_and_one_that_other_tables_need_not_know(lab: Lab) -> None:
    sink = lab.opened(**chosen(lab, {"payload": "text"}, "public.prod*"))
    sink.prepare(TopicSchema.of(dataclasses.replace(TABLE, name="others", columns=TABLE.columns[:1])))
    sink.prepare(TopicSchema.of(TABLE))
    assert meant(sink, TABLE, ROWS[:1])[0]["payload"] == ROWS[0]["payload"]


@pytest.mark.parametrize("given", [{"kind": "iceberg", "path": "x"}, {"kind": "memory"}], ids=lambda given: given["kind"])
def test_stores_that_hold_the_databases_types_know_no_as(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="knows no `as`"):
        options_model(given["kind"]).model_validate({**given, "tables": {"public.t": {"as": {"a": "text"}}}})


def test_a_table_that_does_not_exist_is_named_beforehand(lab: Lab) -> None:
    sink = lab.opened(**chosen(lab, {"payload": "text"}, "public.prodcts"))
    with pytest.raises(ConfigError, match=r"public\.prodcts"):
        sink.foresee([TopicSchema.of(TABLE)])


def test_another_choice_writes_a_caches_values_again(lab: Lab) -> None:
    if lab.kind != "redis":
        pytest.skip("of a cache")
    sink = lab.opened()
    sink.prepare(TopicSchema.of(TABLE))
    feed(lab, sink, upserts(TABLE, 1, ROWS))
    sink.commit(cut(len(ROWS)))
    assert held(sink, TABLE)[0]["payload"] == '{"a":1.1}'
    again = lab.opened(**chosen(lab, CHOSEN))
    again.prepare(TopicSchema.of(TABLE))
    expect(lab, again, TABLE, ROWS)
    assert held(again, TABLE)[0]["payload"] == '{"a": 1.10}'
