"""Which marks a log believes: a position counts only where the same changes stand in this log."""

from __future__ import annotations

import pytest

from cdc.errors import Stopped, StopState
from cdc.model.lineage import History, Lineage, Mark, believed
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position

LOG, OTHER = "1" * 16, "2" * 16
FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32
LINEAGE = Lineage(LOG, (History(FIRST, Position(0)), History(SECOND, Position(10)), History(THIRD, Position(25))))


def at(position: int) -> Cut:
    return Cut(Position(position), Lsn(position * 10), position)


def test_the_present_history_is_the_newest() -> None:
    assert LINEAGE.history == THIRD
    assert LINEAGE.mark(at(30)) == Mark(LOG, THIRD, at(30))


@pytest.mark.parametrize(
    ("history", "position"),
    [
        (FIRST, 0),
        (FIRST, 9),
        (FIRST, 10),
        (SECOND, 3),
        (SECOND, 10),
        (SECOND, 11),
        (SECOND, 25),
        (THIRD, 7),
        (THIRD, 26),
        (THIRD, 10**12),
    ],
)
def test_up_to_where_its_history_was_left_a_mark_is_believed(history: str, position: int) -> None:
    assert believed(Mark(LOG, history, at(position)), LINEAGE, "store s") == at(position)


@pytest.mark.parametrize(("history", "position"), [(FIRST, 11), (FIRST, 26), (SECOND, 26), ("d" * 32, 0), ("d" * 32, 5)])
def test_a_position_that_this_log_never_had_diverges(history: str, position: int) -> None:
    with pytest.raises(Stopped) as caught:
        believed(Mark(LOG, history, at(position)), LINEAGE, "the index of public.orders in store s")
    assert caught.value.state is StopState.DIVERGED
    assert "the index of public.orders in store s" in str(caught.value)
    assert str(position) in str(caught.value)
    assert "--rebuild" in (caught.value.hint or "")


@pytest.mark.parametrize("history", [FIRST, THIRD, "d" * 32])
def test_another_log_is_never_believed(history: str) -> None:
    """… not even at position 0, nor where it happens to name one of our histories."""
    with pytest.raises(Stopped) as caught:
        believed(Mark(OTHER, history, ZERO_CUT), LINEAGE, "store s")
    assert caught.value.state is StopState.OTHER_LOG
    assert OTHER in str(caught.value)
    assert LOG in str(caught.value)
    assert "--rebuild" in (caught.value.hint or "")


def test_a_history_that_began_twice_at_the_same_place_has_nothing_of_its_own() -> None:
    """A crash while a rebuild is carried out begins it again."""
    twice = Lineage(LOG, (History(FIRST, Position(0)), History(SECOND, Position(10)), History(THIRD, Position(10))))
    assert believed(Mark(LOG, SECOND, at(10)), twice, "store s") == at(10)
    with pytest.raises(Stopped):
        believed(Mark(LOG, SECOND, at(11)), twice, "store s")
