"""Events as messages of a real Kafka: what arrives, in which order, and that whoever reads what was committed sees nothing twice and misses nothing."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from cdc.embedded.kafka import Kafka
from cdc.errors import StopState, StoreError
from cdc.model.batch import Op
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed
from sinks.events.kafka import Options, make, sink
from sinks.events.kafka.sink import KafkaChannel
from sinks.events.sink import EventSink
from tests.committed import committed
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.integration.eventstage import EventStage
from tests.integration.test_event_streams import PLACED, placed
from tests.logs import cut
from tests.waiting import until


class Stage(EventStage):
    """A store with topics of its own."""

    def __init__(self, kafka: Kafka, folder: Path, prefix: str | None = None) -> None:
        super().__init__(folder)
        self.kafka = kafka
        self.prefix = prefix or "t" + uuid.uuid4().hex[:8]
        self.quiet = {"bootstrap.servers": kafka.servers, "log_level": 0}

    def options(self, **more: Any) -> Options:
        given = {"servers": self.kafka.servers, "topic": self.prefix + ".{topic}", "ledger": f"__{self.prefix}.{{store}}"}
        return Options.model_validate({"kind": "kafka", "create": True, "begin": "start", **given, **more})

    def opened(self, epoch: int, **more: Any) -> EventSink:
        sink = make("bus", self.options(**more))
        sink.open(self.log.reader(), epoch)
        sink.prepare(TopicSchema.of(ORDERS))
        return sink

    def topic(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        """Creates it."""
        admin = AdminClient(self.quiet)
        admin.create_topics([NewTopic(name, partitions, config=config or {})])[name].result(60)

    def clean_up(self, name: str, policy: str) -> None:
        """Changes its cleanup.policy; a broker hears of it after whoever has asked."""
        admin, resource = AdminClient(self.quiet), ConfigResource(ResourceType.TOPIC, name)
        resource.add_incremental_config(ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET))
        admin.incremental_alter_configs([resource])[resource].result(60)
        until(lambda: admin.describe_configs([resource])[resource].result(60)["cleanup.policy"].value == policy)

    def messages(self, topic: str, *, own: bool = True) -> list[Message]:
        """All that is committed, partition by partition."""
        name = f"{self.prefix}.{topic}" if own else topic
        return committed(self.quiet, name)

    def statuses(self, topic: str = "public.orders") -> list[tuple[int, str]]:
        bodies = [json.loads(one.value() or b"") for one in self.messages(topic)]
        return [(one["position"], one["after"]["status"]) for one in bodies]

    def ledger(self) -> list[dict[str, str]]:
        found = self.messages(f"__{self.prefix}.bus", own=False)
        return [json.loads(one.value() or b"") for one in found if one.key() == b"bus"]


@pytest.fixture
def stage(kafka: Kafka, tmp_path: Path) -> Stage:
    return Stage(kafka, tmp_path)


def headers(message: Message) -> dict[str, str]:
    return {name: bytes(value or b"").decode() for name, value in message.headers() or []}


def test_events_arrive_as_they_were_written_in_the_order_of_their_commits(stage: Stage) -> None:
    odd = '{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}'
    stage.put(
        batch(PLACED, [(Op.INSERT, 1, placed(1, odd, '{"tenant": "north", "n": 1}')), (Op.INSERT, 3, placed(2, None))]),
        batch(ORDERS, [(Op.INSERT, 2, order(7)), (Op.UPDATE, 4, order(7, "paid")), (Op.DELETE, 5, {"id": "7"})]),
    )
    assert stage.follow(tombstones=True).applied == stage.log.head
    first, second = stage.messages("outbox.order")
    assert (first.key(), first.value()) == (b"7", odd.encode())
    assert headers(first) == {"tenant": "north", "n": "1", "id": placed(1, None)["id"]}
    assert (second.key(), second.value()) == (b"7", None)
    changes = stage.messages("public.orders")
    assert [one.key() for one in changes] == [b"7"] * 4
    assert changes[3].value() is None
    bodies = [json.loads(one.value() or b"") for one in changes[:3]]
    assert [(one["op"], one["position"]) for one in bodies] == [("insert", 2), ("update", 4), ("delete", 5)]
    assert headers(changes[0]) == {"id": "public.orders:2"}
    said = stage.ledger()
    assert [(one["position"], one["progress"]) for one in said] == [("0", "0"), ("5", "5")]


def test_a_new_topic_gets_its_first_events_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not serve a new partition yet refuses a batch, and takes the next one as if it were the first: the refused one could not be sent again."""
    monkeypatch.setattr(sink, "BATCH_BYTES", 1_000)
    tables = [replace(ORDERS, oid=ORDERS.oid + number, name=f"orders{number}") for number in range(12)]
    count = 150
    for number, table in enumerate(tables):
        first = 1 + number * count
        stage.put(batch(table, [(Op.UPDATE, at, order(at % 8)) for at in range(first, first + count)]))
    assert stage.follow(partitions=50).applied == stage.log.head
    for number, table in enumerate(tables):
        found = sorted(json.loads(one.value() or b"")["position"] for one in stage.messages(table.qualified))
        assert found == list(range(1 + number * count, 1 + (number + 1) * count)), table.name


