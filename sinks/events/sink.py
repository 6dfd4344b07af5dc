"""A store of events as the product sees it: what all kinds share of ``sinks.contract.Sink``.

What is applied waits (``stagedevents``) until ``commit``, when it goes to the kind's own part, the *channel*, in the order of positions over all topics; then the channel
notes the cut. So a channel sees events only in order, each once, unless its place has lost some or an attempt was broken off, and knows nothing of tables, batches and the log.

There are no rows: nothing to scan, to compare, or to build again. ``Traits.events`` says so, and whoever would ask for rows refuses before he does.

A dead letter is one event's, and as long as it is there the events behind it that have its key wait, unlike a row's, whose later changes go on: of a row the last change
is all that counts, of events every one does, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, PositionGone, Stopped, StopState, StoreError
from cdc.log.contract import COMES_WITH_CAPTURE, LogReader, selected
from cdc.model.batch import OP, POSITION, Op, first_position, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter
from sinks.events.event import EventBatch
from sinks.events.eventcolumns import EventForm, body_of, events_of, holds_events
from sinks.events.options import EventOptions
from sinks.events.stagedevents import StagedEvents
from sinks.events.standing import EventStanding
from sinks.followedlog import Followed
from sinks.render.choices import Choices

_ANEW: Final = (
    "put the right copy back; or give the store another name, and its events another place to go, with which it begins again"
)
TRAITS = Traits(sequenced=True, staged=True, events=True)
RUN_GAP: Final = 2_000
"""Events that are no farther apart than this are read again in one go, with what stands between them."""

Recall = Callable[[Mapping[str, Sequence[int]]], Iterator[EventBatch]]
"""Reads events from the log again, as they were the first time: positions by topic, rising → those that it still has, each topic's in order."""


class Channel(Protocol):
    """Where the events of one kind of store go. Not thread-safe. Every method may raise StoreError, after which it is closed and asked for its standing again."""

    def standing(self) -> EventStanding | None:
        """As the store itself says now, asked of it, writing nothing; None: nothing was ever delivered there. May be asked of one that is closed."""
        ...

    def begin(self, standing: EventStanding) -> None:
        """Takes hold, as the writer of the standing's epoch: from here on nothing of an earlier one is taken, also of one that sleeps and wakes. Makes what says
        ``standing`` where there is nothing. Raises EpochPassed where a higher epoch has been seen."""
        ...

    def resume(self, recall: Recall) -> None:
        """Goes on with what was held back, or not taken, before; once, behind ``begin``."""
        ...

    def deliver(self, events: EventBatch, upto: Position) -> Outcome:
        """Hands them on, in order: all that there is in the stretch of the log between what was delivered before and ``upto``. On return they are delivered, or
        set aside durably, and the standing's ``progress`` is ``upto``. May be called with no events."""
        ...

    def commit(self, cut: Cut) -> None:
        """Notes durably that everything up to there is delivered."""
        ...

    def look(self) -> None:
        """Notes what has come of events since by itself, of one that has begun."""
        ...

    @property
    def first_waiting(self) -> Position | None:
        """The first event that may have to be read again; None: there is none."""
        ...

    @property
    def letters(self) -> tuple[Letter, ...]:
        """As ``sinks.deadletters.LetterBox.letters``."""
        ...

    def keep(self, letters: Collection[Letter]) -> None:
        """As ``sinks.deadletters.LetterBox.keep``. Nothing is left of one that is accepted."""
        ...

    def forget(self, ids: Collection[str]) -> None:
        """Gives their events up, where they were not delivered yet: what stands behind them goes on. Durable on return."""
        ...

    def again(self, at: tuple[str, int]) -> str | None:
        """Delivers a letter's event, by topic and position, now; then what stands behind it goes on. Returns why it was not taken; None once it was."""
        ...

    def erase(self) -> None:
        """Removes what the store keeps for itself; events that were delivered are others' by now."""
        ...

    def close(self) -> None: ...


