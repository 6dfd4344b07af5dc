"""The in-memory twin of the stores: the contract's rules and nothing else. Serves tests as the specification.

A store lives as long as its process and is shared by every sink of that name, so that a test can hold an old sink beside a new one. It is
made of *units* that are lost and restored separately: a ledger, and one unit for each table. ``Store.lose``, ``copy`` and ``restore`` do to
them what happens to real ones.

``sequenced`` makes it a twin of stores that take one chain of calls for each table (the cache), ``staged`` of those that also commit as a
whole (the warehouse): rows show only after ``commit``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field

from cdc.errors import AnotherHistory, StoreError
from cdc.log.contract import LogReader, Topic
from cdc.model.batch import OP, POSITION, Op, first_position, last_position, topic_schema
from cdc.model.lineage import Lineage, Mark, believed, of_another_log
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks.contract import EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter
from sinks.followedlog import refuse_missed
from sinks.memoryunits import TOO_LONG, Call, MemoryAnswer, Store, TableUnit, Unit, batch_of, fits
from sinks.render.rowtext import join_key, keys, row_keys, row_text


class Options(StoreOptions):
    staged: bool = False
    sequenced: bool = False
    row_bytes_max: int = Field(0, ge=0)
    """A row whose text is longer cannot be held; 0: any can."""


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
            if any(unit.building for unit in store.tables.values()):
                hint = "cdc resume STORE_REFUSES --rebuild builds it again, and goes to its end"
                raise StoreError(f"store {self.name} was being built again, and that has not ended", retryable=False, hint=hint)
            for unit in units:
                unit.epoch = epoch
        self._applied = applied
        self._ledger = None if store.ledger is None else store.ledger.mark
        self._known = {topic: self._seen(unit) for topic, unit in store.tables.items()}
        return applied

    def finish(self) -> None: ...

    def applied(self) -> Cut:
        store = self._store
        if store.ledger is not None and self._log is not None and self._log.lineage() is None:
            raise of_another_log(store.ledger.mark, f"store {self.name}")
        lineage = self._lineage()
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
            raise AnotherHistory(self.name)
        return lineage

    def _logged(self, name: str) -> Iterator[Topic]:
        """The topic of this name, if the log has it."""
        return (topic for topic in (self._log.topics() if self._log else ()) if topic.name == name)

    def _seen(self, unit: TableUnit) -> _Known:
        return _Known(unit.mark, unit.reach, unit.calls.get(self._id, 0))

    # --- built again -----------------------------------------------------------------------------------------------------------------

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        self._log, self._epoch, self._id = log, epoch, uuid.uuid4().hex
        self._followed = log.lineage()
        self._staged.clear()
        lineage, store = self._lineage(), self._store
        for unit in [store.ledger, *store.tables.values()]:
            if unit is not None and unit.mark.log == lineage.log and unit.epoch > epoch:
                raise EpochPassed(self.name, unit.epoch)
        store.ledger = Unit(lineage.mark(ZERO_CUT), epoch)
        for table in store.tables.values():
            table.epoch = max(table.epoch, epoch)  # who wrote before asks the table alone
        self._began()
        outcome = Outcome(0)
        for topic in topics:
            outcome += self._built(topic, cut)
        ledger = self._refuse_another()
        store.lose(*(store.tables.keys() - {topic.shape.schema.topic for topic in topics}))
        ledger.mark = lineage.mark(cut)
        return outcome

    def _began(self) -> None:
        """Stands where the store no longer says that it holds anything, for tests."""

    def _built(self, topic: TopicAsOf, cut: Cut) -> Outcome:
        """In place where calls are sequenced: rows over rows, then what is left over goes. Elsewhere beside it, and in its place at once."""
        name, store = topic.shape.schema.topic, self._store
        assert self._epoch is not None
        before = store.tables.get(name) if self.traits.sequenced and not self.traits.staged else None
        fresh = TableUnit(self._lineage().mark(ZERO_CUT), self._epoch, shape=topic.shape, building=before is not None)
        if before is not None:
            fresh.rows = dict(before.rows)
            store.tables[name] = fresh
        built: set[str] = set()
        outcome = Outcome(0)
        for came in topic.rows():
            texts = row_text(came.rows, topic.shape.schema)
            keys = row_keys(texts, came.rows, topic.shape.schema).to_pylist()
            if before is not None and store.tables.get(name) is not fresh:
                raise self._lost()
            outcome += fresh.put(came, keys, texts.to_pylist(), self._options.row_bytes_max)
            built.update(keys)
            self.between()
            self._refuse_another()
        if before is not None and store.tables.get(name) is not fresh:
            raise self._lost()
        fresh.rows = {key: kept for key, kept in fresh.rows.items() if key in built}
        fresh.reach, fresh.building, store.tables[name] = cut.position, False, fresh
        fresh.cover(self._lineage().mark(cut))
        self.between()
        self._refuse_another()
        return outcome

    def _refuse_another(self) -> Unit:
        """The ledger. Raises when the ledger is not the one with which this sink began to build."""
        ledger = self._refuse_others()
        if ledger.mark.cut != ZERO_CUT or ledger.epoch != self._epoch:
            raise self._lost()
        return ledger

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
        if unit is None or unit.building:
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

    def keep(self, letters: Collection[Letter]) -> None:
        self._refuse_others()
        for one in letters:
            self._unit(one.table).letters.add([one])

    def forget(self, ids: Collection[str]) -> None:
        self._refuse_others()
        for unit in self._store.tables.values():
            unit.letters.remove(ids)

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:
        self._refuse_others()
        schema = topic_schema(row.schema)
        unit, texts = self._unit(schema.topic), row_text(row, schema)
        key, content, gone = row_keys(texts, row, schema)[0].as_py(), texts.to_pylist()[0], row.column(OP)[0].as_py() == Op.DELETE
        if not gone and not fits(content, self._options.row_bytes_max):
            return TOO_LONG
        unit.rows[key] = (at, None if gone else content)
        return None

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        parts = [keys.column(column.name) for column in schema.key]
        return join_key(parts, ":" if len(parts) > 1 else "")

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        return keys(rows, topic_schema(rows.schema))

    # --- reading ---------------------------------------------------------------------------------------------------------------------

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        rows = self._store.rows.get(schema.topic, {})
        yield batch_of([row for _, row in rows.values() if row is not None], schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._store.rows.get(schema.topic, {})
        parts = [keys.column(column.name) for column in schema.key]
        wanted = join_key(parts, ":" if len(parts) > 1 else "").to_pylist()
        return batch_of([row for key in wanted if (row := rows.get(key, (0, None))[1]) is not None], schema)

    def close(self) -> None:
        self._staged.clear()


def traits(options: Options) -> Traits:
    return Traits(sequenced=options.sequenced or options.staged, staged=options.staged)


def make(name: str, options: Options) -> MemorySink:
    return MemorySink(name, options)
