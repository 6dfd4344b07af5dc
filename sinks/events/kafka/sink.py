"""The messages of a store, and what it says of itself, in transactions of one producer.

A transaction has the events of a commit and, last, the ledger's next message: both are there, or neither is. Whoever reads ``read_committed`` sees each event once. The
transactional id is the store's, so that the brokers take nothing more of an earlier writer once a later one has begun, and end what it left open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed, Outcome, Traits
from sinks.events.event import EventBatch
from sinks.events.kafka.client import Brokers, TakenOver, require_client
from sinks.events.kafka.ledger import Ledger, create
from sinks.events.kafka.messages import messages
from sinks.events.kafka.options import Options, is_legal
from sinks.events.sink import TRAITS, EventSink
from sinks.events.standing import EventStanding

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

TRANSACTION_BYTES: Final = 16 << 20
"""A commit with more goes in several transactions, so that none takes longer than the brokers wait for its end."""
TRANSACTION_EVENTS: Final = 50_000
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""As long as readers may have to wait for a writer that stands still."""
_SETTLES_S: Final = 5.0
"""How long what was committed, or created, may take to be seen: usually a moment."""


class KafkaChannel:
    """See ``sinks.events.sink.Channel``. What was delivered is there once ``commit`` has returned, or the transaction before it is full."""

    def __init__(self, store: str, options: Options) -> None:
        self._store = store
        self._options = options
        self._brokers = Brokers(store, options)
        self._ledger = Ledger(self._brokers)
        self._found: EventStanding | None = None
        """What the ledger said when it was asked last."""
        self._producer: Producer | None = None
        self._known: EventStanding | None = None
        self._open = Filling()
        self._partitions: dict[str, int] = {}
        self._failed: tuple[KafkaError, str] | None = None

    def standing(self) -> EventStanding | None:
        deadline = time.monotonic() + _SETTLES_S
        while True:
            self._found = found = self._ledger.read()
            written = self._known
            if written is None or found == written or found is None or found.epoch != written.epoch:
                return found
            if time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def begin(self, standing: EventStanding) -> None:
        from confluent_kafka import Producer

        self._ledger.make()
        self._known = standing
        settings = self._brokers.settings(
            **{
                "transactional.id": self._ledger.topic,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "partitioner": "murmur2_random",  # as Java's producers divide keys
                "compression.type": self._options.compression,
                "message.max.bytes": self._options.message_bytes_max,
                "linger.ms": 5,
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
                "topic.metadata.propagation.max.ms": 5000,
            }
        )
        with self._errors():
            self._producer = producer = Producer(settings)
            producer.init_transactions(self._options.timeout_s)
        crashpoint("kafka.begun")
        if self._ledger.settled() != self._found:  # in the moment before the other was shut out
            raise self._outdone()
        self._commit(standing)

    def deliver(self, events: EventBatch, upto: Position) -> Outcome:
        known = self._writer()
        with self._errors():
            for position, message in messages(events, self._options):
                self._put(position, message)
        crashpoint("kafka.sent")
        self._known = replace(known, progress=upto)
        if self._open.full:
            self._commit(self._known)
        return Outcome(len(events))

    def commit(self, cut: Cut) -> None:
        self._commit(self._writer().at(cut))

    def erase(self) -> None:
        self._ledger.remove()

    def close(self) -> None:
        if self._producer is not None:
            # What it has begun ends when the next one begins, or by itself: whoever waited for the brokers here might wait long.
            self._producer.purge()
        self._producer = self._known = self._failed = None
        self._open = Filling()
        self._partitions.clear()
        self._ledger.close()

    def _writer(self) -> EventStanding:
        if self._known is None:
            raise StoreError(f"store {self._store} is not open", retryable=True)
        return self._known

    def _put(self, position: int, message: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException, murmur2

        topic = message["topic"]
        if topic not in self._partitions:
            self._partitions[topic] = self._look_for(topic)
        if (group := message.pop("group", None)) is not None:
            message["partition"] = murmur2(group.encode(), self._partitions[topic])
        self._begin_transaction()
        size = len(message["value"] or b"")
        try:
            self._produce(message)
        except KafkaException as error:
            if error.args[0].name() != "MSG_SIZE_TOO_LARGE":
                raise
            raise StoreError(
                f"store {self._store}: the event at position {position} has {size} bytes, more than a message of {topic} may have",
                retryable=False,
                hint="raise `message_bytes_max`, and the topic's max.message.bytes with it",
            ) from None
        self._open.add(size)

    def _produce(self, message: dict[str, Any]) -> None:
        assert self._producer is not None
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                self._producer.produce(**message)
                return
            except BufferError:
                self._producer.poll(0.1)
                self._refuse_failed()
                if time.monotonic() > deadline:
                    raise StoreError(f"store {self._store}: no broker answers in time", retryable=True) from None

    def _commit(self, standing: EventStanding) -> None:
        """Ends the transaction with what the ledger is to say."""
        assert self._producer is not None
        with self._errors():
            self._begin_transaction()
            self._producer.produce(**self._ledger.message(standing))
            crashpoint("kafka.before_commit")
            self._producer.commit_transaction(self._options.timeout_s)
        crashpoint("kafka.committed")
        self._open = Filling()
        self._known = standing

    def _begin_transaction(self) -> None:
        assert self._producer is not None
        if not self._open.begun:
            self._producer.begin_transaction()
            self._open.begun = True

    def _look_for(self, topic: str) -> int:
        """How many partitions it has. Creates it where it is to be."""
        from confluent_kafka.admin import AdminClient

        assert self._producer is not None
        created_at: float | None = None
        while True:
            found = self._producer.list_topics(topic, timeout=self._options.timeout_s).topics[topic]
            if found.error is None:
                return len(found.partitions)
            absent = found.error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
            if not (absent and self._options.create) or (created_at and time.monotonic() > created_at + _SETTLES_S):
                raise self._brokers.refused(found.error, topic)
            if created_at is None:
                create(self._brokers, AdminClient(self._brokers.settings()), topic, self._options.partitions)
                created_at = time.monotonic()
            else:
                time.sleep(0.02)  # not every broker knows of it yet

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None and error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._failed = (error, message.topic() or "")

    def _refuse_failed(self) -> None:
        if self._failed is not None:
            raise self._brokers.refused(*self._failed)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Of the brokers' errors the first that a message has met says more than what becomes of its transaction."""
        try:
            try:
                with self._brokers.errors(listen=self._listen):
                    yield
            except StoreError:
                self._refuse_failed()
                raise
        except TakenOver:
            raise self._outdone() from None

    def _listen(self) -> None:
        if self._producer is not None:
            self._producer.poll(0)

    def _outdone(self) -> StoreError:
        seen = self._ledger.read()
        if seen is not None and seen.epoch > self._writer().epoch:
            return EpochPassed(self._store, seen.epoch)
        return StoreError(f"store {self._store}: another writer has been at work meanwhile: it is opened again", retryable=True)


class Filling:
    """A transaction's extent so far."""

    __slots__ = ("begun", "bytes", "events")

    def __init__(self) -> None:
        self.begun = False
        self.events = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        self.events += 1
        self.bytes += size

    @property
    def full(self) -> bool:
        return self.bytes >= TRANSACTION_BYTES or self.events >= TRANSACTION_EVENTS


class KafkaSink(EventSink):
    """See ``sinks.contract.Sink``."""

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options, KafkaChannel(name, options))
        self._topics = options

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        super().foresee(schemas)
        for schema in schemas:
            self._refuse_odd(schema)

    def prepare(self, schema: TopicSchema) -> None:
        super().prepare(schema)
        self._refuse_odd(schema)

    def _refuse_odd(self, schema: TopicSchema) -> None:
        name = self._topics.topic_of(schema.topic)
        if not is_legal(name):
            raise ConfigError(
                f"stores.{self.name}.topic: {schema.topic} would be the topic {name}, which is not a name that Kafka knows",
                hint="letters, digits, '.', '_' and '-' are, up to 249 of them; write a name without a place for the table's, or leave the table out",
            )


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> KafkaSink:
    require_client(name)
    return KafkaSink(name, options)
