"""What an event store does with an event that its place can never take: every kind of store of events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.state.letterrequests import Verb
from sinks import make_sink
from sinks.deadletters import LetterState
from sinks.events import heldback
from sinks.events.redisstream import channel as stream
from sinks.events.webhook import channel as webhook
from tests.contract.eventlabs import LABS, STORE, EventLab, StreamLab
from tests.waiting import until

KINDS = [pytest.param(kind, marks=[getattr(pytest.mark, kind)] if kind == "kafka" else []) for kind in LABS]


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLab]:
    made = LABS[request.param](tmp_path, request.getfixturevalue)
    made.narrow(True)
    yield made
    made.close()


def letters(lab: EventLab, **more: object) -> list[tuple[int, LetterState]]:
    """As somebody reads them who only looks."""
    return [(int(one.position), one.state) for one in make_sink(STORE, lab.options(**more)).letters()]  # type: ignore[attr-defined]


def test_its_key_waits_in_order_behind_it_and_others_flow(lab: EventLab) -> None:
    lab.put(("a", False), ("a", True), ("b", False), ("a", False), ("c", True), ("b", False))
    lab.put(("a", False), ("c", False), ("b", False))
    with lab.following() as follower:
        assert follower.applied == lab.log.head
        lab.arrive(1, 3, 6, 9)
        lab.set_aside(follower, 2, 5)
        found = follower._opening.letters()
        assert all("xxx" not in one.reason for one in found)
        assert follower._opening.returns_to() == 2
    assert sorted(letters(lab)) == [(2, LetterState.ASIDE), (5, LetterState.ASIDE)]
    assert "xxx" not in found[0].reason
    lab.narrow(False)
    with lab.following() as follower:
        lab.arrive(1, 3, 6, 9)
        assert lab.decide(follower, Verb.REPLAY, 2).done
        lab.arrive(1, 3, 6, 9, 2, 4, 7)
        assert [one for one in lab.numbers() if one in (1, 2, 4, 7)] == [1, 2, 4, 7]
        lab.put(("a", False), ("c", False))
        follower.follow_to(lab.log.head)
        lab.arrive(1, 3, 6, 9, 2, 4, 7, 10)
        assert lab.decide(follower, Verb.REPLAY, 5).done
        lab.arrive(*range(1, 12))
        assert [one for one in lab.numbers() if one in (5, 8, 11)] == [5, 8, 11]
        lab.set_aside(follower)
    assert letters(lab) == []
    with lab.following():
        lab.arrive(*range(1, 12))


def test_one_that_is_still_too_long_stays_where_it_is(lab: EventLab) -> None:
    lab.put(("a", True), ("a", False), ("b", False))
    with lab.following() as follower:
        answer = lab.decide(follower, Verb.REPLAY, 1)
        assert (answer.done, answer.text) == (False, follower._opening.letters()[0].reason)
        lab.arrive(3)
        assert not lab.decide(follower, Verb.EDIT, 1).done


def test_what_is_given_up_lets_the_others_of_its_key_go_up_to_the_next_that_cannot(lab: EventLab) -> None:
    lab.put(("a", True), ("a", False), ("a", True), ("a", False), ("b", False))
    with lab.following() as follower:
        answer = lab.decide(follower, Verb.DROP, 1)
        assert (answer.done, answer.text) == (True, "given up; the events behind it go on")
        lab.arrive(2, 5)
        lab.set_aside(follower, 3)
    assert letters(lab) == [(3, LetterState.ASIDE)]
    with lab.following() as follower:
        assert lab.decide(follower, Verb.DROP, 3).done
        lab.arrive(2, 4, 5)
    assert letters(lab) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_held_back_comes_again_where_its_place_forgot_it(lab: EventLab, restarted: bool) -> None:
    lab.put(("a", True), ("a", False), ("b", False))
    with lab.following() as follower:
        lab.arrive(3)
        lab.set_aside(follower, 1)
        if not restarted:
            lab.lose()
            lab.put(("a", False), ("b", False))
            lab.follow(follower)
            assert own(lab) == []
            lab.set_aside(follower, 1)
    if restarted:
        lab.lose()
        lab.put(("a", False), ("b", False))
    lab.narrow(False)
    with lab.following() as follower:
        lab.decide(follower, Verb.REPLAY, 1)
        until(lambda: own(lab) == [1, 2, 4], "the events of its key")
    assert letters(lab) == []


def own(lab: EventLab) -> list[int]:
    """Those that have arrived of the key whose first event is a letter."""
    return [one for one in lab.numbers() if one in (1, 2, 4)]


def test_they_are_bounded(lab: EventLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (heldback, webhook):
        monkeypatch.setattr(module, "WAITING_MAX", 4)
    monkeypatch.setattr(webhook, "STEP", 1)
    lab.put(("a", True))
    lab.put(*[("a", False)] * 5, ("b", False))
    follower = lab.begin()

    def stop_when_full() -> None:
        try:
            until(lambda: f"cdc dlq ls {STORE}" in str(follower.status.error))
        finally:
            follower._stop.set()

    watcher = threading.Thread(target=stop_when_full)
    watcher.start()
    follower.follow_to(lab.log.head)
    watcher.join()
    assert follower.status.state == "waiting"
    assert f"cdc dlq ls {STORE}" in str(follower.status.error)
    assert lab.numbers() == []
    lab.end(follower)
    with lab.following(first=False) as again:
        assert lab.decide(again, Verb.DROP, 1).done
        again.follow_to(lab.log.head)
        lab.arrive(*range(2, 8))
        assert [one for one in lab.numbers() if one != 7] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("long", [0, 3])
def test_without_an_order_nothing_waits(lab: EventLab, long: int) -> None:
    lab.put(*[("a", at == long) for at in range(5)])
    with lab.following(order="none"):
        lab.arrive(*[at for at in range(1, 6) if at != long + 1])


def test_a_place_that_takes_longer_ones_by_now_is_asked_again(lab: EventLab) -> None:
    lab.put(("a", True), ("a", False))
    with lab.following() as follower:
        lab.narrow(False)
        assert lab.decide(follower, Verb.REPLAY, 1).done
        lab.arrive(1, 2)
    assert lab.numbers() == [1, 2]


@pytest.mark.parametrize("call", range(1, 5))
def test_a_replay_that_breaks_off_between_two_calls_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    lab = StreamLab(tmp_path, request.getfixturevalue)
    lab.narrow(True)
    calls = 0

    def broken(point: str) -> None:
        nonlocal calls
        calls += point == "redisstream.sent"
        if calls == call and point == "redisstream.sent":
            raise ConnectionError

    try:
        lab.put(("a", True), *[("a", False)] * 5)
        with lab.following() as follower:
            lab.narrow(False)
            monkeypatch.setattr(stream, "CALL_EVENTS", 2)
            monkeypatch.setattr(stream, "crashpoint", broken)
            lab.decide(follower, Verb.REPLAY, 1)
            lab.arrive(*range(1, 7))
        assert calls >= 4
        assert lab.numbers() == [1, 2, 3, 4, 5, 6]
        assert letters(lab) == []
    finally:
        lab.close()
