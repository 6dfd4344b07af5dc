"""Units of the in-memory twin of the stores (``sinks.memory``): the rules of the contract, unit by unit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa

from cdc.model.batch import OP, POSITION, Op, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Mark
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of, carry_out
from sinks.contract import CameRows, DeadLetter, Outcome, Shape, audit_schema
from sinks.deadletters import Letter, Letters
from sinks.render.rowtext import row_keys, row_text, rows_of_nothing
from sinks.reshape import reshaped

Row = dict[str, str | None]
TOO_LONG: Final = "longer than row_bytes_max"


@dataclass(frozen=True, slots=True)
class Call:
    """One request: brings the changes (after, upto] of one table. All of it is taken, or nothing."""

    topic: str
    batches: tuple[pa.RecordBatch, ...]
    after: Position
    upto: Position
    writer: str
    number: int
    """Among the writer's calls to this unit."""
    epoch: int
    mark: Mark
    """The unit's, as the writer knows it."""
    now: Mark
    """The same under the present history: what the call brings is of that one. For a call that covers what it brings, the mark behind it."""
    sequenced: bool
    covers: bool
    row_bytes_max: int = 0

    @property
    def reshapes(self) -> bool:
        return any(topic_change_of(batch) is not None for batch in self.batches)


class MemoryAnswer(StrEnum):
    """A store's answer to a call."""

    DONE = "done"
    ALREADY = "already"
    """It was taken before, and nobody heard the answer."""
    GAP = "gap"
    FENCED = "fenced"
    LOST = "lost"


@dataclass(slots=True)
class Unit:
    """The part of a store that can be lost, restored or replaced by itself. The ledger is nothing else."""

    mark: Mark
    """It holds everything up to this cut of this history."""
    epoch: int
    """The highest writer's that it has seen."""

    def copied(self) -> Unit:
        return replace(self)


@dataclass(slots=True)
class TableUnit(Unit):
    """``rows``: key → (position, row; None for a tombstone)."""

    rows: dict[str, tuple[int, Row | None]] = field(default_factory=dict)
    floor: int = 0
    shape: Shape | None = None
    reach: Position = START
    """Nobody who knew this unit's mark wrote anything beyond this position. Where calls are sequenced, everything up to it was written."""
    letters: Letters = field(default_factory=lambda: Letters("twin"))
    calls: dict[str, int] = field(default_factory=dict)
    """Writer → the number up to which all of its calls were taken: a copy from before one of them shows by it."""
    building: bool = False
    """Rows are put over its rows: not all of them stand under its shape yet, or are of one time."""

    def copied(self) -> TableUnit:
        return replace(self, rows=dict(self.rows), letters=Letters("twin", self.letters.all), calls=dict(self.calls))

    @property
    def shape_at(self) -> Position:
        return START if self.shape is None else self.shape.position

    @property
    def topic(self) -> str:
        """The topic of a unit with a shape."""
        assert self.shape is not None
        return self.shape.schema.topic

    @property
    def furthest(self) -> Mark:
        """The mark of all that may be in here: beyond ``mark`` lies what no commit has covered yet."""
        if self.reach <= self.mark.cut.position:
            return self.mark
        return replace(self.mark, cut=replace(self.mark.cut, position=self.reach))

    def answer(self, call: Call) -> MemoryAnswer:
        if not call.sequenced:
            # Each row guards itself. A shape stands for every row before it: only a unit that has them, as the writer left it, takes one.
            as_left = self.mark == call.mark and self.calls.get(call.writer, 0) == call.number - 1
            return MemoryAnswer.DONE if as_left or not call.reshapes else MemoryAnswer.LOST
        if call.epoch < self.epoch:
            return MemoryAnswer.FENCED
        if self.building or self.mark != call.mark:
            return MemoryAnswer.LOST
        if self.reach >= call.upto:
            return MemoryAnswer.ALREADY
        return MemoryAnswer.DONE if self.reach == call.after else MemoryAnswer.GAP

    def take(self, call: Call) -> Outcome:
        if self.mark == call.mark:
            # Said before any row is written, as a store has to that cannot do both at once. A late call, for a unit that has long been
            # set back, changes nothing of what the unit says of itself: its rows guard themselves.
            self.reach = max(self.reach, call.upto)
            self.mark = self.mark if call.covers else call.now
        if self.calls.get(call.writer, 0) == call.number - 1:
            self.calls[call.writer] = call.number
        outcome = sum((self.write(batch, call.row_bytes_max) for batch in call.batches), Outcome(0))
        if call.covers:
            self.cover(call.now)
        return outcome

    def write(self, batch: pa.RecordBatch, row_bytes_max: int = 0) -> Outcome:
        schema = topic_schema(batch.schema)
        if (barrier := barrier_of(batch, None if self.shape is None else self.shape.schema)) is not None:
            reached = max(self.mark.cut.position, self.shape_at if barrier.defines else self.floor)
            if barrier.position > reached and barrier.rows is RowsBefore.GONE:
                self.letters.remove(self.letters.before(schema.topic, barrier.position, emptied=True))
            return carry_out(barrier, self) if barrier.position > reached else Outcome(0, stale=1)
        texts = row_text(batch, schema)
        keys = row_keys(texts, batch, schema).to_pylist()
        changes = zip(batch.column(POSITION).to_pylist(), batch.column(OP).to_pylist(), keys, texts.to_pylist(), strict=True)
        applied, dead = 0, dict[str, DeadLetter]()
        for position, op, key, row in changes:
            held = op == Op.DELETE or fits(row, row_bytes_max)
            if not self._change(position, op if held else Op.DELETE, key, row):
                continue
            applied += 1
            dead.pop(key, None)
            if not held or self.letters.by_id:
                letter = Letter(schema.topic, Position(position), TOO_LONG, key, time.time())
                self._settle(letter, held=held)
                dead |= {} if held else {key: letter.as_outcome()}
        return Outcome(applied - len(dead), len(batch) - applied, tuple(dead.values()))

    def put(self, came: CameRows, keys: Sequence[str], rows: Sequence[Row], row_bytes_max: int) -> Outcome:
        """Rows over rows, whatever stands there: those of a unit that is built again."""
        dead = []
        positions = came.rows.column(POSITION).to_pylist()
        for key, position, first, row in zip(keys, positions, came.came.to_pylist(), rows, strict=True):
            held = fits(row, row_bytes_max)
            self.rows[key] = (position, row if held else None)
            if not held:
                letter = Letter(self.topic, Position(first), TOO_LONG, key, time.time())
                self.letters.add([letter])
                dead.append(letter.as_outcome())
        return Outcome(len(rows) - len(dead), 0, tuple(dead))

    def _settle(self, letter: Letter, *, held: bool) -> None:
        """A change was taken: the letters of its key end, and it becomes one where it cannot be held."""
        mine = (one for one in self.letters.of(letter.table) if one.key == letter.key)
        self.letters.remove([one.id for one in mine if not (one.failed and one.position == letter.position)])
        if not held:
            self.letters.add([letter])

    def _change(self, position: int, op: int, key: str, row: Row) -> bool:
        """Whether the change took effect: not covered by a commit or a truncate, and the newest of its key."""
        if position <= self.mark.cut.position or position <= self.floor:
            return False
        if key in self.rows and self.rows[key][0] >= position:
            return False
        self.rows[key] = (position, None if op == Op.DELETE else row)
        return True

    def rows_before(self, barrier: TableBarrier) -> list[tuple[str, Row]]:
        """The rows by their keys."""
        assert self.shape is not None
        schema, held = barrier.schema, self.shape.schema
        before = {key: row for key, (at, row) in self.rows.items() if at < barrier.position and row is not None}
        batch = reshaped(batch_of(list(before.values()), held), held, schema, barrier.position)
        texts = row_text(batch, schema)
        keys = row_keys(texts, batch, schema).to_pylist()
        again = keys if schema.key else [f"\\={key}" if held.key else key for key in before]
        return list(zip(again, texts.to_pylist(), strict=True))

    def write_again(self, barrier: TableBarrier, rows: Iterable[tuple[str, Row]]) -> tuple[DeadLetter, ...]:
        for key, row in rows:
            self._change(barrier.position, Op.READ, key, row)
        return ()

    def raise_floor(self, barrier: TableBarrier) -> None:
        self.floor = max(self.floor, barrier.position)
        self.rows = {key: kept for key, kept in self.rows.items() if kept[0] >= barrier.position}

    def set_shape(self, barrier: TableBarrier) -> None:
        if barrier.defines:
            self.shape = barrier.shape

    def cover(self, mark: Mark) -> None:
        """From now on the mark guards what tombstones guarded."""
        self.mark = mark
        self.rows = {k: kept for k, kept in self.rows.items() if kept[1] is not None or kept[0] > mark.cut.position}


