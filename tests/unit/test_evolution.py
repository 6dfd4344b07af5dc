from __future__ import annotations

import pytest

from cdc.model.batch import table_of
from cdc.model.evolution import Difference, Kind, SchemaChange, differences, schema_change_of, schema_record
from cdc.model.table import Column, Table
from cdc.model.topic import TopicField, TopicSchema

ID = Column("id", 20, key=True, attnum=1)
A = Column("a", 25, attnum=2)
B = Column("b", 25, attnum=3)
OLD = Table(7, "public", "t", (ID, A, B))


def between(old: Table, new: Table) -> tuple[Difference, ...]:
    return differences(TopicSchema.of(old), TopicSchema.of(new))


def _fate(old: Column | None, new: Column | None) -> Difference:
    return Difference(*(None if column is None else TopicField.of(column) for column in (old, new)))


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
    assert between(OLD, swapped) == (_fate(A, swapped.columns[1]), _fate(B, swapped.columns[2]))
    assert all(difference.renamed and not difference.retyped for difference in between(OLD, swapped))


def test_a_column_dropped_and_added_again_is_another_column() -> None:
    again = Table(7, "public", "t", (ID, A, Column("b", 25, attnum=4)))
    assert between(OLD, again) == (_fate(B, None), _fate(None, again.columns[2]))


def test_without_numbers_columns_go_by_name() -> None:
    unnumbered = Table(7, "public", "t", (Column("id", 20, key=True), Column("a", 25), Column("c", 25)))
    assert [(d.old and d.old.name, d.new and d.new.name) for d in between(OLD, unnumbered) if None in (d.old, d.new)] == [
        ("b", None),
        (None, "c"),
    ]


def test_a_column_whose_number_is_not_known_yet_changes_nothing_for_the_others() -> None:
    renamed = Table(7, "public", "t", (Column("key", 20, key=True, attnum=1), A, Column("b", 25), Column("c", 25)))
    assert between(OLD, renamed) == (
        _fate(ID, renamed.columns[0]),
        _fate(B, renamed.columns[2]),
        _fate(None, renamed.columns[3]),
    )


def test_a_name_that_a_numbered_column_has_taken_is_nobody_elses() -> None:
    moved = Table(7, "public", "t", (ID, Column("b", 25), Column("a", 25, attnum=3)))
    assert between(OLD, moved) == (_fate(A, None), _fate(B, moved.columns[2]), _fate(None, moved.columns[1]))


def test_a_table_of_another_oid_goes_by_name() -> None:
    other = Table(8, "public", "t", (ID, Column("a", 23, attnum=3), Column("b", 25, attnum=2)))
    assert [difference.retyped for difference in between(OLD, other)] == [True, False]
