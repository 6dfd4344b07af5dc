"""Places to which event stores deliver, each of which can be made to take no long event: all kinds of them."""

from __future__ import annotations

import json
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from cdc.follow.follower import Follower
from cdc.model.batch import Op
from cdc.settings.models import StoreOptions
from cdc.state import letterrequests
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks.events.kafka import Options as KafkaOptions
from sinks.events.redisstream import Options as StreamOptions
from sinks.events.webhook import Options as WebhookOptions
from tests.committed import committed
from tests.contract.rows import batch
from tests.integration.test_event_streams import PLACED, placed
from tests.logs import LooseLog
from tests.receivers import Answer, Received, ScriptedReceiver
from tests.waiting import until

LONG: Final = 1_100_000
"""Bytes of an event that a narrow place does not take."""
STORE: Final = "bus"


class EventLab(ABC):
    """One store, a log that is written by hand, and whoever follows. Events are ``(key, number)``."""

    kind: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = LooseLog()
        self.position = 0
        self.open_ones: list[Follower] = []

    @abstractmethod
    def options(self, **more: Any) -> StoreOptions: ...

    @abstractmethod
    def narrow(self, narrow: bool) -> None:
        """Whether the place takes no event of ``LONG`` bytes."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """Of the events that arrived, in order."""

    @abstractmethod
    def lose(self) -> None:
        """Removes what the store keeps of itself."""

    def put(self, *events: tuple[str, bool]) -> None:
        """Events in one batch: key, and whether it is long. Their numbers are their positions."""
        rows = []
        for key, long in events:
            self.position += 1
            body = json.dumps({"n": self.position, "x": "x" * LONG if long else ""})
            rows.append((Op.INSERT, self.position, {**placed(self.position, body), "key": key}))
        self.log.put(batch(PLACED, rows))

    def begin(self, **more: Any) -> Follower:
        follower = Follower(STORE, self.options(**more), self.folder, self.log.reader(), self.folder, threading.Event())
        self.open_ones.append(follower)
        assert follower.start()
        return follower

    @contextmanager
    def following(self, *, first: bool = True, **more: Any) -> Iterator[Follower]:
        """``first``: to the log's head, before anything else."""
        follower = self.begin(**more)
        try:
            if first:
                self.follow(follower)
            yield follower
        finally:
            self.end(follower)

    def follow(self, follower: Follower) -> None:
        """To the log's head. A store that cannot come there says what it waits for."""
        ends = threading.Timer(150, follower._stop.set)
        ends.start()
        follower.follow_to(self.log.head)
        ends.cancel()
        assert follower.applied == self.log.head, follower.status.error

    def end(self, follower: Follower) -> None:
        self.open_ones.remove(follower)
        follower.close()
        follower.release_lease()

    def decide(self, follower: Follower, verb: Verb, position: int) -> LetterAnswer:
        request = LetterRequest(verb, [f"outbox.order@{position}"], "somebody")
        name = letterrequests.ask(self.folder, STORE, request)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if follower.applied == self.log.head:
                follower.follow_to(self.log.head)
            follower.idle()
            if (found := letterrequests.taken_answer(self.folder, STORE, name)) is not None:
                [answer] = found
                return answer
            time.sleep(0.02)
        raise TimeoutError("nobody has decided")

    def set_aside(self, follower: Follower, *numbers: int) -> None:
        """Waits until exactly these are dead letters."""
        deadline = time.monotonic() + 90
        while sorted(found := [int(one.position) for one in follower._opening.letters()]) != sorted(numbers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"set aside: {found}, not {numbers}")
            follower.idle()
            time.sleep(0.02)

    def arrive(self, *numbers: int) -> None:
        """Waits until exactly these are there, in any order over all."""
        deadline = time.monotonic() + 90
        while sorted(found := self.numbers()) != sorted(numbers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"arrived: {found}, not {numbers}")
            time.sleep(0.02)

    def close(self) -> None:
        for one in list(self.open_ones):
            self.end(one)


