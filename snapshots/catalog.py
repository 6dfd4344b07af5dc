"""The facts of the tables to be read: the same ``Table`` that capture makes of the stream's RELATION message, and how to read it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import psycopg
from psycopg import sql

from cdc.errors import SourceError
from cdc.model.facts import Facts
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.source.capturable import Definition, define, identity_problem, quoted_name, reserved_problem
from cdc.source.descent import partitions
from cdc.source.drops import despite_drops
from cdc.source.facts import FACTS, PRIMARY_KEY, PUBLISHING, WITH_PUBLISHED

# To measure a table the server opens it, and would wait for whoever has locked it
# or is about to: of such a table the last estimate is taken.
_TABLES: Final = (
    WITH_PUBLISHED
    + """,
locked as materialized (
  select l.relation from pg_locks l
  where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock'
    and l.database = (select d.oid from pg_database d where d.datname = current_database()))
select """
    + FACTS
    + ", "
    + PUBLISHING
    + ", "
    + PRIMARY_KEY
    + """,
       case when c.oid not in (select relation from locked) then pg_get_expr(p.qual, p.oid) end,
       p.qual is not null and c.oid in (select relation from locked),
       has_schema_privilege(n.oid, 'USAGE') and has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
       greatest(s.rows, 0)::int8, coalesce(s.bytes, 0)::int8, coalesce(s.pages, 0)::int8
from published p
join pg_class c on c.oid = p.oid
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select sum(leaf.reltuples) as rows,
         sum(case when leaf.oid in (select relation from locked) then size.estimated else pg_table_size(leaf.oid) end) as bytes,
         max(case when leaf.oid in (select relation from locked) then size.estimated else pg_relation_size(leaf.oid) end)
           / current_setting('block_size')::int8 as pages
  from """
    + partitions("select c.oid")
    + """ one
  join pg_class leaf on leaf.oid = one.oid and leaf.relkind <> 'p'
  cross join lateral (select leaf.relpages * current_setting('block_size')::int8 as estimated) size) s
where (%(oids)s::oid[] is null or c.oid = any (%(oids)s::oid[]))
order by n.nspname, c.relname
"""
)


_LOCK_TIMEOUT: Final = "200ms"
_ATTEMPTS: Final = 10

# Cheap enough for every range: no sizes, and of what is published only what the publications have for these tables.
_LOOK: Final = (
    """
select given.oid::int8, pg_current_snapshot()::text, case when c.oid is not null then """
    + FACTS
    + """ end,
  md5((select array_agg(row(r.prattrs, r.prqual) order by r.oid) from pg_publication_rel r where r.prrelid = given.oid)::text)
from unnest(%(oids)s::oid[]) given(oid)
left join pg_class c on c.oid = given.oid and c.relkind in ('r', 'p')
"""
)


class Uncapturable(SourceError):
    """The table's definition keeps it from being captured; looks at the catalog pass it over (``cdc.source.watch``)."""


class Locked(SourceError):
    """Somebody keeps the table from being opened; it is as it was, and read later."""


@dataclass(frozen=True, slots=True)
class Look:
    """A table as it is in one snapshot."""

    snapshot: str
    """``pg_current_snapshot()``"""
    facts: str
    """Changes when the table's ``SourceTable`` may have changed; empty when the table does not exist."""
    files: str
    """Changes when rows may have moved to other pages without an event: a rewrite, or a partition that came or went."""

    @classmethod
    def of(cls, snapshot: str, facts: Facts | None, listed: str | None) -> Self:
        """``listed``: what publications have for the table, as a digest."""
        if facts is None:
            return cls(snapshot, "", "")
        columns = [replace(column, filled=False, version="") for column in facts.columns]
        table = (facts.schema, facts.name, facts.identity, columns, facts.index, sorted(facts.types.items()), listed)
        files = sorted((oid, leaf.filenode) for oid, leaf in facts.leaves.items())
        return cls(snapshot, _digest(table), _digest(files))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One published table as the catalog has it now."""

    table: Table
    """Equal to what capture derives from the RELATION message, columns and keys included."""
    index: tuple[str, ...]
    """The columns of the index that identifies rows, in the index's order; empty when no index does (identity full, no key)."""
    partitioned: bool
    row_filter: str | None
    """The publication's, as SQL."""
    rows_estimate: int
    bytes: int
    pages: int
    """Of the largest partition where there are several."""
    untold: bool = False
    """It has a row filter that the server does not tell now, as somebody has locked the table: it must not be read."""

    @property
    def shape(self) -> str:
        """Changes whenever rows read before and after could not be put together: other columns, key or row filter."""
        return _digest((self.table.to_json(), self.index, self.row_filter))

    @property
    def name(self) -> str:
        return self.table.qualified


def load_tables(connection: psycopg.Connection, patterns: Sequence[str], publication: str) -> list[SourceTable]:
    """The published tables that ``source.tables`` selects, by name. ``connection``: under the pinned settings.

    Raises SourceError, naming the table and the SQL that repairs it, when one cannot be read whole. One that cannot be captured as it is
    defined now is among them: it may be another one when it is read. So is one that is locked now (``untold``).
    """
    found = _load(connection, publication, None)
    chosen = [table for table, _ in found if matches(patterns, table.table)]
    for table, problem in found:
        if problem is not None and table in chosen and not isinstance(problem, Uncapturable | Locked):
            raise problem
    return chosen


