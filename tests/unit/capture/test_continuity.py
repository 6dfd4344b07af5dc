"""The log's last commit has to come again, and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cdc.capture.continuity import Continuity
from cdc.errors import Stopped, StopState
from cdc.model.group import Group, Transactions
from cdc.model.position import Cut, Lsn, Position
from tests.unit.log.changes import ORDERS, changes

LAST = Cut(Position(7), Lsn(1000), 5)
IDLE = Cut(Position(7), Lsn(1200), 5)


def group(*transactions: tuple[int, int], rows: Sequence[int] = ()) -> Group:
    """transactions: (end LSN, time). rows: how many each of them has; as the decoder gives them, from position 8 on."""
    each = np.array(rows or [0] * len(transactions), np.int64)
    batches = (changes(ORDERS, range(8, 8 + int(each.sum()))),) if each.sum() else ()
    found = Transactions(
        np.arange(len(transactions), dtype=np.uint32),
        np.array([end for end, _ in transactions], np.int64),
        np.array([ts for _, ts in transactions], np.int64),
        7 + np.cumsum(each),
    )
    return Group(batches, found)


def diverges(check: Continuity, *groups: Group) -> str:
    *before, wrong = groups
    for one in before:
        check.on_group(one)
    with pytest.raises(Stopped) as caught:
        check.on_group(wrong)
    assert caught.value.state is StopState.DIVERGED
    return str(caught.value)


def test_the_last_commit_comes_again() -> None:
    check = Continuity(LAST, LAST, 900)
    assert not check.done
    check.on_group(group((950, 4)))
    assert not check.done
    check.on_group(group((1000, 5)))
    assert check.done


def test_amid_others_in_one_group() -> None:
    check = Continuity(LAST, LAST, 900)
    check.on_group(group((950, 4), (1000, 5), (1100, 6), rows=(0, 0, 2)))
    assert check.done


def test_nothing_to_see_when_the_server_begins_at_the_end() -> None:
    assert Continuity(LAST, LAST, 1000).done
    assert Continuity(LAST, IDLE, 1200).done


def test_another_commit_at_its_place() -> None:
    assert "another commit" in diverges(Continuity(LAST, LAST, 900), group((1000, 6)))


def test_a_commit_behind_a_place_where_it_is_not() -> None:
    assert "it is not there" in diverges(Continuity(LAST, LAST, 900), group((950, 4)), group((1010, 5)))


def test_the_server_passes_the_place_in_silence() -> None:
    check = Continuity(LAST, LAST, 900)
    check.on_progress(1000)
    with pytest.raises(Stopped, match="it is not there"):
        check.on_progress(1001)


def test_between_the_last_commit_and_the_head_nothing_of_ours_may_come() -> None:
    assert "never got" in diverges(Continuity(LAST, IDLE, 900), group((1000, 5)), group((1150, 6), rows=[1]))
    assert "never got" in diverges(Continuity(LAST, IDLE, 1100), group((1150, 6), rows=[1]))


def test_others_transactions_there_are_nothing_of_ours() -> None:
    check = Continuity(LAST, IDLE, 900)
    check.on_group(group((1000, 5), (1150, 6)))
    assert not check.done
    check.on_progress(1200)
    assert check.done


def test_changes_behind_the_head_are_new() -> None:
    check = Continuity(LAST, IDLE, 1100)
    check.on_group(group((1150, 6), (1201, 7), rows=(0, 3)))
    assert check.done
