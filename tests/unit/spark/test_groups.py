"""What a query writes, as groups: the newest row of each key, and what of a micro-batch the log lacks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.spark.groups import SEQUENCE, StreamMark, digest, group_end, newest, prepared, share

KEY = ("id",)
Row = tuple[int, str, str | None, int]
"""(key, operation, text, position)."""


def frame(*rows: Row, **more: Any) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "_cdc_op": pa.array([row[1] for row in rows], pa.utf8()),
            "text": pa.array([row[2] for row in rows], pa.utf8()),
            "_cdc_position": pa.array([row[3] for row in rows], pa.int64()),
            **more,
        }
    )


def batch(*rows: Row) -> pa.Table:
    return newest(prepared(frame(*rows), KEY, "_cdc_position"), KEY)


def held(rows: pa.Table) -> list[tuple[str, int, str | None, int]]:
    return [(row["_cdc_op"], row["id"], row["text"], row[SEQUENCE]) for row in rows.to_pylist()]


def taken(mark: StreamMark, number: int, *rows: Row) -> tuple[StreamMark, list[int]]:
    """The mark afterwards, and the numbers that were handed over."""
    todo = share(mark, number, batch(*rows), "public.orders")
    assert not todo.conflict
    return todo.mark, todo.rows.column(SEQUENCE).to_pylist()


def rows(*positions: int) -> list[Row]:
    return [(position, "u", "x", position) for position in positions]


def test_only_the_newest_row_of_a_key_and_of_deletes_the_key() -> None:
    found = batch((1, "c", "a", 1), (2, "r", "b", 2), (1, "u", "c", 3), (2, "d", "gone", 4))
    assert held(found) == [("u", 1, "c", 3), ("d", 2, None, 4)]
    assert found.column_names == ["_cdc_op", "id", "text", SEQUENCE]


def test_the_order_in_which_rows_come_makes_no_difference() -> None:
    given: list[Row] = [(1, "c", "a", 1), (2, "r", None, 2), (1, "u", "c", 3), (3, "d", "x", 3)]
    one, other = batch(*given), batch(*reversed(given))
    assert one.equals(other)
    assert digest(one) == digest(other) != digest(batch(*given[:3]))


def test_rows_without_a_sequence_have_a_key_each() -> None:
    given = pa.table({"id": [2, 1], "text": ["b", "a"]})
    assert newest(prepared(given, KEY, None), KEY).to_pylist() == [
        {"_cdc_op": "u", "id": 1, "text": "a"}, {"_cdc_op": "u", "id": 2, "text": "b"}
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="the same key, and no sequence says"):
        newest(prepared(pa.concat_tables([given, given]), KEY, None), KEY)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (frame((1, "t", None, 1)), "emptied by a TRUNCATE"),
        (frame((1, "s", None, 1)), "was emptied"),
        (frame((1, "x", None, 1)), "something else than c, u, r or d"),
        (frame((1, "u", None, -1)), "NULL or negative"),
        (frame((1, "u", "a", 1), _change_type=["insert"]), "rows of a change feed"),
        (
            frame((1, "u", None, 1), _cdc_exact=pa.array([[("text", "infinity")]], pa.map_(pa.utf8(), pa.utf8()))),
            "column text has a value that its type cannot hold",
        ),
    ],
)
def test_rows_that_cannot_be_a_topics_are_refused(given: pa.Table, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        prepared(given, KEY, "_cdc_position")


def test_two_rows_of_one_key_and_one_sequence_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same key and the same sequence"):
        batch((1, "u", "a", 1), (1, "u", "b", 1))


def test_a_new_definition_that_empties_nothing_is_left_out() -> None:
    facts = pa.array([[("kind", "altered")], None], pa.map_(pa.utf8(), pa.utf8()))
    found = prepared(frame((1, "s", None, 1), (2, "u", "b", 2), _cdc_exact=facts), KEY, "_cdc_position")
    assert held(found) == [("u", 2, "b", 2)]


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = StreamMark(True, 3, 70, 90, "a" * 32, "public.orders")
    assert StreamMark.of(mark.text, True) == mark
    assert StreamMark.of("", False) == StreamMark(False)
    with pytest.raises(ConfigError, match="came with a sequence"):
        StreamMark.of(mark.text, False)
    with pytest.raises(ConfigError, match="another program"):
        StreamMark.of("1-abc-2", True)


def test_a_micro_batch_that_comes_again_brings_what_is_missing() -> None:
    first, numbers = taken(StreamMark(True), 0, *rows(1, 2, 3))
    assert numbers == [1, 2, 3]
    assert taken(first, 0, *rows(1, 2, 3)) == (first, [])
    # A crash after its first group, which ended with 2.
    assert taken(StreamMark(True, 0, 2, 2, first.digest), 0, *rows(1, 2, 3))[1] == [3]


def test_the_same_micro_batch_with_other_rows_is_a_conflict() -> None:
    first, _ = taken(StreamMark(True), 0, *rows(1, 2, 3))
    assert share(first, 0, batch((1, "u", "other", 1), *rows(2, 3)), "").conflict


def test_a_step_of_which_the_source_has_dropped_rows_since_is_in_the_log() -> None:
    first, _ = taken(StreamMark(True), 0, *rows(1, 2, 3))
    again = share(StreamMark.of(first.text, True), 0, batch(*rows(1, 3)), "public.orders")
    assert (again.conflict, again.fewer, len(again.rows), again.mark) == (False, True, 0, first)
    unknown = StreamMark(True, 0, 3, 3, first.digest)
    assert share(unknown, 0, batch(*rows(1, 3)), "").conflict, "a mark that does not say how many there were"
    assert StreamMark.of(unknown.text, True) == unknown


def test_a_frame_that_would_be_passed_over_in_part_is_refused() -> None:
    mark = share(StreamMark(True), None, batch(*rows(1, 5)), "").mark
    again = share(mark, None, batch(*rows(1, 5)), "")
    assert (len(again.rows), again.mark) == (0, mark), "the same frame"
    for passed, count in ((rows(2, 4), 2), (rows(5, 6), 1), ([(1, "u", "other", 1), *rows(5)], 2)):
        with pytest.raises(ConfigError, match=rf"up to number 5, and would pass over {count} rows"):
            share(mark, None, batch(*passed), "")
    begun = StreamMark(True, 0, 1, 1, mark.digest)
    assert share(begun, None, batch(*rows(1, 5)), "").rows.column(SEQUENCE).to_pylist() == [5], "one that was handed over in part"
    assert share(mark, None, batch(*rows(6, 7)), "").rows.column(SEQUENCE).to_pylist() == [6, 7]


@pytest.mark.parametrize("cuts", [[(1, 9)], [(1, 2), (3, 4), (5, 6), (7, 9)], [(1, 5), (6, 9)], [(1, 8), (9, 9)]])
def test_a_query_without_its_checkpoint_begins_again_and_doubles_nothing(cuts: list[tuple[int, int]]) -> None:
    mark = StreamMark(True)
    for number, (first, last) in enumerate([(1, 3), (4, 6)]):
        mark, _ = taken(mark, number, *rows(*range(first, last + 1)))
    brought: list[int] = []
    for number, (first, last) in enumerate(cuts):
        mark, numbers = taken(mark, number, *rows(*range(first, last + 1)))
        brought += numbers
    assert brought == [7, 8, 9]


def test_a_sequence_that_falls_back_is_refused() -> None:
    mark, _ = taken(StreamMark(True), 0, *rows(5))
    with pytest.raises(ConfigError, match="the sequence falls back: micro-batch 1 has 4, an earlier one had 5"):
        taken(mark, 1, *rows(4, 6))


def test_a_group_never_ends_between_rows_of_one_number() -> None:
    found = batch((1, "u", "a", 1), (2, "u", "a", 2), (3, "u", "a", 2), (4, "u", "a", 3))
    assert [group_end(found, begin, 2) for begin in (0, 1, 3)] == [1, 3, 4]
    assert group_end(found, 1, 1) == 3
