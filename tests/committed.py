"""What has been committed to a topic of a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.waiting import until

_READER: Final = {
    "group.id": "any",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


def committed(settings: Mapping[str, Any], topic: str) -> list[Message]:
    """The topic's messages, partition by partition, once nothing in it waits to be decided: brokers acknowledge a commit first, and tell the partitions of it after
    that. ``settings``: a client's."""
    admin = AdminClient(dict(settings))
    partitions = [TopicPartition(topic, one) for one in admin.list_topics(topic, timeout=60).topics[topic].partitions]
    until(lambda: _decided(admin, partitions), f"the end of {topic} to be decided", timeout_s=60)
    reader = Consumer({**settings, **_READER})
    reader.assign([TopicPartition(topic, one.partition, 0) for one in partitions])
    found: list[Message] = []
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        message = reader.poll(60)
        assert message is not None
        if (error := message.error()) is None:
            found.append(message)
        else:
            assert error.name() == "_PARTITION_EOF", error
            ended.add(message.partition())
    reader.close()
    return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))


def _decided(admin: AdminClient, partitions: Sequence[TopicPartition]) -> bool:
    try:
        written = _ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        seen = _ends(admin, partitions, IsolationLevel.READ_COMMITTED)
    except KafkaException as error:
        if error.args[0].name() != "NOT_LEADER_FOR_PARTITION":  # as of a new topic's partitions for a while
            raise
        return False
    return all(one >= other for one, other in zip(seen, written, strict=True))


def _ends(admin: AdminClient, partitions: Sequence[TopicPartition], level: IsolationLevel) -> list[int]:
    asked = admin.list_offsets({one: OffsetSpec.latest() for one in partitions}, isolation_level=level, request_timeout=60)
    return [asked[one].result(60).offset for one in partitions]
