"""One store or all of them: what is opened for an audit, and the order of its steps."""

from __future__ import annotations

import difflib
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from cdc.audit.comparison import SourceSide, TableInWork, Target, compare
from cdc.audit.findings import Progress, Repair, Report, StoreAudit, TableAudit
from cdc.audit.repair import Repairer, Sent, refuse_without_capture
from cdc.audit.settlement import CaughtUp, settle
from cdc.client.wait import nudge, wait
from cdc.errors import ConfigError, SourceError, StoreError, WaitTimeout
from cdc.log.contract import LogReader, captured
from cdc.log.home import open_reader
from cdc.log.orphans import ended_topics
from cdc.lookup.former import held_log
from cdc.model.evolution import Kind
from cdc.model.position import ZERO_CUT, Cut, Lsn, format_lsn
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.privacy.policies import protection_of
from cdc.settings.models import Settings
from cdc.source.catalog import load_published
from cdc.source.connection import connect
from cdc.source.rows import snapshot
from cdc.state import auditstate, status, stops
from sinks import make_sink, refuse_without_rows, traits_of
from sinks.contract import Sink
from sinks.heldlog import HeldLog
from sinks.holding import bound
from sinks.retry import ATTEMPTS_MAX, backoff_s
from snapshots.session import Unreachable, open_session

_Answer = TypeVar("_Answer")

CATCH_UP_TIMEOUT_S: Final = 600.0
BEGINS_WITHIN_S: Final = 5.0
"""A `cdc run` that was started beside shows by then."""
_LOOK_S: Final = 0.1
NUDGE_AFTER_S: Final = 1.0
"""An idle source may end just before the snapshot's LSN for good; a commit of our own carries the stream past it."""


def audit(
    settings: Settings,
    store: str | None = None,
    table: str | None = None,
    *,
    progress: Report = lambda _: None,
    timeout_s: float = CATCH_UP_TIMEOUT_S,
    repair: bool = False,
) -> list[StoreAudit]:
    """Audits one store, or all of them. ``table``: shell patterns of ``schema.name``, default every table of the store. ``repair``: rows that differ are
    sent again (``cdc.audit.repair``), and looked at once more when the store has applied them.

    ``progress`` is called from this thread, often. Raises ConfigError (no such store or table, nothing captured yet), SourceError,
    StoreError, and WaitTimeout when a store does not get as far as the source within ``timeout_s``; to repair, ConfigError or Stopped where capture
    does not run.
    """
    if store is not None and store not in settings.stores:
        close = difflib.get_close_matches(store, settings.stores, 1)
        known = ", ".join(settings.stores) or "none"
        raise ConfigError(f"there is no store {store!r}", hint=f"did you mean {close[0]}?" if close else f"stores: {known}")
    names = [name for name in settings.stores if not traits_of(settings.stores[name]).events] if store is None else [store]
    for name in names:
        refuse_without_rows(name, settings.stores[name], "there is nothing to compare")
    if repair:
        refuse_without_capture(settings)
    audits = []
    with ExitStack() as stack:
        reader = stack.enter_context(closing(open_reader(settings.log.dir)))
        _refuse_unbegun(settings, reader)
        _await_log(settings, reader, timeout_s)
        connection = stack.enter_context(connect(settings.source.dsn.get_secret_value(), application="headwater-audit"))
        database = SourceSide(connection, settings.source.publication, protection_of(settings, reader))
        for name in names:
            held = held_log(reader, name, settings.stores[name], settings.log.dir)
            work = _StoreWork(settings, held, name, database, progress, timeout_s)
            with _spark(settings, name):
                found = work.compare(table)
                audits.append(found.result(work.repair(found) if repair else {}))
    have_compared_again(settings, audits)
    return audits


def have_compared_again(settings: Settings, audits: Sequence[StoreAudit]) -> None:
    """Asks the continuous audit for another look at what it has found in tables that are whole by now, before their turn comes. Rows that were sent again
    have reached every store that holds the table."""
    for name in settings.stores:
        healed = {
            table.table for one in audits for table in one.tables if table.whole and (one.store == name or table.repair is not None)
        }
        with suppress(
            OSError, StoreError
        ):  # by an account that may not write there, or where its file is damaged: their turn comes
            standing = auditstate.load(settings.run_dir, name)
            tables = () if standing is None else standing.tables
            if found := [one.table for one in tables if one.drift.differing and one.table in healed]:
                auditstate.ask_again(settings.run_dir, name, found)


