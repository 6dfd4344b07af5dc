"""Model stores: what followers bring gets lost on its way, and so do answers and what stores held.

A store is ``sinks.memory``'s twin. What can go wrong: a request is refused, taken in part, or taken while its answer is lost; the
follower dies between any two requests and begins again from what the store says; one that was thought dead (a zombie) wakes up later
and goes on with its older view; a request that was under way arrives long after everybody has forgotten it. And at any moment, also between
two requests of one commit, and between a request and its answer: parts of the store or all of it are gone, or are as they once were, or
come from a copy of this installation that went on by itself; another service tries to use it, or has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pyarrow as pa

from cdc.errors import Stopped, StopState, StoreError
from cdc.log.contract import LogReader
from cdc.log.memory import MemoryLog
from cdc.model.batch import ALONE, OP, first_position
from cdc.model.evolution import TopicChange, topic_change_of
from cdc.model.position import Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed, Outcome, Shape, TopicAsOf
from sinks.memory import STORES, MemorySink, Options
from sinks.memoryunits import Call, MemoryAnswer, Store, TableUnit, Unit
from tests.contract.rows import ORDERS, order, upserts
from tests.sim.storecheck import Terms
from tests.sim.violation import Violation

Meet = Callable[[str], None]
"""Called with the name of what has gone wrong."""
COPIES: Final = 4
ANOTHER_PAST: Final = "c" * 32
"""The history of an installation that was copied from this one, log and all, and went on by itself."""


@dataclass(slots=True)
class Moods:
    """How often each accident happens; all 0 once the faults have stopped."""

    refused: float = 0.0
    partly: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    dropped: float = 0.0
    dies: float = 0.0
    sleeps: float = 0.0
    lost: float = 0.0
    set_back: float = 0.0
    intruded: float = 0.0
    stolen: float = 0.0
    swapped: float = 0.0

    strikes: float = field(init=False)
    """How often anything at all befalls the store itself; a copy of it is made as often as one is put back."""

    def __post_init__(self) -> None:
        self.strikes = self.lost + 2 * self.set_back + self.intruded + self.stolen + self.swapped


class Died(BaseException):
    """The process is gone, wherever it was."""


class Lease:
    """The right to write to a store. Whoever takes it takes it from who has it, and that one hears of it when the store refuses it, not before."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._refused = False
        site.epoch += 1
        self.epoch = site.epoch
        site.leases.append(self)

    @property
    def ours(self) -> bool:
        return self._site.leases[-1] is self or not self._refused

    def refuse(self) -> None:
        self._refused = True

    @property
    def taken_over(self) -> bool:
        return False

    def raise_above(self, epoch: int) -> int:
        self.epoch = self._site.epoch = max(self._site.epoch, epoch) + 1
        return self.epoch

    def close(self) -> None: ...