def reload_tables(
    connection: psycopg.Connection, oids: Sequence[int], patterns: Sequence[str], publication: str
) -> dict[int, tuple[SourceTable, SourceError | None]]:
    """These tables' facts as they are now, with what keeps one from being read; without those that are gone, no longer published, or not
    selected under the name that they have now."""
    found = _load(connection, publication, oids)
    return {source.table.oid: (source, problem) for source, problem in found if matches(patterns, source.table)}


def look(connection: psycopg.Connection, oid: int) -> Look:
    """The table in the transaction's snapshot."""
    return looks(connection, [oid])[oid]


def looks(connection: psycopg.Connection, oids: Sequence[int]) -> dict[int, Look]:
    """All of these tables, existing or not, in the transaction's snapshot."""
    rows = connection.execute(_LOOK, {"oids": list(oids)}).fetchall()
    return {oid: Look.of(snapshot, facts and Facts.from_json(facts), listed) for oid, snapshot, facts, listed in rows}


def key_types(connection: psycopg.Connection, source: SourceTable) -> tuple[str, ...]:
    """The types of the index's columns, as SQL, without a length that a cast would cut to; but char(n), which a cast fills up to it."""
    rows = connection.execute(
        "select attname, format_type(atttypid, case when atttypid = 'pg_catalog.bpchar'::regtype then atttypmod else -1 end) "
        "from pg_attribute where attrelid = %s and attnum > 0",
        (source.table.oid,),
    ).fetchall()
    types: dict[str, str] = dict(rows)
    return tuple(types[name] for name in source.index)


def _load(
    connection: psycopg.Connection, publication: str, oids: Sequence[int] | None
) -> list[tuple[SourceTable, SourceError | None]]:
    connection.execute("set jit = off")  # compiling the query takes seconds, running it milliseconds
    given = {"publication": publication, "oids": None if oids is None else list(oids)}
    rows = despite_drops(connection, lambda: _without_waiting(connection, given))
    return [_source_table(row, connection) for row in rows if row[_READABLE] is not None]


def _without_waiting(connection: psycopg.Connection, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """A lock that comes between the look at the locks and the measuring is seen by the next attempt."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(psycopg.errors.LockNotAvailable):
            return _tables(connection, given)
    return _tables(connection, given)


def _tables(connection: psycopg.Connection, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
    with connection.transaction():
        connection.execute("select set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
        return connection.execute(_TABLES, given).fetchall()


_READABLE: Final = 5
"""Place in the row. NULL when the table was dropped while the query ran: privileges are looked up outside its snapshot."""


def _source_table(row: tuple[Any, ...], connection: psycopg.Connection) -> tuple[SourceTable, SourceError | None]:
    told, publishing, primary, row_filter, untold, readable, row_security, estimate, size, pages = row
    facts = Facts.from_json({**told, "publishing": publishing})
    definition = define(facts, primary, connection.info.server_version)
    names = {column.attnum: column.name for column in facts.published}
    index = tuple(names[number] for number in facts.index if number in names)
    source = SourceTable(definition.table, index, facts.partitioned, row_filter, estimate, size, pages, untold)
    problem = _problem(definition, publishing["stored"], readable, row_security, connection.info.user)
    return source, _locked(source.table) if problem is None and untold else problem


def _locked(table: Table) -> Locked:
    return Locked(
        f"table {table.qualified} is locked (ACCESS EXCLUSIVE), and its row filter cannot be read until it is not",
        hint=f"wait, or end who holds it: {holders(table, partitioned=False)}",
    )


def holders(table: Table, *, partitioned: bool) -> str:
    """The SQL that finds who has locked the table, or one of its partitions; pg_partition_tree would wait for him."""
    name = sql.Literal(quoted_name(table)).as_string() + "::regclass"
    which = f"{name} in (select pg_partition_ancestors(relation))" if partitioned else f"relation = {name}"
    return f"select pid from pg_locks where {which} and mode = 'AccessExclusiveLock' and granted"


def _problem(definition: Definition, computed: bool, readable: bool, row_security: bool, role: str) -> SourceError | None:
    """``computed``: the publication publishes stored generated columns."""
    table = definition.table
    quoted = sql.Identifier(table.schema, table.name).as_string()
    if not readable:
        grant = f"GRANT USAGE ON SCHEMA {sql.Identifier(table.schema).as_string()} TO {sql.Identifier(role).as_string()}; "
        grant += f"GRANT SELECT ON {quoted} TO {sql.Identifier(role).as_string()}"
        return SourceError(f"role {role!r} may not read table {table.qualified}", hint=grant)
    if row_security:
        return SourceError(
            f"row-level security hides rows of table {table.qualified} from role {role!r}",
            hint=f"ALTER ROLE {sql.Identifier(role).as_string()} BYPASSRLS",
        )
    if (problem := reserved_problem(table)) is not None:
        return SourceError(f"table {table.qualified} {problem[0]}", hint=problem[1])
    problem = identity_problem(definition, computed=computed)
    return None if problem is None else Uncapturable(f"table {table.qualified} {problem[0]}", hint=problem[1])


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
