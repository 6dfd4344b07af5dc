"""The embedded Valkey, OpenSearch and Kafka keep data and address over a crash."""

from __future__ import annotations

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.embedded.kafka import Kafka
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


@pytest.mark.slow
def test_kafka_keeps_messages_and_address_over_a_crash(kafka_server: Kafka) -> None:
    quiet = {"bootstrap.servers": kafka_server.servers, "log_level": 0}
    servers = kafka_server.servers
    admin = AdminClient(quiet)
    admin.create_topics([NewTopic("flights", 1)])["flights"].result(60)
    producer = Producer(quiet)
    producer.produce("flights", b"UA")
    assert producer.flush(60) == 0
    kafka_server.crash()
    assert not kafka_server.running
    kafka_server.start()
    assert kafka_server.servers == servers
    consumer = Consumer({**quiet, "group.id": "any"})
    consumer.assign([TopicPartition("flights", 0, 0)])
    found = consumer.poll(60)
    assert found is not None
    assert found.value() == b"UA"
    consumer.close()
