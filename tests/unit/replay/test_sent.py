"""Rows that the source sent as replaced: shown without a look back, and before what a look back would find."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdc.log.memory import MemoryReader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from cdc.replay import former
from cdc.replay.envelope import envelopes
from cdc.replay.former import WithFormer, with_former, with_sent
from cdc.replay.query import LogQuery
from cdc.replay.rows import feed_schema, to_feed
from tests.contract.rows import ORDERS, batch, order, replacing, schema
from tests.unit.sinks.test_past import logged

FULL = replace(ORDERS, identity="f")
TOPIC = FULL.qualified


def orders() -> MemoryReader:
    """Reads, an update and a delete with their old rows, one of a row that the log has not read yet, and one from before the identity was FULL."""
    changes = batch(
        FULL, [(Op.UPDATE, 5, order(1, "sent")), (Op.DELETE, 6, order(2)), (Op.UPDATE, 7, order(9, "sent", amount="NaN"))]
    )
    moved = batch(FULL, [(Op.DELETE, 8, order(1)), (Op.UPDATE, 9, order(3))])
    return logged(
        batch(ORDERS, [(Op.READ, 1, order(1)), (Op.INSERT, 2, order(2))]),
        batch(ORDERS, [(Op.UPDATE, 3, order(1, "paid"))]),
        schema(FULL, 4, Kind.ALTERED),
        replacing(changes, FULL, [order(1, "paid"), order(2), order(9, "unread", amount="NaN")]),
        replacing(moved, FULL, [order(1, "sent"), None]),
    )


def befores(answer: list[WithFormer]) -> list[tuple[str, Any, Any]]:
    payloads = [json.loads(line)["payload"] for one in answer for line in envelopes(one).decode().split("\n")[:-1]]
    return [(one["op"], (one["before"] or {}).get("status"), (one["after"] or {}).get("status")) for one in payloads]


SHOWN = [
    ("r", None, "new"),
    ("c", None, "new"),
    ("u", None, "paid"),
    ("s", None, None),
    ("u", "paid", "sent"),
    ("d", "new", None),
    ("u", "unread", "sent"),
    ("d", "sent", None),
    ("u", None, "new"),
]


def test_envelopes_have_what_was_sent_without_a_look_back() -> None:
    log = orders()
    answer = list(LogQuery(START, log.head().position, sent=True).of(log, TOPIC))
    assert befores(answer) == SHOWN
    assert envelopes(answer[-2]).count(b'"amount":"NaN"') == 2, "exact texts come with it"


def test_a_look_back_is_for_what_was_not_sent() -> None:
    log = orders()
    answer = list(with_former(log, TOPIC, START, log.head().position))
    assert befores(answer) == [*SHOWN[:2], ("u", "new", "paid"), *SHOWN[3:]]
    assert befores(list(with_former(log, TOPIC, START, log.head().position, window_bytes=1))) == befores(answer)


def test_where_everything_was_sent_nobody_looks_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(former, "few_rows_with", None)
    log = orders()
    assert befores(list(with_former(log, TOPIC, Position(4), Position(8)))) == SHOWN[4:8]


def test_where_compaction_has_been_it_is_not_known() -> None:
    log = orders()
    log._log.floors[TOPIC] = Position(7), 0
    for found in (with_sent, with_former):
        answer = list(found(log, TOPIC, START, log.head().position))
        assert befores(answer)[4:] == [("u", None, "sent"), ("d", None, None), *SHOWN[6:]]


def test_windows_with_and_without_the_column_are_one() -> None:
    """What compaction has written again has no old rows, under the same definition."""
    rest = replacing(batch(FULL, [(Op.UPDATE, 3, order(1, "b"))]), FULL, [order(1, "a")])
    log = logged(batch(FULL, [(Op.INSERT, 1, order(1, "new")), (Op.UPDATE, 2, order(1, "a"))]), rest)
    log._log.batches[0] = batch(FULL, [(Op.INSERT, 1, order(1, "new")), (Op.UPDATE, 2, order(1, "a"))])
    assert befores(list(with_former(log, TOPIC, START, Position(3)))) == [("c", None, "new"), ("u", "new", "a"), ("u", "a", "b")]


def test_a_change_feed_has_preimages_that_were_sent() -> None:
    log, feed = orders(), feed_schema(TopicSchema.of(FULL))
    answer = LogQuery(START, log.head().position, sent=True).of(log, TOPIC)
    rows = pa.Table.from_batches([fed for one in answer if (fed := to_feed(one, feed)) is not None])
    shown = [(row["_cdc_position"], row["_change_type"], row["id"], row["status"]) for row in rows.to_pylist()]
    assert shown == [
        (1, "insert", 1, "new"),
        (2, "insert", 2, "new"),
        (3, "update_postimage", 1, "paid"),
        (5, "update_preimage", 1, "paid"),
        (5, "update_postimage", 1, "sent"),
        (6, "delete", 2, "new"),
        (7, "update_preimage", 9, "unread"),
        (7, "update_postimage", 9, "sent"),
        (8, "delete", 1, "sent"),
        (9, "update_postimage", 3, "new"),
    ]
    assert [dict(row["_cdc_exact"]) for row in rows.to_pylist() if row["_cdc_exact"]] == [{"amount": "NaN"}] * 2
