"""The thread that looks at the catalog every few seconds, and tells the stream what it sees.

What it tells goes through the stream itself, as a logical message: so it stands behind every change made before the look, and what it
means is decided there (``cdc.capture.definitions``). The tables are locked (ACCESS SHARE) from the look to the message's commit, so that no
change of their definition comes between the two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from cdc.errors import ColumnReserved, ConfigError, SourceError
from cdc.model.batch import reserved_column
from cdc.model.facts import Facts, Publishing
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.source.capturable import keyless_line, quoted_name, refuse_reserved, refuse_twins
from cdc.source.catalog import SourceTable, find_tables, select_tables
from cdc.source.configured import Reachable
from cdc.source.connection import connect, reason
from cdc.source.facts import read_facts
from cdc.source.kin import KeptBack, Undecided, refuse_undecided
from cdc.source.membership import check_publishes
from cdc.source.problems import Refusal, find_problems
from cdc.source.publication import add_tables, drop_table, read_publication
from cdc.source.sight import Sight
from cdc.source.trigger import SetAside, set_aside_by_trigger
from cdc.source.vanishing import vanished

PREFIX: Final = "headwater.ddl"
INTERVAL_S: Final = 3.0
_RETRY_S: Final = 2.0
UNSETTLED_S: Final = 2.0
"""So long a table may be without identity: its key, or the table that it becomes a partition of, may come in the application's next
transaction. Meanwhile the server refuses updates and deletes of it."""
_LOCK_TIMEOUT: Final = "500ms"
_HELD_S: Final = 10
"""The server ends a look that goes no further for so long. Its locks (ACCESS SHARE) would keep the application's TRUNCATE and ALTER TABLE
waiting: for ever, when the link has died though TCP acknowledges."""
_AT_ONCE: Final = 100
"""Tables locked, and reported, in one transaction."""

_REMOVABLE: Final = """
select r.prrelid::int8, r.prattrs is null and r.prqual is null
from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
where p.pubname = %s and r.prrelid = any (%s::oid[]) and pg_has_role(p.pubowner, 'USAGE')
"""

_NEW: Final = """
select c.oid::int8, n.nspname || '.' || c.relname
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition and c.oid >= 16384
  and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'headwater') and not c.oid = any (%s::oid[])
