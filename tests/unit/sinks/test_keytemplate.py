from __future__ import annotations

import dataclasses
import itertools

import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.model.pgtypes import TEXT
from cdc.model.table import Column
from cdc.model.topic import TopicSchema
from sinks.cache.generationnames import CacheGenerationNames
from sinks.cache.keytemplate import DEFAULT, bind
from sinks.cache.ledger import Projection
from sinks.cache.standing import CacheStanding
from tests.contract.rows import ORDERS, PAIRS, TYPES, batch, order, upserts


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (DEFAULT, b"public.orders:7"),
        ("product:{id}", b"product:7"),
        ("{schema}/{table}/{id}/v1", b"public/orders/7/v1"),
        ("{{x}}{key}", b"{x}7"),
    ],
)
def test_names(template: str, expected: bytes) -> None:
    assert bind(template, TopicSchema.of(ORDERS)).texts(upserts(ORDERS, 1, [order(7)])).to_array().to_pylist() == [expected]
    deleted = batch(ORDERS, [(Op.DELETE, 2, order(7))])
    assert bind(template, TopicSchema.of(ORDERS)).texts(deleted).to_array().to_pylist() == [expected]


LABELS = dataclasses.replace(
    PAIRS, name="labels", columns=(Column("key", TEXT, -1, "", key=True), Column("lang", TEXT, -1, "", key=True), Column("v", TEXT))
)


def test_the_whole_key_may_have_a_column_called_key() -> None:
    given = upserts(LABELS, 1, [{"key": "a:b", "lang": "en"}, {"key": "a", "lang": "b:en"}])
    bound = bind(DEFAULT, TopicSchema.of(LABELS))
    assert bound.texts(given).to_array().to_pylist() == [rb"public.labels:a\:b:en", rb"public.labels:a:b\:en"]
    assert bound.texts_of_keys(given.select(["key", "lang"])).to_array().to_pylist() == bound.texts(given).to_array().to_pylist()
    alone = dataclasses.replace(LABELS, columns=(LABELS.columns[0], LABELS.columns[2]))
    assert bind("x:{key}", TopicSchema.of(alone)).texts(upserts(alone, 1, [{"key": "a:b"}])).to_array().to_pylist() == [b"x:a:b"]


def test_a_value_is_never_taken_for_null() -> None:
    """Under REPLICA IDENTITY FULL every column is part of the key, and may be NULL."""
    parts = ["N", "\\N", "E", "", None]
    for template in ("t:{a}:{b}N", "t:{a}:{b}:N", "t:{a}N:{b}N", "t:{a}E:{b}E"):
        if template.count("N:") or template.count("E:"):
            with pytest.raises(ConfigError, match="separator"):
                bind(template, TopicSchema.of(PAIRS))
            continue
        rows = [{"a": a, "b": b} for a, b in itertools.product(parts, parts)]
        names = bind(template, TopicSchema.of(PAIRS)).texts(upserts(PAIRS, 1, rows)).to_array().to_pylist()
        assert len(set(names)) == len(rows)


@pytest.mark.parametrize("prefix", ["c", "cd", "cdc"])
def test_no_row_is_named_like_a_ledger(prefix: str) -> None:
    """With prefix "c" the row whose key is "dc:{cache}:ledger" would be written over the ledger, by whoever chooses such a key."""
    named = dataclasses.replace(LABELS, columns=(LABELS.columns[0], LABELS.columns[2]))
    for table, template in ((named, f"{prefix}{{key}}:x"), (PAIRS, f"{prefix}{{a}}.{{b}}"), (LABELS, f"{prefix}{{key}}")):
        with pytest.raises(ConfigError, match="cdc:"):
            CacheStanding(CacheGenerationNames("cache"), Projection(template, "json")).check(TopicSchema.of(table))
    numbered = CacheStanding(CacheGenerationNames("cache"), Projection(f"{prefix}{{id}}", "json"))
    assert numbered.check(TopicSchema.of(ORDERS)).prefix == prefix, "a number does not go on with a letter or a colon"
    assert (
        CacheStanding(CacheGenerationNames("cache"), Projection(f"{prefix}x{{key}}", "json")).check(TopicSchema.of(LABELS)).prefix
        == f"{prefix}x"
    )


