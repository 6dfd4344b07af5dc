"""Partitions whose changes Postgres does not send under their root's name, or sends without what identifies the root's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from cdc.errors import SourceError

# Columns are compared by name: their numbers differ from partition to partition. A root under FULL without a primary key is identified by
# its whole rows. The old row of an update or delete has what the partition's own replica identity names.
_PROBLEMS: Final = """
select l.oid::regclass::text, root.oid::regclass::text, l.relkind = 'f', l.relpersistence = 'u'
from pg_class root
cross join lateral pg_partition_tree(root.oid) tree
join pg_class l on l.oid = tree.relid and tree.isleaf
cross join lateral (
  select array(select a.attname
    from pg_index x join pg_attribute a on a.attrelid = root.oid and a.attnum = any ((x.indkey::int2[])[:x.indnkeyatts - 1])
    where x.indrelid = root.oid and x.indisvalid
      and case root.relreplident when 'i' then x.indisreplident else x.indisprimary and x.indimmediate end) as names) wanted
cross join lateral (
  select array(select a.attname
    from pg_index x join pg_attribute a on a.attrelid = l.oid and a.attnum = any ((x.indkey::int2[])[:x.indnkeyatts - 1])
    where x.indrelid = l.oid and x.indisvalid
      and case l.relreplident when 'i' then x.indisreplident when 'd' then x.indisprimary and x.indimmediate else false end) as names) held
where root.oid = any (%s) and root.relkind = 'p'
  and (l.relkind = 'f' or l.relpersistence = 'u'
    or l.relreplident <> 'f' and (wanted.names = '{}' or held.names = '{}' or not held.names @> wanted.names))
order by 2, 1
limit 1
"""


def refuse_leaf(connection: psycopg.Connection, roots: Sequence[int]) -> None:
    """Raises SourceError for the first partition below these tables (OIDs) that cannot be captured, naming the SQL that mends it.

    ``connection``: under the pinned settings, so that names are written in full.
    """
    row = connection.execute(_PROBLEMS, (list(roots),)).fetchone()
    if row is None:
        return
    leaf, root, foreign, unlogged = row
    if foreign:
        raise SourceError(
            f"partition {leaf} of {root} is a foreign table: Postgres publishes no changes of it",
            hint=f"ALTER TABLE {root} DETACH PARTITION {leaf}, or leave {root} out of source.tables",
        )
    if unlogged:
        raise SourceError(
            f"partition {leaf} of {root} is unlogged: Postgres publishes no changes of it", hint=f"ALTER TABLE {leaf} SET LOGGED"
        )
    raise SourceError(
        f"partition {leaf} has a replica identity that does not name the rows of {root}",
        hint=f"ALTER TABLE {leaf} REPLICA IDENTITY FULL",
    )
