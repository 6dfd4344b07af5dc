"""The messages of a store, and what it says of itself, in transactions of one producer.

A transaction has the events of a commit and, last, the ledger's next message: both are there, or neither is. Whoever reads ``read_committed`` sees each event once. The
transactional id is the store's, so that the brokers take nothing more of an earlier writer once a later one has begun, and end what it left open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed, Traits
from sinks.events.avro import Avro
from sinks.events.bodyformat import Encoding
from sinks.events.connectjson import ConnectJson
from sinks.events.event import EventBatch
from sinks.events.eventcolumns import EventForm
from sinks.events.heldback import queue_names
from sinks.events.kafka.client import Brokers, TakenOver, require_client
from sinks.events.kafka.hangingtransaction import HangingTransaction
from sinks.events.kafka.ledger import Ledger, create
from sinks.events.kafka.limits import EventLimits
from sinks.events.kafka.messages import messages, sizes_of
from sinks.events.kafka.options import Options, is_legal
from sinks.events.kafka.registry import Registry
from sinks.events.markedchannel import MarkedChannel
from sinks.events.sink import TRAITS, EventSink
from sinks.events.standing import EventStanding

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

TRANSACTION_BYTES: Final = 16 << 20
"""A commit with more goes in several transactions, so that none takes longer than the brokers wait for its end."""
TRANSACTION_EVENTS: Final = 50_000
BATCH_BYTES: Final = 1_000_000
"""As many go to a broker at once, of one partition, until a topic has refused that."""
FRAME_BYTES: Final = 200
"""What a message has beside key, value and headers, and its batch around it, is less."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""As long as readers may have to wait for a writer that stands still."""
_LOOK_S: Final = 0.005
_SETTLES_S: Final = 5.0
"""How long what was committed, or created, may take to be seen: usually a moment."""

_log = structlog.get_logger("kafka")


@dataclass(slots=True)
class _Failure:
    """The first error that a message has met. ``too_long``: the longest message of those that a broker has found too long; 0: none."""

    error: KafkaError
    topic: str
    too_long: int = 0


