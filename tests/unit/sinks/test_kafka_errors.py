"""What an error of the brokers means: a store that could go on later waits, and does not stop."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from cdc.errors import StoreError
from sinks.events.kafka.client import Brokers, TakenOver
from sinks.events.kafka.hangingtransaction import end
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


class OpenTransaction:
    """Stands for a producer, and for what it asks of the brokers: each topic has one partition, in which something hangs; ``refuses`` takes no message."""

    def __init__(self, refuses: str) -> None:
        self.refuses = refuses
        self.told: list[str] = []
        self._waiting: list[tuple[str, Any]] = []

    def list_topics(self, timeout: float) -> Any:  # noqa: ARG002
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=[0]) for name in ("__ledger", "orders", "items")})

    def list_offsets(self, asked: Mapping[Any, Any], isolation_level: IsolationLevel, request_timeout: float) -> Any:  # noqa: ARG002
        found = SimpleNamespace(offset=5 if isolation_level is IsolationLevel.READ_COMMITTED else 7)
        return {place: SimpleNamespace(result=lambda _: found) for place in asked}

    def begin_transaction(self) -> None:
        self.told.append("begin")

    def produce(self, topic: str, on_delivery: Any = None, **_: object) -> None:
        self._waiting.append((topic, on_delivery))

    def flush(self, timeout: float) -> int:  # noqa: ARG002
        for topic, told in self._waiting:
            if topic != self.refuses:
                self.told.append(topic)
            elif told is not None:
                told(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
        self._waiting.clear()
        return 0

    def abort_transaction(self, timeout: float) -> None:  # noqa: ARG002
        self.told.append("abort")


def test_a_ledger_still_says_that_something_hangs_while_another_topic_of_the_transaction_does() -> None:
    done, refused = OpenTransaction(""), OpenTransaction("items")
    end(done, done, ("__ledger", "orders", "items"), b"bus", 1)  # type: ignore[arg-type]
    assert done.told == ["begin", "orders", "items", "__ledger", "abort"]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        end(refused, refused, ("__ledger", "orders", "items"), b"bus", 1)  # type: ignore[arg-type]
    assert refused.told == ["begin", "orders", "abort"]
