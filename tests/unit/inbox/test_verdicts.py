"""Every decision on a group, as one table over where its producer stands and what the group says."""

from __future__ import annotations

from itertools import product

import pytest

from cdc.inbox.verdicts import GroupStep, InboxMark, InboxVerdict, after, judge

MARK = InboxMark(epoch=5, to="b", digest="B", token="ours")

TABLE = {
    # epoch: older, the same, newer × (from, to, digest)
    ("a", "b", "B"): (InboxVerdict.REPEAT, InboxVerdict.REPEAT, InboxVerdict.UNOPENED),
    ("x", "b", "B"): (InboxVerdict.REPEAT, InboxVerdict.REPEAT, InboxVerdict.UNOPENED),
    ("a", "b", "C"): (InboxVerdict.FENCED, InboxVerdict.CONFLICT, InboxVerdict.UNOPENED),
    ("b", "c", "C"): (InboxVerdict.FENCED, InboxVerdict.TAKE, InboxVerdict.UNOPENED),
    ("a", "c", "C"): (InboxVerdict.FENCED, InboxVerdict.GAP, InboxVerdict.UNOPENED),
    ("c", "d", "B"): (InboxVerdict.FENCED, InboxVerdict.GAP, InboxVerdict.UNOPENED),
    ("", "c", "C"): (InboxVerdict.FENCED, InboxVerdict.GAP, InboxVerdict.UNOPENED),
}


@pytest.mark.parametrize(("facts", "age"), list(product(TABLE, range(3))))
def test_the_decision_on_a_group(facts: tuple[str, str, str], age: int) -> None:
    begin, to, digest = facts
    assert judge(MARK, GroupStep(MARK.epoch - 1 + age, begin, to, digest)) is TABLE[facts][age]


@pytest.mark.parametrize(
    ("epoch", "token", "verdict"),
    [
        (4, "ours", InboxVerdict.FENCED),
        (5, "ours", InboxVerdict.REPEAT),
        (5, "theirs", InboxVerdict.FENCED),
        (6, "theirs", InboxVerdict.OPEN),
        (6, "ours", InboxVerdict.OPEN),
    ],
)
def test_the_decision_on_an_opening(epoch: int, token: str, verdict: InboxVerdict) -> None:
    assert judge(MARK, GroupStep(epoch, token=token)) is verdict


def test_a_producer_that_was_never_opened_cannot_hand_over() -> None:
    assert judge(InboxMark(), GroupStep(1, "", "a", "A")) is InboxVerdict.UNOPENED
    for begin in ("", "x"):
        assert judge(InboxMark(), GroupStep(0, begin, "a", "A")) is InboxVerdict.UNOPENED
    assert judge(InboxMark(), GroupStep(0, token="t")) is InboxVerdict.FENCED
    assert judge(InboxMark(), GroupStep(1, token="t")) is InboxVerdict.OPEN


def test_whatever_is_taken_is_a_repeat_from_then_on_and_nothing_else_becomes_one() -> None:
    for begin, to, digest, epoch in product("abc", "abc", "AB", (4, 5, 6)):
        step = GroupStep(epoch, begin, to, digest)
        if judge(MARK, step) is InboxVerdict.TAKE:
            assert judge(after(MARK, step), step) is InboxVerdict.REPEAT
            assert after(MARK, step).epoch == MARK.epoch
    opening = GroupStep(9, token="t")
    opened = after(MARK, opening)
    assert (opened.to, opened.digest) == (MARK.to, MARK.digest)
    assert judge(opened, opening) is InboxVerdict.REPEAT
    assert judge(opened, GroupStep(5, "b", "c", "C")) is InboxVerdict.FENCED


def test_a_mark_is_what_was_written_or_nothing_of_ours() -> None:
    assert InboxMark.decode(MARK.encode()) == MARK
    assert InboxMark.decode(None) == InboxMark()
    for raw in (
        b"",
        b"[]",
        b"{}x",
        b'{"epoch":true,"to":"","digest":"","token":""}',
        b'{"epoch":1,"to":2}',
        b'{"other":1}',
        b"\xff",
    ):
        with pytest.raises(ValueError):
            InboxMark.decode(raw)
    widest = InboxMark(10**10 - 1, "é" * 256, "f" * 64, "0" * 32)
    assert len(widest.encode()) <= 4096
