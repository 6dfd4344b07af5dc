"""An application's headers as headers of a request: whatever they are called and hold, they take no other's place and end no line."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.events.kafka.messages import _headers
from sinks.events.webhook.eventheaders import HEADERS_BYTES_MAX, OMITTED, as_headers

TOKEN = re.compile(r"(?:[!#$&'*+.^_`|~0-9a-z-]|%[0-9A-F]{2})+")
TRACES = ("traceparent", "tracestate", "baggage")


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.none(), st.text(max_size=40), st.integers(), st.booleans()), max_size=5))
def test_names_are_tokens_of_their_own_and_values_are_printable(written: dict[str, object]) -> None:
    found = as_headers(json.dumps(written))
    for name, value in found.items():
        assert TOKEN.fullmatch(name), name
        assert name.startswith("event-") or name in TRACES
        assert re.fullmatch(r"[ -~]*", value)
        assert value == value.strip()
    assert all(f"event-{name}" in found or name in found for name in written if re.fullmatch("[a-z]+", name))


@pytest.mark.parametrize(
    "name",
    ["Content-Type", "content-length", "webhook-id", "webhook-signature", "Authorization", "Host", "Transfer-Encoding", "Cookie"],
)
def test_no_header_of_anybody_else_is_replaced(name: str) -> None:
    assert as_headers(json.dumps({name: "x"})) == {f"event-{name.lower()}": "x"}


def test_line_ends_and_other_characters_are_encoded_and_can_be_read_again() -> None:
    text = "a\r\nSet-Cookie: b\x00ü 100%"
    [(name, value)] = as_headers(json.dumps({"tenant\r\nhost": text})).items()
    assert (name, unquote(value)) == ("event-tenant%0D%0Ahost", text)
    assert as_headers(json.dumps({"traceparent": "00-a\r\nb"})) == {"event-traceparent": "00-a%0D%0Ab"}


def test_a_trace_keeps_its_names_and_values() -> None:
    written = {"Traceparent": "00-4bf9-00f0-01", "baggage": "user=a%20b, x=1", "tracestate": ""}
    assert as_headers(json.dumps(written)) == {
        "traceparent": "00-4bf9-00f0-01",
        "baggage": "user=a%20b, x=1",
        "event-tracestate": "",
    }


def test_names_that_differ_in_case_alone_are_one_header() -> None:
    assert as_headers('{"a": "1", "A": 2, "b": null}') == {"event-a": "1, 2", "event-b": ""}
    assert as_headers('{"a": "", "A": "", "b": "1", "B": null}') == {"event-a": "", "event-b": "1"}


def test_what_is_too_long_is_left_out_and_said() -> None:
    assert as_headers(json.dumps({"a": "x" * HEADERS_BYTES_MAX})) == OMITTED


@pytest.mark.parametrize("odd", ['{"n": 1' + "0" * 5000 + "}", '{"n": ' + "[" * 200_000 + "]" * 200_000 + "}"])
def test_what_the_database_takes_as_json_and_python_does_not_stops_nothing(odd: str) -> None:
    assert as_headers(odd) == OMITTED
    assert ("headers", odd.encode()) in _headers("1", odd)


def test_what_is_no_object_is_one_header() -> None:
    assert as_headers("[1,2]") == {"event-headers": "[1,2]"}
    assert as_headers(None) == {}
