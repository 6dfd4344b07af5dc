"""The publication: what it covers, its creation, and the refusal of what cannot be published."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from cdc.crashpoint import crashpoint
from cdc.errors import SourceError
from cdc.model.table import Table
from cdc.source.capturable import refuse_reserved, refuse_twins
from cdc.source.catalog import PARTITIONED, CatalogTable, load_published, select_tables
from cdc.source.connection import reason
from cdc.source.coverage import PUBLISHED_TABLES
from cdc.source.drops import despite_drops, vanished
from cdc.source.excerpt import PublicationSource
from cdc.source.facts import read_facts
from cdc.source.problems import find_problems
from cdc.source.replicaidentity import STORED_PUBLISHED

_FACTS: Final = (
    "select puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, " + STORED_PUBLISHED + " "
    "from pg_publication p where pubname = %s"
)
_COVERS: Final = "select n.nspname || '.' || c.relname, p.qual is not null from " + PUBLISHED_TABLES

_LOCK_TIMEOUT: Final = "200ms"
_PAUSE_S: Final = 0.2
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Publication:
    """pg_publication's row, and the tables that it covers (``schema.name``)."""

    name: str
    all_tables: bool
    publishes: frozenset[str]
    """The kinds of changes among insert, update, delete, truncate."""
    via_root: bool
    computed: bool
    """It publishes stored generated columns."""
    tables: frozenset[str]
    filtered: frozenset[str]
    """Those of the tables that have a row filter."""


def read_publication(connection: psycopg.Connection, name: str) -> Publication | None:
    row = connection.execute(_FACTS, (name,)).fetchone()
    if row is None:
        return None
    covered = despite_drops(connection, lambda: connection.execute(_COVERS, {"publication": name}).fetchall())
    kinds = ("insert", "update", "delete", "truncate")
    return Publication(
        name=name,
        all_tables=row[0],
        publishes=frozenset(kind for kind, on in zip(kinds, row[1:5], strict=True) if on),
        via_root=row[5],
        computed=row[6],
        tables=frozenset(table for table, _ in covered),
        filtered=frozenset(table for table, has_filter in covered if has_filter),
    )


def create_publication(connection: psycopg.Connection, name: str, tables: Sequence[CatalogTable]) -> None:
    """Partitioned tables are published as one table, under the root's name. Of tables with children by INHERITS, only themselves are
    published: a child may not be selected, or have no key, and updates of it, and through its parent, would fail at the source.

    A table that is dropped or renamed meanwhile is left out. Raises SourceError when tables keep vanishing, or it cannot be made.
    """
    statement = sql.SQL("create publication {} {} with (publish_via_partition_root = true)")
    for attempt in range(_ATTEMPTS):
        covered = sql.SQL("for table {}").format(_listed(tables)) if tables else sql.SQL("")
        try:
            _change(connection, name, statement.format(sql.Identifier(name), covered), tables, computed=False)
        except _Gone:
            left = _still_there(connection, name, tables)
            if len(left) == len(tables) or attempt == _ATTEMPTS - 1:
                raise
            tables = left
        else:
            return


def _still_there(connection: psycopg.Connection, publication: str, tables: Sequence[CatalogTable]) -> list[CatalogTable]:
    """Those of the tables that have the name that they were found under."""
    facts = read_facts(connection, publication, [table.table.oid for table in tables])
    there = {(one.oid, one.schema, one.name) for one in facts}
    return [table for table in tables if (table.table.oid, table.table.schema, table.table.name) in there]


def add_tables(
    connection: psycopg.Connection, name: str, tables: Sequence[CatalogTable], *, computed: bool, attempts: int = _ATTEMPTS
) -> None:
    """One by one: who waits for a table's lock while holding another's may be waited for. ``attempts``: at getting its lock; a table that is
    gone by then is passed over. ``computed``: the publication publishes stored generated columns."""
    for table in tables:
        statement = sql.SQL("alter publication {} add table {}").format(sql.Identifier(name), _listed([table]))
        with suppress(_Gone):
            _change(connection, name, statement, [table], computed=computed, attempts=attempts)


