"""The continuous audit: every store's tables against the log, in rounds, by a thread beside the followers that keeps to a budget (``cdc.audit.budget``).

A round takes a store's tables one after the other, and of a large one a range of its keys at a time; the stores take turns. After each range the
standing is written (``cdc.state.auditstate``), so that a restart costs the range at hand. It opens stores to read, as `cdc audit` does, and
repairs nothing: what it finds is reported until a later round no longer finds it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from cdc.audit.budget import Budget
from cdc.audit.keyrange import KeyRange
from cdc.audit.logcomparison import NotHeld, OpenedStore, TableGone, Unsteady, ranges_of
from cdc.background import BackgroundPart, Notes
from cdc.errors import LogReplaced, PositionGone, StoreError
from cdc.follow.rules import Rules
from cdc.log.contract import LogReader, Topic, selected
from cdc.log.home import open_reader
from cdc.lookup.former import held_log
from cdc.settings.models import Contract, Settings, StoreOptions
from cdc.state import auditstate, rebuilds, status
from cdc.state.approvals import approved
from cdc.state.auditstate import AuditStanding, TableStanding, TableWork
from sinks import make_sink, traits_of
from sinks.contract import Helped, Sink

RANGE_ROWS: Final = 4_000_000
"""What is kept of a range's rows while it is compared takes about 50 bytes each, in files without names, on both sides."""
IDLE_S: Final = 1.0
RETRY_S: Final = 15.0
"""After an error of the store, which is not opened again at once."""
SHOWN_S: Final = 5.0
"""So often it is written how far the range at hand is."""
_MOVES: Final = "its follower is on its way to another state"
_RESTS: Final = "a start has enough to do; it goes on audit.pause_s after it"

_log = structlog.get_logger("audit")


def compares(options: StoreOptions) -> bool:
    """Whether a store of these options is compared continuously: one that keeps rows."""
    return traits_of(options).keeps_rows


@dataclass(slots=True)
class _Store:
    """One store on its way through its tables. ``tried``: those whose turn has been in this round. ``begun``: the table that is compared out of its turn,
    and the word by which it was asked for."""

    options: StoreOptions
    standing: AuditStanding
    tried: set[str] = field(default_factory=set)
    begun: tuple[str, int] | None = None
    again_at: float = 0.0
    """Monotonic."""
    shown_at: float = 0.0


class ContinuousAudit(BackgroundPart):
    """``wanted``: gives the stores that are followed here by now; asked by the audit's own thread. ``range_rows``: about so many rows are a range."""

    def __init__(
        self,
        settings: Settings,
        wanted: Callable[[], Mapping[str, StoreOptions]],
        stop: threading.Event,
        *,
        range_rows: int = RANGE_ROWS,
    ) -> None:
        # Not of a lower priority: on a busy machine it would keep the interpreter's lock for as long as it waits for a core, and followers would wait for
        # both. What keeps it small is its budget.
        super().__init__("continuous-audit", nice=0)
        self._settings = settings
        self._wanted = wanted
        self._stop = stop
        self._range_rows = range_rows
        self._stores: dict[str, _Store] = {}
        self._begins_at = time.monotonic() + settings.audit.pause_s
        self._notes = Notes("the continuous audit waits", "the continuous audit failed", _log)

    def _run(self) -> None:
        budget = Budget(self._settings.audit.core_share, self._stop)
        while True:
            with self._notes.noting([]):
                self._rounds(budget)
            budget.pause(RETRY_S)

    def _rounds(self, budget: Budget) -> None:
        """Raises what is not a single store's matter, such as a log that cannot be opened."""
        with closing(open_reader(self._settings.log.dir)) as reader:
            while True:
                took = [self._turn(name, options, reader, budget) for name, options in self._wanted().items() if compares(options)]
                budget.pause(0.0 if any(took) else IDLE_S)

    def _turn(self, name: str, options: StoreOptions, reader: LogReader, budget: Budget) -> bool:
        """Compares one range. False: there was nothing to do."""
        known = self._stores.get(name)
        if known is None or known.options != options:
            # A store whose options have changed is closed and opened again; until then it holds what the former ones say.
            again_at = 0.0 if known is None else time.monotonic() + RETRY_S
            self._stores[name] = known = _Store(options, self._loaded(name), again_at=again_at)
        if time.monotonic() < known.again_at:
            return False
        problems: list[str] = []
        waits, took = None, False
        with self._notes.noting(problems):
            try:
                waits = hindrance(self._settings.run_dir, name)
                if waits is None:
                    took = StoreRound(self, name, known, reader, budget).step()
            except LogReplaced:
                reader.close()  # it opens what stands there now
                waits = _MOVES
        if problems or waits:
            known.again_at = time.monotonic() + (RETRY_S if problems else IDLE_S)
            if problems or not self.rests:  # a start is no reason to say that nothing has been compared yet
                with self._notes.noting(problems):
                    self.show(name, known, replace(known.standing, waits=waits or problems[-1]))
        return took

    def show(self, name: str, known: _Store, standing: AuditStanding) -> None:
        """Takes it for the store's, and writes it where it is another than before. Raises OSError."""
        if standing != known.standing:
            known.standing = standing
            auditstate.save(self._settings.run_dir, name, standing)

    def _loaded(self, name: str) -> AuditStanding:
        """A damaged file is bookkeeping that was lost: it is said, and the store's audit begins again."""
        try:
            return auditstate.load(self._settings.run_dir, name) or AuditStanding()
        except StoreError as error:
            _log.warning(f"{error}: the audit of store {name} begins again")
            return AuditStanding()

    def wants(self, name: str, options: StoreOptions) -> bool:
        """Whether the store is still to be followed by these options."""
        return self._wanted().get(name) == options

    @property
    def rests(self) -> bool:
        """A start has enough to do: no round begins or goes on yet."""
        return time.monotonic() < self._begins_at

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def range_rows(self) -> int:
        return self._range_rows


