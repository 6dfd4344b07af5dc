"""The twin's own ways of failing: a commit that ends between two of its steps, requests that arrive late or twice."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.model.batch import POSITION, Op
from cdc.model.position import ZERO_CUT, Position
from cdc.model.topic import TopicSchema
from sinks.contract import CameRows, EpochPassed, Shape, TopicAsOf
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


def as_of(*rows: dict[str, Any], shape_at: int) -> TopicAsOf:
    """The orders as a topic that is built again, a row at a time."""
    came = [upserts(ORDERS, 1 + n, [row]) for n, row in enumerate(rows)]
    parts = [CameRows(one, one.column(POSITION)) for one in came]
    return TopicAsOf(Shape(TopicSchema.of(ORDERS), Position(shape_at)), lambda: iter(parts))


class CopiedWhileBuilding(MemorySink):
    """Keeps a copy of its store as it is once the first row was put over the rows that were there."""

    copy: Any = None

    def between(self) -> None:
        self.copy = self.copy or self._store.copy()


def test_a_copy_from_while_a_store_was_built_again_in_place_is_refused(name: str) -> None:
    """Its rows are of two times, under a shape that not all of them have: whoever followed from there would leave out what came before it."""
    options, log = Options(kind="memory", sequenced=True), LooseLog()
    sink = CopiedWhileBuilding(name, options)
    sink.open(log.reader(), 1)
    feed(sink, log, upserts(ORDERS, 1, [order(1), order(2)]))
    sink.commit(cut(2))
    sink.copy = None
    sink.rebuild(log.reader(), 2, cut(2), [as_of(order(1), order(2), shape_at=2)])
    assert sink.open(log.reader(), 2) == cut(2)
    STORES[name].restore(sink.copy)
    assert sink.applied() == ZERO_CUT
    with pytest.raises(StoreError, match="lost something"):
        feed(sink, log, upserts(ORDERS, 3, [order(3)]))
    with pytest.raises(StoreError, match="was being built again, and that has not ended") as refused:
        sink.open(log.reader(), 2)
    assert not refused.value.retryable
    sink.rebuild(log.reader(), 3, cut(2), [as_of(order(1), order(2), shape_at=2)])
    assert sink.open(log.reader(), 3) == cut(2)


def test_a_copy_from_while_it_was_built_does_not_pass_for_a_table_that_has_just_come(name: str) -> None:
    options, log = Options(kind="memory", sequenced=True), LooseLog()
    sink = CopiedWhileBuilding(name, options)
    sink.open(log.reader(), 1)
    sink.prepare(TopicSchema.of(ORDERS))
    sink.rebuild(log.reader(), 1, ZERO_CUT, [as_of(order(1), order(2), shape_at=0)])
    sink.erase()
    sink.open(log.reader(), 1)
    sink.prepare(TopicSchema.of(ORDERS))
    STORES[name].restore(sink.copy, ORDERS.qualified)
    with pytest.raises(StoreError, match="lost something"):
        feed(sink, log, upserts(ORDERS, 3, [order(3)]))
    with pytest.raises(StoreError, match="lost something"):
        sink.commit(cut(3))


class DiesOnceBegun(MemorySink):
    def _began(self) -> None:
        raise Died


def test_who_wrote_before_a_store_is_built_again_is_refused_from_its_beginning(name: str) -> None:
    options, log = Options(kind="memory", sequenced=True), LooseLog()
    before = MemorySink(name, options)
    before.open(log.reader(), 1)
    feed(before, log, upserts(ORDERS, 1, [order(1)]))
    before.commit(cut(1))
    with pytest.raises(Died):
        DiesOnceBegun(name, options).rebuild(log.reader(), 2, cut(1), [as_of(order(1), shape_at=0)])
    with pytest.raises(EpochPassed):
        feed(before, log, upserts(ORDERS, 2, [order(2)]))