class KafkaChannel(MarkedChannel):
    """See ``sinks.events.sink.Channel``. What was delivered is there once ``commit`` has returned, or the transaction before it is full."""

    def __init__(self, store: str, options: Options) -> None:
        super().__init__(store)
        self._limits = EventLimits(BATCH_BYTES)
        """Outlasts ``close``."""
        self._options = options
        self._brokers = Brokers(store, options)
        self._ledger = Ledger(self._brokers)
        self._found: EventStanding | None = None
        """What the ledger said when it was asked last."""
        self._producer: Producer | None = None
        self._known: EventStanding | None = None
        self._said: EventStanding | None = None
        """What this writer has committed last."""
        self._open = Filling()
        self._partitions: dict[str, int] = {}
        self._failed: _Failure | None = None
        self._sends_alone = False
        """What is on its way is one event by itself: that it is refused says nothing of the batches."""

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
        self._ledger.make()
        self._known = standing
        self._start_producer(self._found)
        self._take_hold()
        self._commit(standing)

    def _start_producer(self, said: EventStanding | None) -> None:
        """Ends whatever transaction is open. ``said``: as the ledger has to be, else another writer has been at work."""
        from confluent_kafka import Producer

        settings = self._brokers.settings(
            **{
                "transactional.id": self._ledger.topic,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "partitioner": "murmur2_random",  # as Java's producers divide keys
                "compression.type": self._options.compression,
                "message.max.bytes": self._options.message_bytes_max,
                "batch.size": self._limits.batch_bytes,
                # With several on their way, a broker that does not serve a partition yet refuses the first, takes the second as what the partition begins with, and has no place
                # left for the first (KAFKA-15591): it is lost, and the transaction commits.
                "max.in.flight.requests.per.connection": 1,
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
        if self._settled() != said:  # in the moment before the other was shut out
            raise self._outdone()

    def _settled(self) -> EventStanding | None:
        assert self._producer is not None
        try:
            return self._ledger.settled()
        except HangingTransaction as hanging:
            _log.warning(str(hanging), facts={"store": self._store, "topics": list(hanging.topics)})
            with self._errors():
                self._ledger.end_hanging(hanging, self._producer)
        return self._ledger.settled()

    def _kept(self) -> Mapping[str, str]:
        return self._ledger.kept()

    def _unfit(self, events: EventBatch) -> Mapping[int, str]:
        most = self._options.message_bytes_max - FRAME_BYTES
        reasons = events.column("unfit")
        odd = (
            {}
            if reasons.null_count == len(events)
            else {row: one for row, one in enumerate(reasons.to_pylist()) if one is not None}
        )
        return odd | {
            row: f"it has {size} bytes with key and headers, and a message may have {most} (message_bytes_max)"
            for row, size in _beyond(sizes_of(events), most)
        }

    def _doubtful(self, events: EventBatch) -> int:
        """Those that are as long as one that a broker has found too long."""
        if not self._limits.known:
            return len(events)
        longest = [self._limits.longest_of(self._options.topic_of(one)) for one in events.column("topic").to_pylist()]
        return int(next(iter(np.flatnonzero(sizes_of(events) >= np.array(longest, np.int64))), len(events)))

    def _hand_over(self, events: EventBatch, upto: Position) -> None:
        left = events
        while len(left):
            sure = self._doubtful(left)
            self._put_all(left.slice(0, sure))
            if sure == len(left):
                break
            one, left = left.slice(sure, 1), left.slice(sure + 1, len(left) - sure - 1)
            position = int(one.positions[0])
            self._known = replace(self._writer(), progress=Position(position - 1))
            if self._open.begun:
                self._commit(self._known)
            refused = self._send_alone(one, lambda: None, Position(position))
            if refused is not None:
                if self._holding.letters.room <= 0:
                    raise self._holding.no_room()
                topic, queue = one.column("topic")[0].as_py(), queue_names(one)[0].as_py()
                self._holding.set_aside((topic, position), queue, refused)
                left = self._holding.divide(left, {}, bounded=False).free
        crashpoint("kafka.sent")
        self._known = replace(self._writer(), progress=upto)
        if self._open.full:
            self._commit(self._known)

    def _send_again(self, events: EventBatch, taken: Callable[[], None]) -> str | None:
        known = self._writer()
        if self._open.begun:
            self._commit(known)
        return self._send_alone(events, taken, known.progress)

    def _send_alone(self, events: EventBatch, taken: Callable[[], None], upto: Position) -> str | None:
        """In a transaction of their own. Returns why not, where the one event, or the first of them, is too long for the topic."""
        assert self._producer is not None
        self._sends_alone = len(events) == 1
        topic, size = self._options.topic_of(events.column("topic")[0].as_py()), int(sizes_of(events.slice(0, 1))[0])
        try:
            self._put_all(events)
            with self._errors():
                self._await_taken()
        except StoreError:
            if self._failed is None or not (self._failed.too_long and self._sends_alone):
                raise
            self._producer.purge()
            self._failed, self._open = None, Filling()
            self._start_producer(self._said)  # the same one would go on behind the numbers that the broker has not taken
            self._limits.refused(topic, size)
            return f"it has {size} bytes with key and headers, and the topic takes no message of that length (max.message.bytes)"
        finally:
            self._sends_alone = False
        if len(events) == 1:
            self._limits.taken(topic, size)
        taken()
        self._commit(replace(self._writer(), progress=upto))
        return None

    def _put_all(self, events: EventBatch) -> None:
        with self._errors():
            for position, message in messages(events, self._options):
                self._put(position, message)

    def _settle(self) -> None:
        if self._open.begun or self._holding.has_changed:
            self._commit(self._writer())

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
        self._let_go()
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
        self._open.add(topic, size)

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
            held = self._holding
            for message in self._ledger.messages(standing, held.changes(int(standing.progress)), len(held), self._open.topics):
                self._produce(message)
            self._await_taken()
            crashpoint("kafka.before_commit")
            self._producer.commit_transaction(self._options.timeout_s)
        crashpoint("kafka.committed")
        self._open = Filling()
        self._known = self._said = standing

    def _await_taken(self) -> None:
        """Waits until the brokers have taken what is on its way. Raises as soon as they have refused a message, of which a commit tells only when its time is over."""
        assert self._producer is not None
        deadline = time.monotonic() + self._options.timeout_s
        while len(self._producer) and time.monotonic() < deadline:
            self._producer.poll(_LOOK_S)
            self._refuse_failed()
        self._refuse_failed()

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
        if error is None or error.name() in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            return
        if self._failed is None:
            self._failed = _Failure(error, message.topic() or "")
        if error.name() == "MSG_SIZE_TOO_LARGE":
            self._failed.too_long = max(self._failed.too_long, len(message.value() or b"") + len(message.key() or b""))

    def _refuse_failed(self) -> None:
        if self._failed is None:
            return
        failed = self._failed
        if failed.too_long and not self._sends_alone:
            self._limits.failed(failed.topic, failed.too_long)
        raise self._brokers.refused(failed.error, failed.topic)

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


def _beyond(sizes: npt.NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    return [(row, int(sizes[row])) for row in np.flatnonzero(sizes > most).tolist()]


class Filling:
    """A transaction's extent so far."""

    __slots__ = ("begun", "bytes", "events", "topics")

    def __init__(self) -> None:
        self.begun = False
        self.topics: set[str] = set()
        self.events = 0
        self.bytes = 0

    def add(self, topic: str, size: int) -> None:
        self.topics.add(topic)
        self.events += 1
        self.bytes += size

    @property
    def full(self) -> bool:
        return self.bytes >= TRANSACTION_BYTES or self.events >= TRANSACTION_EVENTS


class KafkaSink(EventSink):
    """See ``sinks.contract.Sink``. Schemas are registered when the first change under them is applied: one that the registry refuses holds the store up there."""

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options, KafkaChannel(name, options))
        self._topics = options
        self._registry = Registry(name, options)
        self._encodings: dict[TopicSchema, Encoding] = {}

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        super().foresee(schemas)
        for schema in schemas:
            self._refuse_odd(schema)

    def prepare(self, schema: TopicSchema) -> None:
        super().prepare(schema)
        self._refuse_odd(schema)

    def _form(self, schema: TopicSchema) -> EventForm:
        return replace(self._preview_form(schema), encoding=self._encoding(schema))

    def _preview_form(self, schema: TopicSchema) -> EventForm:
        return super()._form(schema)

    def _encoding(self, schema: TopicSchema) -> Encoding | None:
        if self._topics.format == "json":
            return None
        if schema not in self._encodings:
            style, name = self._choices.style(schema), self._topics.topic_of(schema.topic)
            if self._topics.format == "avro":
                self._encodings[schema] = Avro(schema, style, self.name, name, self._registry.schema_id)
            else:
                self._encodings[schema] = ConnectJson(schema, style, self.name, name)
        return self._encodings[schema]

    def _refuse_odd(self, schema: TopicSchema) -> None:
        name = self._topics.topic_of(schema.topic)
        if not is_legal(name):
            raise ConfigError(
                f"stores.{self.name}.topic: {schema.topic} would be the topic {name}, which is not a name that Kafka knows",
                hint="letters, digits, '.', '_' and '-' are, up to 249 of them; write a name without a place for the table's, or leave the table out",
            )
        self._encoding(schema)

    def close(self) -> None:
        super().close()
        self._registry.close()
        self._encodings.clear()


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> KafkaSink:
    require_client(name)
    return KafkaSink(name, options)