def test_a_store_that_could_not_be_opened_is_opened_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away in the middle of it; what the store is told before the next opening is no commit."""
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    made = make("bus", stage.options())
    begin = KafkaChannel.begin

    def away(*_: Any) -> None:
        raise StoreError("away", retryable=True)

    monkeypatch.setattr(KafkaChannel, "begin", away)
    with pytest.raises(StoreError, match="away"):
        made.open(stage.log.reader(), 1)
    monkeypatch.setattr(KafkaChannel, "begin", begin)
    made.commit(cut(0))
    assert made.open(stage.log.reader(), 1) == cut(0)
    made.close()


def test_a_writer_that_was_replaced_adds_nothing(stage: Stage) -> None:
    rows = batch(ORDERS, [(Op.INSERT, at, order(at)) for at in range(1, 4)])
    stage.put(rows)
    sleeping = stage.opened(1)
    sleeping.apply(rows.slice(0, 2))
    sleeping.commit(cut(2))
    sleeping.apply(rows)
    stage.opened(2).close()
    with pytest.raises(EpochPassed):
        sleeping.commit(cut(3))
    sleeping.close()
    with pytest.raises(EpochPassed):
        stage.opened(1)
    assert stage.statuses() == [(1, "new"), (2, "new")]
    again = stage.opened(3)
    assert again.held("public.orders") == 2
    again.apply(rows)
    again.commit(cut(3))
    assert again.applied() == cut(3)
    again.close()
    assert stage.statuses() == [(1, "new"), (2, "new"), (3, "new")]


def test_an_open_transaction_of_a_writer_that_died_is_undone(stage: Stage) -> None:
    rows = batch(ORDERS, [(Op.INSERT, at, order(at)) for at in range(1, 4)])
    stage.put(rows)
    dead = stage.opened(1)
    dead.apply(rows)
    channel = dead._channel
    assert isinstance(channel, KafkaChannel)
    for events in dead._waiting.in_order():
        channel.deliver(events, Position(3))
    assert channel._producer is not None
    channel._producer.flush(60)
    dead.close()
    assert stage.follow().applied == cut(3)
    assert stage.statuses() == [(1, "new"), (2, "new"), (3, "new")]


def test_what_another_writer_commits_before_it_is_shut_out_is_not_delivered_again(stage: Stage) -> None:
    rows = batch(ORDERS, [(Op.INSERT, 1, order(1))])
    stage.put(rows)
    earlier = stage.opened(1)
    earlier.apply(rows)
    later = make("bus", stage.options())
    channel = later._channel
    assert isinstance(channel, KafkaChannel)
    standing = channel.standing()
    assert standing is not None
    earlier.commit(cut(1))
    with pytest.raises(StoreError, match="has been at work meanwhile"):
        channel.begin(replace(standing, epoch=2))
    later.close()
    earlier.close()
    assert stage.follow().applied == cut(1)
    assert stage.statuses() == [(1, "new")]


def test_large_commits_go_in_several_transactions(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "TRANSACTION_EVENTS", 2)
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.INSERT, 3, order(3))]))
    stage.put(batch(PAIRS, [(Op.INSERT, 2, {"a": "x", "b": "y", "v": "1"}), (Op.INSERT, 4, {"a": "x", "b": "z", "v": "1"})]))
    stage.follow()
    assert [(one["position"], one["progress"]) for one in stage.ledger()][-2:] == [("0", "3"), ("4", "4")]


def test_a_topic_that_does_not_exist_is_waited_for(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    first = stage.opened(1, create=False)
    first.apply(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    with pytest.raises(StoreError, match=r"topic .*public\.orders: the topic does not exist") as refused:
        first.commit(cut(1))
    assert refused.value.retryable
    first.close()
    stage.topic(f"{stage.prefix}.public.orders", 4)
    assert stage.follow(create=False).applied == cut(1)
    [message] = stage.messages("public.orders")
    assert message.partition() == murmur2(b"1", 4)


def test_order_by_decides_on_the_partition(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, at, order(at, "s" + str(at % 3))) for at in range(1, 30)]))
    stage.follow(partitions=5, order_by=["status"])
    found = stage.messages("public.orders")
    assert len(found) == 29
    for one in found:
        status = json.loads(one.value() or b"")["after"]["status"]
        assert one.partition() == murmur2(status.encode(), 5)


def test_a_ledger_that_would_forget_or_has_forgotten_is_refused(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    name = f"__{stage.prefix}.bus"
    admin = AdminClient(stage.quiet)
    stage.topic(name, config={"cleanup.policy": "delete"})
    with pytest.raises(StoreError, match=r"has the cleanup\.policy delete"):
        stage.opened(1)
    stage.clean_up(name, "compact,delete")
    with pytest.raises(StoreError, match="would be forgotten"):
        stage.opened(2)
    stage.clean_up(name, "compact")
    assert stage.follow().applied == cut(1)
    stage.clean_up(name, "delete")
    assert stage.ledger()
    admin.delete_records([TopicPartition(name, 0, -1)])[TopicPartition(name, 0, -1)].result(60)
    with pytest.raises(StoreError, match="what it said is gone") as gone:
        stage.opened(3)
    assert not gone.value.retryable
    assert stage.statuses() == [(1, "new")]


def test_a_ledger_of_another_store_is_refused(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow()
    other = make("other", stage.options(ledger=f"__{stage.prefix}.bus", topic=f"{stage.prefix}.copy"))
    with pytest.raises(StoreError, match=r"messages that are not this store's") as refused:
        other.open(stage.log.reader(), 1)
    assert not refused.value.retryable
    other.close()


def test_a_ledger_that_is_no_longer_wanted_is_removed(stage: Stage) -> None:
    store = stage.opened(1)
    assert store.applied() == cut(0)
    store.erase()
    assert make("bus", stage.options()).open(stage.log.reader()) == cut(0)
    assert f"__{stage.prefix}.bus" not in AdminClient(stage.quiet).list_topics(timeout=60).topics


def test_a_ledger_whose_last_message_is_not_ours_is_refused(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow()
    producer = Producer(stage.quiet)
    producer.produce(f"__{stage.prefix}.bus", b"[" * 100_000, b"bus", partition=0)
    assert producer.flush(60) == 0
    with pytest.raises(StoreError, match="is not one that we wrote") as refused:
        stage.opened(2)
    assert not refused.value.retryable


@pytest.mark.slow
def test_a_transaction_that_is_left_open_in_the_ledger_is_named_and_waited_for(stage: Stage) -> None:
    """Somebody else's, which the store cannot end; its own it ends (``tests.faults.test_event_messages``, where a broker is killed)."""
    stage.opened(1).close()
    ledger = f"__{stage.prefix}.bus"
    other = Producer({**stage.quiet, "transactional.id": stage.prefix})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(ledger, b"[" * 100_000, b"bus", partition=0)
    other.flush(60)
    with pytest.raises(StoreError, match=f"{ledger} cannot be read to its end") as waiting:
        stage.opened(2, timeout_s=5)
    assert waiting.value.retryable
    assert f"--topic {ledger}" in str(waiting.value.hint)
    other.abort_transaction(60)
    store = stage.opened(3)
    assert store.applied() == cut(0)
    store.close()


