"""Logical messages that are events: where a block ends, whatever else is emitted, and what damage does."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cdc.capture import decoder as decoding
from cdc.capture.authenticity import Expected
from cdc.capture.eventmessages import EventMessages
from cdc.errors import ProtocolError
from cdc.outbox import message
from tests.fuzz.damage import flips, outcome
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import ORDERS, Run
from tests.unit.capture.test_spool import Connections, connections

__all__ = ["connections"]

PREFIX = "outbox"


def sample() -> bytes:
    """Three transactions, messages among their rows, and others' messages in and between them."""
    return b"".join(
        (
            wire.begin(700, 100), wire.message(PREFIX, b"one"), wire.relation(ORDERS), wire.insert(ORDERS.oid, ["1", "new"]),
            wire.message("other", b"x"), wire.message(PREFIX, b""), wire.message(f"{PREFIX}2", b"x"), wire.commit(100, 140),
            wire.message(PREFIX, b"loose", transactional=False), wire.message("other", b"x", transactional=False), wire.keepalive(150),
            wire.begin(701, 200), wire.message(PREFIX, b"three\\0"), wire.commit(200, 240),
            wire.begin(702, 300), wire.insert(ORDERS.oid, ["2", "new"]), wire.message(PREFIX, b"four"), wire.commit(300, 340),
        )
    )  # fmt: skip


def run_of(refused: Counter[str], passed_lsn: int = 0) -> Run:
    def refuse(why: str) -> None:
        refused[why] += 1

    return Run(expected=Expected(events=EventMessages(PREFIX, passed_lsn, refuse)))


def found(run: Run) -> list[tuple[int, bytes]]:
    """(commit LSN, body)"""
    events = [group.messages for group in run.groups if group.messages is not None]
    return [pair for one in events for pair in zip(one.commit_lsn.tolist(), one.bodies.to_pylist(), strict=True)]


EVENTS = [(100, b"one"), (100, b""), (200, b"three\\0"), (300, b"four")]


def test_wherever_blocks_end_each_message_is_taken_once(seed: int) -> None:
    chance = random.Random(seed)
    whole = sample()
    for _ in range(60):
        refused: Counter[str] = Counter()
        run = run_of(refused)
        cuts = sorted(chance.sample(range(1, len(whole)), chance.randrange(6)))
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            run.feed(whole[begin:end])
        assert found(run) == EVENTS
        assert refused == {message.NOT_TRANSACTIONAL: 1}
        assert [row[3] for row in run.rows] == [(1, "new"), (2, "new")]


def test_a_large_transaction_gives_them_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "OPEN_BYTES", 1)
    run = run_of(Counter())
    for at in range(0, len(sample()), 7):
        run.feed(sample()[at : at + 7])
    assert found(run) == EVENTS


def test_of_what_the_log_has_come_past_no_event_is_made() -> None:
    run = run_of(Counter(), passed_lsn=240)
    run.feed(sample())
    assert found(run) == EVENTS[3:]


def test_without_a_prefix_none_is_an_event() -> None:
    run = Run()
    run.feed(sample())
    assert found(run) == []


def test_those_of_a_subtransaction_that_was_taken_back_are_none(connections: Connections) -> None:
    run = connections.run(expected=Expected(events=EventMessages(PREFIX)))
    run.feed(wire.stream(700, wire.message(PREFIX, b"one"), wire.by(701, wire.message(PREFIX, b"lost"))))
    run.feed(wire.stream_abort(700, 701))
    run.feed(wire.stream(700, wire.message(PREFIX, b"two"), first=False) + wire.stream_commit(700, 100, 140))
    run.feed(wire.begin_prepare(702, 200, 210, "g") + wire.message(PREFIX, b"three") + wire.prepare(702, 200, 210, "g"))
    run.feed(wire.commit_prepared(702, 300, 340, "g"))
    assert found(run) == [(100, b"one"), (100, b"two"), (300, b"three")]


@pytest.mark.parametrize("prefix", [PREFIX, "other"])
def test_a_large_one_is_put_together_if_it_may_be_an_event(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PASSED_BYTES", 1000)
    monkeypatch.setattr("cdc.capture.eventmessages.MOST_BYTES", 5000)
    for size in (2000, 5001):
        refused: Counter[str] = Counter()
        run = run_of(refused)
        run.feed(wire.begin(700, 100) + wire.message(prefix, b"x" * size)[:200])
        awaited = prefix == PREFIX and size <= 5000
        assert (run.decoder.foreign > 0, sum(refused.values())) == (not awaited, int(prefix == PREFIX and size > 5000))


def test_every_bit() -> None:
    for case in flips(sample()):
        result = outcome("event messages", lambda case=case: run_of(Counter()).feed(case))  # type: ignore[misc]
        assert result is None or isinstance(result, ProtocolError)
