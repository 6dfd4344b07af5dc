"""The catalog's facts of tables (``cdc.model.facts``), read from the source, and kept beside the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, LiteralString

import psycopg

from cdc.errors import LogCorrupt
from cdc.model.facts import Facts
from cdc.source.coverage import PUBLISHED
from cdc.source.descent import BASE_TYPE, TYPES_WITHIN, partitions
from cdc.source.drops import despite_drops
from cdc.source.replicaidentity import STORED_PUBLISHED, key_index
from cdc.state.statefile import StateFile

FILE: Final = "catalog.json"

# What the types of a table's columns are made of (``Facts.types``); ``c.oid`` is the table's.
TYPES: Final[LiteralString] = (
    "("
    + TYPES_WITHIN
    + """
    select coalesce(json_object_agg(piece.what, piece.text), '{}') from (
      select 'e' || e.oid as what, e.xmin || ' ' || e.enumlabel as text from reached r join pg_enum e on e.enumtypid = r.oid
      union all
      select 'a' || b.attrelid || '.' || b.attnum, b.atttypid || ' ' || b.atttypmod || ' ' || b.attisdropped
      from reached r join pg_type t on t.oid = r.oid join pg_attribute b on b.attrelid = t.typrelid and b.attnum > 0
      where t.typrelid <> 0
      union all
      select 'n' || b.attrelid || '.' || b.attnum, b.atttypid || ' ' || b.attname
      from reached r join pg_type t on t.oid = r.oid join pg_attribute b on b.attrelid = t.typrelid and b.attnum > 0
      where t.typrelid <> 0 and not b.attisdropped
      union all
      select 't' || t.oid, case when t.typtype = 'd' then 'd ' || t.typbasetype when t.typtype = 'c' then 'c ' || t.typrelid
        when t.typtype in ('r', 'm') then t.typtype::text || ' ' || (
          select x.rngsubtype from pg_range x where t.oid in (x.rngtypid, x.rngmultitypid))
        when t.typcategory = 'A' and t.typlen = -1 and t.typelem <> 0 then 'a ' || t.typelem || ' ' || t.typdelim::text
        else t.typtype::text || ' ' || t.typname end
      from reached r join pg_type t on t.oid = r.oid) piece)"""
)

# `make roles` writes the same expression into deploy/roles.sql, for the event trigger. ``c`` is the table's row of pg_class. A partition that was created as one
# has the rows of pg_attribute that its creation wrote; ATTACH PARTITION writes its columns' rows again.
FACTS: Final[LiteralString] = (
    """
json_build_object(
  'oid', c.oid::int8,
  'schema', (select n.nspname from pg_namespace n where n.oid = c.relnamespace),
  'name', c.relname,
  'partitioned', c.relkind = 'p',
  'attached', c.relispartition,
  'identity', c.relreplident,
  'columns', (
    select coalesce(json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
      """
    + BASE_TYPE
    + """,
      a.attgenerated, a.attnotnull or a.atthasdef or a.atthasmissing or a.attidentity <> '', a.xmin::text) order by a.attnum), '[]')
    from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  'index', (
    select coalesce(json_agg(k.attnum order by k.place), '[]')
    from pg_index x cross join unnest(x.indkey::int2[]) with ordinality k(attnum, place)
    where k.place <= x.indnkeyatts and """
    + key_index("c")
    + """),
  'leaves', (
    select coalesce(json_object_agg(l.oid, json_build_array(l.relfilenode::int8,
        (select count(distinct a.xmin::text || ' ' || a.cmin::text) = 1 from pg_attribute a
         where a.attrelid = l.oid and a.attnum in (-1, 1)),
        (select coalesce(string_agg(way.made, ' ' order by way.link), '') from unnest(b.links, b.made) way(link, made)))), '{}')
    from """
    + partitions("select c.oid, '{}'::oid[], '{}'::text[]", {"links": "t.links || i.inhrelid", "made": "t.made || i.xmin::text"})
    + """ b join pg_class l on l.oid = b.oid where l.relkind <> 'p'),
  'types', """
    + TYPES
    + ")\n"
)

# The tables that the publication (``publication``) publishes, and how it has each.
WITH_PUBLISHED: Final[LiteralString] = (
    """
