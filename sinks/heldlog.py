"""The log as one store sees it: of its topics what it is to hold (``sinks.holding``), and nothing else.

This is the one place where that is applied. A store's follower, its workers, its sink and its audit all read through it, so no sink
has to know that there is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import ConfigError
from cdc.log.contract import LogReader, Slice, Topic, TopicState, selected
from cdc.model.batch import ALONE, OP, first_position
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Lineage
from cdc.model.oldrows import without_old_rows
from cdc.model.position import START, Cut, Lsn, Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks.changes import ChangesAsked
from sinks.holding import Holding, bound, check, decoded, failures_as_rows
from sinks.holdingchange import settled
from sinks.places import FormerRows, by_reading, moves

if TYPE_CHECKING:
    from sinks.contract import Sink


class HeldLog:
    """See ``cdc.log.contract.LogReader``. Not thread-safe beyond what the log is.

    A topic's holding is bound when it is first asked for, and stays until ``forget``. Between that and ``settle`` nothing is refused: only what
    the store has says whether its rows are of another holding.
    """

    def __init__(self, log: LogReader, store: str, options: StoreOptions, former_rows: FormerRows | None = None) -> None:
        """``former_rows``: looks rows up for ``sinks.places`` (default: by reading the topic)."""
        self._log = log
        self._former_rows = former_rows or by_reading(log)
        self._store = store
        self._options = options
        self._holdings: dict[str, Holding] = {}
        self._changes: dict[str, ChangesAsked | None] = {}
        self._known_to: dict[str, Position] = {}
        """How far the definitions go, by topic, that the log had when the topic's holding was bound or settled."""
        self._settled = False
        self._failures_stay = False
        self._begins: Mapping[str, Position] = {}

    def forget(self) -> None:
        """To be called before the store is opened (again)."""
        self._holdings, self._changes, self._known_to, self._settled = {}, {}, {}, False

    def opened(self, sink: Sink, epoch: int | None = None) -> Cut:
        """Opens the store, whether or not it is open. Returns what it has applied. Raises what ``Sink.open`` and ``settle`` do."""
        self.forget()
        applied = sink.open(self, epoch)
        self.settle(sink)
        return applied

    def with_failures(self) -> HeldLog:
        """The same log, in which a row that an expression fails for is a row like any other, and no DELETE (``sinks.holding.failures_of`` names it). To be
        used until ``forget``."""
        found = copy(self)
        found._failures_stay = True
        return found

    def beginning_at(self, begins: Mapping[str, Position]) -> HeldLog:
        """The same log, of whose topics nothing at or before these positions is read: all that counts has come again behind them. A topic that is not named begins
        where it does. To be used until ``forget``."""
        found = copy(self)
        found._begins = begins
        return found

    def settle(self, sink: Sink) -> None:
        """To be called once the store is open. Raises ConfigError where it has rows of another holding, or the configuration says something of a
        column that does not exist."""
        for topic in selected(self._log, self._options.tables):
            shape, holding = sink.shape(topic.name), self._holding(topic)
            self._refuse_compacted(topic, holding)
            self._known_to[topic.name] = topic.last
            if shape is None:
                check(self._store, self._options, topic.schema)
            elif shape.schema.holding == holding.text:
                holding.refuse_unmet(topic.schema)
            else:
                self._holdings[topic.name] = settled(self._store, topic.schema, decoded(shape.schema.holding), holding)
            self.holding(topic.name).check_transform(topic.schema)
        self._settled = True

    def check(self) -> None:
        """Raises ConfigError where the configuration says something of a column that does not exist, whatever the store has. For who opens no store."""
        for topic in selected(self._log, self._options.tables):
            check(self._store, self._options, topic.schema)
            self._refuse_compacted(topic, bound(self._store, self._options, topic.schema))

    def holding(self, topic: str) -> Holding:
        """The store's share of a topic."""
        found = self._holdings.get(topic)
        if found is None:
            known = next((one for one in self._log.topics() if one.name == topic), None)
            return Holding() if known is None else self._holding(known)
        return found

    def _refuse_compacted(self, topic: Topic, holding: Holding) -> None:
        """Where changes are gone, nobody can say from where they took rows."""
        if holding.places and topic.clean_from > START + 1:
            names = ", ".join(one.name for one in holding.places)
            raise ConfigError(
                f"store {self._store} names places of rows of {topic.name} by {names}, which may change; but changes of it before position "
                f"{topic.clean_from} that were superseded are gone from the log",
                hint="name them by the key's columns alone",
            )

    def held(self, schema: TopicSchema) -> TopicSchema:
        """A definition of one of the log's topics as the store has it; of another topic as the store would."""
        known = schema.topic in self._holdings or any(one.name == schema.topic for one in self._log.topics())
        return (self.holding(schema.topic) if known else bound(self._store, self._options, schema)).held(schema)

    def _holding(self, topic: Topic) -> Holding:
        found = self._holdings.get(topic.name)
        if found is None and not matches(self._options.tables, topic.table):
            found = self._holdings[topic.name] = Holding()
        if found is None:
            if self._settled:
                check(self._store, self._options, topic.schema)
            found = self._holdings[topic.name] = bound(self._store, self._options, topic.schema)
            if self._settled:
                self._refuse_compacted(topic, found)
            self._known_to[topic.name] = topic.last
        return found

    def topics(self) -> Sequence[Topic]:
        return [self._topic(topic) for topic in self._log.topics()]

    def _topic(self, topic: Topic) -> Topic:
        holding = self._holding(topic)
        if holding.everything:
            return topic
        try:
            return replace(topic, held=holding.held(topic.schema))
        except ConfigError:
            if self._settled:
                raise
            return topic  # what names columns by names that they had may be put right by what the store has

    def read(
        self,
        topic: str,
        after: Position,
        upto: Position,
        history: str | None = None,
        *,
        old_rows: bool = False,
        keys_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        if old_rows:
            raise ValueError("a store is given no old rows")
        if keys_only:
            raise ValueError("what a store holds of a change may depend on all of its columns")
        after = max(after, self._begins.get(topic, START))
        asked = self._asked(topic)
        if after >= upto and topic in self._begins:
            return iter(())
        batches = self._log.read(topic, after, upto, history, old_rows=asked is not None)
        if asked is not None:
            return self._as_changes(topic, batches, asked)
        return self._moving(topic, batches) if self.holding(topic).places else self._given(topic, batches)

    def changes_at(self, topic: str, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        return self._given(topic, self._log.changes_at(topic, positions))

    def state(self, topic: str, upto: Position) -> TopicState | None:
        found = None if topic in self._begins else self._log.state(topic, upto)
        holding = self.holding(topic)
        return found if found is None or holding.everything else _HeldState(found, self._maker(holding))

    def _moving(self, topic: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Changes with those that take rows out of the places that they leave."""
        holding = self.holding(topic)
        made = self._maker(holding)
        for batch in batches:
            self._refuse_unmet(topic, holding, batch)
            alone = len(batch) and batch.column(OP)[0].as_py() in ALONE
            yield made(batch) if alone else moves(batch, made, self._former_rows)

    def _as_changes(self, topic: str, batches: Iterator[pa.RecordBatch], asked: ChangesAsked) -> Iterator[pa.RecordBatch]:
        """The changes that the store's condition is true of, each with the row that it replaced."""
        holding = self.holding(topic)
        for batch in batches:
            self._refuse_unmet(topic, holding, batch)
            change = topic_change_of(batch)
            if change is not None:
                if asked.condition is not None and first_position(batch) > self._known_to[topic]:
                    asked.condition.refuse_unmet(change.schema)
                yield holding.batch(without_old_rows(batch))
            elif len(found := asked.given(batch, holding.batch)):
                yield found

    def _asked(self, topic: str) -> ChangesAsked | None:
        """None: the store asks for rows, and not for changes."""
        if topic not in self._changes:
            known = next((one for one in self._log.topics() if one.name == topic), None)
            if known is None:
                return None
            self._holding(known)
            when = self._options.when_of(known.schema)
            asked = None if when is None else ChangesAsked.of(self._store, when, known.schema, self._former_rows)
            if asked is not None and asked.looks_up and known.clean_from > START + 1:
                raise ConfigError(
                    f"stores.{self._store}.when asks how rows of {topic} were before they changed; but changes of it before position "
                    f"{known.clean_from} that were superseded are gone from the log",
                    hint="leave old.… and changed(…) out of `when`",
                )
            self._changes[topic] = asked
        return self._changes[topic]

    def _given(self, topic: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        holding = self.holding(topic)
        if not holding.evaluates:
            return batches if holding.everything else map(holding.batch, batches)
        return self._evaluated(topic, holding, batches)

    def _maker(self, holding: Holding) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        if not self._failures_stay:
            return holding.batch
        return lambda batch: failures_as_rows(holding.batch(batch))

    def _evaluated(self, topic: str, holding: Holding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises ConfigError at a definition, later than those that the holding was bound to, of which its expressions say nothing."""
        made = self._maker(holding)
        for batch in batches:
            self._refuse_unmet(topic, holding, batch)
            yield made(batch)

    def _refuse_unmet(self, topic: str, holding: Holding, batch: pa.RecordBatch) -> None:
        if (change := topic_change_of(batch)) is not None and first_position(batch) > self._known_to[topic]:
            holding.refuse_unmet(change.schema)

    # -- what is the same for everybody -------------------------------------------------------------------------------

    def head(self) -> Cut:
        return self._log.head()

    def written(self) -> Cut:
        return self._log.written()

    def wait(self, after: Position, timeout_s: float) -> Cut:
        return self._log.wait(after, timeout_s)

    def cut_within(self, after: Position, max_rows: int, max_bytes: int) -> Cut:
        return self._log.cut_within(max(after, min(self._begins.values(), default=START)), max_rows, max_bytes)

    def cut_at_lsn(self, lsn: Lsn) -> Cut | None:
        return self._log.cut_at_lsn(lsn)

    def marks(self, upto: Position | None = None) -> Mapping[str, bytes]:
        return self._log.marks(upto)

    def last_commit(self) -> Cut:
        return self._log.last_commit()

    def lineage(self) -> Lineage | None:
        return self._log.lineage()

    def last_change(self, topic: str, upto: Position) -> Position:
        return self._log.last_change(topic, upto)

    def slices(
        self, topics: Sequence[str], after: Position, upto: Position, target_bytes: int, history: str | None = None
    ) -> Sequence[Slice]:
        return self._log.slices(topics, after, upto, target_bytes, history)

    def close(self) -> None:
        self._log.close()


class _HeldState:
    """See ``cdc.log.contract.TopicState``."""

    def __init__(self, state: TopicState, made: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._state = state
        self._made = made

    @property
    def cut(self) -> Position:
        return self._state.cut

    def batches(self, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        return map(self._made, self._state.batches(after, upto))
