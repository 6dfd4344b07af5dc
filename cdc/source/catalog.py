"""Which tables the source has, and whether each can be captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from cdc.errors import SourceError
from cdc.model.facts import Facts
from cdc.model.selection import matches, named
from cdc.model.table import Table
from cdc.source.capturable import Definition, define
from cdc.source.drops import despite_drops
from cdc.source.facts import FACTS, PRIMARY_KEY, read_facts

ORDINARY, PARTITIONED = "r", "p"
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}

_TABLES: Final = (
    """
select """
    + FACTS
    + ", "
    + PRIMARY_KEY
    + """,
       c.relkind::text, c.relpersistence = 'u',
       case when c.relispartition then pg_partition_root(c.oid)::oid::int8 end, pg_get_userbyid(c.relowner),
       has_schema_privilege(n.oid, 'USAGE') and (has_table_privilege(c.oid, 'SELECT') or has_any_column_privilege(c.oid, 'SELECT')),
       row_security_active(c.oid), greatest(c.reltuples, 0)::int8
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relpersistence <> 't'
  and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'headwater')
order by n.nspname, c.relname
"""
)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """One relation of the source as the catalog has it, seen with the connected role's eyes."""

    definition: Definition
    kind: str
    """pg_class.relkind"""
    unlogged: bool
    root_oid: int | None
    """The partitioned table at the top, when this is a partition."""
    owner: str
    readable: bool
    row_security: bool
    """Row-level security hides rows of this table from the role."""
    rows_estimate: int

    @property
    def table(self) -> Table:
        return self.definition.table

    @property
    def name(self) -> str:
        return self.table.qualified

    @property
    def capturable(self) -> bool:
        """A kind of relation whose changes Postgres publishes at all."""
        return self.kind in (ORDINARY, PARTITIONED) and not self.unlogged


def find_tables(connection: psycopg.Connection) -> list[CatalogTable]:
    """Every table, view and foreign table outside the system's schemas, by name."""
    connection.execute("set jit = off")  # compiling the query takes seconds, running it milliseconds
    rows = despite_drops(connection, lambda: connection.execute(_TABLES).fetchall())
    version = connection.info.server_version
    return [CatalogTable(define(Facts.from_json(facts), primary, version), *others) for facts, primary, *others in rows]


def select_tables(tables: Sequence[CatalogTable], patterns: Sequence[str], *, begun: bool = False) -> list[CatalogTable]:
    """Those of the tables that ``source.tables`` selects and Postgres can publish.

    A partition is left out when its root is selected (its changes then come under the root's name). A pattern without wildcards must
    name a table that can be published, unless the log has ``begun``: a table that was dropped or renamed since is a change of the
    source like any other, and no reason to leave all the others uncaptured. Raises SourceError naming the first that does not, or when
    nothing is selected at all.
    """
    if not begun:
        for unknown in misnamed(tables, patterns):
            raise unknown
    chosen = [table for table in tables if table.capturable and matches(patterns, table.table)]
    if not chosen:
        raise SourceError(
            f"source.tables selects no table ({', '.join(patterns)})",
            hint="list the tables with: psql -c '\\dt *.*'; then correct source.tables",
        )
    roots = {table.table.oid for table in chosen}
    return [table for table in chosen if table.root_oid is None or table.root_oid not in roots]


def misnamed(tables: Sequence[CatalogTable], patterns: Sequence[str]) -> Iterator[SourceError]:
    """Says what is wrong with each pattern without wildcards that names no table that can be published."""
    by_name = {table.name: table for table in tables}
    for pattern in named(patterns):
        if matches(patterns, pattern):
            try:
                _check_named(pattern, by_name.get(pattern))
            except SourceError as error:
                yield error


def load_published(connection: psycopg.Connection, publication: str, patterns: Sequence[str] = ("*",)) -> list[Table]:
    """The selected tables that the publication publishes, each with exactly the columns that the stream sends, by name."""
    tables = [facts.table() for facts in read_facts(connection, publication, published=True)]
    chosen = [table for table in tables if matches(patterns, table)]
    return sorted(chosen, key=lambda table: (table.schema, table.name))


def _check_named(pattern: str, table: CatalogTable | None) -> None:
    if table is None and "." not in pattern:
        raise SourceError(f"source.tables: {pattern} names no schema", hint=f'write it as schema.table, such as "public.{pattern}"')
    if table is None:
        raise SourceError(f"table {pattern} does not exist", hint="correct source.tables, or create the table")
    if table.kind in _KINDS:
        raise SourceError(
            f"{pattern} is {_KINDS[table.kind]}: Postgres publishes no changes of it", hint="capture the tables behind it"
        )
    if table.unlogged:
        raise SourceError(
            f"table {pattern} is unlogged: Postgres publishes no changes of it", hint=f"ALTER TABLE {pattern} SET LOGGED"
        )
