"""Whether two templates can give one name: held against names that they do give."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.model.pgtypes import INT8, TEXT, UUID
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.cache.keytemplate import TableKeys, bind
from sinks.cache.lane import Lane
from sinks.cache.namepattern import may_meet, pattern_of

KINDS = {"text": TEXT, "int": INT8, "uuid": UUID}


def keys(template: str, *kinds: str, lane: Lane | None = None) -> TableKeys:
    """Of a table whose key is the columns a, b … of these kinds."""
    columns = tuple(Column(name, KINDS[kind], -1, kind, key=True) for name, kind in zip("abc", kinds, strict=False))
    return bind(template, TopicSchema.of(Table(1, "s", "t", columns)), lane)


def meet(one: TableKeys, other: TableKeys) -> bool:
    found = may_meet(pattern_of(one), pattern_of(other))
    assert may_meet(pattern_of(other), pattern_of(one)) is found
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (keys("o:{key}", "text"), keys("o:{key}", "text")),
        (keys("o:{key}", "text"), keys("o:eu:{key}", "text")),
        (keys("o:{key}", "text"), keys("o:eu:{key}", "int")),
        (keys("o:{key}", "text"), keys("o:{key}", "text", "text")),
        (keys("o:{a}:{b}", "text", "text"), keys("o:eu:{a}", "text")),
        (keys("o:{a}:{b}", "text", "text"), keys("o:eu:{key}", "int")),
        (keys("o:{a}", "int"), keys("o:1{a}", "int")),
        (keys("o:{a}:x", "text"), keys("o:{a}", "text")),
        (keys("o:{a}:eu", "int"), keys("o:{a}:{b}", "int", "text")),
        (keys("o:{a}", "uuid"), keys("o:ab{a}", "uuid")),
    ],
)
def test_templates_that_can_give_one_name(one: TableKeys, other: TableKeys) -> None:
    assert meet(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (keys("o:{key}", "text"), keys("p:{key}", "text")),
        (keys("o:{key}", "int"), keys("o:eu:{key}", "text")),
        (keys("o:{key}", "uuid"), keys("o:eu:{key}", "text")),
        (keys("o:{a}:x", "text"), keys("o:{a}:y", "text")),
        # A colon in a value of two columns' names is escaped, in a value that is the whole name it is not.
        (keys("o:{a}:{b}", "text", "text"), keys("o:eu:de:{a}", "text")),
        (keys("o:{key}", "text", "text"), keys("o:{key}", "text", "text", "text")),
        (keys("o:{lane}:{key}", "text", lane=Lane(1, 4)), keys("o:{lane}:{key}", "text", lane=Lane(2, 4))),
    ],
)
def test_templates_that_cannot(one: TableKeys, other: TableKeys) -> None:
    assert not meet(one, other)


def test_what_two_templates_do_give_meets() -> None:
    """Every pair of templates that give one name for some values: none of them is missed."""
    values = ["", "1", ":", "\\", "e", "e:", "1:e", "e:1", ":e", "N", "E"]
    templates = [
        keys(*given)
        for given in (
            ("k:{key}", "text"),
            ("k:e:{key}", "text"),
            ("k:{a}:e", "text"),
            ("k:{key}", "text", "text"),
            ("k:{a}:{b}", "text", "text"),
            ("k:{b}:{a}", "text", "text"),
            ("k:{a}::{b}", "text", "text"),
            ("k:{a}_{b}:1", "text", "text"),
            ("k:e{a}", "text"),
            ("k::{key}", "text"),
            ("kk{key}", "text"),
        )
    ]
    names = [set(given(one, values)) for one in templates]
    common = 0
    for (one, its), (other, theirs) in itertools.combinations(zip(templates, names, strict=True), 2):
        common += bool(its & theirs)
        assert meet(one, other) or not its & theirs, (one.columns, other.columns, its & theirs)
    assert common > 10


def given(one: TableKeys, values: list[str]) -> list[bytes]:
    columns = [column.name for column in one.schema.key]
    rows = list(itertools.product([*values, None], repeat=len(columns)))
    if one.whole:
        rows = [row for row in rows if None not in row]
    texts = pa.RecordBatch.from_arrays([pa.array(list(each), pa.utf8()) for each in zip(*rows, strict=True)], names=columns)
    return [bytes(name) for name in one.texts_of_keys(texts).to_array().to_pylist()]


def test_a_type_of_the_databases_own_may_look_like_anything() -> None:
    """A domain over numbers is held as its numbers are; but nobody knows."""
    plain, nested = keys("o:{key}", "int"), keys("o:eu:{key}", "int")
    own = replace(plain.schema, fields=tuple(replace(field, defined=True) for field in plain.schema.fields))
    assert meet(bind("o:{key}", own), nested)
