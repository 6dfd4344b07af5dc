"""Every recursion through the catalog: parts of other queries, and of the event trigger's functions in deploy/roles.sql (`make roles`).

Partitions are found in pg_inherits: pg_partition_tree says the same, but locks each of them until the transaction ends, which may be the
application's. The server's own types (OIDs below 10000) are made of nothing that could change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString


def partitions(
    tables: LiteralString, carried: Mapping[LiteralString, LiteralString] | None = None, *, overlapping: bool = False
) -> LiteralString:
    """In parentheses, to be selected from: ``oid`` of tables and of all that are partitions of them, however far below.

    ``tables``: what selects the OIDs that it begins with. ``carried``: further columns that ``tables`` selects after the OID, each with what it
    is one level below, in terms of ``t`` (the row above) and ``i`` (pg_inherits). ``overlapping``: it may begin with tables of which one is
    below another; each comes once then. Children by INHERITS are tables of their own.
    """
    # Not a join: most tables have nobody below them, and of those no more is looked up than that.
    only: LiteralString = "not i.inhdetachpending and (select k.relkind from pg_class k where k.oid = t.oid) = 'p'"
    return _below(tables, carried or {}, only, overlapping=overlapping)


def descendants(tables: LiteralString, carried: Mapping[LiteralString, LiteralString]) -> LiteralString:
    """As ``partitions``, with the children by INHERITS, and with partitions that are about to be detached."""
    return _below(tables, carried, "true", overlapping=True)


def _below(
    tables: LiteralString, carried: Mapping[LiteralString, LiteralString], only: LiteralString, *, overlapping: bool
) -> LiteralString:
    union: LiteralString = "union" if overlapping else "union all"
    names, steps = ", ".join(("oid", *carried)), ", ".join(("i.inhrelid", *carried.values()))
    return f"""(
    with recursive tree({names}) as (
      {tables}
      {union}
      select {steps} from tree t join pg_inherits i on i.inhparent = t.oid
      where {only})
    select * from tree)"""


BASE_TYPE: Final[LiteralString] = """case when a.atttypid < 10000 then '' else (
        with recursive base as (
          select t.oid, t.typbasetype, t.typname, t.typnamespace from pg_type t where t.oid = a.atttypid
          union all
          select t.oid, t.typbasetype, t.typname, t.typnamespace from pg_type t join base b on t.oid = b.typbasetype)
        select coalesce(max(bn.nspname || '.' || base.typname), '')
        from base join pg_namespace bn on bn.oid = base.typnamespace where base.typbasetype = 0) end"""
"""The type's name as the stream's TYPE message has it: nothing for the server's own types, the base type's name for a domain. ``a`` is the
column's row of pg_attribute."""

TYPES_WITHIN: Final[LiteralString] = """
    with recursive reached(oid) as (
      select a.atttypid from pg_attribute a
      where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid >= 10000
      union
      select next.oid from reached r join pg_type t on t.oid = r.oid cross join lateral (
        select t.typelem union all select t.typbasetype
        union all select x.rngsubtype from pg_range x where t.oid in (x.rngtypid, x.rngmultitypid)
        union all select b.atttypid from pg_attribute b
          where b.attrelid = t.typrelid and t.typrelid <> 0 and b.attnum > 0 and not b.attisdropped) next(oid)
      where next.oid >= 10000)"""
"""The beginning of a query: ``reached``, with the ``oid`` of the types that the columns of a table are made of. ``c`` is the table's row of
pg_class."""


def types_made_of(types: LiteralString) -> LiteralString:
    """In parentheses, to be selected from: ``oid`` of these types (``types``: what selects their OIDs) and of all that are made of them."""
    return f"""(
    with recursive made(oid) as (
      {types}
      union
      select next.oid from made m cross join lateral (
        -- arrays, domains, ranges and multiranges of it; then composites and tables that have a column of it
        select d.objid from pg_depend d
        where d.refclassid = 'pg_type'::regclass and d.refobjid = m.oid and d.classid = 'pg_type'::regclass
        union all
        select k.reltype from pg_depend d join pg_class k on k.oid = d.objid
        where d.refclassid = 'pg_type'::regclass and d.refobjid = m.oid and d.classid = 'pg_class'::regclass and d.objsubid > 0
          and k.reltype <> 0) next(oid))
    select oid from made)"""
