"""The order and the retries of a webhook's events, on a clock of the test's own."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from sinks.events.webhook.deliveries import DOWN_AFTER, Deliveries, EventRequest, Outgoing, RequestRules
from sinks.events.webhook.retries import Retry
from sinks.events.webhook.verdict import TAKEN, RequestFate, RequestVerdict, silent, verdict_of

SEED = int(os.environ.get("HEADWATER_SEED") or random.randrange(2**32))
REFUSED = RequestVerdict(RequestFate.REFUSED, "the receiver answers 400")
BUSY = RequestVerdict(RequestFate.AGAIN, "the receiver answers 500")


def event(position: int, key: str, target: str = "/") -> Outgoing:
    return Outgoing("outbox.order", position, f"e{position}", key, target, b"{}")


def deliveries(*, batch: int = 1, **retry: float) -> Deliveries:
    return Deliveries(RequestRules(Retry.model_validate(retry), batch), random.Random(7))


def positions(request: EventRequest | None) -> list[int]:
    return [] if request is None else [one.position for one in request.events]


def test_the_next_event_of_a_key_goes_only_once_the_one_before_was_taken() -> None:
    found = deliveries()
    found.add([event(1, "a"), event(2, "a"), event(3, "b")])
    first, other = found.next(0.0), found.next(0.0)
    assert (positions(first), positions(other), found.next(0.0)) == ([1], [3], None)
    assert first is not None
    found.answered(first, TAKEN, 0.0)
    assert positions(found.next(0.0)) == [2]


def test_a_request_that_was_not_taken_rests_longer_and_longer_while_other_keys_go() -> None:
    found = deliveries(first_s=1, most_s=8)
    found.add([event(1, "a"), event(2, "a"), event(3, "b")])
    now, pauses = 0.0, []
    for _ in range(6):
        request = found.next(now)
        assert positions(request) == [1]
        assert request is not None
        found.answered(request, BUSY, now)
        other = found.next(now)
        if other is not None:
            assert positions(other) == [3]
            found.answered(other, TAKEN, now)
        due = found.next_at(now)
        assert due is not None
        pauses.append(due - now)
        assert found.next(due - 0.01) is None
        now = due
    assert all(low <= pause <= high for pause, low, high in zip(pauses, [0.75, 1.5, 3, 6, 6, 6], [1, 2, 4, 8, 8, 8], strict=True))


def test_an_event_that_was_not_taken_for_too_long_is_a_letter_and_its_key_waits_behind_it() -> None:
    found = deliveries(first_s=1, most_s=600, for_hours=1)
    found.add([event(1, "a"), event(2, "a")])
    now, attempts = 0.0, 0
    while not found.letters:
        request = found.next(now)
        assert request is not None
        attempts += 1
        found.answered(request, BUSY, now)
        now = found.next_at(now) or now
    assert now == 3600.0  # the last attempt is made when the time is over, not a pause later
    assert found.letters == {("outbox.order", 1): f"the receiver answers 500, after 1 hours and {attempts} attempts"}
    assert found.next(now + 10**6) is None
    assert len(found) == 2


def test_a_refused_event_is_a_letter_at_once_and_goes_on_after_a_replay_or_a_drop() -> None:
    found = deliveries()
    found.add([event(1, "a"), event(2, "a"), event(3, "a")])
    request = found.next(0.0)
    assert request is not None
    found.answered(request, REFUSED, 0.0)
    assert found.letters == {("outbox.order", 1): REFUSED.reason}
    assert found.next(0.0) is None
    again = found.retried(("outbox.order", 1))
    assert again is not None
    found.answered_retried(again, RequestVerdict(RequestFate.REFUSED, "the receiver answers 422"), 0.0)
    assert found.letters == {("outbox.order", 1): "the receiver answers 422"}
    found.answered_retried(again, TAKEN, 0.0)
    request = found.next(0.0)
    assert positions(request) == [2]
    assert request is not None
    found.answered(request, REFUSED, 0.0)
    found.drop(("outbox.order", 2))
    assert positions(found.next(0.0)) == [3]


def test_retry_after_is_kept_for_the_event_and_for_the_receiver_as_a_whole() -> None:
    found = deliveries(first_s=1, most_s=60)
    found.add([event(1, "a"), event(2, "b")])
    request = found.next(0.0)
    assert request is not None
    found.answered(request, verdict_of(429, "40", 0.0), 0.0)
    assert found.next(39.9) is None
    assert found.next_at(0.0) == 40.0
    assert sorted(positions(found.next(40.0)) + positions(found.next(40.0))) == [1, 2]


def test_an_event_rests_longer_than_the_longest_pause_where_the_receiver_says_so_and_others_do_not() -> None:
    found = deliveries(first_s=1, most_s=60)
    found.add([event(1, "a"), event(2, "b")])
    request = found.next(0.0)
    assert request is not None
    found.answered(request, verdict_of(503, "4000", 0.0), 0.0)
    assert positions(found.next(60.0)) == [2]
    assert found.next(3999.0) is None
    assert positions(found.next(4000.0)) == [1]


def test_a_silent_receiver_is_asked_by_one_request_at_a_time_and_once_it_is_back_everything_goes() -> None:
    found = deliveries(first_s=100, most_s=300)
    found.add(event(one, f"k{one}") for one in range(1, 11))
    flying = [found.next(0.0) for _ in range(DOWN_AFTER)]
    for one in flying:
        assert one is not None
        found.answered(one, silent("refused"), 0.0)
    assert found.health.down
    assert found.idle(0.0)
    now = found.next_at(0.0) or 0.0
    assert 0 < now <= 0.2
    probe = found.next(now)
    assert probe is not None
    assert positions(probe) == [DOWN_AFTER + 1]  # one that has not been tried: the others may be the reason
    assert found.next(now) is None
    found.answered(probe, BUSY, now)
    assert not found.health.down
    taken = []
    while (request := found.next(now)) is not None:
        taken += positions(request)
        found.answered(request, TAKEN, now)
    assert sorted(taken) == [one for one in range(1, 11) if one != DOWN_AFTER + 1]


def test_a_receiver_that_is_gone_is_sent_nothing_more() -> None:
    found = deliveries()
    found.add([event(1, "a"), event(2, "b")])
    request = found.next(0.0)
    assert request is not None
    found.answered(request, verdict_of(410, None, 0.0), 0.0)
    assert found.health.gone == "the receiver answers 410"
    assert (found.next(10**6), found.next_at(0.0), found.letters, len(found)) == (None, None, {}, 2)


def test_a_batch_that_fails_is_sent_again_as_it_was_and_one_that_is_refused_event_by_event() -> None:
    found = deliveries(batch=3, first_s=1)
    found.add([event(1, "a"), event(3, "b"), event(2, "a")])
    request = found.next(0.0)
    assert request is not None
    assert positions(request) == [1, 2, 3]
    identity = request.id
    found.answered(request, silent("timeout"), 0.0)
    found.add([event(4, "a"), event(5, "b")])
    again = found.next(1.0)
    assert again is not None
    assert (positions(again), again.id) == ([1, 2, 3], identity)
    found.answered(again, REFUSED, 1.0)
    one, other = found.next(1.0), found.next(1.0)
    assert one is not None
    assert other is not None
    assert (positions(one), positions(other), one.id) == ([1], [3], "e1")
    found.answered(other, REFUSED, 1.0)
    found.answered(one, TAKEN, 1.0)
    assert found.letters == {("outbox.order", 3): REFUSED.reason}
    second = found.next(1.0)
    assert second is not None
    assert positions(second) == [2]
    found.answered(second, TAKEN, 1.0)
    assert positions(found.next(1.0)) == [4]


def test_events_with_other_urls_go_in_other_requests() -> None:
    found = deliveries(batch=10)
    found.add([event(1, "a", "/x"), event(2, "b", "/y"), event(3, "c", "/x"), event(4, "a", "/y"), event(5, "b", "/y")])
    assert [positions(found.next(0.0)) for _ in range(3)] == [[1, 3], [2, 5], []]


def test_an_event_without_a_url_is_a_letter() -> None:
    found = deliveries()
    found.add([Outgoing("t", 1, "e1", "a", "", b"", "the event has no key, which its URL names"), event(2, "b")])
    assert positions(found.next(0.0)) == [2]
    assert found.letters == {("t", 1): "the event has no key, which its URL names"}


@pytest.mark.parametrize("round_", range(40))
def test_whatever_happens_each_key_is_in_order_and_nothing_is_lost(round_: int) -> None:
    seed = SEED + round_
    print(f"HEADWATER_SEED={seed}")
    chance = random.Random(seed)
    batch = chance.choice([1, 1, 3, 8])
    retry = Retry(first_s=1, most_s=30, for_hours=0.05)
    rules = RequestRules(retry, batch)
    found, now, position = Deliveries(rules, chance), 0.0, 0
    put: dict[str, list[int]] = defaultdict(list)
    seen: dict[str, list[int]] = defaultdict(list)
    given_up: set[int] = set()
    flying: list[EventRequest] = []

    def answer(request: EventRequest) -> None:
        verdict = chance.choices(
            [TAKEN, BUSY, REFUSED, silent("timeout"), RequestVerdict(RequestFate.AGAIN, "503", 5.0)],
            [8, 2, 0.2, 2, 0.3] if not calm else [1, 0, 0, 0, 0],
        )[0]
        if verdict.fate is RequestFate.TAKEN or (verdict.fate is RequestFate.SILENT and chance.random() < 0.5):
            for one in request.events:
                seen[one.queue].append(one.position)
        found.answered(request, verdict, now)

    calm = False
    for step in range(900):
        calm = step >= 600
        if step < 500:
            fresh = []
            for _ in range(chance.randrange(4)):
                position += 1
                fresh.append(event(position, chance.choice("abcdef"), chance.choice("xy") if batch > 1 else "/"))
                put[fresh[-1].queue].append(position)
            found.add(fresh)
        while len(flying) < 4 and (request := found.next(now)) is not None:
            flying.append(request)
            heads = {one.queue for other in flying[:-1] for one in other.events}
            assert not heads & {one.queue for one in request.events}, "two requests of one key at once"
        if flying and chance.random() < 0.8:
            answer(flying.pop(chance.randrange(len(flying))))
        elif chance.random() < 0.6:
            now = max(now, found.next_at(now) or now) + chance.random()
        if found.letters and chance.random() < (0.05 if not calm else 0.5):
            at = chance.choice(list(found.letters))
            if chance.random() < 0.5:
                found.drop(at)
                given_up.add(at[1])
            elif (again := found.retried(at)) is not None:
                seen[again.events[0].queue].append(at[1])
                found.answered_retried(again, TAKEN, now)
        if not flying and chance.random() < 0.01:
            found = restored(found, rules, chance)
    while len(found):
        for at in list(found.letters):
            again = found.retried(at)
            assert again is not None
            seen[again.events[0].queue].append(at[1])
            found.answered_retried(again, TAKEN, now)
        while (request := found.next(now)) is not None or flying:
            answer(request if request is not None else flying.pop())
        now = max(now + 0.001, found.next_at(now) or now)
    for key, meant in put.items():
        first = list(dict.fromkeys(seen[key]))
        assert set(meant) - given_up <= set(first), "lost"
        assert first == sorted(first), "out of order"
        # What comes again is what came last: never an older event behind a newer one, but within one batch that is repeated.
        if batch == 1:
            assert seen[key] == sorted(seen[key])


def test_requests_of_another_order_are_not_restored_and_no_event_is_taken_for_another() -> None:
    found = deliveries()
    found.add([event(1, "c"), event(2, "c"), event(3, "c"), event(4, "d")])
    second = EventRequest((event(2, "c"),), 1, 0.0, 0.0)  # by another key it was the first of its queue
    both = EventRequest((event(1, "c"), event(4, "d")), 1, 0.0, 0.0)
    found.restore([second, both], [])
    sent = []
    while (request := found.next(0.0)) is not None:
        sent.append(positions(request))
        found.answered(request, TAKEN, 0.0)
    assert sent == [[1, 4], [2], [3]]
    assert len(found) == 0


def restored(before: Deliveries, rules: RequestRules, chance: random.Random) -> Deliveries:
    """As another process finds it."""
    found = Deliveries(rules, chance)
    found.add(sorted(before.events, key=lambda one: one.position))
    found.restore([EventRequest(one.events, one.failed, one.since, one.due) for one in before.failing], before.letters.items())
    assert (len(found), found.letters) == (len(before), before.letters)
    return found