@pytest.mark.slow
def test_what_others_have_open_in_the_topics_of_a_transaction_that_hangs_is_left_to_them(stage: Stage) -> None:
    stage.opened(1).close()
    ledger, topic = f"__{stage.prefix}.bus", f"{stage.prefix}.public.orders"
    stage.topic(topic)
    other = Producer({**stage.quiet, "transactional.id": stage.prefix})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(topic, b"theirs", b"1")
    other.produce(ledger, json.dumps({"topics": [topic]}), b"bus", partition=0)
    other.flush(60)
    with pytest.raises(StoreError, match=f"{ledger} cannot be read to its end"):
        stage.opened(2, timeout_s=5)
    other.commit_transaction(60)
    assert [one.value() for one in committed(stage.quiet, topic)] == [b"theirs"]


def test_an_event_that_is_too_long_is_a_letter_and_says_how_long_it_is(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.INSERT, 2, order(2, "x" * 2000)), (Op.UPDATE, 3, order(2))]))
    assert stage.follow(message_bytes_max=1500).applied == cut(3)
    assert stage.statuses() == [(1, "new")]
    [letter] = make("bus", stage.options()).letters()
    assert (letter.id, letter.key) == ("public.orders@2", "public.orders@2")
    assert re.fullmatch(r"it has 2\d\d\d bytes .*, and a message may have 1300 \(message_bytes_max\)", letter.reason)
    assert [(one.get("held"), one.get("position")) for one in stage.ledger()][-1] == ("2", "3")


