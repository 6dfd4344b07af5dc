"""A kind of JSON is complete: whoever adds one to ``sinks/render/kinds.py`` learns here, in seconds, which places still lack it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.model import pgtypes
from cdc.model.table import Column, Table
from cdc.model.topic import TopicField, TopicSchema
from sinks.render.jsontext import from_fields
from sinks.render.kinds import Leaf, kind_of
from sinks.render.literals import literal
from sinks.search.fields import Field, field_of, style_of
from sinks.search.mapping import properties
from tests.contract.test_documents import VALUES
from tests.documents.everything import COLUMNS

CHOSEN_ONLY = {Leaf.LOOSE_JSON, Leaf.GEO_POINT}
"""No type has them of itself: ``as = "json"`` and ``geo`` ask for them."""
OIDS = {name.lower(): oid for name, oid in vars(pgtypes).items() if name.isupper() and isinstance(oid, int)}
ALONE = [column for column in VALUES if isinstance(kind_of(TopicField.of(column)), Leaf)]
"""Columns of one value each."""
FIELDS = (
    (Path(__file__).resolve().parents[3] / "docs/documents.md")
    .read_text(encoding="utf-8")
    .partition("| type | field |\n")[2]
    .partition("\n\n")[0]
)


@pytest.mark.parametrize("leaf", Leaf)
def test_every_kind_has_a_rule(leaf: Leaf) -> None:
    try:
        literal(leaf, "no value of any type")
    except KeyError:
        pytest.fail(
            f"no rule writes {leaf}: add one to _LEAVES in sinks/render/literals.py, and what takes its text apart to pgtext.py"
        )


@pytest.mark.parametrize("leaf", [leaf for leaf in Leaf if leaf not in CHOSEN_ONLY])
def test_every_kind_is_tried_in_every_store(leaf: Leaf) -> None:
    tried = {kind_of(TopicField.of(column)) for column in ALONE}
    # Text stands for itself everywhere, and has suites of its own.
    assert leaf in tried or leaf is Leaf.TEXT, f"add a column whose values are {leaf} to VALUES in tests/contract/test_documents.py"


@pytest.mark.parametrize("leaf", [leaf for leaf in Leaf if leaf not in CHOSEN_ONLY])
def test_every_kind_is_on_the_page(leaf: Leaf) -> None:
    shown = {
        kind_of(TopicField.of(Column("c", OIDS[name])))
        for _, kind, _ in COLUMNS
        if (name := kind.split()[0].partition("(")[0]) in OIDS
    }
    assert leaf in shown, f"add a column of {leaf} to COLUMNS in tests/documents/everything.py, then run `make docs`"


@pytest.mark.parametrize("column", ALONE, ids=lambda column: column.name)
def test_a_value_that_is_an_object_is_one_in_every_store(column: Column) -> None:
    kind, table = kind_of(TopicField.of(column)), Table(1, "public", "t", (Column("id", pgtypes.INT4, key=True), column))
    text = literal(kind, VALUES[column][0])
    if not text.startswith("{"):
        return
    assert field_of(kind) is not Field.ANY, f"{kind} is an object: field_of in sinks/search/fields.py has to say so"
    field: dict[str, Any] = properties(TopicSchema.of(table), style_of(TopicSchema.of(table), {}))[column.name]
    assert "properties" in field or field["type"] == "flat_object", (
        f"{kind} is an object, and OpenSearch would refuse it in the field {field}: sinks/search/mapping.py says which field it gets"
    )
    name = next((name for name, oid in OIDS.items() if oid == column.type_oid), "")
    if name:
        assert f"`{name}`" in FIELDS, f"name `{name}` in the table of fields in docs/documents.md, which is written by hand"
    read = from_fields({column.name: text}, TopicSchema.of(table))[column.name]
    assert isinstance(read, dict), (
        f"{kind} comes back from a Redis hash as {type(read).__name__}: see _from_field in sinks/render/jsontext.py"
    )