@dataclass(frozen=True, slots=True)
class _StoreWork:
    """One store's audit, from the outside."""

    settings: Settings
    log: HeldLog
    name: str
    database: SourceSide
    progress: Report
    timeout_s: float

    def compare(self, table: str | None) -> ComparedStore:
        tables = partial(targets, self.settings, self.log, self.database, self.name, table)
        return self._with_sink(lambda sink, caught_up: compare_store(self.database, sink, tables, caught_up, self.progress))

    def repair(self, found: ComparedStore) -> Mapping[str, Repair]:
        """By the names of the tables of which something differs, or is set aside."""
        wanted = [one for one in found.tables if one.settling.differ or one.letters]
        if not wanted:
            return {}
        try:
            with closing(open_session(self.settings.source.dsn.get_secret_value())) as connection:
                repairer = Repairer(self.settings, connection, self.timeout_s)
                sent = [repairer.send(one, partial(self._tell, one)) for one in wanted]
        except Unreachable as error:
            raise SourceError(str(error), hint="cdc doctor") from None
        again = self._with_sink(lambda sink, caught_up: self._look_again(sink, caught_up, sent))
        return {
            one.table.target.table.qualified: one.repair(seen.settling, seen.letters.total())
            for one, seen in zip(sent, again, strict=True)
        }

    def _look_again(self, sink: Sink, caught_up: CaughtUp, sent: Sequence[Sent]) -> list[TableInWork]:
        again = [one.table.again(one.differing) for one in sent]
        settle(self.database, sink, again, caught_up, secrets.randbits(63), self.progress)
        return again

    def _tell(self, one: TableInWork) -> None:
        self.progress(Progress(self.name, one.target.table.qualified, "repairing", one.scanned.source_rows, one.scanned.store_rows))

    def _with_sink(self, use: Callable[[Sink, CaughtUp], _Answer]) -> _Answer:
        """Begins again with the store opened once more, while it says "later", as an index does whose shard is not there yet."""
        chance, failed = random.Random(), 0
        while True:
            try:
                with _opened(self.settings, self.name, self.log) as sink:
                    return use(sink, _caught_up(self.settings, self.log, sink, self.timeout_s))
            except StoreError as error:
                failed += 1
                if not error.retryable or failed == ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_s(failed - 1, chance))


def _refuse_unbegun(settings: Settings, reader: LogReader) -> None:
    """Raises ConfigError, or what stopped capture, where nothing is in the log and nobody at work on it: there is nothing to wait for."""
    until = time.monotonic() + BEGINS_WITHIN_S
    while reader.head() == ZERO_CUT and not _runs(settings):
        stops.check(settings.run_dir, "capture")
        if time.monotonic() >= until:
            raise ConfigError(f"nothing has been captured into {settings.log.dir} yet, and capture does not run", hint="cdc run")
        time.sleep(_LOOK_S)


def _await_log(settings: Settings, reader: LogReader, timeout_s: float) -> None:
    """A store's marks can be judged only beside the log that they are of."""
    until = time.monotonic() + timeout_s
    while reader.lineage() is None:
        stops.check(settings.run_dir, "capture")
        if time.monotonic() >= until:
            raise WaitTimeout(f"capture has not begun the log in {settings.log.dir} within {timeout_s:.0f} s", hint="cdc status")
        time.sleep(_LOOK_S)


def _runs(settings: Settings) -> bool:
    parts = (status.read_supervisor(settings.run_dir), status.read_capture(settings.run_dir))
    return any(part is not None and status.alive(part.pid) for part in parts)


def targets(settings: Settings, reader: HeldLog, database: SourceSide, store: str, table: str | None) -> list[Target]:
    """The store's tables, as the log knows them; published tables that the log has nothing of are among them.

    Raises ConfigError when ``table`` selects none.
    """
    options = settings.stores[store]
    # Of a table that was dropped or renamed there is nothing to compare: its rows went from the stores with it.
    gone = {name for name, kind in ended_topics(reader).items() if kind in (Kind.DROPPED, Kind.RENAMED)}
    found = {
        topic.name: Target(topic.table, topic.rows, holding=reader.holding(topic.name))
        for topic in captured(reader)
        if topic.name not in gone
    }
    for published in load_published(database.connection, settings.source.publication, settings.source.tables):
        if published.qualified not in found:
            logged = database.protection.logged(published)
            found[published.qualified] = Target(logged, captured=False, holding=bound(store, options, TopicSchema.of(logged)))
    asked = ("*",) if table is None else (table,)
    wanted = [
        target for _, target in sorted(found.items()) if matches(options.tables, target.table) and matches(asked, target.table)
    ]
    kept = [target for target in wanted if options.keeps(TopicSchema.of(target.table))]
    if table is not None and wanted and not kept:
        raise ConfigError(f"store {store!r} keeps no rows of {table!r}: there is nothing to compare", hint="cdc status")
    wanted = kept
    if table is not None and not wanted:
        raise ConfigError(f"store {store!r} has no table {table!r}", hint="cdc log ls")
    return wanted