@dataclass(slots=True)
class Store:
    """The durable content of a store."""

    ledger: Unit | None = None
    tables: dict[str, TableUnit] = field(default_factory=dict)

    def take(self, call: Call) -> tuple[MemoryAnswer, Outcome]:
        unit = self.tables.get(call.topic)
        answer = MemoryAnswer.LOST if unit is None else unit.answer(call)
        return answer, unit.take(call) if unit is not None and answer is MemoryAnswer.DONE else Outcome(0)

    @property
    def applied(self) -> Cut:
        """The cut that the ledger states, whatever became of the tables."""
        return ZERO_CUT if self.ledger is None else self.ledger.mark.cut

    @property
    def rows(self) -> dict[str, dict[str, tuple[int, Row | None]]]:
        return {topic: unit.rows for topic, unit in self.tables.items()}

    @property
    def units(self) -> list[str | None]:
        """The names of those that are there: None for the ledger."""
        return [*((None,) if self.ledger is not None else ()), *self.tables]

    def lose(self, *units: str | None) -> None:
        for unit in units:
            if unit is None:
                self.ledger = None
            else:
                self.tables.pop(unit, None)

    def copy(self) -> Store:
        ledger = None if self.ledger is None else self.ledger.copied()
        return Store(ledger, {topic: unit.copied() for topic, unit in self.tables.items()})

    def restore(self, copy: Store, *units: str | None) -> None:
        """Puts these units back as they are in the copy (gone where it has none); all of both without any named."""
        older = copy.copy()
        for unit in units or {*self.units, *older.units}:
            self.lose(unit)
            if unit is None:
                self.ledger = older.ledger
            elif unit in older.tables:
                self.tables[unit] = older.tables[unit]


def fits(row: Row, row_bytes_max: int) -> bool:
    return not row_bytes_max or len(json.dumps(row)) <= row_bytes_max


def batch_of(rows: list[Row], schema: TopicSchema) -> pa.RecordBatch:
    if not schema.names:
        return rows_of_nothing(len(rows))
    columns = [pa.array([row.get(name) for row in rows], pa.utf8()) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=audit_schema(schema))
