"""The whole decision table: progress below, at, within and above the stretch; epochs; ledgers that are not ours."""

from __future__ import annotations

import itertools

import pytest

from sinks.cache.fence import FenceAnswer, Seen, Writer, answer

WRITER = Writer("log", "history", 5)
AFTER, UPTO = 10, 20


@pytest.mark.parametrize(
    ("position", "at", "expected"),
    [
        (0, 10, FenceAnswer.DONE),
        (10, None, FenceAnswer.DONE),
        (10, 3, FenceAnswer.DONE),
        (4, 10, FenceAnswer.DONE),
        (0, None, FenceAnswer.GAP),
        (0, 9, FenceAnswer.GAP),
        (9, 2, FenceAnswer.GAP),
        (0, 11, FenceAnswer.GAP),
        (19, 10, FenceAnswer.GAP),
        (0, 20, FenceAnswer.ALREADY),
        (20, None, FenceAnswer.ALREADY),
        (0, 99, FenceAnswer.ALREADY),
    ],
)
def test_progress_decides_in_the_ledger_that_this_writer_took_over(position: int, at: int | None, expected: FenceAnswer) -> None:
    assert answer(Seen("log", "history", 5, position, at), WRITER, AFTER, UPTO) is expected


def test_an_older_copy_takes_nothing_however_far_it_is() -> None:
    for position in (0, 10, 99):
        assert answer(Seen("log", "history", 4, position), WRITER, AFTER, UPTO) is FenceAnswer.LOST


@pytest.mark.parametrize(("at", "expected"), [(9, FenceAnswer.GAP), (10, FenceAnswer.DONE), (11, FenceAnswer.ALREADY)])
def test_what_moves_nothing_is_done_where_it_was_begun(at: int, expected: FenceAnswer) -> None:
    assert answer(Seen("log", "history", 5, 0, at), WRITER, AFTER, AFTER) is expected


def test_a_later_writer_fences_whatever_the_progress() -> None:
    for position, history in itertools.product((0, 10, 99), ("history", "a later one")):
        assert answer(Seen("log", history, 6, position), WRITER, AFTER, UPTO) is FenceAnswer.FENCED


def test_another_s_ledger_or_none_takes_nothing() -> None:
    for position, epoch in itertools.product((0, 10, 99), (1, 5, 6)):
        assert answer(Seen("another", "history", epoch, position), WRITER, AFTER, UPTO) is FenceAnswer.LOST
    assert answer(Seen("log", "another", 5, 10), WRITER, AFTER, UPTO) is FenceAnswer.LOST
    assert answer(None, WRITER, AFTER, UPTO) is FenceAnswer.LOST