class StoreRound:
    """A turn of one store."""

    def __init__(self, audit: ContinuousAudit, name: str, known: _Store, reader: LogReader, budget: Budget) -> None:
        self._audit = audit
        self._name = name
        self._known = known
        self._reader = reader
        self._budget = budget

    def step(self) -> bool:
        """Compares the next range of the present round, or begins or ends one. False: the time for the next round has not come."""
        known, settings = self._known, self._audit.settings
        now, standing = time.time(), known.standing
        if self._asked_again():
            return True
        if self._audit.rests:
            self._audit.show(self._name, known, replace(standing, waits=_RESTS if standing.tables else None))
            return False
        if standing.ended_at >= standing.round_at and 0 <= now - standing.ended_at < settings.audit.pause_s:
            self._audit.show(self._name, known, replace(standing, waits=None))
            return False
        topics = self._topics()
        standing = _not_from_later(self._of_topics(topics), now)
        if standing.ended_at >= standing.round_at:
            known.tried = set()
            standing = replace(standing, round_at=now)
        self._audit.show(self._name, known, replace(standing, waits=None))
        one = self._next()
        if one is None:
            self._audit.show(self._name, known, replace(known.standing, ended_at=max(now, known.standing.round_at)))
            return True
        self._put(self._compared(one, topics[one.table]), one.table)
        return True

    def _asked_again(self) -> bool:
        """Compares the next range of a table that has been repaired, which is not to wait for its turn with a finding that is no longer true. False: of none."""
        run_dir, known = self._audit.settings.run_dir, self._known
        asked = auditstate.asked_again(run_dir, self._name)
        if not asked:
            return False
        if known.begun is None or known.begun not in asked.items():
            known.begun = next(iter(asked.items()))
            self._begin_again(known.begun[0])
        table, word = known.begun
        one, topic = self._standing_of(table), self._topics().get(table)
        found = None if one is None or topic is None else self._compared(one, topic)
        if one is not None:
            self._put(found, table)
        if found is None or found.work is None or found.problem is not None:
            known.begun = None
            auditstate.answered(run_dir, self._name, table, word)
        return True

    def _begin_again(self, table: str) -> None:
        """What was found of it in ranges before may have been repaired since."""
        if (one := self._standing_of(table)) is not None:
            self._put(replace(one, work=None), table)

    def _standing_of(self, table: str) -> TableStanding | None:
        return next((one for one in self._known.standing.tables if one.table == table), None)

    def _topics(self) -> dict[str, Topic]:
        """Those of which the store keeps rows, by name."""
        options = self._known.options
        return {topic.name: topic for topic in selected(self._reader, options.tables) if options.keeps(topic.schema)}

    def _of_topics(self, topics: Mapping[str, Topic]) -> AuditStanding:
        before = {one.table: one for one in self._known.standing.tables}
        tables = tuple(before.get(name) or TableStanding(name) for name in sorted(topics))
        return replace(self._known.standing, tables=tables)

    def _next(self) -> TableStanding | None:
        """One that was begun comes first, then the one that has waited for longest."""
        standing = self._known.standing
        left = [one for one in standing.tables if one.table not in self._known.tried and not self._done(one)]
        return min(left, key=lambda one: (one.work is None, one.compared_at), default=None)

    def _done(self, one: TableStanding) -> bool:
        return one.work is None and one.compared_at > self._known.standing.round_at

    def _compared(self, one: TableStanding, topic: Topic) -> TableStanding | None:
        """The table's standing after its next range; None: it is gone."""
        work = one.work or TableWork(secrets.randbits(63), ranges_of(topic, one.last.rows, self._audit.range_rows))
        run_dir, name = self._audit.settings.run_dir, self._name
        followed = _life(run_dir, name)
        try:
            with self._opened() as store:
                drift = store.compare(
                    topic,
                    KeyRange(work.done, work.ranges),
                    work.seed,
                    lambda ours, theirs: self._reached(one, work, (ours + theirs) / max(1, 2 * topic.rows)),
                )
                position = int(store.applied.position)
        except TableGone:
            return None
        except (NotHeld, Unsteady, PositionGone) as why:
            self._known.tried.add(one.table)
            return replace(one, problem=_words(why), work=None)
        if (
            hindrance(run_dir, name) is not None
            or _life(run_dir, name) != followed
            or not self._audit.wants(name, self._known.options)
        ):
            # Whatever was seen may be of a store that was being emptied, or built again, perhaps as other options say.
            self._known.tried.add(one.table)
            return replace(one, problem=_MOVES)
        work = replace(
            work,
            done=work.done + 1,
            share=0.0,
            position=position if work.position == 0 else min(work.position, position),
            found=work.found + drift,
        )
        if work.done < work.ranges:
            return replace(one, problem=None, work=work)
        now = time.time()
        whole_at = one.whole_at if work.found.differing else now
        if work.found.differing and not one.last.differing:
            _log.warning(f"store {name} differs from the log in {work.found.differing} rows of {one.table} → cdc audit {name}")
        return TableStanding(one.table, whole_at, now, work.position, work.found)

    @contextmanager
    def _opened(self) -> Iterator[OpenedStore]:
        """Opened to read. Raises StoreError, ConfigError, Stopped."""
        known, settings, name = self._known, self._audit.settings, self._name
        log = held_log(self._reader, name, known.options, settings.log.dir)
        rules = rules_of(name, known.options, settings.contracts, settings.run_dir)
        sink: Sink = make_sink(name, known.options)
        with closing(sink), self._budget.counting(sink.helped_s if isinstance(sink, Helped) else None):
            yield OpenedStore(sink, log, rules, log.opened(sink), self._budget)

    def _reached(self, one: TableStanding, work: TableWork, share: float) -> None:
        now = time.monotonic()
        if now - self._known.shown_at >= SHOWN_S:
            self._known.shown_at = now
            self._put(replace(one, work=replace(work, share=min(share, 1.0))), one.table)

    def _put(self, found: TableStanding | None, table: str) -> None:
        standing = self._known.standing
        tables: Sequence[TableStanding | None] = [found if one.table == table else one for one in standing.tables]
        self._audit.show(self._name, self._known, replace(standing, tables=tuple(one for one in tables if one is not None)))


