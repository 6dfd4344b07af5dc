from __future__ import annotations

import pytest

from cdc.model.batch import table_of
from cdc.model.evolution import Difference, Kind, SchemaChange, differences, schema_change_of, schema_record
from cdc.model.table import Column, Table

ID = Column("id", 20, key=True, attnum=1)
A = Column("a", 25, attnum=2)
B = Column("b", 25, attnum=3)
OLD = Table(7, "public", "t", (ID, A, B))


@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(OLD, Kind.ALTERED),
        SchemaChange(OLD, Kind.CREATED, empties=True),
        SchemaChange(OLD, Kind.RENAMED, empties=True, now="public.u"),
    ],
)
def test_a_schema_record_says_what_was_put_in(change: SchemaChange) -> None:
    batch = schema_record(change, 5, 6, 7)
    assert schema_change_of(batch) == change
    assert table_of(batch.schema) == change.table


def test_swapped_names_are_two_renames() -> None:
    swapped = Table(7, "public", "t", (ID, Column("b", 25, attnum=2), Column("a", 25, attnum=3)))
    assert differences(OLD, swapped) == (Difference(A, swapped.columns[1]), Difference(B, swapped.columns[2]))
    assert all(difference.renamed and not difference.retyped for difference in differences(OLD, swapped))


def test_a_column_dropped_and_added_again_is_another_column() -> None:
    again = Table(7, "public", "t", (ID, A, Column("b", 25, attnum=4)))
    assert differences(OLD, again) == (Difference(B, None), Difference(None, again.columns[2]))


def test_without_numbers_columns_go_by_name() -> None:
    unnumbered = Table(7, "public", "t", (Column("id", 20, key=True), Column("a", 25), Column("c", 25)))
    assert [(d.old and d.old.name, d.new and d.new.name) for d in differences(OLD, unnumbered) if None in (d.old, d.new)] == [
        ("b", None),
        (None, "c"),
    ]


def test_a_table_of_another_oid_goes_by_name() -> None:
    other = Table(8, "public", "t", (ID, Column("a", 23, attnum=3), Column("b", 25, attnum=2)))
    assert [difference.retyped for difference in differences(OLD, other)] == [True, False]
