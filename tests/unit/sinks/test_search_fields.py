"""docs/documents.md says which field of OpenSearch a type becomes; the table is written by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.model import pgtypes
from cdc.model.structure import ScalarType
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.search.fields import style_of
from sinks.search.mapping import properties
from sinks.search.typedfields import TEXT_KEYWORD_CHARACTERS_MAX

PAGE: Final = (Path(__file__).resolve().parents[3] / "docs/documents.md").read_text(encoding="utf-8")
ELSE: Final = "everything else"
KINDS: Final = {
    "whole numbers": ("int2", "int4", "int8"),
    "`char(n)`": ("bpchar",),
    "composites": ("a composite",),
    "arrays of them": ("an array of `jsonb`", "an array of composites"),
    "ranges": ("a range",),
    "multiranges": ("a multirange",),
    "enums": ("an enum",),
    "types of extensions that have no row here": ("an extension's type",),
    "arrays": ("an array of `int4`", "an array of `text`"),
}
"""Words of the table → what the test makes of them; every other one is a type's name."""
INT4: Final = pgtypes.INT4
STRUCTURES: Final[dict[str, Any]] = {
    "hstore": "hstore",
    "a composite": {"row": [["a", INT4]]},
    "an array of `jsonb`": {"array": pgtypes.JSONB},
    "an array of composites": {"array": {"row": [["a", INT4]]}},
    "a range": {"range": INT4},
    "a multirange": {"multirange": INT4},
    "an array of `int4`": {"array": INT4},
    "an array of `text`": {"array": pgtypes.TEXT},
    "an enum": None,
    "an extension's type": None,
}


def rows() -> list[tuple[str, str]]:
    """The cells of the table."""
    table = PAGE.partition("| type | field |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [(types, field) for types, field in cells]


def said() -> dict[str, str]:
    """Type → the field that the table says it becomes."""
    found: dict[str, str] = {}
    for types, field in rows():
        field, _, apart = field.partition("; ")
        meant = {one: field for word in types.split(", ") for one in KINDS.get(word, (word.strip("`"),))}
        for other in filter(None, apart.split("; ")):  # … and one that is another field than its neighbours: `type`: `field`
            name, _, its_field = other.partition(": ")
            meant[name.strip("`")] = its_field
        assert not meant.keys() & found.keys(), "a type stands in the table twice"
        found |= meant
    for name, like in (("an array of `int4`", "int4"), ("an array of `text`", "text")):
        assert found[name] == "as their elements"
        found[name] = found[like]
    return found


def mapped(name: str) -> dict[str, Any]:
    """The mapping of a column of the type."""
    if name in STRUCTURES:
        column = Column("x", 20_000, structure="" if STRUCTURES[name] is None else json.dumps(STRUCTURES[name]))
    else:
        column = Column("x", pgtypes.MONEY if name == ScalarType.OTHER else getattr(pgtypes, ScalarType(name).name))
    schema = TopicSchema.of(Table(900, "public", "t", (Column("id", INT4, key=True), column)))
    found: dict[str, Any] = properties(schema, style_of(schema, {}))["x"]
    return found


def words(field: dict[str, Any]) -> str:
    """A mapping as the table says it."""
    match field:
        case {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": most}}}:
            return f"`text`, with `.keyword` for the first {most} characters"
        case {"type": "date"}:
            return "`date`, to the millisecond"
        case {"type": "binary"}:
            return "`binary`: kept, not searched"
        case {"properties": {"x": {"type": "double"}, "y": {"type": "double"}, **rest}} if not rest:
            return "an object: `x` and `y`, both `double`"
        case {"properties": {"lower": lower, "upper": upper, "bounds": {}, "empty": {}, **rest}} if not rest:
            assert lower == upper == mapped("int4")
            return "an object: `lower` and `upper` as their type, `bounds`, `empty`"
    return f"`{field['type']}`"


SAID: Final = said()


@pytest.mark.parametrize("name", [*ScalarType, *STRUCTURES])
def test_a_type_becomes_the_field_that_the_page_names(name: str) -> None:
    assert words(mapped(name)) == SAID.get(str(name), SAID[ELSE])


@pytest.mark.parametrize("name", sorted(SAID.keys() - {ELSE}))
def test_the_page_names_no_type_that_nobody_knows(name: str) -> None:
    assert name in {*map(str, ScalarType), *STRUCTURES}
    assert words(mapped(name)) == SAID[name]
    assert SAID[name] != SAID[ELSE], "and none that is like everything else"


def test_the_table_is_found() -> None:
    assert len(rows()) > 8
    assert str(TEXT_KEYWORD_CHARACTERS_MAX) in re.findall(r"\d+", SAID["text"])
