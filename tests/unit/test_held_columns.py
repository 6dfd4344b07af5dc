"""A follower and what its store is to hold: through the log that it sees, and only as long as the store's rows are of that choice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import StopState
from cdc.follow.follower import Follower
from cdc.log.memory import MemoryLog
from cdc.log.orphans import ended_topics
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import Lsn
from cdc.settings.models import Contract
from cdc.state import stops
from sinks import options_model
from sinks.heldlog import HeldLog
from sinks.memory import STORES
from tests.contract.rows import NUMBERED, ORDERS, Row, batch, order, schema, upserts
from tests.contract.test_schema_changes import altered
from tests.logs import LooseLog

STORE = "chooses"


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    made = MemoryLog()
    put(made, batch(NUMBERED, [(Op.INSERT, 1, order(1)), (Op.INSERT, 2, order(2))]))
    yield made
    STORES.pop(STORE, None)


def put(log: MemoryLog, changes: Any) -> None:
    writer = log.writer()
    writer.append(changes)
    writer.commit(Lsn(int(writer.next_position) * 10), 1)
    writer.close()


def follow(log: MemoryLog, folder: Path, said: dict[str, Any], **more: Any) -> list[Row] | str:
    """The store's rows once it has everything; or why it stopped."""
    raw = {"kind": "memory", "tables": {ORDERS.qualified: said} if said else ["*"], **more}
    options = options_model("memory").model_validate(raw)
    contracts = {ORDERS.qualified: Contract(require=("status",))}
    follower = Follower(STORE, options, folder, log.reader(), folder, threading.Event(), contracts)
    if follower.start():
        follower.follow_to(log.reader().head())
    found = _rows(follower)
    follower.close()
    held = stops.held(folder)
    return held[0].message if held else found


def _rows(follower: Follower) -> list[Row]:
    if follower.stopped:
        return []
    topic = follower._reader.topics()[0]
    return sorted((row for part in follower._sink.scan(topic.schema) for row in part.to_pylist()), key=str)


def test_a_store_follows_what_it_holds_and_stops_for_nothing_else(log: MemoryLog, tmp_path: Path) -> None:
    said = {"columns": ["id", "status"], "rename": {"status": "state"}}
    assert follow(log, tmp_path, said, schema="pause") == [{"id": "1", "state": "new"}, {"id": "2", "state": "new"}]
    # What the store does not hold may change as it likes, whatever the policy.
    put(log, schema(altered(NUMBERED, drop="note", rename={"amount": "total"}), 3))
    later = altered(NUMBERED, drop="note", rename={"amount": "total"})
    put(log, batch(later, [(Op.UPDATE, 4, {**order(2, "paid"), "total": "1.10"})]))
    assert follow(log, tmp_path, said, schema="pause") == [{"id": "1", "state": "new"}, {"id": "2", "state": "paid"}]
    # A contract counts for the column that the store has under another name.
    put(log, schema(altered(later, drop="status"), 5))
    stopped = follow(log, tmp_path, said)
    assert isinstance(stopped, str)
    assert "its contract requires status" in stopped


def test_another_choice_stops_the_store_until_it_is_built_again(log: MemoryLog, tmp_path: Path) -> None:
    assert follow(log, tmp_path, {"exclude": ["note", "amount", "created_at"]}) == [
        {"id": str(key), "customer_id": "7", "status": "new"} for key in (1, 2)
    ]
    for said in ({}, {"columns": ["id"]}):
        stopped = follow(log, tmp_path, said)
        assert isinstance(stopped, str)
        assert f"store {STORE} holds other columns of public.orders than cdc.toml says" in stopped
        [stop] = stops.held(tmp_path)
        assert (stop.state, "--rebuild" in stop.hint) == (StopState.STORE_REFUSES, True)
        stops.clear(tmp_path, stop.name)
    assert follow(log, tmp_path, {"exclude": ["created_at", "note", "amount"]}) != [], "the same in other words goes on"


def test_a_column_that_does_not_exist_stops_the_store_before_it_has_anything(log: MemoryLog, tmp_path: Path) -> None:
    stopped = follow(log, tmp_path, {"columns": ["id", "stauts"]})
    assert isinstance(stopped, str)
    assert f'stores.{STORE}.tables."public.orders".columns: public.orders has no column stauts' in stopped
    assert STORES[STORE].tables == {}


def test_a_table_that_comes_later_is_looked_at_then(tmp_path: Path) -> None:
    log = MemoryLog()
    options = options_model("memory").model_validate({"kind": "memory", "tables": {ORDERS.qualified: {"exclude": ["stauts"]}}})
    log.writer()
    follower = Follower(STORE, options, tmp_path, log.reader(), tmp_path, threading.Event())
    assert follower.start(), "the log has nothing of it yet"
    put(log, batch(NUMBERED, [(Op.INSERT, 1, order(1))]))
    follower.follow_to(log.reader().head())
    follower.close()
    STORES.pop(STORE, None)
    [stop] = stops.held(tmp_path)
    assert "exclude: public.orders has no column stauts" in stop.message


def test_how_topics_ended_is_also_seen_in_the_log_as_a_store_sees_it() -> None:
    """The last record may be a change of definition, and stands under the store's columns there."""
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1)]))
    log.put(schema(ORDERS, 2))
    tables = {"select": ("public.*",), "public.orders": {"computed": {"next": "id + 1"}}}
    options = options_model("redis").model_validate({"kind": "redis", "url": "redis://h", "tables": tables})
    assert ended_topics(HeldLog(log.reader(), "cache", options)) == {}
    log.put(schema(ORDERS, 3, Kind.DROPPED, empties=True))
    assert ended_topics(HeldLog(log.reader(), "cache", options)) == {"public.orders": Kind.DROPPED}


def test_what_compaction_has_taken_ends_no_topic_and_stops_nobody() -> None:
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1), order(2)]))
    log.put(batch(ORDERS, [(Op.DELETE, 3, order(1))]))
    log.forget("public.orders", 4)
    assert ended_topics(log.reader()) == {}