@pytest.mark.parametrize("number", [1, 2])
def test_no_row_is_named_like_another_generations_or_the_pointer(number: int) -> None:
    """With "{table}:{key}" the row "orders:1" of a table g2 would stand where generation 2 has row 1 of orders."""

    def standing(template: str, pointer: str | None = "live:cache") -> CacheStanding:
        names = CacheGenerationNames("cache", number, pointer)
        return CacheStanding(names, names.projection(Projection(template, "json")))

    table = TopicSchema.of(dataclasses.replace(PAIRS, name="g2"))
    for template in ("{table}:{key}", "g2:{key}", "g{key}", "g17{key}"):
        with pytest.raises(ConfigError, match="generation"):
            standing(template).check(table)
        assert standing(template, None).check(table), "where there are no others"
    for template in ("g2.{key}", "gg{key}", DEFAULT):
        assert standing(template).check(table)
    for template in ("live:{key}", "l{key}"):
        with pytest.raises(ConfigError, match="its pointer live:cache"):
            standing(template).check(table)


def test_names_of_tables_never_run_into_each_other() -> None:
    assert bind(DEFAULT, TopicSchema.of(TYPES)).prefix == "Odd%20Schema.Every%20%22type%22:"
    assert bind(DEFAULT, TopicSchema.of(dataclasses.replace(ORDERS, schema="a.b", name="c"))).prefix == "a%2Eb.c:"


@pytest.mark.parametrize("template", [DEFAULT, "p:{a}:{b}", "p:{b}--{a}.", "p:{a}:x{b}:y"])
def test_two_rows_never_share_a_name(template: str) -> None:
    parts = ["", "a", ":", "-", "--", ".", "\\", "\\:", ":x", "a:b", "N", "\\N", "x", ":y"]
    rows = [{"a": a, "b": b, "v": None} for a, b in itertools.product(parts, parts)]
    bound = bind(template, TopicSchema.of(PAIRS))
    given = upserts(PAIRS, 1, rows)
    found = bound.texts(given).to_array().to_pylist()
    assert len(set(found)) == len(rows)
    assert bound.texts_of_keys(given.select(["a", "b"])).to_array().to_pylist() == found


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{id}", "begin with"),
        ("cdc:{id}", "begin with"),
        ("o:{status}", "differ in id"),
        ("o:{id}:{nope}", "no column nope"),
        ("o:", "differ in id"),
        ("o:{id", "braces"),
        ("o:{id!r}", "only"),
        ("o:{id:>5}", "only"),
        ("o\\{id}", "backslash"),
        ("o:{id}:{id}", "twice"),
    ],
)
def test_a_template_that_cannot_name_rows_is_refused(template: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        bind(template, TopicSchema.of(ORDERS))


@pytest.mark.parametrize("template", ["p:{a}{b}", "p:{a}N{b}", "p:{a}", "p:{key}:{a}"])
def test_a_template_that_could_mix_rows_is_refused(template: str) -> None:
    with pytest.raises(ConfigError):
        bind(template, TopicSchema.of(PAIRS))


@pytest.mark.parametrize("template", ["x:{key}:{lang}", "x:{lang}:{key}", "x:{key}:{key}", "x:{key}:{nope}"])
def test_beside_the_whole_key_nothing_else_can_stand(template: str) -> None:
    with pytest.raises(ConfigError, match="whole key"):
        bind(template, TopicSchema.of(LABELS))


def test_a_table_without_identity_is_refused() -> None:
    with pytest.raises(ConfigError, match="no identity"):
        bind(
            DEFAULT,
            TopicSchema.of(dataclasses.replace(PAIRS, columns=tuple(dataclasses.replace(c, key=False) for c in PAIRS.columns))),
        )


def test_the_way_back_from_a_name() -> None:
    parts = ["", ":", "\\", "N", "\\N", "\\E", "a:b", "::", "x-y", "-", None]
    for template in (DEFAULT, "t:{a}:{b}", "t:{b}-:{a}", "t:{a}::{b}/v1"):
        rows = [{"a": a, "b": b} for a, b in itertools.product(parts, parts)]
        bound = bind(template, TopicSchema.of(PAIRS))
        names = bound.texts(upserts(PAIRS, 1, rows)).to_array().to_pylist()
        assert bound.keys_of(names).select(["a", "b"]).to_pylist() == rows
    alone = dataclasses.replace(PAIRS, columns=(PAIRS.columns[0], dataclasses.replace(PAIRS.columns[1], key=False)))
    texts = [{"a": part} for part in parts]
    bound = bind("t:{key}/v1", TopicSchema.of(alone))
    assert bound.keys_of(bound.texts(upserts(alone, 1, texts)).to_array().to_pylist()).select(["a"]).to_pylist() == texts