def hindrance(run_dir: Path, store: str) -> str | None:
    """Why the store cannot be compared now: it is only while its follower follows."""
    if rebuilds.requested(run_dir, store) is not None:
        return "it is to be built again"
    found = status.read_follower(run_dir, store)
    if found is None or not status.reports(found):
        return "its follower does not run"
    return None if found.state == "following" else f"its follower is {found.state}"


def _not_from_later(standing: AuditStanding, now: float) -> AuditStanding:
    """The standing, where the clock has been set back: without times that have not come, by which tables would seem to have been compared already."""
    tables = tuple(
        replace(one, compared_at=min(one.compared_at, now), whole_at=min(one.whole_at, now)) if one.compared_at > now else one
        for one in standing.tables
    )
    if standing.round_at <= now:
        return replace(standing, tables=tables)
    return replace(standing, round_at=0.0, ended_at=0.0, tables=tables)


def rules_of(store: str, options: StoreOptions, contracts: Mapping[str, Contract], run_dir: Path) -> Rules:
    """As its follower has them."""
    return Rules(store, options, contracts, approved(run_dir, store))


def _life(run_dir: Path, store: str) -> int:
    found = status.read_follower(run_dir, store)
    return 0 if found is None else found.pid


def _words(why: Exception) -> str:
    if isinstance(why, Unsteady):
        return "the table, or the store, changed as a whole while it was compared"
    return str(why)
