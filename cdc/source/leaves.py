"""Partitions whose changes Postgres does not send under their root's name, or sends without what identifies the root's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from cdc.source.descent import partitions
from cdc.source.drops import despite_drops
from cdc.source.replicaidentity import KEY_COLUMNS, generated_unsent, identity_index, key_index

# Columns are compared by name: their numbers differ from partition to partition. A root under FULL without a primary key is identified by
# its whole rows. The old row of an update or delete has what the partition's own replica identity names. The server refuses updates and deletes
# of a partition whose identity names what is not published: columns that the root's column list leaves out, and from 18 on generated columns.
_PROBLEMS: Final = (
    """
select distinct on (root.oid) root.oid::int8, l.oid::regclass::text, root.oid::regclass::text, l.relkind = 'f', l.relpersistence = 'u',
       l.relreplident = 'f'
from pg_class root
cross join lateral """
    + partitions("select root.oid")
    + """ tree
join pg_class l on l.oid = tree.oid and l.relkind <> 'p'
cross join lateral (
  select array(select a.attname
    from pg_index x join pg_attribute a on a.attrelid = root.oid and a.attnum = any ("""
    + KEY_COLUMNS
    + """)
    where """
    + key_index("root")
    + """) as names) wanted
cross join lateral (
  select array(select a.attname
    from pg_index x join pg_attribute a on a.attrelid = l.oid and a.attnum = any ("""
    + KEY_COLUMNS
    + """)
    where """
    + identity_index("l")
    + """) as names) held
cross join lateral (
  select array(select a.attname from pg_attribute a
    where a.attrelid = l.oid and a.attnum > 0 and not a.attisdropped and """
    + generated_unsent("%(computed)s")
    + """) as names) unsent
where root.oid = any (%(roots)s) and root.relkind = 'p' and (l.relkind = 'f' or l.relpersistence = 'u'
    or l.relreplident <> 'f' and (wanted.names = '{}' or held.names = '{}' or not held.names @> wanted.names)
    or l.relreplident = 'f' and root.relreplident <> 'f' and (unsent.names <> '{}' or root.oid = any (%(listed)s))
    or l.relreplident <> 'f' and not wanted.names @> held.names and (held.names && unsent.names or root.oid = any (%(listed)s)))
order by root.oid, 2
"""
)


def leaf_problems(
    connection: psycopg.Connection, roots: Sequence[int], *, listed: Sequence[int], computed: bool
) -> dict[int, tuple[str, str]]:
    """By the partitioned table's OID, of those among ``roots``: what is wrong with its first partition that cannot be captured, and the SQL
    that repairs it. ``listed``: those for which the publication has a column list. ``computed``: it publishes stored generated columns.

    ``connection``: under the pinned settings, so that names are written in full.
    """
    if not roots:
        return {}
    given = {"roots": list(roots), "listed": list(listed), "computed": computed}
    found = despite_drops(connection, lambda: connection.execute(_PROBLEMS, given).fetchall())
    return {oid: _problem(*told) for oid, *told in found}


def _problem(leaf: str, root: str, foreign: bool, unlogged: bool, full: bool) -> tuple[str, str]:
    if foreign:
        return (
            f"has a partition {leaf} that is a foreign table: Postgres publishes no changes of it",
            f"ALTER TABLE {root} DETACH PARTITION {leaf}, or leave {root} out of source.tables",
        )
    if unlogged:
        return (
            f"has a partition {leaf} that is unlogged: Postgres publishes no changes of it",
            f"ALTER TABLE {leaf} SET LOGGED",
        )
    if full:
        return (
            f"has a partition {leaf} with REPLICA IDENTITY FULL and columns that are not published, with which Postgres refuses its updates",
            f"ALTER TABLE {leaf} REPLICA IDENTITY DEFAULT",
        )
    return (
        f"has a partition {leaf} whose replica identity does not name the rows of {root}",
        f"ALTER TABLE {leaf} REPLICA IDENTITY FULL",
    )