def drop_table(connection: psycopg.Connection, name: str, table: Table) -> None:
    """In the transaction that is open, if one is. Raises psycopg.Error."""
    statement = sql.SQL("alter publication {} drop table only {}")
    connection.execute(statement.format(sql.Identifier(name), sql.Identifier(table.schema, table.name)))


def ensure_publication(
    connection: psycopg.Connection,
    source: PublicationSource,
    found: Sequence[CatalogTable],
    *,
    begun: bool = False,
    withheld: Collection[int] = (),
) -> list[Table]:
    """The tables that capture will see, after the publication has been made, or widened, to cover all that ``source.tables`` selects.

    connection: an ordinary one, outside a transaction. ``found``: what ``find_tables`` has just returned. ``begun``: as of ``select_tables``; a table
    that cannot be captured is then left out, as it would be had capture been running. ``withheld``: tables (OIDs) that are never added. The tables carry exactly the
    columns that the stream sends. Raises SourceError naming the table and the SQL that repairs it when one cannot be captured, or when the
    role may not change the publication.
    """
    refuse_unknown_encoding(connection)
    selected = select_tables(found, source.tables, begun=begun)
    publication = read_publication(connection, source.publication)
    refuse_twins([table.table for table in selected])
    computed = publication is not None and publication.computed
    facts = read_facts(connection, source.publication, [table.table.oid for table in selected])
    problems = find_problems(connection, facts, computed=computed)
    if problems and not begun:
        raise next(problems[table.table.oid].error for table in selected if table.table.oid in problems)
    selected = [table for table in selected if table.table.oid not in problems]
    for table in selected:
        if publication is None or table.name not in publication.tables:
            refuse_reserved(table.table)
    if publication is None:
        create_publication(connection, source.publication, selected)
        crashpoint("publication.created")
    else:
        refuse_partial(publication)
        refuse_leaves(publication, selected)
        missing = [table for table in selected if table.name not in publication.tables and table.table.oid not in withheld]
        add_tables(connection, source.publication, missing, computed=computed)
    wanted = {table.name for table in selected}
    published = [table for table in load_published(connection, source.publication) if table.qualified in wanted]
    for covered in published:
        refuse_reserved(covered)
    return published


_UNREADABLE: Final = (
    """
select format('%%I.%%I', n.nspname, c.relname), format('%%I', n.nspname), row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT'),
       has_schema_privilege(n.oid, 'USAGE')
from """
    + PUBLISHED_TABLES
    + """
where n.nspname || '.' || c.relname = any(%(names)s)
  and (row_security_active(c.oid) or not has_schema_privilege(n.oid, 'USAGE') or not has_table_privilege(c.oid, 'SELECT'))
order by 1
"""
)
"""Rights on columns are not enough: locking a table, and reading it by ranges of pages, take the right on the table."""


def refuse_unreadable(connection: psycopg.Connection, publication: str, selected: Sequence[CatalogTable]) -> None:
    """Raises SourceError naming the selected tables whose published columns the role may not read, or whose rows are hidden from it.

    The stream shows all of them regardless; only the first load, and rows that are read back, need the right.
    """
    given = {"publication": publication, "names": [table.name for table in selected]}
    found = despite_drops(connection, lambda: connection.execute(_UNREADABLE, given).fetchall())
    role = sql.Identifier(connection.info.user).as_string()
    hidden = [name for name, _, active, _, _ in found if active]
    if hidden:
        raise SourceError(
            f"row-level security hides rows of {_several(hidden)} from role {role}, but not from the stream",
            hint=f"ALTER ROLE {role} BYPASSRLS",
        )
    if found:
        schemas = sorted({schema for _, schema, _, _, usage in found if not usage})
        closed = [name for name, _, _, select, _ in found if not select]
        grants = [f"GRANT USAGE ON SCHEMA {schema} TO {role}" for schema in schemas]
        grants += [f"GRANT SELECT ON {', '.join(closed)} TO {role}"] if closed else []
        raise SourceError(f"role {role} may not read {_several([name for name, *_ in found])}", hint="; ".join(grants))


