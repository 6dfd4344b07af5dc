"""Events at a real receiver: what arrives there, in which order, and what becomes of what it does not take."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.follow.follower import Follower
from cdc.model.batch import Op
from cdc.state import letterrequests, stops
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks.events.webhook import Options, channel, make
from sinks.events.webhook.kept import KEPT
from tests.contract.rows import ORDERS, batch, order
from tests.integration.test_event_streams import PLACED, placed
from tests.logs import LooseLog
from tests.receivers import Answer, Received, ScriptedReceiver

SECRETS = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a plain one")
QUICK = {"first_s": 0.02, "most_s": 0.05}


class Stage:
    """One store, a log that is written by hand, a receiver, and whoever follows."""

    def __init__(self, folder: Path, receiver: ScriptedReceiver) -> None:
        self.folder, self.receiver = folder, receiver
        self.log = LooseLog()
        self.position = 0
        self._open: list[Follower] = []

    def options(self, **more: Any) -> Options:
        given = {
            "kind": "webhook",
            "url": self.receiver.url,
            "state_dir": self.folder / "deliveries",
            "begin": "start",
            "retry": QUICK,
        }
        return Options.model_validate({**given, **more})

    def put(self, *batches: pa.RecordBatch) -> None:
        for one in batches:
            self.log.put(one)

    def place(self, *keys: str) -> list[str]:
        """One event for each of these keys; gives their ids."""
        rows = []
        for key in keys:
            self.position += 1
            rows.append((Op.INSERT, self.position, {**placed(self.position, json.dumps({"n": self.position})), "key": key}))
        self.log.put(batch(PLACED, rows))
        return [row["id"] or "" for _, _, row in rows]

    def begin(self, **more: Any) -> Follower:
        follower = Follower("billing", self.options(**more), self.folder, self.log.reader(), self.folder, threading.Event())
        self._open.append(follower)
        assert follower.start()
        return follower

    def follow(self, **more: Any) -> Follower:
        """To the log's head, as a process that ends then."""
        follower = self.begin(**more)
        follower.follow_to(self.log.head)
        self.end(follower)
        return follower

    def end(self, follower: Follower) -> None:
        self._open.remove(follower)
        follower.close()
        follower.release_lease()

    def decide(self, follower: Follower, verb: Verb, *letters: str) -> list[LetterAnswer]:
        name = letterrequests.ask(self.folder, "billing", LetterRequest(verb, letters, "somebody"))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            follower.follow_to(self.log.head)
            follower.idle()
            if (found := letterrequests.taken_answer(self.folder, "billing", name)) is not None:
                return list(found)
            time.sleep(0.05)
        raise TimeoutError("nobody has decided")

    def close(self) -> None:
        for one in list(self._open):
            self.end(one)


@pytest.fixture
def receiver() -> Iterator[ScriptedReceiver]:
    with ScriptedReceiver() as made:
        yield made


@pytest.fixture
def stage(tmp_path: Path, receiver: ScriptedReceiver) -> Iterator[Stage]:
    made = Stage(tmp_path, receiver)
    yield made
    made.close()


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


def body_key(one: Received) -> int:
    return int(json.loads(one.body)["n"])


def test_an_event_arrives_as_it_was_written_and_signed_by_each_secret(stage: Stage) -> None:
    odd = '{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}'
    stage.put(batch(PLACED, [(Op.INSERT, 1, placed(1, odd))]))
    headers = {"Authorization": "Bearer t0ken"}
    assert (
        stage.follow(secret=list(SECRETS), headers=headers, url=f"{stage.receiver.url}/{{type}}?key={{key}}").applied
        == stage.log.head
    )
    [one] = stage.receiver.received
    assert (one.path, one.body, one.id) == ("/hooks/order.placed?key=7", odd.encode(), placed(1, None)["id"])
    assert (one.headers["authorization"], one.headers["content-type"]) == ("Bearer t0ken", "application/json")
    keys = (base64.b64decode(SECRETS[0].removeprefix("whsec_")), SECRETS[1].encode())
    text = f"{one.id}.{one.headers['webhook-timestamp']}.".encode() + one.body
    assert one.headers["webhook-signature"].split() == [
        "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode() for key in keys
    ]
    assert abs(int(one.headers["webhook-timestamp"]) - one.at_s) < 2


