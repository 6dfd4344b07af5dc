"""Changes of a table as a whole: what becomes of the rows that a store holds of it is decided here, and carried out in one order in every store.

A *barrier* is a TRUNCATE, or a change of the table's definition (a SCHEMA record). ``barrier_of`` decides, ``carry_out`` drives; a store
brings four steps (``Steps``). How a store takes them is its own: deleting documents, computing its keys from the log, filling another index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import pyarrow as pa

from cdc.model.batch import first_position, is_truncate, topic_schema
from cdc.model.evolution import TopicChange, topic_change_of
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.contract import DeadLetter, Outcome, Shape
from sinks.reshape import rewrites, same_origin

Row = TypeVar("Row")
"""Rows as one store hands them from ``rows_before`` to ``write_again``."""


class RowsBefore(StrEnum):
    """The fate of the rows before a barrier."""

    KEPT = "kept"
    """They are what they would be under the new definition."""
    AGAIN = "written again"
    """Each is written again at the barrier's position, under the new definition."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class TableBarrier:
    """One change of a table as a whole."""

    schema: TopicSchema
    """The definition from here on; a TRUNCATE's own where ``defines`` is False."""
    position: Position
    rows: RowsBefore
    defines: bool
    """The topic's shape is ``table`` afterwards; a TRUNCATE leaves it as it is."""

    @property
    def shape(self) -> Shape:
        """The topic's shape afterwards, where it has another one."""
        return Shape(self.schema, self.position)


def rows_before_change(held: TopicSchema | None, change: TopicChange) -> RowsBefore:
    """``held``: the definition that the store's rows stand under; None: it has none yet."""
    if emptied(held, change):
        return RowsBefore.GONE
    return RowsBefore.AGAIN if held is not None and rewrites(held, change.schema) else RowsBefore.KEPT


def emptied(held: TopicSchema | None, change: TopicChange) -> bool:
    """Whether every earlier row of the topic is gone: the record says so, or they were another table's."""
    return change.empties or (held is not None and not same_origin(held, change.schema))


def barrier_of(changes: pa.RecordBatch, held: TopicSchema | None) -> TableBarrier | None:
    """The barrier that this batch is; None where it brings rows. ``held``: as for ``rows_before_change``."""
    if not len(changes):
        return None
    change = topic_change_of(changes)
    if change is not None:
        return TableBarrier(change.schema, Position(first_position(changes)), rows_before_change(held, change), True)
    if is_truncate(changes):
        return TableBarrier(topic_schema(changes.schema), Position(first_position(changes)), RowsBefore.GONE, False)
    return None


class Steps(Protocol[Row]):
    """How one store carries out one barrier. Each step may be taken again after a failure at any point, and comes to the same."""

    def rows_before(self, barrier: TableBarrier) -> Iterable[Row]:
        """Every row that was there before the barrier, as it stands at its position under the new definition."""
        ...

    def write_again(self, barrier: TableBarrier, rows: Iterable[Row]) -> tuple[DeadLetter, ...]:
        """Writes them. Returns those that the store cannot hold."""
        ...

    def raise_floor(self, barrier: TableBarrier) -> None:
        """Takes away what stands before the barrier's position, and from now on takes no write from there."""
        ...

    def set_shape(self, barrier: TableBarrier) -> None:
        """Records that the topic stands at the barrier: where it ``defines``, under its definition."""
        ...


def carry_out(barrier: TableBarrier, steps: Steps[Row]) -> Outcome:
    """The order in which no failure loses a row: what is written again stands before what it replaces goes, and the shape comes last, for it
    stands for everything before it."""
    dead: tuple[DeadLetter, ...] = ()
    if barrier.rows is RowsBefore.AGAIN:
        dead = steps.write_again(barrier, steps.rows_before(barrier))
    if barrier.rows is not RowsBefore.KEPT:
        steps.raise_floor(barrier)
    steps.set_shape(barrier)
    return Outcome(1, 0, dead)