def _several(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def refuse_unknown_encoding(connection: psycopg.Connection) -> None:
    """Raises SourceError for a database whose text has no known encoding: one byte that is not UTF-8 would stop the stream for good."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise SourceError(
            f"database {connection.info.dbname!r} is SQL_ASCII: its text has no known encoding",
            hint="move the data to a UTF8 database",
        )


def refuse_partial(publication: Publication) -> None:
    """Raises SourceError when the publication leaves out kinds of changes without which a store cannot stay equal."""
    kinds = unpublished_kinds(publication)
    if kinds:
        raise SourceError(
            f"publication {publication.name!r} does not publish {kinds}",
            hint=f"ALTER PUBLICATION {sql.Identifier(publication.name).as_string()} SET (publish = 'insert, update, delete, truncate')",
        )


def unpublished_kinds(publication: Publication) -> str:
    """The kinds of changes that are left out and must not be, as a list for people."""
    return ", ".join(sorted({"insert", "update", "delete"} - publication.publishes))


def refuse_leaves(publication: Publication, selected: Sequence[CatalogTable]) -> None:
    """Raises SourceError when partitions would come under their own names although their root is what is selected."""
    roots = [table for table in selected if table.kind == PARTITIONED]
    if roots and not publication.via_root and not publication.tables >= {table.name for table in selected}:
        raise SourceError(
            f"publication {publication.name!r} publishes the partitions of {roots[0].name} under their own names",
            hint=f"ALTER PUBLICATION {sql.Identifier(publication.name).as_string()} SET (publish_via_partition_root = true)",
        )


def _listed(tables: Sequence[CatalogTable]) -> sql.Composed:
    names = [sql.Identifier(table.table.schema, table.table.name) for table in tables]
    return sql.SQL(", ").join(sql.SQL("only {}").format(name) for name in names)


class _Gone(SourceError):
    def __init__(self) -> None:
        super().__init__("a table was dropped or renamed while it was to be published", hint="start again")


def _change(
    connection: psycopg.Connection,
    publication: str,
    statement: sql.Composed,
    tables: Sequence[CatalogTable],
    *,
    computed: bool,
    attempts: int = _ATTEMPTS,
) -> None:
    """Runs the statement, which publishes the tables, unless one of them cannot be captured: as it is now, and until the statement has ended.

    Somebody whose transaction has a lock that we wait for may come to wait for one of ours, and be the one whom the server ends after
    deadlock_timeout (1 s). So we give up long before, and try again. Raises SourceError, or _Gone.
    """
    for attempt in range(attempts):
        try:
            with connection.transaction():
                connection.execute("select set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
                _lock(connection, publication, tables, computed=computed)
                connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceError(
                f"role {connection.info.user!r} may not change publication {publication!r}: {reason(error)}",
                hint=f"let the tables' owner run: {statement.as_string()}",
            ) from None
        except psycopg.Error as error:
            if vanished(error):
                raise _Gone() from None
            if not isinstance(error, psycopg.errors.LockNotAvailable) or attempt == attempts - 1:
                raise SourceError(f"cannot change publication {publication!r}: {reason(error)}", hint="cdc doctor") from None
            time.sleep(_PAUSE_S)
        else:
            return


def _lock(connection: psycopg.Connection, publication: str, tables: Sequence[CatalogTable], *, computed: bool) -> None:
    """Nobody alters the tables, or gives them partitions, until the transaction ends; and each can be captured as it is."""
    for table in tables:
        name = sql.Identifier(table.table.schema, table.table.name)
        scope = sql.SQL("" if table.kind == PARTITIONED else "only ")
        connection.execute(sql.SQL("lock table {}{} in share update exclusive mode").format(scope, name))
    names = {table.table.oid: (table.table.schema, table.table.name) for table in tables}
    facts = read_facts(connection, publication, list(names))
    if {one.oid: (one.schema, one.name) for one in facts} != names:
        raise _Gone()
    for refusal in find_problems(connection, facts, computed=computed).values():
        raise refusal.error
