"""The thread that looks at the catalog every few seconds, and tells the stream what it sees.

What it tells goes through the stream itself, as a logical message: so it stands behind every change made before the look, and what it
means is decided there (``cdc.capture.definitions``). The tables are locked (ACCESS SHARE) from the look to the message's commit, so that no
change of their definition comes between the two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from cdc.errors import ColumnReserved, ConfigError, SourceError
from cdc.model.batch import reserved_column
from cdc.model.facts import STORED, Facts
from cdc.model.selection import matches
from cdc.source.capturable import Definition, refuse_reserved, refuse_twins, refuse_uncapturable
from cdc.source.catalog import COMPUTED_VERSION, find_tables, select_tables
from cdc.source.configured import Reachable
from cdc.source.connection import connect, reason
from cdc.source.facts import read_facts
from cdc.source.kin import KeptBack, Undecided, refuse_undecided
from cdc.source.leaves import refuse_leaf
from cdc.source.membership import check_publishes
from cdc.source.publication import add_tables, read_publication

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
"""Tables locked, and told of, in one transaction."""

_PRIMARY_KEYS: Final = "select indrelid::int8, indimmediate from pg_index where indisprimary and indisvalid and indrelid = any (%s)"

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
    undecided: what the column policies keep out of the log until somebody decides.
    """

    def __init__(
        self,
        source: Reachable,
        known: Collection[int],
        password: str,
        stop: Event,
        fail: Callable[[Exception], None],
        undecided: Undecided,
    ) -> None:
        self.left_out: tuple[str, ...] = ()
        """What of the selected tables does not reach the log, one line each with what helps, as of the last look; read by other threads."""
        self._undecided = undecided
        self._kept_back = KeptBack(undecided)
        self._source = source
        self._password = password
        self._stop = stop
        self._fail = fail
        self._told: dict[int, Facts | None] = dict.fromkeys(known)
        self._refused: dict[str, str] = {}
        """Tables that could not join the publication at the last look, and why."""
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
        """From any thread: a table that the stream has told of, or told more of than the catalog did. It may be gone, or a partition of another,
        before a look finds it. The next look tells of it, whether or not it has changed."""
        self._noted.put(oid)
        self._wake.set()

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
                        self._look(connection)
                        self._wake.wait(INTERVAL_S)
                        self._wake.clear()
            except ConfigError as error:
                self._fail(error)
                return
            except (SourceError, psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
                text = str(error) if isinstance(error, SourceError) else reason(error)
                _log.warning("cannot look at the catalog now", reason=text, again_in_s=_RETRY_S)
                self._stop.wait(_RETRY_S)
            except psycopg.Error as error:
                self._fail(SourceError(f"cannot look at the catalog: {reason(error)}", hint="cdc doctor"))
                return
            except Exception as error:
                self._fail(error)
                return

    def _look(self, connection: psycopg.Connection) -> None:
        publication = self._source.publication
        known = read_publication(connection, publication)
        check_publishes(known)
        while not self._noted.empty():
            self._told[self._noted.get()] = None
        found = {facts.oid: facts for facts in read_facts(connection, publication, list(self._told), published=True)}
        unsettled = self._unsettled(found.values())
        dropped = [oid for oid in self._told if oid not in found]
        changed = [oid for oid, facts in found.items() if self._told.get(oid) != facts and oid not in unsettled]
        if dropped:
            self._emit(connection, {"dropped": dropped})
            for oid in dropped:
                del self._told[oid]
        for start in range(0, len(changed), _AT_ONCE):
            self._tell(connection, [found[oid] for oid in changed[start : start + _AT_ONCE]])
        covered = [oid for oid, facts in found.items() if facts.publishing and facts.publishing.published]
        self._refuse(connection, [found[oid] for oid in covered if oid not in unsettled and self._selects(found[oid])])
        kept_back = self._kept_back.look(connection, [found[oid] for oid in covered if self._selects(found[oid])])
        refused = self._admit(connection, covered, computed=known is not None and known.computed)
        # One that has only just come may get its key in the next statement.
        settled = [f"table {name} is not captured: {why}" for name, why in refused.items() if self._refused.get(name) == why]
        self._refused = refused
        self.left_out = (*kept_back, *settled)

    def _selects(self, facts: Facts) -> bool:
        return matches(self._source.tables, facts.table().qualified)

    def _unsettled(self, found: Iterable[Facts]) -> set[int]:
        """Tables (OIDs) that have only just been seen without identity: nothing is told of them yet, as if the look came a little later."""
        now = time.monotonic()
        bare = [
            facts.oid
            for facts in found
            if facts.publishing and facts.publishing.published and _bare(facts) and self._selects(facts)
        ]
        self._bare_since = {oid: self._bare_since.get(oid, now) for oid in bare}
        return {oid for oid, since in self._bare_since.items() if now - since < UNSETTLED_S}

    def _refuse(self, connection: psycopg.Connection, covered: Sequence[Facts]) -> None:
        """Ends capture where the definition of a captured table has become one that it would not begin with: from here on rows may be missing."""
        keys = self._primary_keys(connection, covered)
        computable = connection.info.server_version >= COMPUTED_VERSION
        try:
            refuse_twins([facts.table() for facts in covered])
            for facts in covered:
                if (column := reserved_column(facts.table())) is not None:
                    raise ColumnReserved(facts.table().qualified, column)
            for facts in covered:
                refuse_uncapturable(
                    Definition(
                        facts.table(),
                        has_primary_key=facts.oid in keys,
                        deferrable_key=keys.get(facts.oid) is False,
                        computed=computable and any(column.generated == STORED for column in facts.columns),
                    ),
                    computed=facts.publishing is not None and facts.publishing.stored,
                )
            if roots := [facts.oid for facts in covered if facts.partitioned]:
                refuse_leaf(connection, roots)
        except (SourceError, ColumnReserved) as error:
            self._fail(error)

    def _primary_keys(self, connection: psycopg.Connection, covered: Sequence[Facts]) -> dict[int, bool]:
        """Of the tables that have a primary key, whether it can be an identity (is not deferrable). Asked only where the facts do not say."""
        keys = {facts.oid: True for facts in covered if facts.index and facts.identity != "i"}
        unknown = [facts.oid for facts in covered if not facts.index]
        if unknown:
            keys.update(connection.execute(_PRIMARY_KEYS, (unknown,)).fetchall())
        return keys

    def _tell(self, connection: psycopg.Connection, tables: Sequence[Facts]) -> None:
        """What cannot be locked now is told after a later look."""
        with connection.transaction():
            locked = [facts.oid for facts in tables if _lock(connection, facts)]
            fresh = read_facts(connection, self._source.publication, locked)
            if fresh:
                self._emit(connection, {"tables": [facts.to_json() for facts in fresh]})
        self._told.update((facts.oid, facts) for facts in fresh)

    def _emit(self, connection: psycopg.Connection, told: dict[str, Any]) -> None:
        connection.execute(
            "select pg_logical_emit_message(true, %s, %s)",
            (PREFIX, json.dumps({"password": self._password, **told}, ensure_ascii=False)),
        )

    def _admit(self, connection: psycopg.Connection, published: Sequence[int], *, computed: bool) -> dict[str, str]:
        """Adds new tables that the configuration selects to the publication; the next look sees them there. Returns those that cannot
        join it, each with why and what helps."""
        rows = connection.execute(_NEW, ([*published, *self._told],)).fetchall()
        new = {oid for oid, name in rows if matches(self._source.tables, name)}
        refused: dict[str, str] = {}
        if not new:
            return refused
        everything = select_tables(find_tables(connection), self._source.tables, begun=True)
        for table in everything:
            if table.table.oid not in new:
                continue
            try:
                refuse_uncapturable(table.definition, computed=computed)
                refuse_leaf(connection, [table.table.oid])
                refuse_twins([known.table for known in everything if known.name == table.name])
                refuse_reserved(table.table)
                refuse_undecided(self._undecided, table.table)
                add_tables(connection, self._source.publication, [table])
                self._wake.set()
            except SourceError as error:
                refused[table.name] = error.line()
                if self._refused.get(table.name) != error.line():
                    _log.warning("a new table is not captured", table=table.name, reason=str(error), mend=error.hint)
        return refused


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
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        tried.clear()


# Only a superuser makes the trigger. Anybody who may create a schema could offer a password of her own, or a view that runs as our role.
_PASSWORD_IS_OURS: Final = """
select count(*) > 0
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_roles t on t.oid = c.relowner join pg_roles s on s.oid = n.nspowner
where n.nspname = 'headwater' and c.relname = 'ddl_password' and c.relkind = 'r' and not c.relrowsecurity and t.rolsuper and s.rolsuper
"""


def trigger_password(connection: psycopg.Connection) -> str | None:
    """The password of the event trigger's messages (deploy/roles.sql), None where there is no trigger that this role knows of."""
    if connection.execute(_PASSWORD_IS_OURS).fetchone() != (True,):
        return None
    try:
        row = connection.execute("select password from headwater.ddl_password").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege):
        return None
    return None if row is None else str(row[0])
