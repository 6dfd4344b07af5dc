"""A REST catalog behind an identity provider: a token for a credential, a younger one when it is old, and refusals that show no secret."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.model.topic import TopicSchema
from tests.contract.rows import ORDERS, order, upserts
from tests.integration.spark.test_warehouse_catalogs import LakeShop
from tests.lakes import Lake
from tests.tokenendpoint import TokenEndpoint

WANTED = {
    "grant_type": "client_credentials",
    "client_id": "headwater",
    "client_secret": "canary",
    "scope": "lake.write",
    "audience": "lake",
    "resource": "https://lake.internal",
}
LIVES_S = 3


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint(WANTED, LIVES_S)
    yield made
    made.close()


@pytest.fixture
def shop(spark: Any, lake_of: Callable[[str], Lake], endpoint: TokenEndpoint, tmp_path: Path) -> LakeShop:
    """Whose catalog takes the endpoint's tokens and no others."""
    lake = lake_of("rest")
    assert lake._rest is not None
    lake._rest.accepts = endpoint.accepts
    del lake.options["token"]
    said = {key: WANTED[key] for key in ("scope", "audience", "resource")}
    lake.options |= {"credential": "headwater:canary", "oauth2_server_uri": endpoint.url, **said}
    return LakeShop(spark, lake, tmp_path / "lake")


def test_a_token_is_asked_for_with_the_credential_and_again_before_it_is_old(shop: LakeShop, endpoint: TokenEndpoint) -> None:
    sink = shop.sink()
    shop.brought(sink, upserts(ORDERS, 1, [order(1)]), 1)
    assert endpoint.asked[0] == WANTED
    first = next(iter(endpoint.issued))
    time.sleep(LIVES_S + 0.5)
    assert not endpoint.accepts(first)
    shop.brought(sink, upserts(ORDERS, 2, [order(2)]), 2)
    assert sorted(row["id"] for part in sink.scan(TopicSchema.of(ORDERS)) for row in part.to_pylist()) == ["1", "2"]
    assert all(form == WANTED for form in endpoint.asked)


def test_a_token_endpoint_that_was_down_for_longer_than_a_token_lives_is_no_refusal(
    shop: LakeShop, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = shop.sink()
    shop.brought(sink, upserts(ORDERS, 1, [order(1)]), 1)
    with monkeypatch.context() as down:
        down.setattr(endpoint, "answer", lambda _: (503, {"error": "temporarily_unavailable"}))
        time.sleep(LIVES_S + 0.5)
        for again in (lambda: shop.brought(sink, upserts(ORDERS, 2, [order(2)]), 2), shop.sink):
            with pytest.raises(StoreError) as failed:
                again()
            assert failed.value.retryable
    sink = shop.sink()
    shop.brought(sink, upserts(ORDERS, 2, [order(2)]), 2)
    assert len([row for part in sink.scan(TopicSchema.of(ORDERS)) for row in part.to_pylist()]) == 2


def test_a_token_endpoint_that_is_silent_is_not_waited_for_without_an_end(
    shop: LakeShop, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("sinks.warehouse.connection._ANSWER_S", 1)
    monkeypatch.setattr(endpoint, "answer", lambda _: (200, {"waited": answered.wait(30)}))
    try:
        with pytest.raises(StoreError) as failed:
            shop.sink()
    finally:
        answered.set()
    assert failed.value.retryable
    assert "RESTException" in str(failed.value)


@pytest.mark.parametrize("wrong", [{"credential": "headwater:other-canary"}, {"scope": "more"}])
def test_what_is_refused_is_named_without_the_secret(shop: LakeShop, wrong: dict[str, str]) -> None:
    with pytest.raises(StoreError) as refused:
        shop.sink(**wrong)
    assert not refused.value.retryable
    assert f"store {shop.name}: the catalog's server, or its token endpoint, refuses credential" in str(refused.value)
    assert f"stores.{shop.name}.credential, oauth2_server_uri, scope, audience, resource" in (refused.value.hint or "")
    assert "canary" not in "".join(traceback.format_exception(refused.value)) + str(refused.value.hint)


def test_a_token_that_is_refused_is_named(shop: LakeShop) -> None:
    for key in ("credential", "oauth2_server_uri", "scope", "audience", "resource"):
        shop.lake.options.pop(key)
    with pytest.raises(StoreError, match="refuses token") as refused:
        shop.sink(token=WANTED["client_secret"])
    assert "canary" not in "".join(traceback.format_exception(refused.value))
