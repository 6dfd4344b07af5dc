"""The whole decision table: progress below, at, within and above the stretch; epochs; ledgers that are not ours."""

from __future__ import annotations

import itertools

import pytest

from sinks.cache.fence import Answer, Seen, Writer, answer

WRITER = Writer("log", "history", 5)
AFTER, UPTO = 10, 20


@pytest.mark.parametrize(
    ("position", "at", "expected"),
    [
        (0, 10, Answer.DONE),
        (10, None, Answer.DONE),
        (10, 3, Answer.DONE),
        (4, 10, Answer.DONE),
        (0, None, Answer.GAP),
        (0, 9, Answer.GAP),
        (9, 2, Answer.GAP),
        (0, 11, Answer.GAP),
        (19, 10, Answer.GAP),
        (0, 20, Answer.ALREADY),
        (20, None, Answer.ALREADY),
        (0, 99, Answer.ALREADY),
    ],
)
def test_progress_decides_in_the_ledger_that_this_writer_took_over(position: int, at: int | None, expected: Answer) -> None:
    assert answer(Seen("log", "history", 5, position, at), WRITER, AFTER, UPTO) is expected


def test_an_older_copy_takes_nothing_however_far_it_is() -> None:
    for position in (0, 10, 99):
        assert answer(Seen("log", "history", 4, position), WRITER, AFTER, UPTO) is Answer.LOST


@pytest.mark.parametrize(("at", "expected"), [(9, Answer.GAP), (10, Answer.DONE), (11, Answer.ALREADY)])
def test_what_moves_nothing_is_done_where_it_was_begun(at: int, expected: Answer) -> None:
    assert answer(Seen("log", "history", 5, 0, at), WRITER, AFTER, AFTER) is expected


def test_a_later_writer_fences_whatever_the_progress() -> None:
    for position, history in itertools.product((0, 10, 99), ("history", "a later one")):
        assert answer(Seen("log", history, 6, position), WRITER, AFTER, UPTO) is Answer.FENCED


def test_another_s_ledger_or_none_takes_nothing() -> None:
    for position, epoch in itertools.product((0, 10, 99), (1, 5, 6)):
        assert answer(Seen("another", "history", epoch, position), WRITER, AFTER, UPTO) is Answer.LOST
    assert answer(Seen("log", "another", 5, 10), WRITER, AFTER, UPTO) is Answer.LOST
    assert answer(None, WRITER, AFTER, UPTO) is Answer.LOST
