"""Which rows of many are refused, found piece by piece; and what is said of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sinks.sql.refusals import RowRefusal, refused, sorted_out

FIRST = RowRefusal("all of them")


@given(st.integers(1, 3000), st.data())
def test_each_refused_row_is_found_and_each_other_is_written_once_in_few_attempts(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=20))
    written: list[int] = []
    attempts = 0

    def attempt(begin: int, end: int) -> RowRefusal | None:
        nonlocal attempts
        attempts += 1
        if any(begin <= row < end for row in bad):
            return RowRefusal(str(begin))
        written.extend(range(begin, end))
        return None

    found = sorted_out(count, attempt, lambda _: False, FIRST)
    assert set(found) == bad
    assert written == sorted(set(range(count)) - bad), "in their order"
    assert attempts <= 2 * len(bad) * (math.ceil(math.log2(count)) + 1)


def test_the_search_ends_where_there_are_too_many() -> None:
    attempts: list[tuple[int, int]] = []

    def attempt(begin: int, end: int) -> RowRefusal:
        attempts.append((begin, end))
        return FIRST

    found = sorted_out(1 << 16, attempt, lambda found: found > 3, FIRST)
    assert sorted(found) == [0, 1, 2, 3]
    assert len(attempts) < 30


def test_a_single_row_is_not_tried_twice() -> None:
    tried: list[int] = []
    assert sorted_out(1, lambda begin, end: tried.append(end - begin), lambda _: False, FIRST) == {0: FIRST}
    assert tried == []


def test_only_what_a_row_can_be_to_blame_for_is_its_refusal() -> None:
    def reason(state: str | None, column: str | None = None, constraint: str | None = None) -> str | None:
        found = refused(state, column, constraint)
        return None if found is None else found.refusal.reason

    assert reason("23514", None, "positive") == "the constraint positive refuses it (SQLSTATE 23514)"
    assert reason("23502", "note") == "the column note takes no NULL (SQLSTATE 23502)"
    assert reason("22001") == "the table does not take its values (SQLSTATE 22001)"
    assert reason("54000") == "the table does not take its values (SQLSTATE 54000)"
    assert reason("P0001") == "a trigger of the table refuses it (SQLSTATE P0001)"
    for state in (None, "40001", "40P01", "55P03", "57014", "53100", "42501", "P0002", "08006"):
        assert reason(state) is None, state
    waits = {state for state in ("22001", "23502", "23503", "23505", "23514", "23P01", "P0001", "54000") if _waits(state)}
    assert waits == {"23503", "23505", "23P01", "P0001"}


def _waits(state: str) -> bool:
    found = refused(state, None, None)
    return found is not None and found.refusal.of_others
