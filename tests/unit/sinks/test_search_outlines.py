"""The fields of documents whose outline is known, where names are not those of fields."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.model.outline import Items, ObjectOutline, Outline
from cdc.model.structure import ScalarType
from sinks.search.outlines import fragment_of

NUMBER, FLAG = ScalarType.INT8, ScalarType.BOOL
LONG = {"type": "long", "ignore_malformed": True}
KEPT = {"type": "object", "enabled": False}


def fields(members: dict[str, Outline]) -> Any:
    found = fragment_of(Items(ObjectOutline(members)))
    return None if found is None else found["properties"]


def test_a_name_with_a_dot_is_the_way_to_a_member() -> None:
    assert fields({"a.b": NUMBER, "n": NUMBER}) == {"a": {"properties": {"b": LONG}}, "n": LONG}
    assert fields({"a.b.c": NUMBER, "a.d": FLAG}) == {
        "a": {"properties": {"b": {"properties": {"c": LONG}}, "d": {"type": "boolean"}}}
    }


@pytest.mark.parametrize("name", ["", " ", ".", ".a", "a.", "a..b", "a. "])
def test_an_object_with_a_name_that_no_field_has_is_one_of_which_nothing_is_known(name: str) -> None:
    assert fields({"n": NUMBER, name: NUMBER}) is None
    assert fragment_of(ObjectOutline({name: NUMBER})) is None
    assert fields({"n": NUMBER, "o": ObjectOutline({name: NUMBER})}) == {"n": LONG, "o": KEPT}
    assert fields({"n": NUMBER, "o": Items(ObjectOutline({name: NUMBER}))}) == {"n": LONG, "o": KEPT}


@pytest.mark.parametrize("other", [NUMBER, FLAG, None, Items(ObjectOutline({"c": NUMBER})), ObjectOutline({"b": NUMBER})])
def test_so_is_one_whose_names_would_be_one_field(other: Outline) -> None:
    assert fields({"a.b": NUMBER, "a": other}) is None
    assert fields({"a": other, "a.b": NUMBER}) is None
