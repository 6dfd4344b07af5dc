"""Bulk requests and the verdicts on their items, against a cluster that answers what it is told."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.model.batch import Op, topic_schema
from cdc.model.topic import TopicSchema
from sinks.holding import bound
from sinks.places import Former, moves
from sinks.retry import ATTEMPTS_MAX, Fate, backoff_s
from sinks.search.bulk import Actions, Verdicts, actions, divided, payload, send, split
from sinks.search.fields import style_of
from sinks.search.options import Options
from sinks.search.placement import former
from sinks.search.rows import IN_FLIGHT, Rows
from sinks.search.wire import Answer
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts

BODY = actions(upserts(ORDERS, 1, [order(i) for i in range(8)]), TopicSchema.of(ORDERS), style_of(TopicSchema.of(ORDERS), {}))
ROWS = np.arange(8)
CANARY = "canary-value"


class Scripted:
    """Plays the cluster: one answer per request; remembers which ids each request held."""

    store, where = "search", "host:9200"

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[list[str]] = []

    def send(self, method: str, path: str, body: bytes, **_: Any) -> Answer:
        assert (method, path) == ("POST", "/w1/_bulk")
        self.requests.append([json.loads(line)["index"]["_id"] for line in body.splitlines()[::2]])
        return self._answers.pop(0)

    def error(self, doing: str, answer: Answer) -> StoreError:
        return StoreError(f"{doing} {answer.status} {answer.error_type}", retryable=False)


def items(*found: int | tuple[int, str]) -> Answer:
    made = []
    for item in found:
        status, kind = item if isinstance(item, tuple) else (item, "")
        reason = f"failed to parse field [amount] of type [long] in document with id '1'. Preview of field's value: '{CANARY}'"
        made.append({"index": {"status": status, **({"error": {"type": kind, "reason": reason}} if kind else {})}})
    return Answer(200, {"errors": True, "items": made})


def sent(*answers: Answer) -> tuple[Any, Scripted, list[float]]:
    cluster, pauses = Scripted(answers), []
    return send(cluster, "w1", BODY, ROWS, sleep=pauses.append, chance=random.Random(1)), cluster, pauses  # type: ignore[arg-type]


def test_a_body_is_an_action_and_a_document_per_row() -> None:
    changes = [(Op.INSERT, 5, {"a": 'q"', "b": "x:y", "v": None}), (Op.DELETE, 6, {"a": "k" * 600, "b": "b"})]
    found = [
        json.loads(line)
        for line in actions(batch(PAIRS, changes), TopicSchema.of(PAIRS), style_of(TopicSchema.of(PAIRS), {}))
        .data.tobytes()
        .splitlines()
    ]
    assert found[0] == {"index": {"version_type": "external", "_id": 'q":x\\:y', "version": 5}}
    assert found[1] == {"_cdc_position": 5, "a": 'q"', "b": "x:y", "v": None}
    assert found[2]["index"]["_id"].startswith("\\#")
    assert len(found[2]["index"]["_id"].encode()) <= 512
    assert found[3] == {"_cdc_position": 6, "_cdc_deleted": True, "a": "k" * 600, "b": "b"}


def test_a_row_that_leaves_its_place_is_deleted_there_below_the_version_of_what_comes() -> None:
    said = {"kind": "opensearch", "url": "http://127.0.0.1:1", "tables": {"public.orders": {"routing": "{status}"}}}
    holding = bound("s", Options.model_validate(said), TopicSchema.of(ORDERS))
    source = batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid")), (Op.DELETE, 6, order(2)), (Op.READ, 7, order(3))])

    def before(shape: TopicSchema, upto: int, asked: pa.Array) -> Former:  # noqa: ARG001
        return Former(batch(ORDERS, [(Op.READ, 1, order(1)), (Op.READ, 2, order(2, "odd")), (Op.READ, 3, order(3))]), np.arange(3))

    changes = moves(source, holding.batch, before)  # type: ignore[arg-type]
    schema = topic_schema(changes.schema)
    lines = actions(changes, schema, style_of(schema, {})).data.tobytes().splitlines()
    found = [json.loads(line)["index"] for line in lines[::2]]
    assert found == [
        {"version_type": "external_gte", "version": 4, "routing": "new", "_id": "1"},
        {"version_type": "external", "version": 5, "routing": "paid", "_id": "1"},
        {"version_type": "external", "version": 6, "routing": "odd", "_id": "2"},
        {"version_type": "external", "version": 7, "routing": "new", "_id": "3"},
    ]
    assert ["_cdc_deleted" in json.loads(line) for line in lines[1::2]] == [True, False, True, False]
    body, whole = Actions(changes, schema, style_of(schema, {})), actions(changes, schema, style_of(schema, {}))
    for count in range(1, 5):
        for part in np.array_split(np.arange(4), count):
            made = body.lines(int(part[0]), int(part[-1]), {})
            assert payload(made, part - part[0]) == payload(whole, part), "it depends on the next row, also of another part"
    again = changes.set_column(0, changes.schema.field(0), pa.array([9] * 4, pa.int64()))
    reads = again.set_column(1, again.schema.field(1), pa.array([int(Op.READ)] * 4, pa.int8()))
    assert not former(reads).any(), "rows that are written again share their position"


def test_a_batch_is_split_by_bytes() -> None:
    parts = split(BODY, ROWS, 2 * (len(BODY.data) // 8) + 50)
    assert np.concatenate(parts).tolist() == ROWS.tolist()
    assert 1 < len(parts) < 8
    assert b"".join(payload(BODY, part) for part in parts) == BODY.data.tobytes()
    assert [len(part) for part in split(BODY, ROWS, 1)] == [1] * 8


@pytest.mark.parametrize("share", [0.9, 1.1, 3.1, 14.2])
def test_a_batch_goes_out_in_requests_of_which_the_last_ones_are_small(share: float) -> None:
    """The first batch of a table is divided by a guess, each one after it by what the lines before it were like."""
    schema = TopicSchema.of(ORDERS)
    changes = upserts(ORDERS, 1, [order(i) for i in range(900)])
    whole = actions(changes, schema, style_of(schema, {}))
    request_bytes = int(len(whole.data) / share)
    bodies: list[bytes] = []

    def send(method: str, path: str, body: bytes, **_: Any) -> Answer:  # noqa: ARG001
        bodies.append(body)
        return Answer(200, {"errors": False})

    writing = Rows(SimpleNamespace(store="search", send=send), None, None, request_bytes=request_bytes, dead_share_max=0.1)  # type: ignore[arg-type]
    for batches in range(2):
        bodies.clear()
        verdicts = writing.write_all("w1", Actions(changes, schema, style_of(schema, {})), np.arange(900))
        assert sorted(verdicts.of(Fate.WRITTEN).tolist()) == list(range(900))
        assert b"".join(sorted(bodies, key=whole.data.tobytes().index)) == whole.data.tobytes()
        assert max(map(len, bodies)) < 2.1 * request_bytes
        if batches:
            assert max(map(len, bodies)) < 1.1 * request_bytes
            assert sorted(map(len, bodies))[IN_FLIGHT - 1] < 0.2 * request_bytes, "the last ones are small"
            assert len(bodies) < share + 12
    wide = Actions(upserts(ORDERS, 1, [order(i, note="w" * 5000) for i in range(20)]), schema, style_of(schema, {}))
    assert writing._rows_of_a_request(wide) <= max(1, request_bytes / 5000), "rows may be larger than the last ones were"
    kept = np.array([1, 2, 5, 899])
    bodies.clear()
    assert writing.write_all("w1", Actions(changes, schema, style_of(schema, {})), kept).rows.tolist() == kept.tolist()
    assert b"".join(bodies) == payload(whole, kept)
    writing.close()


def test_a_small_batch_is_one_request() -> None:
    assert [len(part) for part in divided(np.arange(500), 4000, 3)] == [500]
    assert [len(part) for part in divided(np.arange(10), 1, 3)] == [1] * 10
    assert divided(np.arange(0), 1, 3) == []


def test_nothing_else_is_asked_when_all_went_well() -> None:
    verdicts, cluster, pauses = sent(Answer(200, {"errors": False}))
    assert verdicts.count(Fate.WRITTEN) == 8
    assert (len(cluster.requests), pauses) == (1, [])


def test_each_item_is_judged_in_the_order_of_the_request() -> None:
    dead = (400, "mapper_parsing_exception")
    verdicts, _, _ = sent(
        items(201, 200, (409, "version_conflict_engine_exception"), dead, 201, (404, "index_not_found_exception"), 201, 201)
    )
    assert verdicts.of(Fate.WRITTEN).tolist() == [0, 1, 4, 6, 7]
    assert verdicts.of(Fate.STALE).tolist() == [2]
    assert verdicts.of(Fate.FENCED).tolist() == [5]
    assert (verdicts.reasons, verdicts.fields) == ({3: "mapper_parsing_exception"}, {3: "amount"})


def test_only_items_that_were_turned_away_are_sent_again_in_halves() -> None:
    busy = (429, "rejected_execution_exception")
    verdicts, cluster, pauses = sent(
        items(201, busy, 201, busy, busy, 201, busy, 201), items(201, 201), items(201, busy), items(409)
    )
    assert cluster.requests[1:] == [["1", "3"], ["4", "6"], ["6"]]
    assert verdicts.count(Fate.WRITTEN) == 7
    assert verdicts.of(Fate.STALE).tolist() == [6]
    assert len(pauses) == 2
    assert 0 < pauses[0] < pauses[1] * 2


def test_a_busy_cluster_is_given_up_on_after_a_while() -> None:
    with pytest.raises(StoreError) as failure:
        sent(*[Answer(429, None)] * 100)
    assert failure.value.retryable
    assert sum(backoff_s(attempt, random.Random(1)) for attempt in range(ATTEMPTS_MAX)) < 30


def test_a_request_that_is_too_large_is_split_until_one_row_is() -> None:
    class Small(Scripted):
        def send(self, method: str, path: str, body: bytes, **given: Any) -> Answer:
            self._answers = [
                Answer(413, None) if len(body.splitlines()) > 2 or b'"id":5,' in body else Answer(200, {"errors": False})
            ]
            return super().send(method, path, body, **given)

    verdicts = send(Small([]), "w1", BODY, ROWS)  # type: ignore[arg-type]
    assert verdicts.of(Fate.DEAD).tolist() == [5]
    assert verdicts.count(Fate.WRITTEN) == 7


@pytest.mark.parametrize("answer", [Answer(403, None), Answer(401, None), items(*[201] * 7, (403, "security_exception"))])
def test_a_refusal_is_an_error_that_quotes_no_rows(answer: Answer) -> None:
    with pytest.raises(StoreError) as failure:
        sent(answer)
    assert not failure.value.retryable
    assert CANARY not in failure.value.line()


def test_a_reason_names_the_column_and_nothing_that_a_row_says_below_it() -> None:
    paths = {0: "v", 1: f"v.{CANARY}", 2: f"v.a.{CANARY}", 3: CANARY, 4: "b.keyword", 5: ""}
    verdicts = Verdicts(np.arange(6), np.full(6, Fate.DEAD, np.int8), dict.fromkeys(paths, "bad"), paths).named(
        TopicSchema.of(PAIRS)
    )
    assert [verdicts.reasons[row] for row in paths] == ["bad: v", "bad: v", "bad: v", "bad", "bad: b", "bad"]