class EventSink:
    """See ``sinks.contract.Sink`` and ``sinks.deadletters.LetterBox``."""

    traits = TRAITS

    def __init__(self, name: str, options: EventOptions, channel: Channel) -> None:
        self.name = name
        self.options = options
        self._channel = channel
        self._choices = Choices(name, options.as_rules)
        self._waiting = StagedEvents(options.staged_bytes)
        self._followed = Followed(name)
        self._known: EventStanding | None = None
        """As this sink left it last."""
        self._last_seen = ZERO_CUT
        """A place that was emptied meanwhile goes on from there: where it held events back, right before the first of them, for with it went which those were."""
        self._shapes: dict[str, Shape] = {}
        self._writing = False

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self.close()
        lineage = log.lineage()
        if lineage is None and epoch is not None:
            raise StoreError(f"there is no log for store {self.name} yet", retryable=True, hint=COMES_WITH_CAPTURE)
        found = self._channel.standing()
        if lineage is None:
            if found is not None:
                others = f"store {self.name} is at a place of another log ({found.log}); there is none yet in log.dir"
                raise Stopped(StopState.OTHER_LOG, others, hint=_ANEW)
            return ZERO_CUT
        if found is None and epoch is None:
            self._followed.begin(log, lineage, writing=False)
            return ZERO_CUT
        standing = self._beginning(log, lineage) if found is None else found
        if epoch is not None and standing.epoch > epoch:
            raise EpochPassed(self.name, standing.epoch)
        self._refuse_others(log, lineage, standing)
        self._followed.begin(log, lineage, writing=epoch is not None)
        if epoch is None:
            return standing.cut
        self._known = replace(standing, epoch=epoch, history=lineage.history)
        try:
            crashpoint("events.open.begin")
            self._channel.begin(self._known)
            crashpoint("events.open.begun")
            self._channel.resume(lambda wanted: self._recalled(log, wanted))
        except BaseException:
            self.close()  # half open it would take what it is told before the next opening for a commit
            raise
        self._writing = True
        return standing.cut

    def finish(self) -> None: ...

    def applied(self) -> Cut:
        if self._writing:
            self._channel.look()
        standing = self._channel.standing()
        return ZERO_CUT if standing is None else believed(standing.mark, self._followed.lineage(), f"store {self.name}")

    def held(self, topic: str) -> Position:  # noqa: ARG002
        return START if self._known is None else self._known.progress

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:  # noqa: ARG002
        self._no_rows("be built again")

    def erase(self) -> None:
        self.close()
        self._known = None
        self._channel.erase()

    # --- events ----------------------------------------------------------------------------------------------------------------------

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        self._choices.foresee(schemas)
        for schema in schemas:
            self._check(schema)

    def projected(self) -> str | None:
        return None

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        self._check(schema)
        for event in events_of(rows, self._preview_form(schema)).rows.to_pylist():
            shown = {name: event[name] for name in ("topic", "type", "id", "key", "headers") if event[name] is not None}
            yield shown | {"body": (event["body"] or b"").decode(errors="replace")}

    def prepare(self, schema: TopicSchema) -> None:
        self._check(schema)
        self._choices.check(schema, self._followed.log)
        self._shapes.setdefault(schema.topic, Shape(schema, START))

    def shape(self, topic: str) -> Shape | None:
        return self._shapes.get(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if (change := topic_change_of(changes)) is not None:
            self._shapes[change.schema.topic] = Shape(change.schema, Position(first_position(changes)))
            return Outcome(1)  # what comes behind it says by itself under which definition it is
        schema = topic_schema(changes.schema)  # with the column of old rows, or without
        reach = max(self.held(schema.topic), self._waiting.reach(schema.topic))
        fresh = changes.slice(int(np.searchsorted(changes.column(POSITION).to_numpy(), reach, side="right")))
        meant = fresh if self.options.delivers_reads else _without_reads(fresh)
        if len(meant):
            self._waiting.add(schema.topic, events_of(meant, self._form(schema)))
        return Outcome(len(fresh), stale=len(changes) - len(fresh))

    def commit(self, cut: Cut) -> None:
        if not self._followed.begun:
            self._last_seen = max(self._last_seen, cut, key=lambda one: one.position)
            return
        self._followed.lineage()
        known = self._writer()
        if cut.position < known.cut.position:
            return
        outcome = NOTHING
        for events in self._waiting.in_order():
            upto = Position(int(events.positions[-1]))
            crashpoint("events.deliver")
            outcome += self._channel.deliver(events, upto)
            self._known = known = replace(known, progress=upto)
            crashpoint("events.delivered")
        crashpoint("events.before_cut")
        self._channel.commit(cut)
        waiting = self._channel.first_waiting
        self._known, self._last_seen = known.at(cut), cut if waiting is None else Cut(Position(waiting - 1), Lsn(0), 0)
        self._waiting.clear()

    def make_visible(self) -> None: ...

    # --- dead letters ------------------------------------------------------------------------------------------------------------------

    def returns_to(self) -> Position | None:
        return self._channel.first_waiting

    def letters(self) -> tuple[Letter, ...]:
        return self._channel.letters

    def keep(self, letters: Collection[Letter]) -> None:
        self._channel.keep(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._channel.forget(ids)

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:  # noqa: ARG002
        """Delivers the letter's event, as it was: ``row`` only says which."""
        return self._channel.again((topic_schema(row.schema).topic, int(first_position(row))))

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        topic = topic_schema(rows.schema).topic
        return pa.array([f"{topic}@{one}" for one in rows.column(POSITION).to_pylist()], pa.utf8())

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:  # noqa: ARG002
        """No row has a place."""
        return pa.nulls(len(keys), pa.utf8())

    def _recalled(self, log: LogReader, wanted: Mapping[str, Sequence[int]]) -> Iterator[EventBatch]:
        """See ``Recall``."""
        history = self._writer().history
        for topic, listed in wanted.items():
            positions = np.array(listed, np.int64)
            for run in np.split(positions, np.flatnonzero(np.diff(positions) > RUN_GAP) + 1):
                with suppress(PositionGone):
                    for batch in log.read(topic, Position(int(run[0]) - 1), Position(int(run[-1])), history):
                        kept = np.isin(batch.column(POSITION).to_numpy(), run)
                        if kept.any() and topic_change_of(batch) is None:
                            yield events_of(batch.filter(pa.array(kept)), self._form(topic_schema(batch.schema)))

    # --- what there is of no event store -----------------------------------------------------------------------------------------------

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        self._no_rows("be compared")

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        self._no_rows("be compared")

    def close(self) -> None:
        self._writing = False
        self._waiting.clear()
        self._followed.end()
        self._shapes.clear()
        self._channel.close()

    def _beginning(self, log: LogReader, lineage: Lineage) -> EventStanding:
        """Where nothing was ever delivered, or what says so has gone."""
        cut = log.head() if self.options.begin == "now" else ZERO_CUT
        if START < self._last_seen.position <= log.head().position:
            cut = self._last_seen
        return EventStanding(lineage.log, lineage.history, 0, cut, cut.position, cut.position)

    def _refuse_others(self, log: LogReader, lineage: Lineage, standing: EventStanding) -> None:
        """Raises Stopped where the log is not the one whose events were delivered, or has no longer all that come next."""
        where = f"store {self.name}"
        furthest = replace(standing.cut, position=standing.progress)
        try:
            believed(Mark(standing.log, standing.history, furthest), lineage, where)
        except Stopped as stopped:
            raise Stopped(stopped.state, str(stopped).removeprefix(f"{stopped.state}: "), hint=_ANEW) from None
        if standing.cut.position == START:
            return  # it begins with what there is
        for topic in selected(log, self.options.tables):
            if standing.progress + 1 < topic.clean_from:
                raise PositionGone(
                    f"{where} has delivered {topic.name} up to position {standing.progress}; changes of it before position "
                    f"{topic.clean_from} that came next are gone from the log",
                    hint=_ANEW,
                )

    def _check(self, schema: TopicSchema) -> None:
        for name in self.options.order_by:
            if name not in schema.names:
                raise ConfigError(
                    f"stores.{self.name}.order_by: the store has no column {name} of {schema.topic}",
                    hint=f"leave {schema.topic} out of stores.{self.name}.tables, or order by columns that all of them have",
                )
        if body_of(schema, self.options.body) == "payload" and not holds_events(schema):
            raise ConfigError(
                f'stores.{self.name}.body: "payload" is what an application wrote as an event, and {schema.topic} is a table',
                hint=f'body = "change", or leave {schema.topic} out of stores.{self.name}.tables',
            )

    def _form(self, schema: TopicSchema) -> EventForm:
        options = self.options
        return EventForm(self._choices.style(schema), options.body, options.order == "key", options.order_by, self.name)

    def _preview_form(self, schema: TopicSchema) -> EventForm:
        """As people see events, made without asking anybody."""
        return self._form(schema)

    def _writer(self) -> EventStanding:
        if self._known is None or not self._followed.begun:
            raise StoreError(f"store {self.name} is not open", retryable=True)
        return self._known

    def _no_rows(self, what: str) -> NoReturn:
        raise ConfigError(f"store {self.name} hands events on and holds no rows: there is nothing that could {what}")


def _without_reads(changes: pa.RecordBatch) -> pa.RecordBatch:
    kept = changes.column(OP).to_numpy() != int(Op.READ)
    return changes if kept.all() else changes.filter(pa.array(kept))
