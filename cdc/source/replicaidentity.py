"""The identity of a table's rows in SQL, and the cases in which Postgres refuses their updates and deletes.

Other queries are put together from these parts, and so is the event trigger's ``headwater.ddl_breaks`` in deploy/roles.sql (`make roles`).

As CheckCmdReplicaIdentity in execReplication.c, RelationGetReplicaIndex in relcache.c and pub_contains_invalid_column in publicationcmds.c. What
capture demands of a table, in words, is in ``capturable`` and ``leaves``; tests/integration/source/test_identities.py compares both with what each
version of the server does.
"""

from __future__ import annotations

from typing import Final, LiteralString

KEY_COLUMNS: Final[LiteralString] = "(x.indkey::int2[])[:x.indnkeyatts - 1]"
"""The numbers of the columns that an index (``x``: its row of pg_index) tells rows apart by, without those that it only includes."""


def key_index(table: LiteralString) -> LiteralString:
    """A condition: ``x`` is the index whose columns identify the rows to us; under FULL and NOTHING the primary key's."""
    return (
        f"x.indrelid = {table}.oid and x.indisvalid\n"
        f"      and case {table}.relreplident when 'i' then x.indisreplident else x.indisprimary and x.indimmediate end"
    )


def identity_index(table: LiteralString) -> LiteralString:
    """A condition: ``x`` is the index whose columns the server sends of an old row; under FULL and NOTHING none is."""
    return (
        f"x.indrelid = {table}.oid and x.indisvalid and x.indislive and x.indisunique and x.indimmediate and x.indpred is null\n"
        f"    and case {table}.relreplident when 'd' then x.indisprimary when 'i' then x.indisreplident else false end"
    )


def generated_unsent(stored: LiteralString) -> LiteralString:
    """A condition: the column (``a``) is generated and not published, and the server refuses what it identifies for that (from 18 on).
    ``stored``: whether the publication publishes stored generated columns."""
    return (
        "current_setting('server_version_num')::int >= 180000\n"
        f"                   and (a.attgenerated = 'v' or a.attgenerated = 's' and not {stored})"
    )


STORED_PUBLISHED: Final[LiteralString] = "coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false)"
"""Whether a publication (``p``) publishes stored generated columns; no version before 18 has the option."""

BREAKS: Final[LiteralString] = (
    """select exists (
  select
  from pg_publication p
  cross join pg_class c
  left join pg_publication_rel entry on entry.prpubid = p.oid and entry.prrelid = c.oid
  cross join unnest(headwater.ddl_with_partitions(array[c.oid])) leaf(oid)
  join pg_class l on l.oid = leaf.oid and l.relkind = 'r' and l.relpersistence = 'p'
    -- A partition, or an index, that was dropped since the transaction began is still seen, but has no file. (What looks this up takes no lock.)
    and (pg_relation_filenode(l.oid) is not null or headwater.ddl_current())
  left join pg_index x on """
    + identity_index("l")
    + """
    and (pg_relation_filenode(x.indexrelid) is not null or headwater.ddl_current())
  cross join lateral (
    -- What the identity has and the stream would not: a column list counts by names, as numbers differ from partition to partition.
    select exists (
      select from pg_attribute a
      where a.attrelid = l.oid and a.attnum > 0 and not a.attisdropped
        and (l.relreplident = 'f' or a.attnum = any ("""
    + KEY_COLUMNS
    + """))
        and case when entry.prattrs is not null then l.relreplident = 'f' or not exists (
                   select from pg_attribute sent
                   where sent.attrelid = c.oid and sent.attname = a.attname and sent.attnum = any (entry.prattrs::int2[]))
                 else """
    + generated_unsent(STORED_PUBLISHED)
    + """ end) as unsent) identity
  where p.oid = publication and c.oid = relation and (p.pubupdate or p.pubdelete)
    -- An index that was made since the transaction began is not seen. (What looks this up asks for a lock on the table for a moment.)
    and (identity.unsent or l.relreplident <> 'f' and x.indexrelid is null
         and (headwater.ddl_current() or pg_get_replica_identity_index(l.oid) is null)))
"""
)
"""The body of ``headwater.ddl_breaks(relation, publication)``."""
