"""The body of a message that is an event: what is read of it, and that no bytes make anything else than an event or a reason."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from cdc.outbox.event import BadEvent, Event, event
from cdc.outbox.message import BadMessage, body_of, parsed
from tests.fuzz.damage import damaged
from tests.fuzz.test_logical_messages import HOSTILE, OTHERS

ID = "0190b3a0-0000-7000-8000-000000000000"
WHOLE = {
    "id": ID,
    "aggregate": "order",
    "key": "7",
    "type": "order.placed",
    "payload": {"a": [1, {"b": None}]},
    "headers": {"c": "d"},
}
UNFIT = "its headers hold a character that Postgres cannot: U+0000, or half of a surrogate pair"


def values(of: Event) -> tuple[Any, ...]:
    return of.id, of.route, of.key, of.type, of.payload, of.headers


@pytest.mark.parametrize(
    "payload",
    ['{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}', "null", '"\\ud800"', "1e999", "9" * 5000, '{"a":1,"a":2}', "[ ]"],
)
def test_payload_and_headers_are_kept_to_the_letter(payload: str) -> None:
    body = f' {{ "payload" : {payload} ,"type":"t","key":"\\u00fc","headers" : {{ "a" :"b" }}, "aggregate":"order","id":"{ID}"}}\n'
    assert values(parsed(body.encode())) == (uuid.UUID(ID), "order", "ü", "t", payload, '{ "a" :"b" }')


def test_what_emit_writes_is_what_is_read(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        text = "".join(chance.choice('aü"\\\n\u2028😀{}[]:, ') for _ in range(20))
        headers = {text: text} if chance.random() < 0.5 else None
        one = event("order." + text, text + "k", chance.choice([None, text, {text: [text]}, 1.5]), headers)
        assert values(parsed(body_of(one).encode())) == values(one)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "it has no id, which is text without U+0000"),
        (json.dumps({**WHOLE, "key": 7}), "it has no key, which is text without U+0000"),
        (json.dumps({**WHOLE, "key": "secret\0"}), "it has no key, which is text without U+0000"),
        (json.dumps({**WHOLE, "type": "\ud800"}), "it has no type, which is text without U+0000"),
        (json.dumps({**WHOLE, "id": "secret"}), "its id is not a UUID"),
        (json.dumps({**WHOLE, "paylod": "secret"}), "it has members beside id, aggregate, key, type, payload and headers"),
        (json.dumps({**WHOLE, "headers": {"a": 1}}), "its headers are not an object of text by name"),
        (json.dumps({**WHOLE, "headers": {"a": "secret\0"}}), UNFIT),
        (json.dumps({**WHOLE, "headers": {"secret\ud800": "a"}}), UNFIT),
        (json.dumps({**WHOLE, "headers": ["a"]}), "its headers are not an object of text by name"),
        (json.dumps({**WHOLE, "payload": float("nan")}), "it is not a JSON object"),
        (json.dumps(WHOLE)[:-1] + ', "key": "7"}', "it is not a JSON object"),
        (json.dumps(WHOLE) + "x", "it is not a JSON object"),
        (json.dumps(WHOLE).encode("utf-16"), "it is not UTF-8"),
        (json.dumps({**WHOLE, "payload": "x" * 2**22}), "it is larger than 4,194,304 bytes"),
    ],
)
def test_why_a_body_is_no_event(body: str | bytes, why: str) -> None:
    with pytest.raises(BadMessage) as refused:
        parsed(body if isinstance(body, bytes) else body.encode())
    assert str(refused.value) == why


def test_any_bytes_make_an_event_or_a_reason(seed: int) -> None:
    cases = [*HOSTILE, *damaged(json.dumps(WHOLE).encode(), seed, most=2000)]
    cases += [json.dumps({**WHOLE, name: other}).encode() for name in WHOLE for other in OTHERS]
    for case in cases:
        found = outcome_of(case)
        assert isinstance(found, Event) or "secret" not in str(found)


def outcome_of(body: bytes) -> Event | BadMessage:
    try:
        return parsed(body)
    except BadMessage as bad:
        return bad


@pytest.mark.parametrize("text", ["", "secret", "{} secret", '1,"key":"secret"', "NaN", "[" * 100_000])
def test_a_payload_that_is_no_json_is_not_sent(text: str) -> None:
    """Nobody would hear of it but whoever reads the status: of a table's row the column's type says it."""
    with pytest.raises(BadEvent, match="the payload is not JSON's text") as refused:
        body_of(event("order.placed", 7, {}, None, encode=lambda _: text))
    assert "secret" not in str(refused.value)
