"""What a change of a table as a whole does to its rows, and in which order a store carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of, carry_out
from sinks.contract import DeadLetter, Outcome, Shape
from tests.contract.rows import NUMBERED, batch, order, schema

RENAMED = replace(NUMBERED, columns=tuple(replace(c, name="remark") if c.name == "note" else c for c in NUMBERED.columns))
WIDER = replace(NUMBERED, columns=(*NUMBERED.columns, Column("extra", TEXT, -1, "text", attnum=7)))
RETYPED = replace(NUMBERED, columns=tuple(replace(c, type_oid=INT8) if c.name == "note" else c for c in NUMBERED.columns))
OTHER = replace(NUMBERED, oid=NUMBERED.oid + 1)


@pytest.mark.parametrize(
    ("held", "changes", "rows", "defines"),
    [
        (NUMBERED, batch(NUMBERED, [(Op.TRUNCATE, 7, {})]), RowsBefore.GONE, False),
        (None, batch(NUMBERED, [(Op.TRUNCATE, 7, {})]), RowsBefore.GONE, False),
        (NUMBERED, schema(NUMBERED, 7), RowsBefore.KEPT, True),
        (NUMBERED, schema(WIDER, 7), RowsBefore.KEPT, True),
        (NUMBERED, schema(RENAMED, 7), RowsBefore.AGAIN, True),
        (NUMBERED, schema(RETYPED, 7), RowsBefore.AGAIN, True),
        (WIDER, schema(NUMBERED, 7), RowsBefore.AGAIN, True),
        (NUMBERED, schema(RENAMED, 7, empties=True), RowsBefore.GONE, True),
        (NUMBERED, schema(OTHER, 7, Kind.CREATED), RowsBefore.GONE, True),
        (NUMBERED, schema(NUMBERED, 7, Kind.DROPPED, empties=True), RowsBefore.GONE, True),
        (NUMBERED, schema(NUMBERED, 7, Kind.UNPUBLISHED), RowsBefore.KEPT, True),
        (None, schema(NUMBERED, 7), RowsBefore.KEPT, True),
        (None, schema(NUMBERED, 7, empties=True), RowsBefore.GONE, True),
    ],
)
def test_what_becomes_of_the_rows_before(held: Table | None, changes: pa.RecordBatch, rows: RowsBefore, defines: bool) -> None:
    found = barrier_of(changes, None if held is None else TopicSchema.of(held))
    assert found is not None
    assert (found.rows, found.defines, found.position) == (rows, defines, 7)


def test_rows_are_no_barrier() -> None:
    rows = batch(NUMBERED, [(Op.INSERT, 1, order(1)), (Op.DELETE, 2, order(1))])
    assert barrier_of(rows, TopicSchema.of(NUMBERED)) is None
    assert barrier_of(rows.slice(0, 0), TopicSchema.of(NUMBERED)) is None


def test_rows_are_looked_at_for_a_truncate_as_everywhere_else() -> None:
    """Which stands alone in its batch: its batch never has rows, which would be taken for gone."""
    mixed = pa.Table.from_batches([batch(NUMBERED, [(Op.TRUNCATE, 7, {})]), batch(NUMBERED, [(Op.INSERT, 8, order(1))])])
    assert barrier_of(mixed.combine_chunks().to_batches()[0], TopicSchema.of(NUMBERED)) is None


@dataclass
class Shelf:
    """A store of one topic. Fails at the given step, before or after it did it."""

    rows: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 2, "under its former key": 3})
    floor: int = 0
    shape: Shape | None = None
    fails_at: int = -1
    done: list[str] = field(default_factory=list)

    def _step(self, name: str) -> None:
        self.done.append(name)
        if len(self.done) - 1 == self.fails_at:
            raise ConnectionError(name)

    def rows_before(self, barrier: TableBarrier) -> Iterator[str]:  # noqa: ARG002
        yield from ("a", "b")  # as from the log: whatever has been written meanwhile

    def write_again(self, barrier: TableBarrier, rows: Iterable[str]) -> tuple[DeadLetter, ...]:
        self._step("write")
        for row in rows:
            self.rows[row] = barrier.position
        self._step("written")
        return (DeadLetter(barrier.schema.topic, barrier.position, "odd"),)

    def raise_floor(self, barrier: TableBarrier) -> None:
        self._step("floor")
        assert self.shape is None, "the shape stands for everything before it"
        self.floor = barrier.position
        self.rows = {row: at for row, at in self.rows.items() if at >= self.floor}
        self._step("raised")

    def set_shape(self, barrier: TableBarrier) -> None:
        self._step("shape")
        self.shape = barrier.shape if barrier.defines else self.shape
        self._step("set")


@pytest.mark.parametrize("rows", RowsBefore)
@pytest.mark.parametrize("fails_at", range(6))
def test_a_failure_at_any_step_loses_nothing_and_doing_it_again_comes_to_the_same(rows: RowsBefore, fails_at: int) -> None:
    barrier = TableBarrier(TopicSchema.of(NUMBERED), Position(9), rows, True)
    whole, torn = Shelf(), Shelf(fails_at=fails_at)
    outcome = carry_out(barrier, whole)
    if fails_at < len(whole.done):
        with pytest.raises(ConnectionError):
            carry_out(barrier, torn)
        assert rows is RowsBefore.GONE or {"a", "b"} <= set(torn.rows)
    torn.fails_at = -1
    torn.shape = None  # as the store says that it has not come so far
    assert carry_out(barrier, torn) == outcome
    assert (torn.rows, torn.floor, torn.shape) == (whole.rows, whole.floor, whole.shape)
    assert whole.shape == Shape(TopicSchema.of(NUMBERED), Position(9))
    assert whole.floor == (0 if rows is RowsBefore.KEPT else 9)
    assert whole.rows == {RowsBefore.KEPT: Shelf().rows, RowsBefore.AGAIN: {"a": 9, "b": 9}, RowsBefore.GONE: {}}[rows]
    assert outcome == Outcome(1, 0, outcome.dead)
    assert len(outcome.dead) == (rows is RowsBefore.AGAIN)


def test_a_truncate_leaves_the_shape_as_it_is() -> None:
    shelf = Shelf()
    assert carry_out(TableBarrier(TopicSchema.of(NUMBERED), Position(9), RowsBefore.GONE, False), shelf) == Outcome(1)
    assert (shelf.rows, shelf.shape) == ({}, None)
