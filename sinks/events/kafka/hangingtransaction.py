"""Ends transactions that hang: the brokers count one as ended, and its partitions lack the marker that says so. Nobody who reads ``read_committed`` ever sees anything behind it.

That happens where a broker dies right after a commit and takes the partitions that have no leader, as it starts again, for deleted ones (Kafka 4.3 on one machine), and
where a replica that lacked the end of the transaction became the leader. A later transaction of the same transactional id that writes to such a partition ends both there, as
it ends itself. It is aborted, in all partitions of the transaction that hangs: what nobody has seen is undone, and the store, whose ledger stands as it was before, sends
the same events again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdc.errors import StoreError

if TYPE_CHECKING:
    from confluent_kafka import IsolationLevel, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient


class HangingTransaction(StoreError):
    """A ledger has messages of which it is not said whether they count, though whoever could say so has been asked. ``topics``: to which its transaction wrote."""

    def __init__(self, store: str, ledger: str, topics: Sequence[str]) -> None:
        super().__init__(
            f"store {store}: {ledger} cannot be read to its end: the brokers have left a transaction there neither committed nor aborted",
            retryable=True,
            hint="it is aborted and sent again; if this stays: kafka-transactions.sh --bootstrap-server … find-hanging --topic "
            + ledger,
        )
        self.topics = tuple(topics)


def end(producer: Producer, admin: AdminClient, topics: Sequence[str], key: bytes, timeout_s: float) -> None:
    """Aborts what hangs in these topics, of which the first is the ledger. ``producer``: of the transactional id, with no transaction open. What it writes for that has ``key``
    and no value, and is aborted itself. Raises KafkaException.

    The ledger comes last, and only once all others have taken what ends them: as long as one has not, the ledger says that something hangs, and it is tried again.
    """
    from confluent_kafka import IsolationLevel

    places = _partitions(producer, topics, timeout_s)
    seen = _ends(admin, places, IsolationLevel.READ_COMMITTED, timeout_s)
    written = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED, timeout_s)
    hanging = [place for place in places if seen[place] < written[place]]
    producer.begin_transaction()
    try:
        for its_own in (False, True):
            _write(producer, [place for place in hanging if (place.topic == topics[0]) is its_own], key, timeout_s)
    finally:
        producer.abort_transaction(timeout_s)


def _write(producer: Producer, places: Sequence[TopicPartition], key: bytes, timeout_s: float) -> None:
    """One message for each place. Raises KafkaException where one is not taken."""
    from confluent_kafka import KafkaError, KafkaException

    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for place in places:
        producer.produce(place.topic, key=key, value=None, partition=place.partition, on_delivery=told)
    left = producer.flush(timeout_s)
    if failed or left:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))


def _partitions(producer: Producer, topics: Sequence[str], timeout_s: float) -> list[TopicPartition]:
    """Of those topics that are still there."""
    from confluent_kafka import TopicPartition

    there = producer.list_topics(timeout=timeout_s).topics
    return [TopicPartition(topic, one) for topic in topics if topic in there for one in there[topic].partitions]


def _ends(
    admin: AdminClient, places: Sequence[TopicPartition], level: IsolationLevel, timeout_s: float
) -> dict[TopicPartition, int]:
    from confluent_kafka.admin import OffsetSpec

    asked = admin.list_offsets({place: OffsetSpec.latest() for place in places}, isolation_level=level, request_timeout=timeout_s)
    return {place: int(found.result(timeout_s + 5).offset) for place, found in asked.items()}
