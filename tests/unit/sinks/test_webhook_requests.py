"""A webhook's signature, its URLs, and what answers mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import formatdate

import pytest

from sinks.events.webhook.address import Unaddressed, parsed
from sinks.events.webhook.signature import header_id, key_of, signed
from sinks.events.webhook.verdict import AGAIN_S, RequestFate, pause_of, verdict_of

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VALUES = {"topic": "outbox.order", "type": "order.placed", "op": "insert", "key": "7"}


def test_the_signature_is_the_one_that_standard_webhooks_publishes() -> None:
    body = b'{"test": 2432232314}'
    found = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, body, [key_of(SECRET)])
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_an_id_is_printable_and_moves_no_bound_of_what_is_signed() -> None:
    assert header_id("0190-ab") == "0190-ab"
    assert header_id("a.1700000000") == "a%2E1700000000"
    assert header_id("a\r\nHost: evil ü") == "a%0D%0AHost:%20evil%20%C3%BC"
    assert header_id("x" * 300) != header_id("x" * 301)
    assert len(header_id("ü" * 300)) < 80
    assert "." not in signed("a.b", 1.0, b"", [])["webhook-id"]


def test_each_secret_signs_the_exact_bytes() -> None:
    body = '{"a":"ü\\u0000"}'.encode() + b"\xff"
    found = signed("e1", 1700000000.0, body, [key_of(SECRET), key_of("plain secret")])
    raw = base64.b64decode(SECRET.removeprefix("whsec_"))
    again = [hmac.new(key, b"e1.1700000000." + body, hashlib.sha256).digest() for key in (raw, b"plain secret")]
    assert found["webhook-signature"] == " ".join(f"v1,{base64.b64encode(one).decode()}" for one in again)
    assert "webhook-signature" not in signed("e1", 1.0, body, [])


@pytest.mark.parametrize(
    ("secret", "key"), [("whsec_AAEC", b"\0\1\2"), ("whsec_AAE=", b"\0\1"), ("whsec_AAE", b"\0\1"), ("s3cret", b"s3cret")]
)
def test_a_secret_is_base64_behind_its_prefix_and_itself_without_it(secret: str, key: bytes) -> None:
    assert key_of(secret) == key


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_%%%", "whsec_A"])
def test_what_is_no_secret_is_refused_without_quoting_it(secret: str) -> None:
    with pytest.raises(ValueError) as caught:
        key_of(secret)
    assert "%%%" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        *((one, RequestFate.TAKEN) for one in (200, 201, 202, 204, 299)),
        *((one, RequestFate.AGAIN) for one in (408, 425, 429, 500, 501, 502, 503, 504, 599)),
        *((one, RequestFate.REFUSED) for one in (300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 409, 413, 422, 451)),
        (410, RequestFate.GONE),
    ],
)
def test_each_status_has_its_fate(status: int, fate: RequestFate) -> None:
    assert verdict_of(status, None, 0.0).fate is fate


def test_retry_after_is_seconds_or_a_date() -> None:
    now = 1_700_000_000.0
    assert pause_of("120", now) == 120.0
    assert pause_of(" 0 ", now) == 0.0
    assert pause_of(formatdate(now + 90, usegmt=True), now) == 90.0
    assert pause_of(formatdate(now - 90, usegmt=True), now) == 0.0
    assert pause_of("9" * 400, now) == AGAIN_S
    for far in (f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", f"Mon, 01 Jan 2030 00:00:00 +{'9' * 14}"):
        assert pause_of(far, now) is None
    for nothing in (None, "", "soon", "-5", "1.5", "Mon, 99 Foo 2026", "\u0661"):
        assert pause_of(nothing, now) is None


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://billing.internal/hooks/{type}", "/hooks/order.placed"),
        ("https://billing.internal", "/"),
        ("https://billing.internal:8443/x?topic={topic}&key={key}", "/x?topic=outbox.order&key=7"),
        ("http://127.0.0.1:9/{op}", "/insert"),
    ],
)
def test_a_url_names_parts_of_the_event(url: str, target: str) -> None:
    assert parsed(url, plain=False).target(VALUES) == target


@pytest.mark.parametrize(
    ("value", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("?x=1#y", "%3Fx%3D1%23y"),
        ("../../admin", "..%2F..%2Fadmin"),
        ("@evil.example", "%40evil.example"),
        ("a\r\nHost: evil", "a%0D%0AHost%3A%20evil"),
        ("%2e%2e", "%252e%252e"),
        ("ü \0", "%C3%BC%20%00"),
    ],
)
def test_a_value_stays_one_segment_whatever_it_holds(value: str, segment: str) -> None:
    found = parsed("https://billing.internal/hooks/{key}/x", plain=False)
    assert found.target({**VALUES, "key": value}) == f"/hooks/{segment}/x"
    assert (found.scheme, found.host, found.port) == ("https", "billing.internal", 443)


@pytest.mark.parametrize("value", [None, "", ".", ".."])
def test_an_event_whose_value_is_another_path_has_no_url(value: str | None) -> None:
    with pytest.raises(Unaddressed, match="key"):
        parsed("https://billing.internal/hooks/{key}", plain=False).target({**VALUES, "key": value})


@pytest.mark.parametrize(
    "url",
    [
        "billing.internal/hooks",
        "ftp://billing.internal/",
        "https://",
        "https://{key}.internal/",
        "https://user:s3cret@billing.internal/",
        "https://billing.internal/#{key}",
        "https://billing.internal//{key}",
        "https://billing.internal/{password}",
        "https://billing.internal/{key",
        "https://billing.internal/{key!r}",
        "https://billing.internal/a b",
        "https://billing.internal:0/",
        "https://billing.internal:x/",
        "http://billing.internal/",
    ],
)
def test_what_is_no_address_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        parsed(url, plain=False)
    assert not {"s3cret", "password"} & set(str(caught.value).split())


def test_http_is_for_this_machine_unless_it_is_asked_for() -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        parsed(f"http://{host}:8080/", plain=False)
    assert parsed("http://billing.internal/", plain=True).where == "billing.internal:80"
