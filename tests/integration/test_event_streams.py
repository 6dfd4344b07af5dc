"""Events on the streams of a real server: what arrives, in which order, and that nothing ever comes twice or is missing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import Stopped, StopState, StoreError
from cdc.follow.follower import Follower
from cdc.log import home
from cdc.model.batch import Op
from cdc.model.pgtypes import JSONB, TEXT, TIMESTAMPTZ, UUID
from cdc.model.position import ZERO_CUT
from cdc.model.table import Column, Table
from cdc.settings.models import StoreOptions
from sinks.contract import EpochPassed
from sinks.events.redisstream import Options, channel, make
from sinks.events.sink import EventSink
from sinks.events.standing import EventStanding
from tests.contract.rows import ORDERS, PAIRS, batch, order, replacing
from tests.integration.eventstage import EventStage
from tests.logs import cut

PLACED = Table(
    900_001,
    "outbox",
    "order",
    (
        Column("id", UUID, -1, "uuid", key=True),
        Column("key", TEXT, -1, "text"),
        Column("type", TEXT, -1, "text"),
        Column("payload", JSONB, -1, "jsonb"),
        Column("headers", JSONB, -1, "jsonb"),
        Column("time", TIMESTAMPTZ, -1, "timestamptz"),
    ),
)


def placed(number: int, payload: str | None, headers: str | None = None) -> dict[str, str | None]:
    key = f"00000000-0000-7000-8000-{number:012d}"
    return {"id": key, "key": "7", "type": "order.placed", "payload": payload, "headers": headers, "time": None}


class Stage(EventStage):
    """A store and its server."""

    def __init__(self, valkey: Any, folder: Path) -> None:
        super().__init__(folder)
        self.valkey, self.redis = valkey, valkey.client(decode_responses=True)

    def options(self, **more: Any) -> StoreOptions:
        return Options.model_validate({"kind": "redis-stream", "url": self.valkey.url, **more})

    def entries(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        found: list[tuple[str, dict[str, str]]] = self.redis.xrange(stream)
        return found


@pytest.fixture
def stage(valkey: Any, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(valkey, tmp_path)
    yield made
    made.redis.close()


def test_events_arrive_as_they_were_written_in_the_order_of_their_commits(stage: Stage) -> None:
    odd = '{"a": [], "b": null, "c": 1.0, "d": 12345678901234567890}'
    stage.put(
        batch(PLACED, [(Op.INSERT, 1, placed(1, odd, '{"tenant": "north"}')), (Op.INSERT, 3, placed(2, None))]),
        batch(ORDERS, [(Op.INSERT, 2, order(7)), (Op.UPDATE, 4, order(7, "paid")), (Op.DELETE, 5, {"id": "7"})]),
    )
    assert stage.follow(begin="start", stream="all").applied == stage.log.head
    found = stage.entries("all")
    assert [one for one, _ in found] == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    first = found[0][1]
    assert first["body"] == odd
    assert json.loads(first["headers"]) == {"tenant": "north"}
    assert (first["type"], first["key"], first["op"], first["topic"]) == ("order.placed", "7", "insert", "outbox.order")
    assert first["id"] == placed(1, None)["id"]
    assert "body" not in found[2][1]
    changes = [json.loads(fields["body"]) for fields in (found[1][1], found[3][1], found[4][1])]
    assert [(one["op"], one["before"], one["after"] and one["after"]["status"]) for one in changes] == [
        ("insert", None, "new"),
        ("update", None, "paid"),
        ("delete", {"id": 7}, None),
    ]
    assert (changes[1]["position"], changes[1]["lsn"], changes[1]["time"]) == (4, 40, "2023-11-14T22:13:20Z")


def test_before_there_is_a_log_whoever_only_looks_finds_that_nothing_is_there(stage: Stage, tmp_path: Path) -> None:
    """`cdc doctor` before the first `cdc run`."""
    reader = home.open_reader(tmp_path / "none")
    sink = make("bus", Options.model_validate({"kind": "redis-stream", "url": stage.valkey.url}))
    assert sink.open(reader) == ZERO_CUT
    with pytest.raises(StoreError, match="there is no log") as refused:
        sink.open(reader, 1)
    assert refused.value.retryable
    sink.close()
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow()
    with pytest.raises(Stopped, match="of another log") as stopped:
        sink.open(reader)
    assert stopped.value.state == StopState.OTHER_LOG
    assert "another name" in str(stopped.value.hint)
    sink.close()


def test_a_server_without_memory_is_waited_for_and_nothing_is_lost_or_comes_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CALL_EVENTS", 2)
    stage.put(batch(ORDERS, [(Op.INSERT, at, order(at, "x" * 50_000)) for at in range(1, 40)]))
    follower = Follower("bus", stage.options(begin="start"), stage.folder, stage.log.reader(), stage.folder, threading.Event())
    follower.start()
    try:
        before = int(stage.redis.info("memory")["used_memory"])
        stage.redis.set("others", "x" * 4_000_000)
        stage.redis.config_set("maxmemory", before + 4_500_000)
        heads_on = threading.Thread(target=follower.follow_to, args=(stage.log.head,))
        heads_on.start()
        deadline = time.monotonic() + 60
        while follower.status.state != "waiting":
            assert time.monotonic() < deadline, follower.status
            time.sleep(0.02)
        assert "OOM" in str(follower.status.error)
        assert "raise maxmemory, or free memory" in str(follower.status.error)
        assert "xxx" not in str(follower.status.error)
        assert len(stage.entries("public.orders")) < 39
        stage.redis.delete("others")
        heads_on.join(120)
        assert follower.applied == stage.log.head
        assert follower.status.state == "following"
        assert [one for one, _ in stage.entries("public.orders")] == [f"{at}-0" for at in range(1, 40)]
    finally:
        stage.redis.config_set("maxmemory", 0)
        follower.close()
        follower.release_lease()


def test_each_topic_has_its_stream(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]), batch(PAIRS, [(Op.INSERT, 2, {"a": "x:", "b": "y", "v": "1"})]))
    stage.follow(begin="start")
    assert [one for one, _ in stage.entries("public.orders")] == ["1-0"]
    [(_, pair)] = stage.entries("public.pairs")
    assert (pair["key"], pair["id"]) == ("x\\::y", "public.pairs:2")


def test_a_row_that_comes_and_goes_is_events(stage: Stage) -> None:
    """Whoever holds rows may pass them over when the table is emptied behind them."""
    stage.put(
        batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.UPDATE, 2, order(1, "paid"))]),
        batch(ORDERS, [(Op.TRUNCATE, 3, {})]),
        batch(ORDERS, [(Op.INSERT, 4, order(2))]),
    )
    stage.follow(begin="start")
    assert [fields["op"] for _, fields in stage.entries("public.orders")] == ["insert", "update", "truncate", "insert"]
    truncated = json.loads(stage.entries("public.orders")[2][1]["body"])
    assert (truncated["op"], truncated["before"], truncated["after"]) == ("truncate", None, None)


def test_it_begins_where_the_log_stood_when_it_was_opened_first(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    assert stage.follow().applied.position == 1
    stage.put(batch(ORDERS, [(Op.INSERT, 2, order(2)), (Op.READ, 3, order(2))]))
    stage.follow(begin="start", reads=False)
    assert [one for one, _ in stage.entries("public.orders")] == ["2-0"]
    stage.put(batch(ORDERS, [(Op.READ, 4, order(2))]))
    stage.follow(begin="start")
    assert [(one, fields["op"]) for one, fields in stage.entries("public.orders")][1:] == [("4-0", "read")]


def test_a_call_that_was_carried_out_adds_nothing_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CALL_EVENTS", 2)
    sink, rows = opened(stage, 1), batch(ORDERS, [(Op.INSERT, at, order(at)) for at in range(1, 8)])
    stage.put(rows)
    sink.prepare(rows_schema())
    sink.apply(rows)
    sink.commit(cut(7))
    before = stage.entries("public.orders")
    assert len(before) == 7
    stage.redis.hset("cdc:{bus}:events", mapping={"position": 0, "commit_lsn": 0, "progress": 4})
    again = opened(stage, 2)
    assert again.held("public.orders") == 4
    again.prepare(rows_schema())
    again.apply(rows)
    with pytest.raises(StoreError, match="has entries that this log has not come to"):
        again.commit(cut(7))  # never twice, whatever the ledger says
    assert stage.entries("public.orders") == before


def test_a_writer_that_was_replaced_adds_nothing(stage: Stage) -> None:
    rows = batch(ORDERS, [(Op.INSERT, 1, order(1))])
    stage.put(rows)
    sleeping = opened(stage, 1)
    sleeping.prepare(rows_schema())
    sleeping.apply(rows)
    opened(stage, 2).close()
    with pytest.raises(EpochPassed):
        sleeping.commit(cut(1))
    with pytest.raises(EpochPassed):
        opened(stage, 1)
    assert stage.entries("public.orders") == []
    assert stage.redis.hget("cdc:{bus}:events", "progress") == "0"


@pytest.mark.parametrize("new", [False, True])
def test_what_another_writer_adds_before_it_is_shut_out_is_not_added_again(stage: Stage, new: bool) -> None:
    """``new``: the store was never opened before."""
    rows = batch(ORDERS, [(Op.INSERT, 1, order(1))])
    stage.put(rows)
    if not new:
        opened(stage, 1).close()
    options = stage.options(begin="start")
    assert isinstance(options, Options)
    later = channel.StreamChannel("bus", options)
    standing = later.standing()
    earlier = opened(stage, 2)
    earlier.prepare(rows_schema())
    earlier.apply(rows)
    earlier.commit(cut(1))
    beginning = standing or EventStanding("log", "h", 0, ZERO_CUT, ZERO_CUT.position, ZERO_CUT.position)
    with pytest.raises(StoreError, match="has been at work meanwhile"):
        later.begin(replace(beginning, epoch=3))
    later.close()
    earlier.close()
    follower = stage.follow(begin="start")
    assert follower.applied == cut(1), follower.status.error
    assert [one for one, _ in stage.entries("public.orders")] == ["1-0"]


def test_an_emptied_server_goes_on_from_where_it_was(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    follower = Follower("bus", stage.options(), stage.folder, stage.log.reader(), stage.folder, threading.Event())
    follower.start()
    stage.put(batch(ORDERS, [(Op.INSERT, 2, order(2))]))
    follower.follow_to(stage.log.head)
    stage.redis.flushall()
    stage.put(batch(ORDERS, [(Op.INSERT, 3, order(3))]))
    follower.follow_to(stage.log.head)
    follower.close()
    follower.release_lease()
    assert [one for one, _ in stage.entries("public.orders")] == ["3-0"]
    assert follower.applied == stage.log.head
    stage.redis.flushall()
    stage.put(batch(ORDERS, [(Op.INSERT, 4, order(4))]))
    stage.follow()  # another process: the store was last seen at 3
    assert [one for one, _ in stage.entries("public.orders")] == ["4-0"]


def test_entries_that_a_restore_has_taken_are_not_passed_over_by_a_cut_without_events(stage: Stage) -> None:
    """The connection stands, as behind a proxy or when a copy is loaded in place, and the next range has nothing for the store."""
    more = {"begin": "start", "tables": ["public.orders"]}
    follower = Follower("bus", stage.options(**more), stage.folder, stage.log.reader(), stage.folder, threading.Event())
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    follower.start()
    follower.follow_to(stage.log.head)
    copies = {key: stage.redis.hgetall(key) for key in ("cdc:{bus}:events",)}
    stage.put(batch(ORDERS, [(Op.INSERT, 2, order(2))]))
    follower.follow_to(stage.log.head)
    stage.redis.delete("public.orders", *copies)
    stage.redis.xadd("public.orders", {"id": "public.orders:1"}, "1-0")
    for key, fields in copies.items():
        stage.redis.hset(key, mapping=fields)
    stage.put(batch(PAIRS, [(Op.INSERT, 3, {"a": "x", "b": "y", "v": "1"})]))
    follower.follow_to(stage.log.head)
    follower.close()
    follower.release_lease()
    assert [one for one, _ in stage.entries("public.orders")] == ["1-0", "2-0"]
    assert follower.applied == stage.log.head


def test_another_logs_events_are_not_mixed_in(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow(begin="start")
    other = Stage(stage.valkey, stage.folder / "other")
    other.folder.mkdir()
    other.put(batch(ORDERS, [(Op.INSERT, 1, order(9))]))
    assert other.follow(begin="start").status.stop == StopState.OTHER_LOG
    assert len(stage.entries("public.orders")) == 1


def test_changes_that_are_gone_from_the_log_are_not_passed_over(stage: Stage) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    stage.follow(begin="start")
    stage.put(batch(ORDERS, [(Op.UPDATE, 2, order(1, "paid"))]), batch(ORDERS, [(Op.UPDATE, 3, order(1, "sent"))]))
    stage.log.supersede("public.orders", 3)
    stopped = stage.follow(begin="start")
    assert stopped.status.stop == StopState.POSITION_GONE
    assert len(stage.entries("public.orders")) == 1


def opened(stage: Stage, epoch: int, **more: Any) -> EventSink:
    options = stage.options(begin="start", **more)
    assert isinstance(options, Options)
    sink = make("bus", options)
    sink.open(stage.log.reader(), epoch)
    return sink


def rows_schema() -> Any:
    from cdc.model.topic import TopicSchema

    return TopicSchema.of(ORDERS)


PENDING = "op = 'update' AND changed(status) AND old.status = 'pending'"


def test_only_changes_that_the_condition_is_true_of_are_events(stage: Stage) -> None:
    stage.put(
        batch(
            ORDERS,
            [
                (Op.INSERT, 1, order(1, "pending")),
                (Op.UPDATE, 2, order(1, "pending", note="seen")),
                (Op.UPDATE, 3, order(1, "paid")),
                (Op.UPDATE, 4, order(1, "sent")),
                (Op.INSERT, 5, order(2, None)),
                (Op.UPDATE, 6, order(2, "paid")),
                (Op.DELETE, 7, {"id": "1"}),
            ],
        )
    )
    stage.follow(begin="start", when=PENDING)
    [(place, paid)] = stage.entries("public.orders")
    body = json.loads(paid["body"])
    assert (place, body["before"]["status"], body["after"]["status"]) == ("3-0", "pending", "paid")
    stage.put(batch(ORDERS, [(Op.UPDATE, 8, order(2, "pending"))]), batch(ORDERS, [(Op.UPDATE, 9, order(2, "gone"))]))
    stage.follow(begin="start", when=PENDING)
    assert [place for place, _ in stage.entries("public.orders")] == ["3-0", "9-0"]


def test_each_table_may_have_a_condition_of_its_own(stage: Stage) -> None:
    stage.put(
        batch(ORDERS, [(Op.INSERT, 1, order(1)), (Op.DELETE, 2, {"id": "1"})]),
        batch(ORDERS, [(Op.TRUNCATE, 3, {})]),
        batch(PAIRS, [(Op.INSERT, 4, {"a": "x", "b": "y", "v": "1"}), (Op.DELETE, 5, {"a": "x", "b": "y"})]),
    )
    tables = {"select": ["public.*"], "public.pairs": {"when": "op = 'delete' AND old.v = '1'"}}
    stage.follow(begin="start", stream="all", when="op IN ('delete', 'truncate')", tables=tables)
    assert [(fields["topic"], fields["op"]) for _, fields in stage.entries("all")] == [
        ("public.orders", "delete"),
        ("public.orders", "truncate"),
        ("public.pairs", "delete"),
    ]


def test_old_rows_that_the_database_sends_are_used(stage: Stage) -> None:
    full = replace(ORDERS, identity="f")
    changes = batch(full, [(Op.UPDATE, 1, order(1, "paid")), (Op.DELETE, 2, {"id": "1"})])
    stage.put(replacing(changes, full, [order(1, "pending", amount="9.99"), order(1, "paid")]))
    stage.follow(begin="start", when="changed(status) OR old.status = 'paid'")
    bodies = [json.loads(fields["body"]) for _, fields in stage.entries("public.orders")]
    assert [one["before"] and one["before"]["status"] for one in bodies] == ["pending", "paid"]
    assert bodies[0]["before"]["amount"] == 9.99


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("changed(stat)", "column changed.stat does not exist"),
        ("old.status = now()", "now"),
        ("changed(upper(status))", "changed takes the names of columns"),
        ("status", "a condition is boolean"),
    ],
)
def test_a_condition_that_is_none_is_refused(stage: Stage, when: str, said: str) -> None:
    stage.put(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    status = stage.follow(begin="start", when=when).status
    assert status.stop == StopState.STORE_REFUSES
    assert said in str(status.error)


def test_events_as_cloudevents(stage: Stage) -> None:
    stage.put(
        batch(PLACED, [(Op.INSERT, 1, placed(1, '{"a": 1.0}')), (Op.INSERT, 2, placed(2, None))]),
        batch(ORDERS, [(Op.INSERT, 3, order(7))]),
    )
    stage.follow(begin="start", stream="all", body="cloudevents")
    bodies = [json.loads(fields["body"]) for _, fields in stage.entries("all")]
    assert bodies[0] == {
        "specversion": "1.0",
        "id": placed(1, None)["id"],
        "source": "/outbox.order",
        "type": "order.placed",
        "subject": "7",
        "time": "2023-11-14T22:13:20Z",
        "data": {"a": 1.0},
    }
    assert "data" not in bodies[1]
    assert (bodies[2]["id"], bodies[2]["type"], bodies[2]["subject"]) == ("public.orders:3", "public.orders.insert", "7")
    assert bodies[2]["data"]["after"]["status"] == "new"