class WebhookLab(EventLab):
    """Its receiver answers 413."""

    kind = "webhook"

    def __init__(self, folder: Path, _: Callable[[str], Any]) -> None:
        super().__init__(folder)
        self.receiver = ScriptedReceiver(self._answer)
        self._narrow = False
        self._taken: list[int] = []

    def _answer(self, one: Received) -> Answer:
        if self._narrow and len(one.body) > LONG:
            return Answer(413)
        self._taken.append(int(json.loads(one.body)["n"]))
        return Answer()

    def options(self, **more: Any) -> StoreOptions:
        quick = {"first_s": 0.02, "most_s": 0.05}
        given = {"url": self.receiver.url, "state_dir": self.folder / "deliveries", "retry": quick, "begin": "start"}
        return WebhookOptions.model_validate({"kind": self.kind, **given, **more})

    def narrow(self, narrow: bool) -> None:
        self._narrow = narrow

    def numbers(self) -> list[int]:
        return list(self._taken)

    def lose(self) -> None:
        (self.folder / "deliveries" / f"{STORE}.json").unlink()

    def close(self) -> None:
        super().close()
        self.receiver.close()


class StreamLab(EventLab):
    """Its server takes no long text."""

    kind = "redis-stream"

    def __init__(self, folder: Path, fixture: Callable[[str], Any]) -> None:
        super().__init__(folder)
        self.valkey = fixture("valkey")
        self.redis = self.valkey.client(decode_responses=True)

    def options(self, **more: Any) -> StoreOptions:
        return StreamOptions.model_validate({"kind": self.kind, "url": self.valkey.url, "begin": "start", **more})

    def narrow(self, narrow: bool) -> None:
        self.redis.config_set("proto-max-bulk-len", 1 << 20 if narrow else 512 << 20)

    def numbers(self) -> list[int]:
        return [json.loads(fields["body"])["n"] for _, fields in self.redis.xrange("outbox.order")]

    def lose(self) -> None:
        self.redis.flushall()

    def close(self) -> None:
        super().close()
        self.narrow(False)
        self.redis.close()


class KafkaLab(EventLab):
    """Its topic has a ``max.message.bytes``."""

    kind = "kafka"

    def __init__(self, folder: Path, fixture: Callable[[str], Any]) -> None:
        super().__init__(folder)
        self.kafka = fixture("kafka")
        self.prefix = "t" + uuid.uuid4().hex[:8]
        self.quiet = {"bootstrap.servers": self.kafka.servers, "log_level": 0}
        self.admin = AdminClient(self.quiet)

    @property
    def topic(self) -> str:
        return f"{self.prefix}.outbox.order"

    def options(self, **more: Any) -> StoreOptions:
        given = {"servers": self.kafka.servers, "topic": self.prefix + ".{topic}", "ledger": f"__{self.prefix}.{{store}}"}
        wide = {"message_bytes_max": 4_000_000, "compression": "none", "timeout_s": 20.0}
        return KafkaOptions.model_validate({"kind": self.kind, "create": True, "begin": "start", **given, **wide, **more})

    def narrow(self, narrow: bool) -> None:
        from confluent_kafka.admin import NewTopic

        if self.topic not in self.admin.list_topics(timeout=60).topics:
            self.admin.create_topics([NewTopic(self.topic, 1)])[self.topic].result(60)
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        most = "1000000" if narrow else "4000000"
        resource.add_incremental_config(ConfigEntry("max.message.bytes", most, incremental_operation=AlterConfigOpType.SET))
        self.admin.incremental_alter_configs([resource])[resource].result(60)
        until(lambda: self.admin.describe_configs([resource])[resource].result(60)["max.message.bytes"].value == most)

    def numbers(self) -> list[int]:
        return [int(json.loads(one.value() or b"")["n"]) for one in committed(self.quiet, self.topic)]

    def lose(self) -> None:
        ledger = f"__{self.prefix}.{STORE}"
        self.admin.delete_topics([ledger], operation_timeout=60)[ledger].result(60)


LABS: Final = {one.kind: one for one in (WebhookLab, StreamLab, KafkaLab)}