def test_an_events_headers_go_along_and_take_no_others_place(stage: Stage) -> None:
    written = {
        "tenant": "north",
        "traceparent": "00-4bf9-00f0-01",
        "Authorization": "Bearer forged",
        "webhook-id": "forged",
        "x": "a\r\nb: c",
    }
    stage.put(batch(PLACED, [(Op.INSERT, 1, placed(1, "{}", json.dumps(written)))]))
    stage.follow(secret="s3cret", headers={"Authorization": "Bearer t0ken", "event-tenant": "ours"})
    [one] = stage.receiver.received
    assert (one.id, one.headers["authorization"]) == (placed(1, None)["id"], "Bearer t0ken")
    found = {name: one.headers[name] for name in one.headers if name.startswith("event-") or name == "traceparent"}
    assert found == {
        "event-tenant": "ours",
        "traceparent": "00-4bf9-00f0-01",
        "event-authorization": "Bearer%20forged",
        "event-webhook-id": "forged",
        "event-x": "a%0D%0Ab:%20c",
    }
    assert "b" not in one.headers


def test_changes_of_a_table_go_in_the_order_of_each_row(stage: Stage) -> None:
    stage.put(
        batch(
            ORDERS,
            [(Op.INSERT, 1, order(7)), (Op.INSERT, 2, order(8)), (Op.UPDATE, 3, order(7, "paid")), (Op.DELETE, 4, {"id": "7"})],
        )
    )
    stage.follow()
    found = [json.loads(one.body) for one in stage.receiver.received]
    assert [one["op"] for one in found if (one["after"] or one["before"])["id"] == 7] == ["insert", "update", "delete"]
    assert {one.id for one in stage.receiver.received} == {f"public%2Eorders:{at}" for at in range(1, 5)}


def test_nothing_comes_twice_when_the_follower_ends_and_begins_again(stage: Stage) -> None:
    first = stage.place("a", "b")
    stage.follow()
    second = stage.place("a", "c")
    stage.follow()
    assert sorted(stage.receiver.ids()) == sorted(first + second)
    assert stage.receiver.connections <= 4


def test_an_attempt_is_repeated_with_the_same_id_and_body_and_a_signature_of_its_own_moment(stage: Stage) -> None:
    statuses = iter([500, 429, 408, 425, 503, 204])
    stage.receiver.script = lambda _: Answer(next(statuses))
    stage.place("a")
    follower = stage.begin(secret=SECRETS[0])
    follower.follow_to(stage.log.head)
    until(lambda: len(stage.receiver.received) == 6, "six attempts")
    assert len({(one.id, one.body) for one in stage.receiver.received}) == 1
    for one in stage.receiver.received:
        text = f"{one.id}.{one.headers['webhook-timestamp']}.".encode() + one.body
        key = base64.b64decode(SECRETS[0].removeprefix("whsec_"))
        assert one.headers["webhook-signature"] == "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


def test_a_key_that_always_fails_holds_up_no_other_and_comes_in_order_after_a_replay(stage: Stage) -> None:
    ill = True
    stage.receiver.script = lambda one: Answer(500 if ill and json.loads(one.body)["n"] % 100 == 1 else 204)
    keys = [f"k{one}" for one in range(100)]
    ids = [stage.place(*keys) for _ in range(3)]
    follower = stage.begin(retry={**QUICK, "for_hours": 0.1 / 3600})
    follower.follow_to(stage.log.head)
    assert follower.applied == stage.log.head
    until(lambda: bool(follower._opening.sink._channel._begun.deliveries.letters), "a letter")
    others = {one for round_ in ids for one in round_[1:]}
    until(lambda: others <= set(stage.receiver.ids()), "the events of all other keys")
    assert not set(stage.receiver.ids()) & {ids[1][0], ids[2][0]}
    ill = False
    [answer] = stage.decide(follower, Verb.REPLAY, "outbox.order@1")
    assert answer.done, answer.text
    until(lambda: ids[2][0] in stage.receiver.ids(), "the last event of that key")
    of_key = [one for one in stage.receiver.ids() if one in {ids[0][0], ids[1][0], ids[2][0]}]
    assert list(dict.fromkeys(of_key)) == [ids[0][0], ids[1][0], ids[2][0]]
    assert follower._opening.letters() == ()


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 413, 422])
def test_what_is_refused_is_a_letter_at_once_and_is_sent_once(stage: Stage, status: int) -> None:
    stage.receiver.script = lambda one: Answer(
        status if body_key(one) == 1 else 204, {"location": "/elsewhere"}, b"the body says s3cret"
    )
    stage.place("a", "a", "b")
    follower = stage.begin()
    follower.follow_to(stage.log.head)
    [letter] = follower._opening.letters()
    assert letter.id == "outbox.order@1"
    assert letter.reason.startswith(f"the receiver answers {status}")
    assert "s3cret" not in letter.reason
    assert sorted(body_key(one) for one in stage.receiver.received) == [1, 3]
    assert follower.status.aside[0].letters == 1
    assert {one.path for one in stage.receiver.received} == {"/hooks"}
    [answer] = stage.decide(follower, Verb.EDIT, letter.id)
    assert (answer.done, answer.text) == (False, "an event goes as it was written: replay it, or drop it")
    [answer] = stage.decide(follower, Verb.REPLAY, letter.id)
    assert (answer.done, answer.text) == (False, letter.reason)
    [answer] = stage.decide(follower, Verb.DROP, letter.id)
    assert (answer.done, answer.text) == (True, "given up; the events behind it go on")
    until(lambda: len(stage.receiver.received) == 4, "the event behind it")
    assert follower._opening.letters() == ()


