"""The in-memory twin of the stores: the contract's rules and nothing else. Serves tests as the specification.

A store lives as long as its process and is shared by every sink of that name, so that a test can hold an old sink beside a new one. It is
made of *units* that are lost and restored separately: a ledger, and one unit for each table. ``Store.lose``, ``copy`` and ``restore`` do to
them what happens to real ones.

``sequenced`` makes it a twin of stores that take one chain of calls for each table (the cache), ``staged`` of those that also commit as a
whole (the warehouse): rows show only after ``commit``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
from pydantic import Field

from cdc.errors import StoreError
from cdc.log.contract import LogReader, Topic
from cdc.model.batch import OP, POSITION, Op, first_position, last_position, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks.barrier import RowsBefore, TableBarrier, barrier_of, carry_out
from sinks.contract import DeadLetter, EpochPassed, Outcome, Shape, Traits, audit_schema
from sinks.deadletters import Letter, Letters
from sinks.followedlog import refuse_missed
from sinks.render.rowtext import join_key, row_keys, row_text, rows_of_nothing
from sinks.reshape import reshaped

Row = dict[str, str | None]
TOO_LONG: Final = "longer than row_bytes_max"


class Options(StoreOptions):
    staged: bool = False
    sequenced: bool = False
    row_bytes_max: int = Field(0, ge=0)
    """A row whose text is longer cannot be held; 0: any can."""


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

    def copied(self) -> TableUnit:
        return replace(self, rows=dict(self.rows), letters=Letters("twin", self.letters.all), calls=dict(self.calls))

    @property
    def shape_at(self) -> Position:
        return START if self.shape is None else self.shape.position

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
        if self.mark != call.mark:
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
                self.letters.remove(self.letters.before(schema.topic, barrier.position))
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

    def _settle(self, letter: Letter, *, held: bool) -> None:
        """A change was taken: the letters of its key end, and it becomes one where it cannot be held."""
        self.letters.remove([one.id for one in self.letters.of(letter.table) if one.key == letter.key])
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
        batch = reshaped(_batch(list(before.values()), held), held, schema, barrier.position)
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


STORES: dict[str, Store] = {}


@dataclass(frozen=True, slots=True)
class _Known:
    """How this sink left a unit, or found it."""

    mark: Mark
    reach: Position
    calls: int


class MemorySink:
    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.traits = traits(options)
        self._options = options
        self._id = uuid.uuid4().hex
        self._log: LogReader | None = None
        self._followed: Lineage | None = None
        """A writer's: as the store was opened."""
        self._epoch: int | None = None
        self._applied = ZERO_CUT
        self._ledger: Mark | None = None
        self._known: dict[str, _Known] = {}
        self._relied_on: dict[str, Position] = {}
        """How far each shape reaches that was given: changes before it are not brought again."""
        self._staged: dict[str, list[pa.RecordBatch]] = {}

    @property
    def _store(self) -> Store:
        return STORES.setdefault(self.name, Store())

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        # Calls are counted from the opening on: one from before may still arrive, and must not pass for one of these.
        self._log, self._epoch, self._id = log, epoch, uuid.uuid4().hex
        self._followed = log.lineage() if epoch is not None else None
        self._staged.clear()
        self._relied_on.clear()
        store, applied = self._store, self.applied()
        if epoch is not None:
            ledger = store.ledger = store.ledger or Unit(self._lineage().mark(ZERO_CUT), epoch)
            units = [ledger, *store.tables.values()]
            if (seen := max(unit.epoch for unit in units)) > epoch:
                raise EpochPassed(self.name, seen)
            for unit in units:
                unit.epoch = epoch
        self._applied = applied
        self._ledger = None if store.ledger is None else store.ledger.mark
        self._known = {topic: self._seen(unit) for topic, unit in store.tables.items()}
        return applied

    def applied(self) -> Cut:
        store, lineage = self._store, self._lineage()
        applied = ZERO_CUT if store.ledger is None else believed(store.ledger.mark, lineage, f"store {self.name}")
        least = applied
        for topic, last in self._changed(applied):
            unit, where = store.tables.get(topic), f"the table of {topic} in store {self.name}"
            if unit is not None:
                believed(unit.furthest, lineage, where)
                for one in self._logged(topic):
                    refuse_missed(one, self._holds(unit), [unit.mark.history] if unit.furthest.cut.position else [], lineage, where)
            if last > (0 if unit is None else self._holds(unit)):
                least = min(least, ZERO_CUT if unit is None else unit.mark.cut, key=lambda cut: cut.position)
        return least

    def held(self, topic: str) -> Position:
        known = self._known.get(topic)
        if known is None:
            return self._applied.position
        return max(self._applied.position, known.mark.cut.position, known.reach if self.traits.sequenced else START)

    def _holds(self, unit: TableUnit) -> Position:
        return max(unit.mark.cut.position, unit.reach if self.traits.sequenced else START)

    def _changed(self, upto: Cut) -> Iterator[tuple[str, Position]]:
        """(topic, its last change) of the store's topics that have one."""
        assert self._log is not None
        patterns, topics = self._options.tables, self._log.topics()
        logged = {topic.name for topic in topics if matches(patterns, topic.table)}
        unlogged = {topic for topic in self._store.tables.keys() - {topic.name for topic in topics} if matches(patterns, topic)}
        for topic in sorted(logged | unlogged):
            yield topic, self._log.last_change(topic, upto.position)

    def _lineage(self) -> Lineage:
        lineage = None if self._log is None else self._log.lineage()
        if lineage is None:
            raise StoreError(f"store {self.name} is not open, or the log does not exist yet", retryable=True)
        if self._followed not in (None, lineage):
            raise StoreError(f"store {self.name}: the log has begun another history: it is opened again", retryable=True)
        return lineage

    def _logged(self, name: str) -> Iterator[Topic]:
        """The topic of this name, if the log has it."""
        return (topic for topic in (self._log.topics() if self._log else ()) if topic.name == name)

    def _seen(self, unit: TableUnit) -> _Known:
        return _Known(unit.mark, unit.reach, unit.calls.get(self._id, 0))

    # --- writing ---------------------------------------------------------------------------------------------------------------------

    def erase(self) -> None:
        self._store.lose(*self._store.units)
        self._known.clear()

    def prepare(self, schema: TopicSchema) -> None:
        self._refuse_others()
        unit = self._unit(schema.topic)
        unit.shape = unit.shape or Shape(schema, START)

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Any table fits."""

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        return ({"row": str(row)} for row in row_text(rows, topic_schema(rows.schema)).to_pylist())

    def projected(self) -> str | None:
        return None

    def shape(self, topic: str) -> Shape | None:
        unit = self._store.tables.get(topic)
        if unit is not None:
            self._relied_on[topic] = max(self._relied_on.get(topic, START), unit.shape_at)
        return None if unit is None else unit.shape

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        topic = topic_schema(changes.schema).topic
        fresh = changes
        if self.traits.sequenced:
            fresh = changes.slice(int(np.searchsorted(changes.column(POSITION), self.held(topic), side="right")))
        stale = len(changes) - len(fresh)
        if self.traits.staged:
            self._staged.setdefault(topic, []).append(fresh)
            return Outcome(len(fresh), stale)
        return self._send(topic, [fresh], Position(last_position(fresh))) + Outcome(0, stale) if len(fresh) else Outcome(0, stale)

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self._applied.position, self._applied.commit_lsn):
            return
        ledger = self._refuse_others()
        if ledger.mark != self._ledger or any(self._differs(topic, known) for topic, known in self._known.items()):
            raise self._lost()
        mark = self._lineage().mark(cut)
        for topic in list(self._staged):
            batches = sorted(filter(len, self._staged.pop(topic)), key=first_position)
            if batches:
                self._send(topic, batches, cut.position, mark)
                self.between()
        for topic, last in self._changed(cut):
            if last > (self._known[topic].mark.cut.position if topic in self._known else 0):
                self._cover(topic, mark)
        if (ledger := self._refuse_others()).mark != self._ledger:
            raise self._lost()
        ledger.mark = self._ledger = mark
        self._applied = cut

    def between(self) -> None:
        """Stands between two steps of a commit, for tests that part them."""

    def _cover(self, topic: str, mark: Mark) -> None:
        unit = self._unit(topic)
        if self._differs(topic, self._known[topic]):
            raise self._lost()  # set back since this commit began
        unit.cover(mark)
        self._known[topic] = self._seen(unit)
        self.between()

    def _send(self, topic: str, batches: list[pa.RecordBatch], upto: Position, mark: Mark | None = None) -> Outcome:
        """``mark``: what the unit carries from then on, in a store that shows nothing before."""
        self._unit(topic)
        assert self._epoch is not None
        known = self._known[topic]
        now, number = mark or self._lineage().mark(known.mark.cut), known.calls + 1
        call = Call(
            topic, tuple(batches), known.reach, upto, self._id, number, self._epoch, known.mark, now, self.traits.sequenced, mark is not None,
            self._options.row_bytes_max,
        )  # fmt: skip
        answer, outcome = self.send(call)
        match answer:
            case MemoryAnswer.FENCED if (unit := self._store.tables.get(topic)) is not None:
                raise EpochPassed(self.name, unit.epoch)
            case MemoryAnswer.FENCED | MemoryAnswer.LOST | MemoryAnswer.GAP:  # fenced, and gone since it answered
                raise self._lost()
            case MemoryAnswer.ALREADY:
                outcome = Outcome(0, stale=sum(map(len, batches)))
        # What should be there now, not what is: a unit that was set back meanwhile must not pass for the one that was written.
        self._known[topic] = _Known(now, max(known.reach, upto), number)
        return outcome

    def send(self, call: Call) -> tuple[MemoryAnswer, Outcome]:
        """The way to the store, for tests that let requests arrive late, or twice."""
        return self._store.take(call)

    def _unit(self, topic: str) -> TableUnit:
        """Made when this sink has never known of one. It carries a mark from the beginning, so that no other log takes it for its own."""
        unit = self._store.tables.get(topic)
        if unit is None:
            if topic in self._known or self._relied_on.get(topic) or self._epoch is None:
                raise self._lost()
            unit = self._store.tables[topic] = TableUnit(self._lineage().mark(ZERO_CUT), self._epoch)
        if unit.shape_at < self._relied_on.get(topic, START):
            raise self._lost()
        self._known.setdefault(topic, self._seen(unit))
        return unit

    def _differs(self, topic: str, known: _Known) -> bool:
        unit = self._store.tables.get(topic)
        if unit is None:
            return True
        now = self._seen(unit)
        return now.mark != known.mark or now.calls != known.calls or (self.traits.sequenced and now.reach != known.reach)

    def _refuse_others(self) -> Unit:
        """The ledger. Raises when it is gone, another log's, or has seen a later writer."""
        ledger = self._store.ledger
        if ledger is None or self._epoch is None or ledger.mark.log != self._lineage().log:
            raise self._lost()
        if ledger.epoch > self._epoch:
            raise EpochPassed(self.name, ledger.epoch)
        return ledger

    def _lost(self) -> StoreError:
        return StoreError(f"store {self.name} has lost something, or was restored", retryable=True)

    # --- dead letters (``sinks.deadletters.LetterBox``) --------------------------------------------------------------------------------

    def letters(self) -> tuple[Letter, ...]:
        return tuple(one for unit in self._store.tables.values() for one in unit.letters.all)

    def keep(self, letter: Letter) -> None:
        self._refuse_others()
        self._unit(letter.table).letters.add([letter])

    def forget(self, ids: Collection[str]) -> None:
        self._refuse_others()
        for unit in self._store.tables.values():
            unit.letters.remove(ids)

    def put(self, row: pa.RecordBatch) -> str | None:
        self._refuse_others()
        schema = topic_schema(row.schema)
        unit, texts = self._unit(schema.topic), row_text(row, schema)
        key, content, gone = row_keys(texts, row, schema)[0].as_py(), texts.to_pylist()[0], row.column(OP)[0].as_py() == Op.DELETE
        if not gone and not fits(content, self._options.row_bytes_max):
            return TOO_LONG
        unit.rows[key] = (row.column(POSITION)[0].as_py(), None if gone else content)
        return None

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        parts = [keys.column(column.name) for column in schema.key]
        return join_key(parts, ":" if len(parts) > 1 else "")

    # --- reading ---------------------------------------------------------------------------------------------------------------------

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        rows = self._store.rows.get(schema.topic, {})
        yield _batch([row for _, row in rows.values() if row is not None], schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._store.rows.get(schema.topic, {})
        parts = [keys.column(column.name) for column in schema.key]
        wanted = join_key(parts, ":" if len(parts) > 1 else "").to_pylist()
        return _batch([row for key in wanted if (row := rows.get(key, (0, None))[1]) is not None], schema)

    def close(self) -> None:
        self._staged.clear()


def traits(options: Options) -> Traits:
    return Traits(sequenced=options.sequenced or options.staged, staged=options.staged)


def make(name: str, options: Options) -> MemorySink:
    return MemorySink(name, options)


def fits(row: Row, row_bytes_max: int) -> bool:
    return not row_bytes_max or len(json.dumps(row)) <= row_bytes_max


def _batch(rows: list[Row], schema: TopicSchema) -> pa.RecordBatch:
    if not schema.names:
        return rows_of_nothing(len(rows))
    columns = [pa.array([row.get(name) for row in rows], pa.utf8()) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=audit_schema(schema))
