"""The twin's own ways of failing: a commit that ends between two of its steps, requests that arrive late or twice."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.position import ZERO_CUT
from cdc.model.topic import TopicSchema
from sinks.memory import STORES, MemorySink, Options
from sinks.memoryunits import Call, MemoryAnswer
from tests.contract.rows import ORDERS, PAIRS, batch, order, schema, upserts
from tests.logs import LooseLog, cut

MODES = [{}, {"sequenced": True}, {"staged": True}]


class Died(BaseException):
    pass


class Dying(MemorySink):
    """Dies behind the ``at``-th step of its commits."""

    at = 0

    def between(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise Died


class Recording(MemorySink):
    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self.calls: list[Call] = []

    def send(self, call: Call) -> Any:
        self.calls.append(call)
        return super().send(call)


def feed(sink: MemorySink, log: LooseLog, *batches: pa.RecordBatch) -> None:
    for changes in batches:
        log.put(changes)
        sink.apply(changes)


@pytest.fixture
def name() -> str:
    return f"twin-{uuid.uuid4().hex}"


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_a_commit_that_ends_in_the_middle_claims_nothing(name: str, mode: dict[str, bool], step: int) -> None:
    options, log = Options(kind="memory", **mode), LooseLog()
    sink = Dying(name, options)
    assert sink.open(log.reader(), 1) == ZERO_CUT
    sink.at = step
    feed(sink, log, upserts(ORDERS, 1, [order(1)]), upserts(PAIRS, 2, [{"a": "a", "b": "b", "v": "v"}]))
    with pytest.raises(Died):
        sink.commit(cut(2))
    again = MemorySink(name, options)
    assert again.open(log.reader(), 2) == ZERO_CUT
    held = [again.held(table.qualified) for table in (ORDERS, PAIRS)]
    if mode.get("staged"):
        assert held == ([2, 0] if step == 1 else [2, 2])
    feed(again, log, *log.batches)
    again.commit(cut(2))
    assert MemorySink(name, options).open(log.reader()) == again.applied() == cut(2)
    assert [len(rows) for rows in STORES[name].rows.values()] == [1, 1]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_request_that_arrives_again_at_any_time_changes_nothing(name: str, mode: dict[str, bool]) -> None:
    options, log = Options(kind="memory", **mode), LooseLog()
    sink = Recording(name, options)
    sink.open(log.reader(), 1)
    steps = [
        upserts(ORDERS, 1, [order(1), order(2)]),
        batch(ORDERS, [(Op.DELETE, 3, order(1)), (Op.UPDATE, 4, order(2, "paid"))]),
        batch(ORDERS, [(Op.TRUNCATE, 5, {})]),
        upserts(ORDERS, 6, [order(2, "again")]),
    ]
    for step in steps:
        feed(sink, log, step)
        for call in sink.calls:
            answer, outcome = STORES[name].take(call)
            assert outcome.written == 0
            assert answer in ({MemoryAnswer.ALREADY, MemoryAnswer.LOST} if sink.traits.sequenced else {MemoryAnswer.DONE})
        sink.commit(cut(log.head.position))
    assert [row["status"] for part in sink.scan(TopicSchema.of(ORDERS)) for row in part.to_pylist()] == ["again"]


def test_a_call_behind_a_gap_or_of_an_earlier_writer_is_refused(name: str) -> None:
    options, log = Options(kind="memory", sequenced=True), LooseLog()
    sink = Recording(name, options)
    sink.open(log.reader(), 1)
    feed(sink, log, upserts(ORDERS, 1, [order(1)]), upserts(ORDERS, 2, [order(2)]))
    first, second = sink.calls
    store = STORES[name]
    sink.erase()
    assert store.take(first)[0] is MemoryAnswer.LOST
    sink.open(log.reader(), 1)
    sink.prepare(TopicSchema.of(ORDERS))
    assert store.take(second)[0] is MemoryAnswer.GAP
    assert [store.take(call)[0] for call in (first, first, second, first)] == [
        MemoryAnswer.DONE,
        MemoryAnswer.ALREADY,
        MemoryAnswer.DONE,
        MemoryAnswer.ALREADY,
    ]
    MemorySink(name, options).open(log.reader(), 2)
    assert store.take(second)[0] is MemoryAnswer.FENCED


class Overtaken(MemorySink):
    """A later writer opens the store while this one's call is under way, and the table is lost once that was answered."""

    def send(self, call: Call) -> Any:
        assert self._log is not None
        MemorySink(self.name, self._options).open(self._log, 2)
        answered = super().send(call)
        self._store.lose(call.topic)
        return answered


def test_a_table_that_is_lost_once_it_has_refused_a_writer_is_lost(name: str) -> None:
    sink, log = Overtaken(name, Options(kind="memory", sequenced=True)), LooseLog()
    sink.open(log.reader(), 1)
    with pytest.raises(StoreError, match="has lost something") as lost:
        feed(sink, log, upserts(ORDERS, 1, [order(1)]))
    assert lost.value.retryable


def test_a_late_change_of_definition_does_not_reach_an_older_copy(name: str) -> None:
    log = LooseLog()
    sink = Recording(name, Options(kind="memory"))
    sink.open(log.reader(), 1)
    sink.prepare(TopicSchema.of(ORDERS))
    store = STORES[name]
    older = store.copy()
    feed(sink, log, upserts(ORDERS, 1, [order(1)]), schema(replace(ORDERS, columns=ORDERS.columns[:-1]), 2))
    rows, change = sink.calls
    store.restore(older)
    assert store.take(change)[0] is MemoryAnswer.LOST
    assert [store.take(call)[0] for call in (rows, change)] == [MemoryAnswer.DONE, MemoryAnswer.DONE]
