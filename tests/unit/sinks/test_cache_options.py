"""What is said of single tables of a cache: which of it counts, and how the ledger keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.model.topic import TopicSchema
from sinks.cache.ledger import Projection, TableProjection, TableRule
from sinks.cache.options import Options
from tests.contract.rows import NUMBERED, PAIRS

ORDERS_SCHEMA, PAIRS_SCHEMA = TopicSchema.of(NUMBERED), TopicSchema.of(PAIRS)


def options(tables: dict[str, Any], **more: Any) -> Options:
    return Options.model_validate({"kind": "redis", "url": "redis://127.0.0.1:1", "tables": tables, **more})


def test_the_last_pattern_that_says_it_decides() -> None:
    made = options(
        {"public.*": {"ttl": "2h", "publish": "all"}, "public.orders": {"key": "o:{id}", "value": "hash", "publish": "orders"}}
    )
    projection = Projection(made.key, made.value, "", made.table_rules)
    assert projection.of(ORDERS_SCHEMA) == TableProjection("o:{id}", "hash", 7_200_000)
    assert projection.of(PAIRS_SCHEMA) == TableProjection(made.key, "json", 7_200_000)
    assert (made.channel("public.orders"), made.channel("public.pairs"), made.channel("other.x")) == (b"orders", b"all", b"")
    assert Projection.decode(projection.encode()) == projection
    assert not made.keys_apart, "a hash without a field does not exist"
    assert options({"public.pairs": {"ttl": 5}}).keys_apart


def test_a_ledger_from_before_is_of_the_same_projection() -> None:
    assert Projection.decode('{"key": "k:{key}", "shown": "", "value": "json"}') == Projection("k:{key}", "json")
    assert "tables" not in Projection("k:{key}", "json").encode()
    assert options({"public.pairs": {"exclude": ["v"], "publish": "p"}}).table_rules == (), "a channel changes no row"


@pytest.mark.parametrize(("ttl", "ms"), [(5, 5000), ("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("12h", 43_200_000), ("7d", 604_800_000)])  # fmt: skip
def test_times(ttl: Any, ms: int) -> None:
    assert options({"public.pairs": {"ttl": ttl}}).table_rules == (TableRule("public.pairs", ttl_ms=ms),)
