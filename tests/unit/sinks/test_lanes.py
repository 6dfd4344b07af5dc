"""Which lane a row is in, and which configurations name it."""

from __future__ import annotations

import binascii
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from redis.crc import key_slot

from cdc.model.topic import TopicSchema
from sinks.cache.keytemplate import bind
from sinks.cache.lane import Lane, joined, numbers
from sinks.cache.ledger import Projection
from sinks.cache.options import Options
from tests.contract.rows import ORDERS, PAIRS, order, upserts

PAIRS_SCHEMA = TopicSchema.of(PAIRS)


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))), st.integers(2, 256))
def test_a_lane_is_told_from_the_key_alone(texts: list[str], of: int) -> None:
    found = numbers(pa.array(texts, pa.utf8()), of).tolist()
    assert found == [binascii.crc_hqx(text.encode(), 0) % of for text in texts]


def test_a_slice_of_keys_is_read_where_it_begins() -> None:
    texts = pa.array(["a", "bc", "", "def"], pa.utf8())
    assert numbers(texts.slice(1, 2), 7).tolist() == numbers(texts, 7).tolist()[1:3]


@pytest.mark.parametrize("number", [0, 7, 17, 255])
def test_its_slot_is_the_clusters(number: int) -> None:
    lane = Lane(number, 256)
    assert lane.slot == key_slot(f"product:{lane.tag}:42".encode()) == key_slot(f"cdc:{lane.tag}:cache:ledger".encode())


def test_rows_are_divided_as_their_keys_are() -> None:
    batch = upserts(PAIRS, 1, [{"a": str(i), "b": ":", "v": None} for i in range(100)])
    texts = batch.select(["a", "b"])
    shares = [Lane(number, 6).rows(batch, PAIRS_SCHEMA) for number in range(6)]
    assert sum(map(len, shares)) == 100
    assert all(map(len, shares))
    for number, rows in enumerate(shares):
        assert Lane(number, 6).keys(texts, PAIRS_SCHEMA).column("a").to_pylist() == rows.column("a").to_pylist()
        assert set(numbers(joined(rows.select(["a", "b"]), PAIRS_SCHEMA), 6).tolist()) == {number}


def test_a_key_names_the_lane_in_braces() -> None:
    keys = bind("order:{lane}:{id}", TopicSchema.of(ORDERS), Lane(3, 16))
    assert keys.prefix == "order:{3}:"
    assert keys.texts(upserts(ORDERS, 1, [order(7)])).to_array().to_pylist() == [b"order:{3}:7"]


def test_a_projection_keeps_its_lane() -> None:
    projection = Projection("order:{lane}:{id}", "json", lane=Lane(3, 16))
    assert Projection.decode(projection.encode()) == projection
    assert "lane" not in Projection("order:{id}", "json").encode()


def options(**given: Any) -> Options:
    return Options.model_validate({"kind": "redis", "url": "redis://h", **given})


def test_the_default_key_names_it() -> None:
    assert options(lanes=16).template == "{schema}.{table}:{lane}:{key}"
    assert options().template == "{schema}.{table}:{key}"
    assert options(lanes=16, key="o:{lane}:{id}").template == "o:{lane}:{id}"


def test_it_is_not_a_column_that_names_places() -> None:
    assert options(lanes=16, key="o:{lane}:{status}:{id}").naming(TopicSchema.of(ORDERS)) == ("status",)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"key": "o:{id}"}, r"a store with `lanes` needs \{lane\} in it, before any column"),
        ({"key": "o:{id}:{lane}"}, r"a store with `lanes` needs \{lane\} in it, before any column"),
        ({"key": "o{{x}}:{lane}:{id}"}, r"no brace may stand before \{lane\}"),
        ({"key": "o:{lane}:{lane}:{id}"}, r"\{lane\} may stand in it once"),
        ({"tables": {"public.*": {"key": "o:{id}"}}}, r"a store with `lanes` needs \{lane\} in it, before any column"),
        ({"pointer": "live"}, "lanes and pointer exclude each other.*leave pointer out"),
        ({"value": "invalidate"}, 'lanes and value = "invalidate" exclude each other; leave value out'),
        ({"tables": {"public.*": {"value": "invalidate"}}}, 'lanes and value = "invalidate" exclude each other'),
        ({"lanes": 1}, "greater than or equal to 2"),
        ({"lanes": 257}, "less than or equal to 256"),
    ],
)
def test_what_a_cluster_cannot_hold_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){why}"):
        options(**{"lanes": 16, **given})