"""

_log = structlog.get_logger("catalog")


class CatalogWatch:
    """Looks once in full when it starts, and then for what has changed since the look before.

    known: OIDs of the tables that the log has. password: what our messages carry. fail: takes an error that is a fault of ours.
    undecided: what the column policies keep out of the log until somebody decides. out: tables that have left the publication because they
    could not be captured; remember: makes those durable, before one more is taken out.
    """

    def __init__(
        self,
        source: Reachable,
        known: Collection[int],
        password: str,
        stop: Event,
        fail: Callable[[Exception], None],
        undecided: Undecided,
        *,
        out: Mapping[int, SetAside] | None = None,
        remember: Callable[[Mapping[int, SetAside]], None] = lambda _: None,
    ) -> None:
        self.left_out: tuple[str, ...] = ()
        """What of the selected tables does not reach the log, one line each with what helps, as of the last look; read by other threads."""
        self.notes: tuple[str, ...] = ()
        """What to know of captured tables, one line each with what helps, as of the last look; read by other threads."""
        self._sight = Sight()
        self._undecided = undecided
        self._kept_back = KeptBack(undecided)
        self._source = source
        self._password = password
        self._stop = stop
        self._fail = fail
        self._told: dict[int, Facts | None] = dict.fromkeys(known)
        self._out = dict(out or {})
        """Tables (OIDs) that have left the publication because they could not be captured, and have not been seen there again."""
        self._remember = remember
        self._computed = False
        """The publication publishes stored generated columns."""
        self._passed_over: dict[int, Refusal] = {}
        """Selected tables (OIDs) that cannot be captured as they are, though they have been: no row of them is logged."""
        self._barred: dict[int, Refusal] = {}
        """Selected tables (OIDs) that cannot join the publication."""
        self._bare_since: dict[int, float] = {}
        """Captured tables (OIDs) that all looks since that time (monotonic) have seen without identity."""
        self._noted: SimpleQueue[int] = SimpleQueue()
        self._wake = Event()
        self._thread = Thread(target=self._live, name="catalog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look_soon(self) -> None:
        """From any thread."""
        self._wake.set()

    def note(self, oid: int) -> None:
        """From any thread: a table that the stream has shown, or of which it has shown more than the catalog did. It may be gone, or a partition of another,
        before a look finds it. The next look reports it, whether or not it has changed."""
        self._noted.put(oid)
        self._wake.set()

    @property
    def refused(self) -> Mapping[int, Refusal]:
        """From any thread: the selected tables (by OID) that are not captured, and why."""
        return {**self._barred, **self._passed_over}

    @property
    def blind(self) -> str | None:
        """From any thread: why the catalog has not been looked at for a while, with what helps."""
        return self._sight.problem

    def join(self) -> None:
        """After ``stop`` was set."""
        self._wake.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._source.dsn.get_secret_value(), application="headwater catalog") as connection:
                    connection.execute(
                        "select set_config('synchronous_commit', 'local', false), set_config('lock_timeout', %s, false), "
                        "set_config('idle_in_transaction_session_timeout', %s, false)",
                        (_LOCK_TIMEOUT, f"{_HELD_S}s"),
                    )
                    while not self._stop.is_set():
                        self._try(connection)
                        self._wake.wait(INTERVAL_S)
                        self._wake.clear()
            except ConfigError as error:
                self._fail(error)
                return
            except (SourceError, psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
                text = str(error) if isinstance(error, SourceError) else reason(error)
                self._sight.failed(text)
                self._stop.wait(_RETRY_S)
            except psycopg.Error as error:
                if vanished(error):
                    continue  # a table was dropped meanwhile: the next look does not find it
                self._fail(SourceError(f"cannot look at the catalog: {reason(error)}", hint="cdc doctor"))
                return
            except Exception as error:
                self._fail(error)
                return

    def _try(self, connection: psycopg.Connection) -> None:
        try:
            self._look(connection)
        except psycopg.errors.LockNotAvailable:
            self._sight.locked_out(connection)
            raise
        self._sight.clear()

    def _look(self, connection: psycopg.Connection) -> None:
        publication = self._source.publication
        known = read_publication(connection, publication)
        check_publishes(known)
        self._computed = known is not None and known.computed
        while not self._noted.empty():
            self._told[self._noted.get()] = None
        seen = read_facts(connection, publication, list(self._told), published=True)
        back = self._taken_out_by_trigger(connection, seen)
        problems = self._problems(connection, seen)
        found = {facts.oid: self._marked(facts, problems) for facts in seen}
        unsettled = back | self._unsettled(connection, found.values())
        self._pass_over({oid: refusal for oid, refusal in problems.items() if oid not in unsettled})
        self._tell_dropped(connection, [oid for oid in self._told if oid not in found])
        changed = [oid for oid, facts in found.items() if self._told.get(oid) != facts and oid not in unsettled]
        removable = self._removable(connection, [oid for oid in changed if oid in problems])
        for oid, again in removable.items():
            self._take_out(connection, found[oid], again=again)
        changed = [oid for oid in changed if oid not in removable]
        for start in range(0, len(changed), _AT_ONCE):
            self._tell(connection, [found[oid] for oid in changed[start : start + _AT_ONCE]])
        covered = [facts for facts in found.values() if _published(facts)]
        selected = [facts for facts in covered if self._selects(facts)]
        self.left_out = tuple(self._kept_back.look(connection, selected))
        self.notes = tuple(sorted(keyless_line(facts) for facts in selected if facts.keyless and not facts.refused))
        self._end_at_names([facts for facts in covered if not facts.refused and self._selects(facts)])
        self._admit(connection, [facts.oid for facts in covered])

    def _selects(self, facts: Facts) -> bool:
        return matches(self._source.tables, facts.table())

    # --- tables that cannot be captured --------------------------------------------------------------------------------------

    def _problems(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> dict[int, Refusal]:
        """Of the selected tables that are published, or were until they could not be captured any more."""
        ours = [facts for facts in seen if self._selects(facts) and (_published(facts) or facts.oid in self._out)]
        return find_problems(connection, [facts for facts in ours if not facts.attached], computed=self._computed)

    def _marked(self, facts: Facts, problems: Collection[int]) -> Facts:
        """``refused`` where the table has a problem, or where nobody but us and the trigger has taken it out."""
        if facts.oid in problems or (facts.oid in self._out and not _published(facts) and not facts.attached):
            return replace(facts, publishing=replace(facts.publishing or Publishing(False), refused=True))
        return facts

    def _taken_out_by_trigger(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> set[int]:
        """Asked after the facts, so that a table that has left by then is known to have. Returns those that have come back since."""
        aside = set_aside_by_trigger(connection, self._source.publication)
        self._out |= {oid: told for oid, told in aside.items() if told.entry is None}
        return {facts.oid for facts in seen if facts.oid in aside and aside[facts.oid].entry is not None and not _published(facts)}

    def _unsettled(self, connection: psycopg.Connection, found: Iterable[Facts]) -> set[int]:
        """Tables (OIDs) that have only just been seen without identity, and that cannot be taken out of the publication by themselves: nothing is
        reported of them yet, as if the look came a little later."""
        now = time.monotonic()
        bare = [facts.oid for facts in found if facts.refused and _published(facts) and _bare(facts)]
        alone = self._removable(connection, bare)
        self._bare_since = {oid: self._bare_since.get(oid, now) for oid in bare if oid not in alone}
        return {oid for oid, since in self._bare_since.items() if now - since < UNSETTLED_S}

    def _pass_over(self, refused: dict[int, Refusal]) -> None:
        """Known to the snapshot before the stream hears of it, and forgotten before the stream hears that a table can be captured again."""
        for oid, refusal in refused.items():
            if self._passed_over.get(oid) != refusal:
                _log.warning("a table is not captured", table=refusal.table, reason=refusal.problem, hint=refusal.hint)
        self._passed_over = refused

    def _removable(self, connection: psycopg.Connection, oids: Collection[int]) -> dict[int, bool]:
        """Of published tables (OIDs), those that are in the publication by themselves, and that we may take out; with whether they can come back
        as they were."""
        if not oids:
            return {}
        return dict(connection.execute(_REMOVABLE, (self._source.publication, list(oids))).fetchall())

    def _take_out(self, connection: psycopg.Connection, seen: Facts, *, again: bool) -> None:
        """The table leaves the publication, as Postgres would refuse updates and deletes of it, and the stream hears of it, at once."""
        self._out[seen.oid] = SetAside(None, again)
        self._remember(self._out)
        with _tried() as tried, connection.transaction():
            # The lock is taken by name: the facts that are read under it tell whether it is this table's.
            if _lock(connection, seen) and self._read_again(connection, [seen]):
                drop_table(connection, self._source.publication, seen.table())
                (gone,) = read_facts(connection, self._source.publication, [seen.oid])
                self._emit(connection, {"tables": [self._marked(gone, (seen.oid,)).to_json()]})
                tried.append(True)
        if tried:
            self._told[seen.oid] = self._marked(gone, (seen.oid,))
        else:
            del self._out[seen.oid]
            self._wake.set()

    def _end_at_names(self, covered: Sequence[Facts]) -> None:
        """Ends capture where names of captured tables have become ones that it would not begin with: from here on rows may be missing."""
        try:
            refuse_twins([facts.table() for facts in covered])
            for facts in covered:
                if (column := reserved_column(facts.table())) is not None:
                    raise ColumnReserved(facts.qualified, column)
        except (SourceError, ColumnReserved) as error:
            self._fail(error)

    # --- what is told --------------------------------------------------------------------------------------------------------

    def _tell_dropped(self, connection: psycopg.Connection, dropped: Sequence[int]) -> None:
        if dropped:
            self._emit(connection, {"dropped": dropped})
        for oid in dropped:
            del self._told[oid]
            self._out.pop(oid, None)

    def _tell(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> None:
        """Reports these tables; one that cannot be locked now, or has changed since it was seen, is reported after a later look."""
        with connection.transaction():
            told = self._read_again(connection, [facts for facts in seen if _lock(connection, facts)])
            if told:
                self._emit(connection, {"tables": [facts.to_json() for facts in told]})
        for facts in told:
            self._told[facts.oid] = facts
            if _published(facts) and not facts.refused:
                self._out.pop(facts.oid, None)

    def _read_again(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> list[Facts]:
        """The facts as they are under the tables' locks, of those that still have the name, the place and the problem that they were seen with."""
        fresh = read_facts(connection, self._source.publication, [facts.oid for facts in seen])
        problems = self._problems(connection, fresh)
        before = {facts.oid: facts for facts in seen}
        return [facts for facts in (self._marked(one, problems) for one in fresh) if _verdict(facts) == _verdict(before[facts.oid])]

    def _emit(self, connection: psycopg.Connection, told: dict[str, Any]) -> None:
        connection.execute(
            "select pg_logical_emit_message(true, %s, %s)",
            (PREFIX, json.dumps({"password": self._password, **told}, ensure_ascii=False)),
        )

    # --- tables that join ----------------------------------------------------------------------------------------------------

    def _admit(self, connection: psycopg.Connection, published: Sequence[int]) -> None:
        """Adds new tables that the configuration selects to the publication, and those that can be captured again; the next look sees them
        there."""
        left = self._told.keys() - self._out.keys()
        rows = connection.execute(_NEW, ([*published, *left],)).fetchall()
        new = {oid for oid, name in rows if matches(self._source.tables, name)}
        if not new:
            self._barred = {}
            return
        problems = find_problems(connection, read_facts(connection, self._source.publication, list(new)), computed=self._computed)
        everything = select_tables(find_tables(connection), self._source.tables, begun=True)
        barred: dict[int, Refusal] = {}
        for table in everything:
            if table.table.oid in new and (refusal := self._admitted(connection, table, everything, problems)) is not None:
                barred[table.table.oid] = refusal
                if refusal not in (self._barred.get(table.table.oid), self._passed_over.get(table.table.oid)):
                    _log.warning("a new table is not captured", table=table.name, reason=refusal.problem, hint=refusal.hint)
        self._barred = barred

    def _admitted(
        self, connection: psycopg.Connection, table: SourceTable, everything: Sequence[SourceTable], problems: Mapping[int, Refusal]
    ) -> Refusal | None:
        """Publishes the table; or what keeps us from it."""
        oid = table.table.oid
        if oid in problems:
            return problems[oid]
        if oid in self._out and not self._out[oid].again:
            return _withheld(table.table, self._source.publication)
        try:
            refuse_twins([known.table for known in everything if known.name == table.name])
            refuse_reserved(table.table)
            refuse_undecided(self._undecided, table.table)
            add_tables(connection, self._source.publication, [table], computed=self._computed, attempts=1)
        except SourceError as error:
            return Refusal(table.name, str(error).removeprefix(f"table {table.name} "), error.hint or "cdc doctor")
        self._wake.set()
        return None


