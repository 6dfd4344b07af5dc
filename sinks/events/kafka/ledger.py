"""How far a store is, as it stands in Kafka itself: the last message of a compacted topic of the store's own, written in the transaction of the events.

Not as the offset of a consumer group, though that may go into a transaction, too: the brokers forget those of a group without members after
``offsets.retention.minutes`` (a week), in which a database may well be quiet or a store stopped; and a topic is what every tool of Kafka can show. A compacted topic
keeps the last message of a key for ever.

Beside it stands a message for each event that is held back (``sinks.events.heldback``), under a key of its own, and one without a value once it no longer is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import StoreError
from sinks.events.heldback import At, letter_id
from sinks.events.kafka.client import Brokers
from sinks.events.kafka.hangingtransaction import HangingTransaction, end
from sinks.events.standing import EventStanding

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Of a ledger that we create: what is superseded goes soon."""
_HELD: Final = b"\n"
"""Between the store's name and what is held back, in a key."""
_TOPICS: Final = "topics"
_TAIL: Final = 64
"""So many messages before the end are read first: between two of ours there is at least what ends a transaction."""


class Ledger:
    """One store's."""

    def __init__(self, brokers: Brokers) -> None:
        self.topic = brokers.options.ledger_of(brokers.store)
        self._brokers = brokers
        self._timeout_s = brokers.options.timeout_s
        self._consumer: Consumer | None = None
        self._end = self._seen = -1
        """The topic's end when it was read last, and how far readers saw then; ``_last``: what stood there."""
        self._last: EventStanding | None = None
        self._held = 0
        """So many events were held back when it was read last."""
        self._key = brokers.store.encode()

    def messages(
        self, standing: EventStanding, changes: Mapping[At, str | None], held: int, topics: Collection[str]
    ) -> Iterator[dict[str, Any]]:
        """The messages that say so, as the client takes them. ``changes``: of what is held back (``HeldBack.changes``), which are ``held`` events from here on.
        ``topics``: to which the transaction has written."""
        for at, text in changes.items():
            yield self._message(self._key + _HELD + letter_id(at).encode(), None if text is None else text.encode())
        said = {**standing.to_fields(), "held": str(held), _TOPICS: sorted(topics)}
        yield self._message(self._key, json.dumps(said).encode())

    def _message(self, key: bytes, value: bytes | None) -> dict[str, Any]:
        return {"topic": self.topic, "key": key, "value": value, "partition": 0}

    def kept(self) -> Mapping[str, str]:
        """The texts of what is held back, by id, as it stands now. Raises StoreError."""
        if self.read() is None or not self._held:
            return {}
        with self._brokers.errors(self.topic, self._listen):
            low, _ = self._reader().get_watermark_offsets(self._partition(0), timeout=self._timeout_s)
            held: dict[str, str] = {}
            before = self._key + _HELD
            for key, value in self._messages_from(low):
                if key.startswith(before):
                    name = key.removeprefix(before).decode(errors="replace")
                    held.pop(name, None)
                    if value is not None:
                        held[name] = value.decode(errors="replace")
        return held

    def read(self) -> EventStanding | None:
        """As it stands now, of transactions that were committed; None where nothing was ever. Raises StoreError."""
        with self._brokers.errors(self.topic, self._listen):
            if not self._exists():
                self.close()
                return None
            low, end = self._reader().get_watermark_offsets(self._partition(0), timeout=self._timeout_s)
            if end == self._end == self._seen:
                return self._last
            found = self._last_message(low, end)
        if found is None and low > 0:
            raise StoreError(
                f"store {self._brokers.store}: its ledger, the topic {self.topic}, was written, and what it said is gone",
                retryable=False,
                hint="its cleanup.policy has to be compact. What the store has delivered is not known any more: give it another name, with which it begins as a new one",
            )
        self._last, self._end = found, end
        return found

    def settled(self) -> EventStanding | None:
        """As ``read``, once all that was ever written is seen: to be asked when nobody has a transaction open. What was committed just before the brokers ended
        may be seen late. Raises HangingTransaction, StoreError."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._end = self._seen = -1
            found = self.read()
            if self._seen >= 0 and self._seen >= self._written():
                return found
            if time.monotonic() > deadline:
                raise HangingTransaction(self._brokers.store, self.topic, (self.topic, *self._unsettled_topics()))
            time.sleep(0.02)

    def end_hanging(self, hanging: HangingTransaction, producer: Producer) -> None:
        """Aborts it. ``producer``: the store's, with no transaction open. Raises KafkaException, StoreError."""
        try:
            end(producer, self._admin(), hanging.topics, self._key, self._timeout_s)
        except TimeoutError:
            raise self._unanswered() from None

    def _unsettled_topics(self) -> list[str]:
        """To which the transactions have written whose messages are not seen."""
        from confluent_kafka import Consumer

        more = {"group.id": self.topic, "isolation.level": "read_uncommitted", "enable.auto.commit": False}
        settings = self._brokers.settings(**more, **{"enable.partition.eof": True, "auto.offset.reset": "error"})
        with self._brokers.errors(self.topic), closing(Consumer(settings)) as reader:
            found = [value for key, value in self._read(reader, max(self._seen, 0)) if key == self._key and value is not None]
        # Whatever is not ours there is reported once it is seen.
        with suppress(ValueError, AttributeError, TypeError, RecursionError):
            return sorted({str(topic) for value in found for topic in json.loads(value).get(_TOPICS, ())})
        return []

    def _written(self) -> int:
        """The topic's end, with what is not committed."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        with self._brokers.errors(self.topic):
            admin, place = self._admin(), self._partition(0)
            level = IsolationLevel.READ_UNCOMMITTED
            asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level, request_timeout=self._timeout_s)
            return int(self._done(asked[place]).offset)

    def make(self) -> None:
        """Creates the topic where there is none, and refuses one that would forget. Raises StoreError."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        with self._brokers.errors(self.topic, self._listen):
            admin = self._admin()
            if not self._exists():
                create(self._brokers, admin, self.topic, 1, SETTINGS)
                return
            resource = ConfigResource(ResourceType.TOPIC, self.topic)
            found = self._done(admin.describe_configs([resource], request_timeout=self._timeout_s)[resource])
        if found["cleanup.policy"].value != "compact":
            raise StoreError(
                f"store {self._brokers.store}: its ledger, the topic {self.topic}, has the cleanup.policy {found['cleanup.policy'].value}: it would be forgotten how far the store is",
                retryable=False,
                hint=f"kafka-configs.sh --alter --entity-type topics --entity-name {self.topic} --add-config cleanup.policy=compact",
            )

    def remove(self) -> None:
        """Removes the topic."""
        with self._brokers.errors(self.topic, self._listen):
            admin = self._admin()
            if self._exists():
                self._done(admin.delete_topics([self.topic], operation_timeout=self._timeout_s)[self.topic])
        self.close()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._last = None, None
        self._end = self._seen = -1

    def _exists(self) -> bool:
        from confluent_kafka import KafkaException

        found = self._reader().list_topics(self.topic, timeout=self._timeout_s).topics.get(self.topic)
        if found is None or found.error is None:
            return found is not None
        if found.error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            return False
        raise KafkaException(found.error)

    def _last_message(self, low: int, end: int) -> EventStanding | None:
        count = _TAIL
        while True:
            first = max(low, end - count)
            found = self._read_from(first)
            if found is not None or first <= low:
                return found
            count *= 8

    def _read_from(self, first: int) -> EventStanding | None:
        last = None
        for key, value in self._messages_from(first):
            last = value if key == self._key and value is not None else last
        return None if last is None else self._standing(last)

    def _messages_from(self, first: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values, from there to the end that readers see."""
        self._seen = yield from self._read(self._reader(), first)

    def _read(self, reader: Consumer, first: int) -> Generator[tuple[bytes, bytes | None], None, int]:
        """Returns where it has ended."""
        from confluent_kafka import KafkaException

        reader.assign([self._partition(first)])
        try:
            while True:
                message = reader.poll(self._timeout_s)
                if message is None:
                    raise self._unanswered()
                error = message.error()
                if error is None:
                    key = message.key() or b""
                    self._refuse_other_store(key)
                    yield key, message.value()
                elif error.name() == "_PARTITION_EOF":
                    return message.offset() or 0
                elif error.name() != "GROUP_AUTHORIZATION_FAILED":  # the client asks for a group that nothing is done with
                    raise KafkaException(error)
        finally:
            reader.unassign()

    def _refuse_other_store(self, key: bytes) -> None:
        """Two stores in one ledger would each go on from where the other is, and shut each other out."""
        if key != self._key and not key.startswith(self._key + _HELD):
            raise StoreError(
                f"store {self._brokers.store}: {self.topic} has messages that are not this store's: another store, or another program, writes there",
                retryable=False,
                hint=f"name another topic in stores.{self._brokers.store}.ledger, with which the store begins as a new one",
            )

    def _standing(self, value: bytes) -> EventStanding:
        try:
            found = json.loads(value)
            self._held = int(found.get("held", 0))
            return EventStanding.of(found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"store {self._brokers.store}: the last message of {self.topic} is not one that we wrote",
                retryable=False,
                hint="nobody else may write there; name another topic in `ledger`, with which the store begins as a new one",
            ) from None

    def _partition(self, offset: int) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self.topic, 0, offset)

    def _reader(self) -> Consumer:
        from confluent_kafka import Consumer

        if self._consumer is None:
            more = {"group.id": self.topic, "isolation.level": "read_committed", "enable.auto.commit": False}
            self._consumer = Consumer(
                self._brokers.settings(**more, **{"enable.partition.eof": True, "auto.offset.reset": "error"})
            )
        return self._consumer

    def _listen(self) -> None:
        if self._consumer is not None:
            self._consumer.poll(0)

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._brokers.settings())

    def _done(self, asked: Future[Any]) -> Any:
        try:
            return asked.result(self._timeout_s + 5)
        except TimeoutError:
            raise self._unanswered() from None

    def _unanswered(self) -> StoreError:
        return StoreError(f"store {self._brokers.store}: no broker answers in time ({self.topic})", retryable=True)


def create(brokers: Brokers, admin: AdminClient, topic: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    """Creates a topic; one that somebody else has created meanwhile is as good. Raises KafkaException."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    copies = brokers.options.replication or -1
    timeout_s = brokers.options.timeout_s
    wanted = NewTopic(topic, partitions, copies, config=settings or {})
    try:
        admin.create_topics([wanted], operation_timeout=timeout_s, request_timeout=timeout_s)[topic].result(timeout_s + 5)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