@contextmanager
def _opened(settings: Settings, name: str, reader: HeldLog) -> Iterator[Sink]:
    with closing(make_sink(name, settings.stores[name])) as sink:
        reader.opened(sink)
        yield sink


def _spark(settings: Settings, name: str) -> AbstractContextManager[None]:
    """What the store is read through, where it needs that."""
    if not traits_of(settings.stores[name]).needs_spark:
        return nullcontext()
    from cdc.spark import session

    return session.lent("audit", settings.run_dir, settings.spark)


def _caught_up(settings: Settings, reader: HeldLog, sink: Sink, timeout_s: float) -> CaughtUp:
    known = False
    """What the store has of each table's definition is what it had once it had caught up."""

    def caught_up(lsn: Lsn) -> Cut:
        nonlocal known
        try:
            wait(settings, reader, sink.name, lsn=lsn, timeout_s=min(NUDGE_AFTER_S, timeout_s))
        except WaitTimeout:
            nudge(settings.source.dsn.get_secret_value())
            wait(settings, reader, sink.name, lsn=lsn, timeout_s=timeout_s)
        if known:
            return sink.applied()
        known = True
        return reader.opened(sink)  # a table may have got another definition while it was waited for

    return caught_up


@dataclass(frozen=True, slots=True)
class ComparedStore:
    """The findings of one audit. ``applied``: when its scan began; ``unread``: why tables could not be compared, by name."""

    name: str
    lsn: Lsn
    applied: Cut
    seconds: float
    wanted: Sequence[Target]
    tables: Sequence[TableInWork]
    unread: Mapping[str, str]

    def result(self, repairs: Mapping[str, Repair]) -> StoreAudit:
        """``repairs``: of tables that something was done about, by name."""
        found = {name: TableAudit(name, False, why) for name, why in self.unread.items()}
        found |= {
            name: replace(one.result(), repair=repairs.get(name)) for one in self.tables for name in (one.target.table.qualified,)
        }
        results = tuple(found[target.table.qualified] for target in self.wanted)
        return StoreAudit(
            store=self.name,
            equal=all(result.equal for result in results),
            lsn=format_lsn(self.lsn),
            position=int(self.applied.position),
            seconds=self.seconds,
            tables=results,
        )


def audit_store(
    database: SourceSide,
    sink: Sink,
    tables: Callable[[], Sequence[Target]],
    caught_up: CaughtUp,
    progress: Report = lambda _: None,
) -> StoreAudit:
    """Audits these tables of one opened sink.

    ``tables`` is asked once the store has caught up: only then is the log sure to know every table.
    """
    return compare_store(database, sink, tables, caught_up, progress).result({})


def compare_store(
    database: SourceSide, sink: Sink, tables: Callable[[], Sequence[Target]], caught_up: CaughtUp, progress: Report
) -> ComparedStore:
    """``audit_store``, with all that it has found."""
    started = time.monotonic()
    seed = secrets.randbits(63)
    open_tables: list[TableInWork] = []
    unread: dict[str, str] = {}
    with snapshot(database.connection) as lsn:
        progress(Progress(sink.name, "", "waiting"))
        applied = caught_up(lsn)
        sink.make_visible()
        wanted = tables()
        for target in wanted:
            try:
                # A savepoint: one table that cannot be read must not end the snapshot for the others.
                with database.connection.transaction():
                    open_tables.append(compare(database, sink, target, lsn, applied, seed, progress))
            except SourceError as error:
                unread[target.table.qualified] = error.line()
    settle(database, sink, open_tables, caught_up, seed, progress)
    return ComparedStore(sink.name, lsn, applied, time.monotonic() - started, wanted, open_tables, unread)
