"""Changes of earlier definitions as rows of another: values keep their column through a new name, and their text through a new type."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.model.batch import EXACT, Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import BYTEA, FLOAT4, FLOAT8, INT4, INT8, NUMERIC, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.replay.rows import chosen, feed_schema, rows_schema, to_rows
from tests.contract.rows import batch, numeric, schema

KEY = Column("id", INT4, -1, "int4", key=True, attnum=1)


def table(*columns: Column) -> Table:
    return Table(900, "public", "t", (KEY, *columns))


def text(name: str, attnum: int) -> Column:
    return Column(name, TEXT, -1, "text", attnum=attnum)


def rows(old: Table, new: Table, *values: dict[str, str]) -> list[dict[str, Any]]:
    changes = batch(old, [(Op.INSERT, number, {"id": str(number)} | row) for number, row in enumerate(values, 1)])
    return list(to_rows(changes, rows_schema(TopicSchema.of(new))).to_pylist())


@pytest.mark.parametrize(
    ("old", "value", "new", "kept"),
    [
        ((FLOAT8, -1), "1.239", (NUMERIC, numeric(12, 2)), False),
        ((FLOAT8, -1), "1.25", (NUMERIC, numeric(12, 2)), True),
        ((NUMERIC, numeric(38, 10)), "1234567890123456789.0123456789", (FLOAT8, -1), False),
        ((TEXT, -1), "0.1234567890123456789", (FLOAT8, -1), False),
        ((FLOAT8, -1), "0.123456789", (FLOAT4, -1), False),
        ((NUMERIC, numeric(14, 4)), "1.2345", (NUMERIC, numeric(12, 2)), False),
        ((INT8, -1), "9007199254740993", (FLOAT8, -1), False),
        ((INT8, -1), "5000000000", (INT4, -1), False),
        ((INT4, -1), "7", (INT8, -1), True),
        ((TEXT, -1), "AB", (BYTEA, -1), False),
        ((TEXT, -1), "\\x00ff", (BYTEA, -1), True),
    ],
)
def test_a_value_that_differs_under_the_new_type_is_exact_text(
    old: tuple[int, int], value: str, new: tuple[int, int], kept: bool
) -> None:
    before, after = (table(Column("x", *kind, "any", attnum=2)) for kind in (old, new))
    (found,) = rows(before, after, {"x": value})
    assert (found["x"] is not None, dict(found[EXACT] or ())) == (kept, {} if kept else {"x": value})
    changes = batch(before, [(Op.INSERT, 1, {"id": "1", "x": value})])
    without = chosen(rows_schema(TopicSchema.of(after)), ["id", "x"])
    if kept:
        assert to_rows(changes, without).to_pylist() == [{"id": 1, "x": found["x"]}]
    else:
        with pytest.raises(ConfigError, match="earlier values of column x are not the same under its newest type") as caught:
            to_rows(changes, without)
        assert value not in caught.value.line()
        assert to_rows(changes, chosen(without, ["id"])).to_pylist() == [{"id": 1}]


def test_a_renamed_column_keeps_its_values_and_swapped_names_do_not_swap_them() -> None:
    old = table(text("a", 2), text("b", 3))
    values = {"a": "first", "b": "second"}
    for new, expected in (
        (table(text("c", 2), text("b", 3)), {"c": "first", "b": "second"}),
        (table(text("b", 2), text("a", 3)), {"b": "first", "a": "second"}),
        (table(text("b", 3), text("a", 4)), {"b": "second", "a": None}),
    ):
        (found,) = rows(old, new, values)
        assert {name: found[name] for name in expected} == expected


def test_a_record_of_a_definition_keeps_what_it_tells() -> None:
    old, new = table(text("kind", 2)), table(Column("kind", INT4, -1, "int4", attnum=2))
    record = schema(old, 1, Kind.REWRITTEN, empties=True)
    (found,) = to_rows(record, rows_schema(TopicSchema.of(new))).to_pylist()
    assert dict(found[EXACT]) == {"kind": "rewritten", "empties": "true"}
    assert found["kind"] is None


def test_a_column_with_a_name_of_the_change_feed_is_refused_by_name() -> None:
    for name in ("_change_type", "_commit_version", "_Commit_Timestamp"):
        shape = TopicSchema.of(table(text(name, 2)))
        with pytest.raises(ConfigError, match=rf"column {name} .*as = changes"):
            feed_schema(shape)
        assert name in rows_schema(shape).names
