"""A table of which jobs keep being given up comes later and later, and is named in the end."""

from __future__ import annotations

import pytest

from cdc.errors import SourceError
from snapshots.catalog import SourceTable
from snapshots.turns import MOST_REFUSALS, Turns
from tests.unit.snapshots.rows import T

SOURCE = SourceTable(T, ("a", "b"), False, None, 10, 1000, 1)


def pause(turns: Turns, now: list[float]) -> float:
    began = now[0]
    while not turns.due(T.oid):
        now[0] += 0.005
    return now[0] - began


def test_it_comes_later_each_time_and_is_named_in_the_end() -> None:
    now = [100.0]
    turns, pauses = Turns(lambda: now[0]), []
    assert turns.due(T.oid)
    for _ in range(MOST_REFUSALS + 1):
        turns.take(SOURCE)
        pauses.append(pause(turns, now))
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.02
    assert 0.4 < pauses[-1] < 1.1
    with pytest.raises(SourceError, match=r"public\.t keeps changing its shape"):
        turns.take(SOURCE)


def test_something_durable_begins_the_count_again() -> None:
    now = [100.0]
    turns = Turns(lambda: now[0])
    for _ in range(3 * MOST_REFUSALS):
        turns.take(SOURCE)
        turns.went_on(T.oid)
    assert pause(turns, now) < 0.02


def test_a_table_can_be_held_back() -> None:
    now = [100.0]
    turns = Turns(lambda: now[0])
    turns.hold_back(T.oid, 0.5)
    assert pause(turns, now) == pytest.approx(0.5, abs=0.01)
