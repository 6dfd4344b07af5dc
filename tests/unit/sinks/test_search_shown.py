"""The names of a search store's generations: no two share one, and each is found again by its ledger."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from sinks.generations import GenerationState
from sinks.search.indices import measured
from sinks.search.register import Registered
from sinks.search.shown import GenerationNames, Shown
from sinks.search.wire import Address, Cluster

LINE_BYTES_MAX = 4096
"""Of a request's first line, as OpenSearch takes it."""


def test_the_first_has_the_names_that_the_configuration_gives() -> None:
    first = GenerationNames("search")
    assert (first.owner, first.ledger) == ("search", ".headwater-search")
    assert first.own("public.orders") == first.searched("public.orders") == "public.orders"


def test_any_other_has_names_of_its_own() -> None:
    third = GenerationNames("search", 3)
    assert (third.owner, third.ledger) == ("search@3", ".headwater-search@g3")
    assert third.own("public.orders") == "public.orders.gen3"
    assert third.searched("public.orders.gen3") == "public.orders"
    assert third.live == GenerationNames("search").live


@pytest.mark.parametrize("number", [1, 2, 17])
def test_a_generation_is_known_by_its_ledger(number: int) -> None:
    names = GenerationNames("search", number)
    assert GenerationNames("search").of(names.ledger) == names


@pytest.mark.parametrize(
    "index",
    [".headwater-search@dead", ".headwater-search@g2@dead", ".headwater-searches", ".headwater-search@g", "public.orders@1"],
)
def test_no_other_index_is_a_ledger(index: str) -> None:
    assert GenerationNames("search").of(index) is None


def test_up_to_when_one_is_kept_stands_in_the_name_of_an_alias() -> None:
    names = GenerationNames("search", 2)
    assert names.kept_until(None) == ".headwater-search@kept"
    assert names.kept_until(1_700_000_000.5) == ".headwater-search@kept.1700000001"
    for aliases, state, until in (
        ((".headwater-search@kept",), GenerationState.KEPT, None),
        ((".headwater-search@kept.1700000001",), GenerationState.KEPT, 1_700_000_001.0),
        ((".headwater-search@kept.1700000001", ".headwater-search@kept"), GenerationState.KEPT, None),
        ((".headwater-search@kept.5", ".headwater-search@live"), GenerationState.LIVE, None),
        ((".headwater-search@kept.x", ".headwater-search@g2@w"), GenerationState.BUILDING, None),
    ):
        registered = Registered(names, aliases)
        assert (registered.state, registered.until) == (state, until), aliases


def test_only_generations_of_the_same_store_are_related() -> None:
    names = GenerationNames("search", 2)
    assert [owner for owner in ("search", "search@3", "searching", "search2", "other") if names.related(owner)] == [
        "search",
        "search@3",
    ]


def test_what_readers_see_changes_only_as_long_as_the_generation_is_live() -> None:
    first, second = Shown(GenerationNames("search", 2)).condition()
    assert first == {"remove": {"index": ".headwater-search@g2", "alias": ".headwater-search@live", "must_exist": True}}
    assert second["add"]["index"] == ".headwater-search@g2"


def test_a_store_of_many_tables_is_measured_by_requests_that_the_cluster_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def ask(*asked: Any, **_: Any) -> Any:
        paths.append(asked[3])
        return {"count": asked[3].count(",") + 1, "_all": {"primaries": {"store": {"size_in_bytes": 7}}}}

    monkeypatch.setattr(Cluster, "ask", ask)
    tables = [f"{'s' * 63}.{'t' * 60}{number:03}.gen12@1" for number in range(300)]
    rows, size = measured(Cluster("search", Address(url=SecretStr("http://127.0.0.1:1"))), tables)
    assert rows == len(tables)
    assert size % 7 == 0
    assert max(map(len, paths)) + 100 < LINE_BYTES_MAX
