"""What an error of the brokers means: a store that could go on later waits, and does not stop."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from cdc.errors import StoreError
from sinks.events.kafka.client import Brokers, TakenOver
from sinks.events.kafka.options import Options

BROKERS = Brokers("bus", Options.model_validate({"kind": "kafka", "servers": "127.0.0.1:9092"}))


@pytest.mark.parametrize(
    "name",
    [
        "NOT_LEADER_FOR_PARTITION",
        "NOT_COORDINATOR",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "INVALID_PRODUCER_ID_MAPPING",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "TRANSACTION_ABORTABLE",
        "_TRANSPORT",
        "_WAIT_COORD",
    ],
)
def test_what_passes_is_tried_again(name: str) -> None:
    found = BROKERS.refused(KafkaError(getattr(KafkaError, name)), "orders")
    assert isinstance(found, StoreError)
    assert found.retryable
    assert "topic orders: " in str(found)
    assert name in str(found)


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "INVALID_CONFIG", "UNSUPPORTED_VERSION", "SECURITY_DISABLED"])
def test_what_does_not_pass_stops_the_store(name: str) -> None:
    found = BROKERS.refused(KafkaError(getattr(KafkaError, name)))
    assert isinstance(found, StoreError)
    assert not found.retryable


def test_a_writer_that_was_replaced_learns_so() -> None:
    assert isinstance(BROKERS.refused(KafkaError(KafkaError.PRODUCER_FENCED)), TakenOver)
