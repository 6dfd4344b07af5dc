"""The facts of the tables to be read: the same ``Table`` that capture makes of the stream's RELATION message, and how to read it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.capture.relations import identify
from cdc.errors import SourceError
from cdc.model.selection import matches
from cdc.model.structure import described
from cdc.model.table import Column, Table
from cdc.source.capturable import Definition, identity_problem, quoted_name, reserved_problem
from cdc.source.coverage import PUBLISHED_TABLES
from cdc.source.descent import BASE_TYPE, partitions
from cdc.source.drops import despite_drops
from cdc.source.facts import TYPES

# What the types are made of is asked for only where a column has one that is not the server's own.
_OWN_TYPES: Final = (
    "case when exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and a.atttypid >= 10000) then "
    + TYPES
    + " end"
)

# The stream leaves generated columns out, but from 18 on stored ones where the publication or a column list says so.
# To measure a table the server opens it, and would wait for whoever has locked it
# or is about to: of such a table the last estimate is taken.
_TABLES: Final = (
    """
with locked as materialized (
  select l.relation from pg_locks l
  where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock'
    and l.database = (select d.oid from pg_database d where d.datname = current_database()))
select c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text,
       coalesce(array_to_string((x.indkey::int2[])[:x.indnkeyatts - 1], ' '), ''),
       case when c.oid not in (select relation from locked) then pg_get_expr(p.qual, p.oid) end,
       p.qual is not null and c.oid in (select relation from locked),
       has_schema_privilege(n.oid, 'USAGE') and has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
       greatest(s.rows, 0)::int8, s.bytes::int8, s.pages::int8,
       (select json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
                 """
    + BASE_TYPE
    + """) order by a.attnum)
          from pg_attribute a
         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           and coalesce(a.attnum = any (p.listed), a.attgenerated = '' or p.computed and a.attgenerated = 's')),
       (select d.indimmediate from pg_index d where d.indrelid = c.oid and d.indisprimary and d.indisvalid),
       """
    + _OWN_TYPES
    + """
from """
    + PUBLISHED_TABLES
    + """
left join pg_index x on x.indrelid = c.oid and x.indisvalid
       and case c.relreplident when 'i' then x.indisreplident else x.indisprimary and x.indimmediate end
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

# Cheap enough for every range: no sizes, no types, only what a change of the above goes with; and the files that hold the rows.
_LOOK: Final = (
    """
select c.oid::int8, pg_current_snapshot()::text, md5(row(
  (select row(k.relname, k.relnamespace, k.relreplident) from pg_class k where k.oid = c.oid),
  (select array_agg(row(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attisdropped, a.attgenerated) order by a.attnum)
     from pg_attribute a where a.attrelid = c.oid and a.attnum > 0),
  (select array_agg(row(i.indexrelid, i.indkey, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate) order by i.indexrelid)
     from pg_index i where i.indrelid = c.oid),
  (select array_agg(row(r.prattrs, r.prqual)) from pg_publication_rel r where r.prrelid = c.oid),
  (select array_agg(row(made.key, made.value) order by made.key) from json_each_text("""
    + _OWN_TYPES
    + """) made))::text),
  md5((select array_agg(row(leaf.oid, pg_relation_filenode(leaf.oid)) order by leaf.oid)
     from """
    + partitions("select c.oid")
    + """ leaf join pg_class k on k.oid = leaf.oid where leaf.oid = c.oid or k.relkind <> 'p')::text)
from unnest(%(oids)s::oid[]) c(oid)
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
    """Changes when the table's ``SourceTable`` may have changed."""
    files: str
    """Changes when rows may have moved to other pages without an event: a rewrite, or a partition that came or went."""


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
        facts = (self.table.to_json(), self.index, self.row_filter)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

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
    return {oid: Look(snapshot, facts, files) for oid, snapshot, facts, files in rows}


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
    given = {"publication": publication, "oids": None if oids is None else list(oids)}
    rows = despite_drops(connection, lambda: _without_waiting(connection, given))
    return [_source_table(row, connection.info.user) for row in rows if row[_READABLE] is not None]


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


_READABLE: Final = 8
"""Place in the row. NULL when the table was dropped while the query ran: privileges are looked up outside its snapshot."""


def _source_table(row: tuple[Any, ...], role: str) -> tuple[SourceTable, SourceError | None]:
    (
        oid,
        schema,
        name,
        kind,
        identity,
        index,
        row_filter,
        untold,
        readable,
        row_security,
        estimate,
        size,
        pages,
        attributes,
        immediate,
        types,
    ) = row
    numbers = [int(number) for number in index.split()]
    names = {number: label for number, label, *_ in attributes or ()}
    columns = tuple(
        Column(
            label,
            type_oid,
            typmod,
            type_name,
            identity == "f" or number in numbers,
            number,
            structure=described(type_oid, types or {}),
        )
        for number, label, type_oid, typmod, type_name in attributes or ()
    )
    key = tuple(names[number] for number in numbers if number in names)
    if identity == "n":
        columns = tuple(replace(column, key=False) for column in columns)
    table = Table(oid, schema, name, identify(columns, identity, key), identity)
    facts = SourceTable(table, key, kind == "p", row_filter, estimate, size or 0, pages or 0, untold)
    definition = Definition(table, has_primary_key=immediate is not None, deferrable_key=immediate is False)
    problem = _problem(definition, len(numbers) == len(key), readable, row_security, role)
    return facts, _locked(table) if problem is None and untold else problem


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


def _problem(definition: Definition, whole_key: bool, readable: bool, row_security: bool, role: str) -> SourceError | None:
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
    if not whole_key:
        return Uncapturable(
            f"the publication leaves out a key column of table {table.qualified}",
            hint="add the column to the publication's column list",
        )
    if (problem := reserved_problem(table)) is not None:
        return SourceError(f"table {table.qualified} {problem[0]}", hint=problem[1])
    problem = identity_problem(definition)
    return None if problem is None else Uncapturable(f"table {table.qualified} {problem[0]}", hint=problem[1])
