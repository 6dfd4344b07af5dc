"""The tables that a publication publishes, from the catalog's tables alone: a part of other queries.

``pg_publication_tables`` says the same, but from version 16 on it opens every published table: one that its owner has locked (ACCESS EXCLUSIVE)
would keep whoever asks waiting, whatever table he asks for. Functions that open a table (``pg_relation_size``, ``pg_partition_tree``, ...) have no
place in what looks at more than that table.
"""

from __future__ import annotations

from typing import Final, LiteralString

from cdc.source.descent import partitions
from cdc.source.replicaidentity import STORED_PUBLISHED

# As GetPublicationRelations, GetAllSchemaPublicationRelations, GetAllTablesPublicationRelations and filter_partitions of pg_publication.c; with
# ``own``, what the publication itself names. Column lists and row filters count only where neither the schema nor all tables are published.
PUBLISHED: Final[LiteralString] = (
    """(
    with publication as (
      select p.oid, p.puballtables, p.pubviaroot, """
    + STORED_PUBLISHED
    + """ as computed
      from pg_publication p where p.pubname = %(publication)s),
    tree as materialized (select below.oid, below.own from """
    + partitions(
        """
      select r.prrelid, true from publication p join pg_publication_rel r on r.prpubid = p.oid
      union
      select k.oid, true from publication p join pg_publication_namespace s on s.pnpubid = p.oid
      join pg_class k on k.relnamespace = s.pnnspid and k.relkind in ('r', 'p') and k.relpersistence = 'p' and k.oid >= 16384""".strip(),
        {"own": "false"},
        overlapping=True,
    )
    + """ below),
    named(oid) as (
      select t.oid from publication p cross join tree t join pg_class k on k.oid = t.oid
      group by t.oid, k.relkind, p.pubviaroot having case when p.pubviaroot then bool_and(t.own) else k.relkind <> 'p' end
      union all
      select k.oid from publication p join pg_class k on k.relkind in ('r', 'p') and k.relpersistence = 'p' and k.oid >= 16384
      where p.puballtables and case when p.pubviaroot then not k.relispartition else k.relkind = 'r' end)
    select k.oid, r.prattrs::int2[] as listed, r.prqual as qual, p.computed
    from named m cross join publication p join pg_class k on k.oid = m.oid
    left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = k.oid
      and not exists (select from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = k.relnamespace))"""
)
"""In parentheses, to be selected from; takes ``publication``. One row for each published table: its OID, the numbers of the columns of its column list, its
row filter (both NULL where it has none), and whether stored generated columns are published."""

PUBLISHED_TABLES: Final[LiteralString] = (
    PUBLISHED
    + """ p
join pg_class c on c.oid = p.oid
join pg_namespace n on n.oid = c.relnamespace"""
)
"""The same as ``p``, with each table's row of pg_class (``c``) and of pg_namespace (``n``)."""
