"""``ttl``, ``publish`` and a table's own ``key`` and ``value``, on a real server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import KILLED
from cdc.errors import ConfigError
from cdc.model.batch import OP, TS, Op
from cdc.model.position import ZERO_CUT, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Expiring
from tests.contract.labs import LABS, Lab
from tests.contract.rows import NUMBERED, batch, order, schema
from tests.faults.points import killed
from tests.logs import cut

TABLE = "public.orders"


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["redis"](request.getfixturevalue)
    yield made
    made.close()


def at(changes: pa.RecordBatch, *ago_s: float) -> pa.RecordBatch:
    """The changes, committed so long ago."""
    now = time.time()
    moments = pa.array([int((now - ago) * 1_000_000) for ago in ago_s], pa.int64()).view(changes.schema.field(TS).type)
    place = changes.schema.names.index(TS)
    return changes.set_column(place, changes.schema.field(place), moments)


class Cache:
    """One store of the lab, opened by a new writer."""

    def __init__(self, lab: Lab, **said: Any) -> None:
        self._lab = lab
        self.sink = lab.sink(tables={TABLE: said})
        self.opened = lab.open(self.sink)
        self.client = lab.units._client  # type: ignore[attr-defined]

    def feed(self, changes: pa.RecordBatch, position: int) -> None:
        self._lab.log.put(changes)
        if self.sink.shape(TABLE) is None:
            self.sink.prepare(TopicSchema.of(NUMBERED))
        outcome = self.sink.apply(changes)
        assert not outcome.dead
        self._lab.log.reach(cut(position))
        self.sink.commit(cut(position))

    def keys(self) -> list[str]:
        return sorted(key.decode() for key in self.client.scan_iter("o:*"))

    def left_s(self, key: str) -> float:
        return float(self.client.pttl(key)) / 1000


def rows(*keys: int, position: int = 1, op: Op = Op.INSERT, status: str = "new") -> pa.RecordBatch:
    return batch(NUMBERED, [(op, position + at, order(key, status)) for at, key in enumerate(keys)])


@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_row_lives_so_long_from_its_commit(lab: Lab, value: str) -> None:
    cache = Cache(lab, key="o:{id}", value=value, ttl="1h")
    cache.feed(at(rows(1, 2, 3), 0, 3000, 4000), 3)
    assert cache.keys() == ["o:1", "o:2"], "the third has outlived its time"
    assert cache.left_s("o:1") == pytest.approx(3600, abs=60)
    assert cache.left_s("o:2") == pytest.approx(600, abs=60)
    cache.feed(at(rows(2, position=4, op=Op.UPDATE), 0), 4)
    assert cache.left_s("o:2") == pytest.approx(3600, abs=60), "a change renews it"
    cache.feed(at(rows(1, position=5, op=Op.DELETE), 0), 5)
    assert cache.keys() == ["o:2"]


def test_another_time_writes_every_row_again_as_if_it_had_always_been_so(lab: Lab) -> None:
    Cache(lab, key="o:{id}", ttl="1h").feed(at(rows(1, 2, 3), 0, 4000, 90_000), 3)
    looking = lab.sink(tables={TABLE: {"key": "o:{id}", "ttl": "1d"}})
    looking.open(lab.log.reader())
    assert looking.projected() == "every row whose `key`, `value` or `ttl` is said otherwise is written again"
    longer = Cache(lab, key="o:{id}", ttl="1d")
    assert longer.keys() == ["o:1", "o:2"], "the second is back, the third has been gone for an hour"
    assert longer.left_s("o:2") == pytest.approx(86_400 - 4000, abs=60)
    forever = Cache(lab, key="o:{id}")
    assert forever.keys() == ["o:1", "o:2", "o:3"]
    assert {forever.client.ttl(key) for key in ("o:1", "o:2", "o:3")} == {-1}
    moved = Cache(lab, key="o:x:{id}", value="hash", ttl=3600)
    assert moved.keys() == ["o:x:1"]
    assert moved.client.hget("o:x:1", "status") == b"new"


def test_a_change_of_the_definition_keeps_the_rows_time(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", ttl="1h")
    cache.feed(at(rows(1, 2), 1800, 4000), 2)
    columns = tuple(dataclasses.replace(one, name={"note": "remark"}.get(one.name, one.name)) for one in NUMBERED.columns)
    cache.feed(schema(dataclasses.replace(NUMBERED, columns=columns), 3), 3)
    assert cache.keys() == ["o:1"]
    assert cache.left_s("o:1") == pytest.approx(1800, abs=60)
    assert b"remark" in cache.client.get("o:1")


def test_the_audit_is_told_which_rows_have_expired(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", ttl="1h")
    cache.feed(at(rows(1, 2, 3, 4, 5), 0, 4000, 0, 5000, 4000), 5)
    cache.feed(at(rows(5, position=6, op=Op.UPDATE), 0), 6)
    cache.client.delete("o:3", "o:5")  # somebody else's doing
    held = TopicSchema.of(NUMBERED)
    looking = lab.sink(tables={TABLE: {"key": "o:{id}", "ttl": "1h"}})
    looking.open(lab.log.reader())
    assert isinstance(looking, Expiring)
    keys = pa.RecordBatch.from_pylist([{"id": str(key)} for key in (2, 3, 4, 5, 9)], pa.schema([("id", pa.utf8())]))
    assert looking.expired(keys, held).tolist() == [True, False, True, False, False]
    without = lab.sink(tables={TABLE: {"key": "o:{id}"}})
    without.open(lab.log.reader())


class CompactedMeanwhile:
    """A reader whose log lets the changes before ``kept_from`` go right after its topics were asked for."""

    def __init__(self, lab: Lab, kept_from: int) -> None:
        self._reader = lab.log.reader()
        self._log = lab.log
        self._kept_from = Position(kept_from)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def topics(self) -> Any:
        before = self._reader.topics()
        self._log.retire(TABLE, self._kept_from)
        return before


def test_the_log_may_be_compacted_while_it_is_asked_which_rows_have_expired(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", ttl="1h")
    for position, ago_s in enumerate((4000, 4000, 0), 1):
        cache.feed(at(rows(position, position=position), ago_s), position)
    looking = lab.sink(tables={TABLE: {"key": "o:{id}", "ttl": "1h"}})
    looking.open(lab.log.reader())
    looking._log = CompactedMeanwhile(lab, 2)  # type: ignore[attr-defined]
    keys = pa.RecordBatch.from_pylist([{"id": "2"}], pa.schema([("id", pa.utf8())]))
    assert isinstance(looking, Expiring)
    assert looking.expired(keys, TopicSchema.of(NUMBERED)).tolist() == [True]


def test_every_key_that_is_written_or_deleted_is_published(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", publish="orders", value="hash")
    listening = cache.client.pubsub(ignore_subscribe_messages=True)
    listening.subscribe("orders")

    def heard() -> list[str]:
        found = []
        until = time.monotonic() + 0.5
        while (message := listening.get_message(timeout=0.1)) is not None or time.monotonic() < until:
            found += [] if message is None else [message["data"].decode()]
        return sorted(found)

    heard()
    cache.feed(at(rows(1, 2, 1), 0, 0, 0), 3)
    assert heard() == ["o:1", "o:2"], "once for a key of a transaction, after its last change"
    cache.feed(at(rows(2, position=4, op=Op.DELETE), 0), 4)
    assert heard() == ["o:2"]
    cache.feed(batch(NUMBERED, [(Op.TRUNCATE, 5, {})]), 5)
    assert set(heard()) == {"o:1", "o:2"}
    assert cache.keys() == []
    cache.feed(at(rows(7, position=6), 0), 6)
    assert heard() == ["o:7"]
    Cache(lab, key="o:{id}", publish="others", value="hash").feed(at(rows(8, position=7), 0), 7)
    assert heard() == []
    listening.close()


def test_a_writer_that_was_replaced_publishes_nothing(lab: Lab) -> None:
    first = Cache(lab, key="o:{id}", publish="orders")
    first.feed(at(rows(1), 0), 1)
    second = Cache(lab, key="o:{id}", publish="orders")
    listening = second.client.pubsub(ignore_subscribe_messages=True)
    listening.subscribe("orders")
    listening.get_message(timeout=0.2)
    with pytest.raises(Exception, match="later writer"):
        first.sink.apply(at(rows(2, position=2), 0))
    assert listening.get_message(timeout=0.5) is None
    listening.close()


def test_a_server_that_was_emptied_is_filled_again_without_what_has_expired(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", ttl="1h")
    cache.feed(at(rows(1, 2), 0, 4000), 2)
    cache.client.flushall()
    again = Cache(lab, key="o:{id}", ttl="1h")
    assert again.opened == ZERO_CUT
    for changes in lab.log.reader().read(TABLE, ZERO_CUT.position, cut(2).position):
        assert changes.column(OP)[0].as_py() == int(Op.INSERT)
        again.sink.prepare(TopicSchema.of(NUMBERED))
        again.sink.apply(changes)
    again.sink.commit(cut(2))
    assert again.keys() == ["o:1"]
    assert again.left_s("o:1") == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"key": "o:{status}"}, "rows of public.orders also differ in id: without it two of them could have one name"),
        ({"key": "o:"}, "rows of public.orders also differ in id"),
    ],
)
def test_a_key_of_other_columns_is_refused(lab: Lab, said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lab.sink(tables={TABLE: said}).foresee([TopicSchema.of(NUMBERED)])
    with pytest.raises(ConfigError, match=r"stores\.\w+\.tables\.\"public.nothing\": no such table is captured"):
        lab.sink(tables={"public.nothing": {"ttl": 5}}).foresee([TopicSchema.of(NUMBERED)])


@pytest.mark.parametrize("ttl", [0, -1, True, "", "1w", "0s", "1.5h", "99999999999d", 1.5])
def test_what_is_no_time_is_refused(lab: Lab, ttl: Any) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        lab.sink(tables={TABLE: {"ttl": ttl}})


@pytest.mark.parametrize(
    "point", ["cache.taken_over", "cache.write.begun", "cache.write.sent", "cache.commit.begun", "cache.commit.done"]
)
def test_a_writer_that_is_killed_leaves_no_key_without_its_time(lab: Lab, point: str) -> None:
    said = {"key": "o:{id}", "ttl": "1h", "publish": "orders"}
    client = lab.units._client  # type: ignore[attr-defined]
    listening = client.pubsub(ignore_subscribe_messages=True)
    listening.subscribe("orders")
    listening.get_message(timeout=0.2)
    changes = at(rows(1, 2, 3), 0, 1800, 4000)
    assert killed(lambda: Cache(lab, **said).feed(changes, 3), f"{point}=kill") == KILLED
    assert all(client.ttl(key) > 0 for key in client.scan_iter("o:*")), "a key and its time come together"
    lab.epoch += 1
    cache = Cache(lab, **said)
    cache.feed(changes, 3)
    assert cache.keys() == ["o:1", "o:2"]
    assert cache.left_s("o:2") == pytest.approx(1800, abs=60)
    heard = set()
    while (message := listening.get_message(timeout=0.2)) is not None:
        heard.add(message["data"].decode())
    assert heard == {"o:1", "o:2", "o:3"}, "each at least once"
    listening.close()


@pytest.mark.parametrize("point", ["cache.change.looked=kill:2", "cache.write.begun=kill", "cache.write.sent=kill"])
def test_another_time_is_finished_by_the_next_writer(lab: Lab, point: str) -> None:
    Cache(lab, key="o:{id}").feed(at(rows(1, 2, 3), 0, 1800, 4000), 3)

    def opening() -> None:
        Cache(lab, key="o:x:{id}", ttl="1h")

    assert killed(opening, point) == KILLED
    lab.epoch += 1
    cache = Cache(lab, key="o:x:{id}", ttl="1h")
    assert cache.keys() == ["o:x:1", "o:x:2"]
    assert cache.left_s("o:x:2") == pytest.approx(1800, abs=60)


def test_keys_of_rows_that_change_are_deleted_and_nothing_is_written(lab: Lab) -> None:
    cache = Cache(lab, key="o:{id}", value="invalidate", publish="orders")
    listening = cache.client.pubsub(ignore_subscribe_messages=True)
    listening.subscribe("orders")
    listening.get_message(timeout=0.5)
    cache.client.mset(dict.fromkeys(("o:1", "o:2", "o:9"), "the application's"))
    cache.feed(at(rows(1), 0), 1)
    assert cache.keys() == ["o:2", "o:9"]
    heard = listening.get_message(timeout=5)
    assert heard is not None
    assert heard["data"] == b"o:1"
    cache.client.set("o:1", "filled again")
    cache.feed(at(batch(NUMBERED, [(Op.UPDATE, 2, order(1)), (Op.DELETE, 3, order(2))]), 0, 0), 3)
    assert cache.keys() == ["o:9"]
    cache.client.set("o:1", "once more")
    cache.feed(batch(NUMBERED, [(Op.TRUNCATE, 4, {})]), 4)
    assert cache.keys() == ["o:9"], "what no row was ever called is nobody's but the application's"
    cache.sink.erase()
    assert cache.keys() == ["o:9"]
    with pytest.raises(ValueError, match="nothing is written"):
        lab.sink(tables={TABLE: {"value": "invalidate", "ttl": 5}})


def test_a_cache_that_was_written_is_left_to_the_application(lab: Lab) -> None:
    Cache(lab, key="o:{id}").feed(at(rows(1, 2), 0, 0), 2)
    looking = lab.sink(tables={TABLE: {"key": "o:{id}", "value": "invalidate"}})
    looking.open(lab.log.reader())
    assert "written again" in (looking.projected() or "")
    assert Cache(lab, key="o:{id}", value="invalidate").keys() == []
    assert Cache(lab, key="o:{id}").keys() == ["o:1", "o:2"]