def test_410_stops_the_store_by_name_and_once_it_is_resumed_everything_comes(stage: Stage) -> None:
    stage.receiver.script = lambda _: Answer(410)
    ids = stage.place("a", "b")
    follower = stage.begin(in_flight=1)
    follower.follow_to(stage.log.head)
    until(lambda: bool(follower.idle() or follower.stopped), "the stop")
    assert follower.status.stop == "RECEIVER_GONE"
    assert "127.0.0.1" in (follower.status.error or "")
    assert len(stage.receiver.received) == 1
    stage.end(follower)
    stops.clear_part(stage.folder, "follow-billing")
    stage.receiver.script = lambda _: Answer()
    stage.begin()
    until(lambda: set(stage.receiver.ids()) == set(ids), "both events")


def test_a_receiver_that_is_down_makes_the_store_wait_and_nothing_is_lost(stage: Stage) -> None:
    ids = stage.place("a", "b", "a")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    follower = stage.begin(url=f"http://127.0.0.1:{port}/")
    follower.follow_to(stage.log.head)
    until(lambda: bool(follower.idle() or follower.status.state == "waiting"), "waiting")
    assert f"no answer from 127.0.0.1:{port}" in (follower.status.error or "")
    with ScriptedReceiver(port=port) as back:
        until(lambda: bool(follower.idle() or len(back.ids()) == 3), "all events")
        until(lambda: bool(follower.idle() or follower.status.state == "following"), "following")
        assert [one for one in back.ids() if one in (ids[0], ids[2])] == [ids[0], ids[2]]
        stage.end(follower)


def test_what_was_waiting_comes_after_a_restart_in_its_order(stage: Stage) -> None:
    ill = True
    stage.receiver.script = lambda _: Answer(503 if ill else 204)
    ids = stage.place("a", "a", "b", "a")
    assert stage.follow().status.returns_to == 1, "the log keeps what has not arrived"
    kept = KEPT.load(stage.folder / "deliveries" / "billing.json")
    assert kept is not None
    assert [(one.topic, one.position) for one in kept.waiting] == [("outbox.order", at) for at in range(1, 5)]
    assert kept.standing.cut.position == 4
    assert b'"n"' not in (stage.folder / "deliveries" / "billing.json").read_bytes()
    ill = False
    before = len(stage.receiver.received)
    follower = stage.begin()
    until(lambda: {one.id for one in stage.receiver.received[before:]} == set(ids), "all four")
    of_a = [one.id for one in stage.receiver.received[before:] if one.id != ids[2]]
    assert of_a == [ids[0], ids[1], ids[3]]
    until(lambda: bool(follower.idle() or follower.status.returns_to is None), "nothing left")
    stage.end(follower)
    kept = KEPT.load(stage.folder / "deliveries" / "billing.json")
    assert kept is not None
    assert (kept.waiting, kept.requests) == ((), ())


