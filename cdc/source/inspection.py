"""One look at the catalog: what it sees is shown to the stream, and tables leave or join the publication.

What is shown goes through the stream itself, as a logical message: so it stands behind every change made before the look, and what it
means is decided there (``cdc.capture.definitions``). The tables are locked (ACCESS SHARE) from the look to the message's commit, so that no
change of their definition comes between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import psycopg
from psycopg import sql

from cdc.errors import ColumnReserved, SourceError
from cdc.model.batch import reserved_column
from cdc.model.facts import Facts, Publishing
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.source.absent import Absent
from cdc.source.announcements import Announcements
from cdc.source.capturable import keyless_line, quoted_name, refuse_reserved, refuse_twins
from cdc.source.catalog import CatalogTable, find_tables, select_tables
from cdc.source.excerpt import Reachable
from cdc.source.facts import read_facts
from cdc.source.kin import KeptBack, Undecided, refuse_undecided
from cdc.source.membership import check_publishes
from cdc.source.problems import Refusal, find_problems
from cdc.source.publication import add_tables, drop_table, read_publication
from cdc.source.refusals import Refusals
from cdc.source.trigger import set_aside_by_trigger

UNSETTLED_S: Final = 2.0
"""So long a table may be without identity: its key, or the table that it becomes a partition of, may come in the application's next
transaction. Meanwhile the server refuses updates and deletes of it."""
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

_LOCKED: Final = """
select l.relation::int8
from pg_locks l
where l.granted and l.relation = any (%s::oid[]) and l.database = (select d.oid from pg_database d where d.datname = current_database())
"""


class Inspection:
    """Looks in full at first, and then for what has changed since the look before.

    soon: asks for the next look. fail: takes an error that is a fault of ours. undecided: what the column policies keep out of the log until
    somebody decides. absent: tables that have left the publication because they could not be captured.
    """

    def __init__(
        self,
        source: Reachable,
        announcements: Announcements,
        absent: Absent,
        undecided: Undecided,
        *,
        soon: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.left_out: tuple[str, ...] = ()
        """The parts of the selected tables that do not reach the log, one line each with what helps, as of the last look; read by other threads."""
        self.notes: tuple[str, ...] = ()
        """Remarks on captured tables, one line each with what helps, as of the last look; read by other threads."""
        self.refusals = Refusals()
        self._source = source
        self._announcements = announcements
        self._absent = absent
        self._undecided = undecided
        self._kept_back = KeptBack(undecided)
        self._soon = soon
        self._fail = fail
        self._computed = False
        """The publication publishes stored generated columns."""
        self._bare_since: dict[int, float] = {}
        """Captured tables (OIDs) that all looks since that time (monotonic) have seen without identity."""

    def look(self, connection: psycopg.Connection) -> None:
        publication = self._source.publication
        known = read_publication(connection, publication)
        check_publishes(known)
        self._computed = known is not None and known.computed
        self._announcements.take_noted()
        seen = read_facts(connection, publication, list(self._announcements.oids), published=True)
        back = self._taken_out_by_trigger(connection, seen)
        problems = self._problems(connection, seen)
        found = {facts.oid: self._marked(facts, problems) for facts in seen}
        unsettled = back | self._unsettled(connection, found.values())
        self.refusals.pass_over({oid: refusal for oid, refusal in problems.items() if oid not in unsettled})
        self._drop(connection, [oid for oid in self._announcements.oids if oid not in found])
        changed = [oid for oid, facts in found.items() if self._announcements.outdated(facts) and oid not in unsettled]
        removable = self._removable(connection, [oid for oid in changed if oid in problems])
        for oid, again in removable.items():
            self._take_out(connection, found[oid], again=again)
        changed = [oid for oid in changed if oid not in removable]
        for start in range(0, len(changed), _AT_ONCE):
            self._show(connection, [found[oid] for oid in changed[start : start + _AT_ONCE]])
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
        """The problems of the selected tables that are published, or were until they could not be captured any more."""
        ours = [facts for facts in seen if self._selects(facts) and (_published(facts) or facts.oid in self._absent)]
        return find_problems(connection, [facts for facts in ours if not facts.attached], computed=self._computed)

    def _marked(self, facts: Facts, problems: Collection[int]) -> Facts:
        """``refused`` where the table has a problem, or where nobody but us and the trigger has taken it out."""
        if facts.oid in problems or (facts.oid in self._absent and not _published(facts) and not facts.attached):
            return replace(facts, publishing=replace(facts.publishing or Publishing(False), refused=True))
        return facts

    def _taken_out_by_trigger(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> set[int]:
        """Asked after the facts, so that a table that has left by then is known to have. Returns those that have come back since."""
        aside = set_aside_by_trigger(connection, self._source.publication)
        self._absent.learn(aside)
        return {facts.oid for facts in seen if facts.oid in aside and aside[facts.oid].entry is not None and not _published(facts)}

    def _unsettled(self, connection: psycopg.Connection, found: Iterable[Facts]) -> set[int]:
        """Tables (OIDs) that have only just been seen without identity, and that cannot be taken out of the publication by themselves: nothing is
        reported of them yet, as if the look came a little later."""
        now = time.monotonic()
        bare = [facts.oid for facts in found if facts.refused and _published(facts) and _bare(facts)]
        alone = self._removable(connection, bare)
        self._bare_since = {oid: self._bare_since.get(oid, now) for oid in bare if oid not in alone}
        return {oid for oid, since in self._bare_since.items() if now - since < UNSETTLED_S}

    def _removable(self, connection: psycopg.Connection, oids: Collection[int]) -> dict[int, bool]:
        """The published tables (OIDs) among these that are in the publication by themselves, and that we may take out; with whether they can come back
        as they were."""
        if not oids:
            return {}
        return dict(connection.execute(_REMOVABLE, (self._source.publication, list(oids))).fetchall())

    def _take_out(self, connection: psycopg.Connection, seen: Facts, *, again: bool) -> None:
        """The table leaves the publication, as Postgres would refuse updates and deletes of it, and the stream hears of it, at once."""
        self._absent.leaves(seen.oid, again=again)
        with _tried() as tried, connection.transaction():
            # The lock is taken by name: the facts that are read under it tell whether it is this table's.
            if _lock(connection, seen) and self._read_again(connection, [seen]):
                drop_table(connection, self._source.publication, seen.table())
                (gone,) = read_facts(connection, self._source.publication, [seen.oid])
                gone = self._marked(gone, (seen.oid,))
                self._announcements.show(connection, [gone])
                tried.append(True)
        if tried:
            self._announcements.shown(gone)
        else:
            self._absent.stays(seen.oid)
            self._soon()

    def _end_at_names(self, covered: Sequence[Facts]) -> None:
        """Ends capture where names of captured tables have become ones that it would not begin with: from here on rows may be missing."""
        try:
            refuse_twins([facts.table() for facts in covered])
            for facts in covered:
                if (column := reserved_column(facts.table())) is not None:
                    raise ColumnReserved(facts.qualified, column)
        except (SourceError, ColumnReserved) as error:
            self._fail(error)

    # --- what is shown -------------------------------------------------------------------------------------------------------

    def _drop(self, connection: psycopg.Connection, missing: Sequence[int]) -> None:
        """A table that the look has not found is gone, or nobody sees it yet: the stream may show one before its creation becomes visible, for a
        synchronous standby's sake. A later look decides where its creator still holds its lock."""
        if not missing:
            return
        settled = set(missing) - _locked(connection, missing)
        dropped = sorted(settled - {facts.oid for facts in read_facts(connection, self._source.publication, list(settled))})
        self._announcements.drop(connection, dropped)
        for oid in dropped:
            self._absent.stays(oid)

    def _show(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> None:
        """Reports these tables; one that cannot be locked now, or has changed since it was seen, is reported after a later look."""
        with connection.transaction():
            fresh = self._read_again(connection, [facts for facts in seen if _lock(connection, facts)])
            if fresh:
                self._announcements.show(connection, fresh)
        for facts in fresh:
            self._announcements.shown(facts)
            if _published(facts) and not facts.refused:
                self._absent.stays(facts.oid)

    def _read_again(self, connection: psycopg.Connection, seen: Sequence[Facts]) -> list[Facts]:
        """The facts as they are under the tables' locks, of those that still have the name, the place and the problem that they were seen with."""
        fresh = read_facts(connection, self._source.publication, [facts.oid for facts in seen])
        problems = self._problems(connection, fresh)
        before = {facts.oid: facts for facts in seen}
        return [facts for facts in (self._marked(one, problems) for one in fresh) if _verdict(facts) == _verdict(before[facts.oid])]

    # --- tables that join ----------------------------------------------------------------------------------------------------

    def _admit(self, connection: psycopg.Connection, published: Sequence[int]) -> None:
        """Adds new tables that the configuration selects to the publication, and those that can be captured again; the next look sees them
        there."""
        left = self._announcements.oids - self._absent.oids
        rows = connection.execute(_NEW, ([*published, *left],)).fetchall()
        new = {oid for oid, name in rows if matches(self._source.tables, name)}
        if not new:
            self.refusals.bar({})
            return
        problems = find_problems(connection, read_facts(connection, self._source.publication, list(new)), computed=self._computed)
        everything = select_tables(find_tables(connection), self._source.tables, begun=True)
        barred: dict[int, Refusal] = {}
        for table in everything:
            if table.table.oid in new and (refusal := self._admitted(connection, table, everything, problems)) is not None:
                barred[table.table.oid] = refusal
        self.refusals.bar(barred)

    def _admitted(
        self,
        connection: psycopg.Connection,
        table: CatalogTable,
        everything: Sequence[CatalogTable],
        problems: Mapping[int, Refusal],
    ) -> Refusal | None:
        """Publishes the table; or what keeps us from it."""
        oid = table.table.oid
        if oid in problems:
            return problems[oid]
        if not self._absent.may_return(oid):
            return _withheld(table.table, self._source.publication)
        try:
            refuse_twins([known.table for known in everything if known.name == table.name])
            refuse_reserved(table.table)
            refuse_undecided(self._undecided, table.table)
            add_tables(connection, self._source.publication, [table], computed=self._computed, attempts=1)
        except SourceError as error:
            said, itself = str(error), f"table {table.name} "
            problem = said.removeprefix(itself) if said.startswith(itself) else f"cannot join the publication: {said}"
            return Refusal(table.name, problem, error.hint or "cdc doctor")
        self._soon()
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


def _locked(connection: psycopg.Connection, oids: Sequence[int]) -> set[int]:
    """Those of the tables that somebody holds a lock of. What was done under a lock is visible before the lock is released."""
    return {oid for (oid,) in connection.execute(_LOCKED, (list(oids),))}


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
