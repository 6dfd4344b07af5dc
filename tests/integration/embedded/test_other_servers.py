"""The embedded Valkey and OpenSearch keep data and address over a crash."""

from __future__ import annotations

import redis

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.valkey import Valkey
from tests.conftest import Cache


def test_valkey_starts_empty_for_each_test(valkey: Cache) -> None:
    with valkey.client() as client:
        assert client.dbsize() == 0
        client.set("a", 1)


def test_valkey_keeps_synced_writes_over_a_crash(valkey_server: Valkey) -> None:
    with redis.Redis.from_url(valkey_server.url) as client:
        client.set("a", "1")
        # A write that comes while the file is being synced may be put off for two seconds, though it is acknowledged.
        assert client.execute_command("WAITAOF", 1, 0, 120_000)[0] == 1
        url = valkey_server.url
        valkey_server.crash()
        valkey_server.start()
        assert valkey_server.url == url
        assert client.get("a") == b"1"


def test_opensearch_keeps_documents_and_address_over_a_crash(opensearch: OpenSearch) -> None:
    opensearch.request("PUT", "/flights", {"settings": {"number_of_replicas": 0}})
    opensearch.request("PUT", "/flights/_doc/1?refresh=true", {"carrier": "UA"})
    url = opensearch.url
    opensearch.crash()
    assert not opensearch.running
    opensearch.start()
    assert opensearch.url == url
    assert opensearch.request("GET", "/flights/_doc/1")["_source"] == {"carrier": "UA"}


def test_opensearch_has_no_indices_of_other_tests(opensearch: OpenSearch) -> None:
    assert opensearch.request("GET", "/_cat/indices?format=json&expand_wildcards=all") == []