def test_what_was_waiting_comes_although_the_file_was_lost(stage: Stage) -> None:
    stage.place("a", "b")
    stage.follow(begin="now")
    ill = True
    stage.receiver.script = lambda _: Answer(503 if ill else 204)
    waiting = stage.place("a", "a", "b")
    assert stage.follow().status.returns_to == 3
    (stage.folder / "deliveries" / "billing.json").unlink()
    ill = False
    before = len(stage.receiver.received)
    waiting += stage.place("c")
    stage.follow(begin="now")
    assert {one.id for one in stage.receiver.received[before:]} == set(waiting)


def test_a_folder_that_cannot_be_read_makes_the_store_wait(stage: Stage) -> None:
    stage.place("a")
    (stage.folder / "deliveries").write_text("a file where a folder should be")
    sink = make("billing", stage.options())
    with pytest.raises(StoreError, match="store billing: ") as refused:
        sink.open(stage.log.reader(), 1)
    assert refused.value.retryable
    sink.close()


def test_several_events_go_as_one_array_with_one_signature(stage: Stage) -> None:
    stage.place(*"abcabc")
    stage.follow(batch=10, secret="s3cret")
    [one] = stage.receiver.received
    assert [json.loads(one.body)[at]["n"] for at in range(6)] == [1, 2, 3, 4, 5, 6]
    assert one.id.startswith("batch_")
    text = f"{one.id}.{one.headers['webhook-timestamp']}.".encode() + one.body
    assert one.headers["webhook-signature"] == "v1," + base64.b64encode(hmac.new(b"s3cret", text, hashlib.sha256).digest()).decode()


def test_a_receiver_that_refuses_nearly_everything_stops_the_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LETTERS_MIN", 5)
    stage.receiver.script = lambda _: Answer(401)
    stage.place(*(f"k{one}" for one in range(20)))
    follower = stage.begin()
    follower.follow_to(stage.log.head)
    assert follower.status.stop == "STORE_REFUSES"
    assert "refuses" in (follower.status.error or "")


def test_events_behind_a_letter_are_bounded_and_the_store_waits_with_the_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "WAITING_MAX", 10)
    monkeypatch.setattr(channel, "STEP", 5)
    stage.receiver.script = lambda one: Answer(400 if body_key(one) == 1 else 204)
    stage.place(*["a"] * 30)
    follower = stage.begin()
    threading.Timer(2.0, follower._stop.set).start()
    follower.follow_to(stage.log.head)
    assert follower.status.state == "waiting"
    assert "dead letter" in (follower.status.error or "")
    stage.end(follower)
    kept = KEPT.load(stage.folder / "deliveries" / "billing.json")
    assert kept is not None
    assert len(kept.waiting) == 10
    again = stage.begin()
    assert stage.decide(again, Verb.DROP, "outbox.order@1")[0].done
    until(lambda: bool(again.idle() or len(set(stage.receiver.ids())) == 30), "the rest")
    of_key = [body_key(one) for one in stage.receiver.received]
    assert list(dict.fromkeys(of_key)) == list(range(1, 31))


def test_a_slow_answer_is_no_answer(stage: Stage) -> None:
    slow = iter([1.0])
    stage.receiver.script = lambda _: Answer(after_s=next(slow, 0.0))
    stage.place("a")
    follower = stage.begin(timeout_s=0.2)
    follower.follow_to(stage.log.head)
    until(lambda: len(stage.receiver.received) == 2, "a second attempt")
    assert len(set(stage.receiver.ids())) == 1


def test_order_none_waits_for_no_key(stage: Stage) -> None:
    held = threading.Event()
    seen: dict[int, int] = defaultdict(int)

    def script(one: Received) -> Answer:
        if body_key(one) == 1:
            held.wait(10)
        seen[body_key(one)] += 1
        if body_key(one) == 3:
            held.set()
        return Answer()

    stage.receiver.script = script
    stage.place("a", "a", "a")
    stage.follow(order="none")
    assert dict(seen) == {1: 1, 2: 1, 3: 1}


def test_an_earlier_writer_that_wakes_up_writes_nothing(stage: Stage) -> None:
    sink = make("billing", stage.options())
    sink.open(stage.log.reader(), 1)
    later = make("billing", stage.options())
    later.open(stage.log.reader(), 2)
    before = (stage.folder / "deliveries" / "billing.json").read_bytes()
    with pytest.raises(StoreError):
        sink.commit(stage.log.head)
    sink.close()
    assert (stage.folder / "deliveries" / "billing.json").read_bytes() == before
    later.close()