def test_batches_of_a_narrow_topic_are_made_smaller(stage: Stage) -> None:
    """No event is too long by itself."""
    name = f"{stage.prefix}.narrow"
    stage.topic(name, config={"max.message.bytes": "20000"})
    rows = batch(ORDERS, [(Op.INSERT, at, order(at, "x" * 900)) for at in range(1, 200)])
    stage.put(rows)
    follower = stage.follow(topic=name, compression="none")
    assert follower.applied == cut(199)
    assert make("bus", stage.options()).letters() == ()
    assert len(stage.messages(name, own=False)) == 199


def test_letters_and_their_events_are_one_with_the_transaction(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that ends before its commit leaves neither."""
    rows = batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.INSERT, 2, order(2, "x" * 2000)), (Op.UPDATE, 3, order(2))])
    stage.put(rows)
    store = stage.opened(1, message_bytes_max=1500)
    store.apply(rows)
    channel = store._channel
    assert isinstance(channel, KafkaChannel)
    monkeypatch.setattr(channel, "_commit", lambda _: (_ for _ in ()).throw(StoreError("it ends here", retryable=True)))
    with pytest.raises(StoreError, match="it ends here"):
        store.commit(cut(3))
    assert channel._producer is not None
    channel._producer.flush(60)
    store.close()
    assert make("bus", stage.options()).letters() == ()
    assert stage.follow(message_bytes_max=1500).applied == cut(3)
    assert stage.statuses() == [(1, "new")]


def test_another_logs_events_are_not_mixed_in(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow()
    other = Stage(stage.kafka, stage.folder / "other", stage.prefix)
    other.folder.mkdir()
    other.put(batch(ORDERS, [(Op.INSERT, 1, order(9))]))
    assert other.follow().status.stop == StopState.OTHER_LOG
    assert len(stage.messages("public.orders")) == 1


def test_nobody_answers(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    with pytest.raises(StoreError, match="no broker answers") as refused:
        stage.opened(1, servers="127.0.0.1:1", timeout_s=1)
    assert refused.value.retryable
