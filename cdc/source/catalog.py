"""Which tables the source has, and whether each can be captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import psycopg

from cdc.errors import SourceError
from cdc.model.facts import STORED, VIRTUAL
from cdc.model.selection import matches, named
from cdc.model.structure import described
from cdc.model.table import Column, Identity, Table
from cdc.source.capturable import Definition
from cdc.source.facts import TYPES, read_facts
from cdc.source.vanishing import despite_drops

ORDINARY, PARTITIONED = "r", "p"
COMPUTED_VERSION: Final = 180000
"""The first server_version_num that can publish stored generated columns."""
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}

_TABLES: Final = (
    """
select c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       row_security_active(c.oid),
       has_schema_privilege(n.oid, 'USAGE') and (has_table_privilege(c.oid, 'SELECT') or has_any_column_privilege(c.oid, 'SELECT')),
       case when c.relispartition then pg_partition_root(c.oid)::oid::int8 end,
       coalesce(p.indimmediate, true), p.indrelid is not null, pg_get_userbyid(c.relowner),
       greatest(c.reltuples, 0)::int8,
       coalesce(case when c.relreplident in ('d', 'f') and p.indimmediate then array_to_string((p.indkey::int2[])[:p.indnkeyatts - 1], ' ')
                     when c.relreplident = 'i' then array_to_string((r.indkey::int2[])[:r.indnkeyatts - 1], ' ') end, ''),
       case when exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and a.atttypid >= 10000) then """
    + TYPES
    + """ end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_index p on p.indrelid = c.oid and p.indisprimary and p.indisvalid
left join pg_index r on r.indrelid = c.oid and r.indisreplident and r.indisvalid
where c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relpersistence <> 't'
  and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'headwater')
order by n.nspname, c.relname
"""
)

# A type's name is what the stream's TYPE message says: nothing for the server's own types, the base type's name for a domain.
_COLUMNS: Final = """
with recursive base(oid, root) as (
    select oid, oid from pg_type where typtype <> 'd'
    union all
    select t.oid, base.root from pg_type t join base on t.typbasetype = base.oid where t.typtype = 'd'
)
select a.attrelid::int8, a.attname, a.attnum, a.atttypid::int8, a.atttypmod,
       case when a.atttypid::int8 >= 10000 then tn.nspname || '.' || t.typname else '' end, a.attgenerated::text
from pg_attribute a
join base on base.oid = a.atttypid
join pg_type t on t.oid = base.root
join pg_namespace tn on tn.oid = t.typnamespace
where a.attrelid = any(%s) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class SourceTable:
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


def find_tables(connection: psycopg.Connection) -> list[SourceTable]:
    """Every table, view and foreign table outside the system's schemas, by name."""
    rows = despite_drops(connection, lambda: connection.execute(_TABLES).fetchall())
    columns: dict[int, list[tuple[str, int, int, int, str, str]]] = {}
    for oid, *column in connection.execute(_COLUMNS, ([row[0] for row in rows],)).fetchall():
        columns.setdefault(oid, []).append(cast("tuple[str, int, int, int, str, str]", tuple(column)))
    return [_source_table(row, columns.get(row[0], []), connection.info.server_version) for row in rows]


def select_tables(tables: Sequence[SourceTable], patterns: Sequence[str], *, begun: bool = False) -> list[SourceTable]:
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


def misnamed(tables: Sequence[SourceTable], patterns: Sequence[str]) -> Iterator[SourceError]:
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


def _check_named(pattern: str, table: SourceTable | None) -> None:
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


def _source_table(row: tuple[object, ...], columns: Sequence[tuple[str, int, int, int, str, str]], version: int) -> SourceTable:
    (
        oid,
        schema,
        name,
        kind,
        persistence,
        identity,
        row_security,
        readable,
        root,
        immediate,
        has_key,
        owner,
        rows,
        key,
        types,
    ) = row
    key_numbers = {int(number) for number in str(key).split()}
    full_without_key = identity == "f" and not key_numbers
    generated = {number: kind for _, number, *_, kind in columns if kind}
    left_out = [(label, generated[number]) for label, number, *_ in columns if number in key_numbers and number in generated]
    table = Table(
        oid=cast(int, oid),
        schema=cast(str, schema),
        name=cast(str, name),
        columns=tuple(
            Column(
                label,
                type_oid,
                typmod,
                type_name,
                key=full_without_key or number in key_numbers,
                attnum=number,
                structure=described(type_oid, cast("dict[str, str]", types or {})),
            )
            for label, number, type_oid, typmod, type_name, kind_of in columns
            if not kind_of
        ),
        identity=cast(Identity, identity),
    )
    return SourceTable(
        definition=Definition(
            table=table,
            has_primary_key=cast(bool, has_key),
            deferrable_key=not immediate,
            stored=version >= COMPUTED_VERSION and STORED in generated.values(),
            virtual=VIRTUAL in generated.values(),
            left_out=tuple(label for label, _ in left_out),
            generated=all(kind == STORED for _, kind in left_out),
        ),
        kind=cast(str, kind),
        unlogged=persistence == "u",
        root_oid=cast("int | None", root),
        owner=cast(str, owner),
        readable=cast(bool, readable),
        row_security=cast(bool, row_security),
        rows_estimate=cast(int, rows),
    )