class _Sink(MemorySink):
    """Its requests may stay under way for long, and things happen to the store between any two of its steps."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.name, site.options)
        self._site = site
        self._unheard = False

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self._unheard = False
        return super().open(log, epoch)

    def _began(self) -> None:
        assert self._epoch is not None
        self._site.fenced(self._epoch)
        self.between()

    def send(self, call: Call) -> tuple[MemoryAnswer, Outcome]:
        if self._site.chance.random() < self._site.moods.late:
            self._site.late.append(call)
        alone = any(batch.column(OP)[0].as_py() in ALONE for batch in call.batches)
        if alone and self._unheard:
            raise StoreError("what came before was dropped, as is heard before a table changes as a whole", retryable=True)
        if not (call.covers or alone) and self._site.chance.random() < self._site.moods.dropped:
            # Rows are sent without waiting for the answer to those before: this one's is heard when the next are under way.
            self._site.met("store drops one of several requests")
            self._unheard = True
            return MemoryAnswer.DONE, Outcome(0)
        answered = super().send(call)
        self._site.taken(call, answered[0])
        self._site.befall()
        return answered

    def between(self) -> None:
        self._site.between()


class FlakySink:
    """A memory sink behind a bad network. What is not named here goes through."""

    def __init__(self, site: Site) -> None:
        self._sink = _Sink(site)
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def open(self, log: LogReader, epoch: int) -> Cut:
        try:
            applied = self._sink.open(log, epoch)
        except EpochPassed:
            self._site.refused(epoch)
            raise
        except StoreError as error:
            if not error.retryable:
                self._site.unfinished(error)
            raise
        except Stopped as stopped:
            self._site.disowned(stopped)
            raise
        self._site.opened(epoch)
        return applied

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        self._site.accident("refused", "rebuild")
        self._site.rebuilds(cut)
        try:
            outcome = self._sink.rebuild(log, epoch, cut, topics)
        except EpochPassed:
            self._site.refused(epoch)
            raise
        except BaseException:
            self._site.struck()  # it may have said already that the store holds nothing
            raise
        finally:
            self._site.building = False
        self._site.rebuilt()
        self._site.accident("answer_lost", "rebuild")
        return outcome

    def applied(self) -> Cut:
        try:
            found = self._sink.applied()
        except Stopped as stopped:
            self._site.disowned(stopped)
            raise
        self._site.refuse_strangers("is content with it")
        return found

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        site, chance, moods = self._site, self._site.chance, self._site.moods
        if (change := topic_change_of(changes)) is not None:
            site.given(change, first_position(changes))
        site.befall()
        site.accident("refused", "apply")
        if not self._sink.traits.sequenced and len(changes) > 1 and chance.random() < moods.partly:
            site.met("store took half")
            half = sorted(chance.sample(range(len(changes)), len(changes) // 2))
            self._sink.apply(changes.take(pa.array(half)))
            raise StoreError("took half of it", retryable=True)
        middle = len(changes) // 2 if moods.dropped else 0
        pieces = [changes.slice(0, middle), changes.slice(middle)] if middle else [changes]
        outcome = sum(map(self._sink.apply, pieces), Outcome(0))
        site.written()
        site.accident("answer_lost", "apply")
        return outcome

    def commit(self, cut: Cut) -> None:
        self._site.befall()
        self._site.accident("refused", "commit")
        struck = self._site.strikes
        self._sink.commit(cut)
        # What was struck behind its own mark, before the last one, is found by whoever looks next.
        if struck == self._site.strikes:
            self._site.refuse_strangers("commits")
            self._site.written(cut)
        else:
            self._site.struck()
        self._site.accident("answer_lost", "commit")


class Site:
    """One store and whoever writes to it."""

    def __init__(self, name: str, options: Options, moods: Moods, chance: Random, met: Meet) -> None:
        self.name = name
        self.options = options
        self.moods = moods
        self.chance = chance
        self.met = met
        self.late: list[Call] = []
        """Requests that are still under way somewhere, though their sender has long had its answer."""
        self.written: Callable[..., None] = lambda *_: None
        """Called after each write (with the cut after each commit)."""
        self.claimed: Callable[[Position], None] = lambda _: None
        """Called with what a follower takes the store to hold, when it has just asked."""
        self.reshapes: Callable[[Shape | None, TopicChange, int], None] = lambda *_: None
        """Called before a table's definition changes in the store."""
        self.terms = Terms(options.schema_policy)
        self.building = False
        """It is being built again."""
        self.steady: Callable[[Cut | None], None] = lambda _: None
        """Called when it begins to be built again (as of a cut), and at each step of that (None)."""
        self.anew: Callable[[], None] = lambda: None
        """Called when it has been built again: nothing of what it showed before counts."""
        self.struck: Callable[[], None] = lambda: None
        """Called when the store is not what it was, also when it was not built again to the end."""
        self.epoch = 0
        self.leases: list[Lease] = []
        """All that were taken; the last one holds."""
        self.theirs = False
        """Something is in the store that this log never had: another service's, or of another past."""
        self.strikes = self._strikes_known = 0
        self.hurt = False
        """Rows that a follower had brought were lost, set back or taken over."""
        self._opened = 0
        """The highest epoch under which the store was opened, or began to be built again, since the last strike."""
        self._copies: list[Store] = []
        self._disowned: set[StopState] = set()
        """Why it was rightly refused, since it was last emptied."""
        self._others: set[str] = set()
        """The ids of other services' logs."""
        STORES[name] = Store()

    @property
    def store(self) -> Store:
        return STORES[self.name]

    def close(self) -> None:
        del STORES[self.name]

    # -- what happens to it -----------------------------------------------------------------------------------------------

    def accident(self, kind: str, what: str) -> None:
        if self.chance.random() < getattr(self.moods, kind):
            self.met(f"store {kind.replace('_', ' ')}")
            raise StoreError(f"{what}: {kind}", retryable=True)

    def befall(self) -> None:
        """Now or never: the store loses something, is set back, or somebody else comes."""
        roll, moods = self.chance.random(), self.moods
        if roll >= moods.strikes:
            return  # nearly always, and it is asked at every step
        for likely, strike in (
            (moods.set_back, self._copy), (moods.lost, self._lose), (moods.set_back, self._put_back), (moods.intruded, self._intrude),
            (moods.stolen, self._steal), (moods.swapped, self._swap),
        ):  # fmt: skip
            if roll < likely:
                strike()
                return
            roll -= likely

    def between(self) -> None:
        """Between two steps of a commit, or of building it again."""
        if self.building:
            self.steady(None)
            if self.chance.random() < self.moods.dies / 10:
                self.met("follower died while it built its store again")
                raise Died
        self.befall()

    def rebuilds(self, cut: Cut) -> None:
        self.building = True
        self.steady(cut)

    def rebuilt(self) -> None:
        """… to its end."""
        # What was found before stays known: a process that sleeps may report it after another one had the store built again.
        self.met("store was built again")
        self.theirs = self._is_theirs()
        self._is_struck()
        self.anew()

    def _copy(self) -> None:
        if len(self._copies) < COPIES and not self.theirs:
            self._copies.append(self.store.copy())

    def _lose(self) -> None:
        self._strike("lost", self.store.lose)

    def _put_back(self) -> None:
        if self._copies:
            number = self.chance.randrange(len(self._copies))
            copy = self._copies[number] if self.chance.random() < 0.5 else self._copies.pop(number)
            self._strike("set back", lambda *units: self.store.restore(copy, *units), copy)

    def _strike(self, what: str, strike: Callable[..., None], copy: Store | None = None) -> None:
        units = sorted({*self.store.units, *(copy.units if copy else ())}, key=str)
        whole = self.chance.random() < 0.4
        if units:
            self.met(f"store {what}" if whole else f"part of a store {what}")
            self._is_hurt()
            strike(*(units if whole else self.chance.sample(units, self.chance.randint(1, len(units)))))
            self.theirs = self._is_theirs()
            self._is_struck()

    def _is_hurt(self) -> None:
        self.hurt = self.hurt or any(unit.rows for unit in self.store.tables.values())

    def _is_struck(self) -> None:
        self.strikes += 1
        self._opened = 0
        self.struck()

    def _units(self) -> list[Unit]:
        return [*([self.store.ledger] if self.store.ledger is not None else []), *self.store.tables.values()]

    def _is_theirs(self) -> bool:
        return bool(self._strange())

    def _strange(self) -> set[StopState]:
        """What whoever opens the store may be told of units that are none of this log's."""
        marks = [unit.mark for unit in self._units()]
        others = {StopState.OTHER_LOG} if any(mark.log in self._others for mark in marks) else set()
        return others | ({StopState.DIVERGED} if any(mark.history == ANOTHER_PAST for mark in marks) else set())

    def refuse_strangers(self, what: str) -> None:
        if self.theirs:
            raise Violation("k", f"{self.name}: a follower {what} though the store holds what its log never had")

    def taken(self, call: Call, answer: MemoryAnswer) -> None:
        in_order = self.options.sequenced or self.options.staged
        if in_order and answer is MemoryAnswer.DONE and call.epoch < self._opened:
            raise Violation("l", f"{self.name} took a call of epoch {call.epoch}, though it was opened under {self._opened}")

    def _intrude(self) -> None:
        """A service with another log comes upon the store; it goes as it came."""
        if self.theirs or not self.store.units:
            return
        self.met("another service comes upon a store")
        before = {topic: (unit.mark, dict(unit.rows)) for topic, unit in self.store.tables.items()}
        try:
            MemorySink(self.name, self.options).open(_foreign().reader(), self.epoch + self.chance.randrange(3))
        except Stopped as stopped:
            if stopped.state is not StopState.OTHER_LOG:
                raise Violation("k", f"another service was told {stopped.state}") from None
        else:
            raise Violation("k", f"another service opened {self.name}, which holds this log's rows")
        if {topic: (unit.mark, dict(unit.rows)) for topic, unit in self.store.tables.items()} != before:
            raise Violation("k", f"another service changed {self.name}")

    def _steal(self) -> None:
        """… and its operator says that the store is to be its own."""
        self.met("store taken over by another service")
        self._is_hurt()
        thief, log = MemorySink(self.name, self.options), _foreign()
        thief.erase()
        thief.open(log.reader(), self.epoch + self.chance.randrange(3))
        for changes in log.batches:
            thief.prepare(TopicSchema.of(ORDERS))
            thief.apply(changes)
        if self.chance.random() < 0.8:
            thief.commit(log.head)
        self._others.add(log.lineage.log)
        self.theirs = True
        self._is_struck()

    def _swap(self) -> None:
        """Some of its units come from a copy of this installation that went on by itself: the same log's id, and other changes."""
        if self.theirs:
            return
        found = [unit for unit in self._units() if unit.mark.cut.position]
        if not found:
            return
        self.met("part of a store of another past")
        self._is_hurt()
        for unit in self.chance.sample(found, self.chance.randint(1, len(found))):
            unit.mark = replace(unit.mark, history=ANOTHER_PAST)
            if isinstance(unit, TableUnit):
                gone = self.chance.sample(sorted(unit.rows), (len(unit.rows) + 1) // 2)
                unit.rows = {key: kept for key, kept in unit.rows.items() if key not in gone}
        self.theirs = True
        self._is_struck()

    def deliver_late(self) -> None:
        number = self.chance.randrange(len(self.late))
        call = self.late[number] if self.chance.random() < 0.5 else self.late.pop(number)
        if not self.theirs:  # where a store's rows guard themselves alone, nothing else could refuse it there
            self.met("late request")
            self.taken(call, self.store.take(call)[0])
            self.written()

    # -- its followers ------------------------------------------------------------------------------------------------------

    def given(self, change: TopicChange, position: int) -> None:
        """A follower says that a table has another definition now. After a strike it may not know yet which one the store's rows have."""
        unit = self.store.tables.get(change.schema.topic)
        if unit is not None and self.strikes == self._strikes_known:
            self.reshapes(unit.shape, change, position)

    def refused(self, epoch: int) -> None:
        """The store does not let a follower of this epoch open it."""
        for lease in self.leases:
            if lease.epoch == epoch:
                lease.refuse()

    def disowned(self, stopped: Stopped) -> None:
        """A follower finds that the store is not this log's. Until an operator comes it may have changed again."""
        if stopped.state is StopState.POSITION_GONE and self.strikes:
            return  # it was set back to before a DELETE that the log has dropped since
        if stopped.state not in self._strange():
            raise Violation("k", f"{self.name} is this log's own and was refused: {stopped}")
        self._disowned.add(stopped.state)

    def unfinished(self, refused: StoreError) -> None:
        """A follower finds that the store was not built again to its end: a part of it was set back to while it was."""
        if not self.strikes or not any(unit.building for unit in self.store.tables.values()):
            raise Violation("k", f"{self.name} is this log's own and was refused: {refused}")
        self._disowned.add(StopState.STORE_REFUSES)

    def opened(self, epoch: int) -> None:
        """A follower has."""
        self.refuse_strangers("opens it")
        self._strikes_known = self.strikes
        self.fenced(epoch)

    def fenced(self, epoch: int) -> None:
        """From now on no earlier writer gets anything done."""
        self._opened = max(self._opened, epoch)

    def stopped(self, state: StopState, why: str) -> bool:
        """A follower says that it cannot go on. An operator lets a change through; or has the store built again (True), once the other
        service is gone."""
        if state is StopState.SCHEMA_PAUSED and self.terms.policy != "apply":
            self.met("operator lets a change through")
            return False
        if state is StopState.POSITION_GONE and self.strikes:
            self.met("store set back too far, and built again")
            return True
        if state not in self._disowned:
            raise Violation("k", f"{self.name} is this log's own and was refused: {why}")
        self.met("store built again")
        self._copies.clear()
        return True


def _foreign() -> MemoryLog:
    """Another service's log, with one row of a table that we have none of."""
    log = MemoryLog()
    writer = log.writer()
    writer.append(upserts(ORDERS, 1, [order(1)]))
    writer.commit(Lsn(1), 0)
    return log