with published as materialized (select p.* from """
    + PUBLISHED
    + """ p)"""
)
PUBLISHING: Final[LiteralString] = (
    """
json_build_object(
  'published', c.oid in (select oid from published),
  'listed', (select to_json(r.prattrs::int2[]) from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
             where p.pubname = %(publication)s and r.prrelid = c.oid),
  'stored', coalesce((select """
    + STORED_PUBLISHED
    + """ from pg_publication p where p.pubname = %(publication)s), false),
  'row_filter', (select md5(r.prqual::text) from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
                 where p.pubname = %(publication)s and r.prrelid = c.oid),
  'ways', (select coalesce(json_agg(w.way order by w.way), '[]') from pg_publication p cross join lateral (
             select p.oid::int8 where p.puballtables
             union all
             select s.oid::int8 from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = c.relnamespace
             union all
             select r.oid::int8 from pg_publication_rel r where r.prpubid = p.oid
               and (r.prrelid = c.oid or c.relispartition and r.prrelid in (select relid from pg_partition_ancestors(c.oid)))) w(way)
           where p.pubname = %(publication)s),
  'version', coalesce((
    select p.xmin::text || ' ' || p.pubowner || ' ' || md5((to_jsonb(p) - 'oid'::text - 'pubowner'::text)::text)
    from pg_publication p where p.pubname = %(publication)s), ''))
"""
)
"""``Facts.publishing``, behind ``WITH_PUBLISHED``; ``c`` is the table's row of pg_class."""

PRIMARY_KEY: Final[LiteralString] = (
    "(select p.indimmediate from pg_index p where p.indrelid = c.oid and p.indisprimary and p.indisvalid)"
)
"""Whether the table's primary key can be an identity (is not deferrable); NULL where it has none. The facts say it only of a key that can."""

_READ: Final[LiteralString] = (
    WITH_PUBLISHED
    + "\nselect "
    + FACTS
    + ", "
    + PUBLISHING
    + """
from pg_class c
where c.relkind in ('r', 'p') and (c.oid = any (%(oids)s::oid[]) or (%(all)s and c.oid in (select oid from published)))
order by c.oid
"""
)


def read_facts(
    connection: psycopg.Connection, publication: str, oids: Sequence[int] = (), *, published: bool = False
) -> list[Facts]:
    """The facts of these tables, as far as they exist, and (``published``) of every table that the publication publishes; by OID."""
    connection.execute("set jit = off")  # compiling the query takes seconds, running it milliseconds
    given = {"publication": publication, "oids": list(oids), "all": published}
    rows = despite_drops(connection, lambda: connection.execute(_READ, given).fetchall())
    return [Facts.from_json({**facts, "publishing": publishing}) for facts, publishing in rows]


def load_facts(folder: Path) -> dict[int, Facts]:
    """Loads what ``save_facts`` kept in the log's folder; nothing when the file does not exist. Raises LogCorrupt when it is not ours."""
    return {facts.oid: facts for facts in _FILE.load(folder / FILE) or ()}


def save_facts(folder: Path, tables: Mapping[int, Facts]) -> None:
    """Durable on return."""
    _FILE.save(folder / FILE, list(tables.values()))


_FILE: Final[StateFile[list[Facts]]] = StateFile(
    format=2,
    encode=lambda tables: {"tables": [facts.to_json() for facts in tables]},
    decode=lambda raw: [Facts.from_json(table) for table in raw["tables"]],
    unreadable=lambda path, what: LogCorrupt(f"{path} {what}; removing it makes capture read the tables again"),
)