def _verdict(facts: Facts) -> tuple[str, str, bool, bool]:
    return facts.schema, facts.name, _published(facts), facts.refused


def _published(facts: Facts) -> bool:
    return facts.publishing is not None and facts.publishing.published


def _withheld(table: Table, publication: str) -> Refusal:
    return Refusal(
        table.qualified,
        f"was taken out of publication {publication!r}, which had a column list or a row filter for it",
        f"ALTER PUBLICATION {sql.Identifier(publication).as_string()} ADD TABLE ONLY {quoted_name(table)} … with what it had",
    )


def _bare(facts: Facts) -> bool:
    """Nothing identifies the table's rows, so nothing but inserts can come."""
    return facts.identity != "f" and bool(facts.published) and not facts.table().key


def _lock(connection: psycopg.Connection, facts: Facts) -> bool:
    """False when somebody else is at the table's definition now, or it has gone."""
    with _tried() as tried, connection.transaction():
        name = sql.Identifier(facts.schema, facts.name)
        connection.execute(sql.SQL("lock table only {} in access share mode").format(name))
        tried.append(True)
    return bool(tried)


@contextmanager
def _tried() -> Iterator[list[bool]]:
    tried: list[bool] = []
    try:
        yield tried
    except (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedObject,
        psycopg.errors.InvalidSchemaName,
    ):
        tried.clear()
