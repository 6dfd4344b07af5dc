"""Whole columns come to what the rules say value by value, and what comes out is JSON on one line."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from sinks.render.columns import literal_texts
from sinks.render.kinds import Kind, Leaf, List
from sinks.render.literals import literal, quoted, survives
from tests.unit.render import nasty
from tests.unit.render.nasty import array_text, json_text

ELEMENTS = {
    Leaf.TEXT: nasty.TEXTS,
    Leaf.NUMBER: (*nasty.NUMBERS, *nasty.FLOATS),
    Leaf.BOOL: ("t", "f"),
    Leaf.MOMENT: nasty.MOMENTS,
    Leaf.INTERVAL: nasty.INTERVALS,
    Leaf.BYTES: ("\\x", "\\x00ff"),
    Leaf.JSON: nasty.DOCUMENTS,
}


def rendered(texts: list[str | None], kind: Kind, doubles: bool) -> list[str]:
    column = pa.array([None, "x", *texts, None], pa.utf8()).slice(2, len(texts))  # a slice's buffers begin elsewhere
    found = literal_texts(column, kind, doubles=doubles).to_array().to_pylist()
    return [text.decode() for text in found]


def agree(texts: list[str], kind: Kind, doubles: bool) -> None:
    for text, whole in zip(texts, rendered([*texts], kind, doubles), strict=True):
        assert whole == literal(kind, text, doubles=doubles), (text, kind)
        json.loads(whole, parse_int=str)
        assert "\n" not in whole


@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize("leaf", ELEMENTS)
def test_columns_of_one_value(leaf: Leaf, doubles: bool) -> None:
    everything = [text for texts in ELEMENTS.values() for text in texts]  # also what is not of this kind
    agree([*everything, *nasty.NO_DOCUMENTS], leaf, doubles)


@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize("leaf", ELEMENTS)
def test_columns_of_arrays(leaf: Leaf, doubles: bool, seed: int) -> None:
    rng = random.Random(seed)
    texts = [array_text(rng, lambda: rng.choice(ELEMENTS[leaf])) for _ in range(300)]
    broken = [text[: rng.randrange(len(text))] + rng.choice(["", "}", "{", ",", '"']) for text in texts]
    agree([*texts, *broken, "", "{{}", "{}}", "{,}", "{1,}", "{{1},2}", '{"a"b}', "{a{b}}", "{1}x"], List(leaf, ","), doubles)


@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize("leaf", [Leaf.JSON, Leaf.LOOSE_JSON])
def test_columns_of_documents(leaf: Leaf, doubles: bool, seed: int) -> None:
    rng = random.Random(seed)
    texts = [json_text(rng) for _ in range(500)]
    broken = [text[: rng.randrange(len(text) + 1)] + rng.choice(["", "}", "]", ",", '"', "1"]) for text in texts]
    agree([*texts, *broken], leaf, doubles)


def test_columns_of_jsonb_need_no_look_at_names(seed: int) -> None:
    rng = random.Random(seed)
    texts = [json.dumps(json.loads(json_text(rng)), ensure_ascii=False) for _ in range(300)]
    agree(texts, Leaf.JSONB, True)


def test_null_is_nothing() -> None:
    assert rendered([None, "{1}", None], List(Leaf.NUMBER, ","), False) == ["", "[1]", ""]


def test_a_number_that_a_double_does_not_hold_is_text_where_numbers_pass_one() -> None:
    texts = ["1.10", "12345678901234567890.123", "12345678901234567890", "1" * 1001, "1e400", "5e-324", "13.404953999999975"]
    kept = [survives(text) for text in texts]
    assert kept == [True, False, True, False, False, True, True]
    for kind, form in ((Leaf.NUMBER, "{}"), (List(Leaf.NUMBER, ","), "[{}]"), (Leaf.JSONB, '{{"a":{}}}')):
        source = [text if kind is not Leaf.JSONB else f'{{"a": {text}}}' for text in texts]
        source = ["{" + text + "}" if isinstance(kind, List) else text for text in source]
        wanted = [form.format(text if held else quoted(text)) for text, held in zip(texts, kept, strict=True)]
        assert rendered([*source], kind, True) == wanted
        assert rendered([*source], kind, False) == [form.format(text) for text in texts]
