"""The next generation of a store, built from the log beside the live one, which is read and followed meanwhile as ever.

1. *Reading*, if that is asked for: capture reads the rows of all tables into the log once more (``cdc.generations.database``), and what follows goes by that alone.
   *Building*: the rows as of the log's head are computed from the log and written, as when a store is built again in place (``cdc.follow.rebuild``).
2. *Catching up*: what the log has got since is applied, as a follower does.
3. *Comparing*: every row of the generation with the log's fold, at the cut where it stands, and with the database, if that is asked for. One that differs is
   not put into anybody's hands.
4. *Swapping*: what operators have decided about dead letters comes along, the live generation is held, what it has got last is applied here, too, and readers see
   this one from then on.

A process that is killed leaves the live generation as it was, until the swap, which is one step. Whoever begins again goes on with what is there: a generation that was
not built to the end is filled again, any other is caught up. Only one process builds at a time (a lease), so a generation that is being built needs no further
fence; the store's follower fences this process by its epoch once the generation is live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cdc.audit.findings import Progress, StoreAudit
from cdc.clock import MACHINE
from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, PositionGone, Stopped, StopState, StoreError
from cdc.follow.ranges import ChangeWaits
from cdc.follow.rebuild import Rebuilding
from cdc.follow.rules import Rules
from cdc.generations.alone import alone, writing
from cdc.generations.comparison import TableComparison, compare
from cdc.generations.database import AskedDatabase
from cdc.generations.decisions import CarriedDecisions
from cdc.generations.follower import BUILDER_EPOCH, PASSES_MAX, GenerationFollower
from cdc.generations.refusals import refuse_beyond
from cdc.generations.reporter import GenerationReporter
from cdc.generations.swap import put_in_place
from cdc.log.contract import COMES_WITH_CAPTURE, selected
from cdc.log.orphans import ended_topics
from cdc.model.lineage import Lineage, believed
from cdc.model.position import START, Cut, Position
from cdc.replay.state import refuse_compacted_topic
from sinks.contract import CameRows, Shape, Sink, TopicAsOf
from sinks.generations import Generation, Generations, GenerationState
from sinks.heldlog import HeldLog

_BEYOND_HELP: Final = (StopState.POSITION_GONE, StopState.OTHER_LOG, StopState.DIVERGED)
"""With one of these a generation that was begun earlier cannot be brought on by this log."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """The work at this moment. ``expected``: how many rows there are at most; 0 where that is not known."""

    phase: str
    """reading | building | catching up | comparing | comparing with the database | swapping"""
    rows: int = 0
    expected: int = 0


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """``swapped`` is False where a table differs from the log, or from the database. ``audit``: what that comparison has found, where it was asked for and the log
    was equal."""

    number: int
    former: int
    swapped: bool
    cut: Cut
    rows: int
    seconds: float
    tables: tuple[TableComparison, ...]
    decisions: CarriedDecisions
    audit: StoreAudit | None = None


@dataclass(slots=True)
class Bootstrap:
    """One store's. ``keep_s``: for so long the former generation is kept, None: without an end. ``show``: called often, from the thread of ``carry_out``. ``stop``
    ends it, with a retryable StoreError. ``database``: what the database is asked for."""

    log_dir: Path
    run_dir: Path
    reader: HeldLog
    generations: Generations
    rules: Rules
    keep_s: float | None
    stop: threading.Event
    show: Callable[[BuildProgress], None] = lambda _: None
    database: AskedDatabase | None = None
    _follower: GenerationFollower = field(init=False)
    _begins: Mapping[str, Position] = field(default_factory=dict, init=False)
    """Topics whose rows were read again behind these positions."""
    _reporter: GenerationReporter = field(init=False)

    def __post_init__(self) -> None:
        self._follower = GenerationFollower(self.log_dir, self.reader, self.rules, self.stop, self._catching_up)

    @property
    def name(self) -> str:
        return self.rules.store

    def carry_out(self) -> Bootstrapped:
        """Raises ConfigError where the store has no live generation yet or the log no table for it, HeadwaterError when another process builds one, Stopped where a
        change of definition waits for an operator or the live generation is not of this log, StoreError."""
        began = MACHINE.monotonic()
        lineage = self.reader.lineage()
        if lineage is None:
            raise StoreError(f"there is no log in {self.log_dir} yet", retryable=True, hint=COMES_WITH_CAPTURE)
        if not selected(self.reader, self.rules.options.tables):
            raise ConfigError(
                f"the log has no table that store {self.name} holds", hint=f"see tables in [stores.{self.name}], and cdc log ls"
            )
        with alone(self.log_dir, self.name):
            there = self.generations.all()
            live, number = self._numbers(there)
            self._refuse_foreign(next(one for one in there if one.number == live), lineage)
            self._reporter = GenerationReporter(self.run_dir, self.name, number, "building")
            with writing(self.log_dir, self.name, number), closing(self.generations.sink(number)) as sink:
                try:
                    cut = (
                        self._read_again(sink)
                        if self.database is not None and self.database.reads
                        else self._at_the_head(sink, number)
                    )
                    cut, tables = self._judged(sink, cut)
                    equal, decided, audit = not any(table.differ for table in tables), CarriedDecisions(), None
                    if equal and self.database is not None and self.database.compares:
                        audit = self._audited(self.database, sink, cut)
                        cut, equal = self._brought_up(sink), audit.equal
                    if equal:
                        self._shown("swapping", cut)
                        cut, decided = put_in_place(self._follower, self.generations, sink, cut, (number, live), self.keep_s)
                        self._reporter.gone()
                        hand_over(self.generations, self.run_dir, self.name, live, cut)
                except ChangeWaits as waits:
                    raise waits.pause.stopped from None
        rows = sum(table.rows for table in tables)
        return Bootstrapped(number, live, equal, cut, rows, MACHINE.monotonic() - began, tables, decided, audit)

    def _shown(self, phase: str, cut: Cut, rows: int = 0, expected: int = 0) -> None:
        self.show(BuildProgress(phase, rows, expected))
        if (
            self._begins
        ):  # what was read again is read from there to build and to compare, so the log has to keep it until readers see it
            cut = replace(cut, position=min(self._begins.values()))
        self._reporter.progress(cut, phase, rows, expected)

    def _catching_up(self, cut: Cut, taken: int, of: int) -> None:
        self._shown("catching up", cut, taken, of)

    def _refuse_foreign(self, live: Generation, lineage: Lineage) -> None:
        if live.mark is not None:
            refuse_beyond(self.reader.head(), believed(live.mark, lineage, f"store {self.name}"), f"store {self.name}")

    def _numbers(self, there: Sequence[Generation]) -> tuple[int, int]:
        """The live generation's, and that of the one to build, which may have been begun before."""
        live = next((one.number for one in there if one.state is GenerationState.LIVE), None)
        if live is None:
            raise ConfigError(
                f"store {self.name} holds nothing yet, so there is nothing to build beside",
                hint="cdc run, which fills it from the log",
            )
        newest = there[-1]
        return live, newest.number if newest.state is GenerationState.BUILDING else newest.number + 1

    def _read_again(self, sink: Sink) -> Cut:
        """Whatever was begun before was of other rows, so it is filled again."""
        assert self.database is not None
        begin = self.reader.head()
        self._shown("reading", begin)  # from here on the log keeps what comes
        self._begins = self.database.read_again(lambda rows, of: self._shown("reading", begin, rows, of))
        crashpoint("generations.read_again")
        return self._built(sink)

    def _at_the_head(self, sink: Sink, number: int) -> Cut:
        mark = next((one.mark for one in self.generations.all() if one.number == number), None)
        if mark is not None and mark.cut.position:
            try:
                return self._brought_up(sink)
            except Stopped as stopped:
                if stopped.state not in _BEYOND_HELP:
                    raise
        try:
            return self._built(sink)
        except PositionGone as gone:
            hint = f"cdc bootstrap {self.name} --from source, for which capture reads the rows of its tables into the log again"
            raise PositionGone(str(gone).removeprefix(f"{gone.state}: "), hint=hint) from None

    def _built(self, sink: Sink) -> Cut:
        self._build(sink)
        crashpoint("generations.built")
        return self._brought_up(sink)

    def _brought_up(self, sink: Sink) -> Cut:
        cut = self._follower.catch_up(sink, self._follower.open(sink))
        crashpoint("generations.caught_up")
        return cut

    def _build(self, sink: Sink) -> None:
        self.reader.forget()
        cut = self.reader.head()
        expected = sum(topic.rows for topic in selected(self.reader, self.rules.options.tables))
        written = 0

        def counted(topic: TopicAsOf) -> Callable[[], Iterator[CameRows]]:
            def rows() -> Iterator[CameRows]:
                nonlocal written
                for came in topic.rows():
                    yield came
                    written += len(came.rows)
                    self._shown("building", cut, written, expected)

            return rows

        self._shown("building", cut, 0, expected)
        rebuilding = self._rebuilding()
        topics = [replace(topic, rows=counted(topic)) for topic in self._topics(rebuilding, sink, cut)]
        sink.rebuild(rebuilding.reader, BUILDER_EPOCH, cut, topics)

    def _rebuilding(self) -> Rebuilding:
        reader = self.reader.beginning_at(self._begins) if self._begins else self.reader
        return Rebuilding(self.rules, reader, self.stop, lambda: None)

    def _topics(self, rebuilding: Rebuilding, sink: Sink, cut: Cut) -> list[TopicAsOf]:
        """The topics as of the cut; a table without rows, of which there was nothing to read again, is among them."""
        found = rebuilding.topics(sink, cut)
        if not self._begins:
            return found
        known = {one.shape.schema.topic for one in found} | ended_topics(self.reader).keys()
        empty = [one for one in selected(self.reader, self.rules.options.tables) if one.name in self._begins.keys() - known]
        return [*found, *(TopicAsOf(Shape(one.schema, START), lambda: iter(())) for one in empty)]

    def _judged(self, sink: Sink, cut: Cut) -> tuple[Cut, tuple[TableComparison, ...]]:
        """The tables as they compare at a cut of which the log still shows all rows: what compaction has taken meanwhile would seem to be too much in the store."""
        for _ in range(PASSES_MAX):
            tables = self._compared(sink, cut)
            if not any(table.differ and self._compacted(table.table, cut) for table in tables):
                return cut, tables
            cut = self._follower.catch_up(sink, cut)
        raise StoreError(f"store {self.name}: the log is compacted faster than its new generation is compared", retryable=True)

    def _audited(self, database: AskedDatabase, sink: Sink, cut: Cut) -> StoreAudit:
        def scanned(now: Progress) -> None:
            self._shown("comparing with the database", cut, now.store_rows, now.expected_rows)

        return database.compare(sink, lambda: self._brought_up(sink), scanned)

    def _compacted(self, topic: str, cut: Cut) -> bool:
        known = next((one for one in self.reader.topics() if one.name == topic), None)
        if known is not None and topic in self._begins:
            known = replace(known, kept_from=START)  # what came before does not count
        try:
            refuse_compacted_topic(known, cut.position)
        except PositionGone:
            return True
        return False

    def _compared(self, sink: Sink, cut: Cut) -> tuple[TableComparison, ...]:
        sink.make_visible()
        expected = sum(topic.rows for topic in selected(self.reader, self.rules.options.tables))
        found, before = list[TableComparison](), 0

        def scanned(rows: int) -> None:
            self._shown("comparing", cut, before + rows, expected)

        scanned(0)
        rebuilding = self._rebuilding()
        for topic in self._topics(rebuilding, sink, cut):
            found.append(compare(sink, topic, scanned))
            before += found[-1].rows
        rebuilding.name_failed(sink)  # here, as the process may have been killed since it was built
        crashpoint("generations.compared")
        return tuple(found)


def hand_over(generations: Generations, run_dir: Path, store: str, number: int, cut: Cut) -> None:
    """The generation that was live is kept from now on: at once compaction has to leave it what comes after ``cut``, be it that nobody feeds it yet."""
    entry = next((one for one in generations.entries() if one.number == number), None)
    if entry is not None and entry.state is GenerationState.KEPT:
        GenerationReporter(run_dir, store, number, "kept").holds(cut, entry.until)
