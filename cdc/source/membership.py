"""Whether a table has been in the publication all the time: changes made while it was out are never sent, and nothing says so.

Every way into a publication is a catalog row with an OID of its own (pg_publication_rel, pg_publication_namespace, or, for FOR ALL
TABLES, the publication itself). A table that was taken out and put back has the old name and a new OID.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

from cdc.errors import Stopped, StopState
from cdc.source.coverage import PUBLISHED_TABLES
from cdc.source.drops import despite_drops
from cdc.source.publication import Publication, unpublished_kinds
from cdc.source.slot import rebuild_hint

# A partition's changes come under its root's name, so the root's ways in are what counts.
_WAYS_IN: Final = (
    """
select c.oid::int8, n.nspname || '.' || c.relname,
       array_remove(array[case when whole.puballtables then whole.oid::int8 end, s.oid::int8]
         || array(select r.oid::int8 from pg_publication_rel r
                   where r.prpubid = whole.oid and r.prrelid in (select c.oid union all select a.relid from pg_partition_ancestors(c.oid) a)),
         null)
from """
    + PUBLISHED_TABLES
    + """
join pg_publication whole on whole.pubname = %(publication)s
left join pg_publication_namespace s on s.pnpubid = whole.oid and s.pnnspid = n.oid
"""
)


@dataclass(frozen=True, slots=True)
class Membership:
    """The tables that a publication covers, and by which catalog rows."""

    publication: int
    """The publication's OID; 0 when there is none."""
    tables: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Table OID → (``schema.name``, its ways in)."""

    def seen(self, ways: Mapping[int, Collection[int]]) -> Membership:
        """With further ways in by table OID: what happened until they were seen has been seen to."""
        return replace(self, tables={oid: (name, (*known, *ways.get(oid, ()))) for oid, (name, known) in self.tables.items()})

    def interrupted(self, now: Membership, wanted: Collection[int]) -> tuple[int, ...]:
        """The wanted tables (OIDs) that were published and are not, or are by other catalog rows only."""
        return tuple(
            oid
            for oid, (_, ways) in self.tables.items()
            if oid in wanted and (oid not in now.tables or not set(ways) & set(now.tables[oid][1]))
        )


def read_membership(connection: psycopg.Connection, publication: str) -> Membership:
    row = connection.execute("select oid::int8 from pg_publication where pubname = %s", (publication,)).fetchone()
    if row is None:
        return Membership(0)
    found = despite_drops(connection, lambda: connection.execute(_WAYS_IN, {"publication": publication}).fetchall())
    return Membership(row[0], {oid: (name, tuple(ways)) for oid, name, ways in found})


def check_membership(publication: str, known: Membership, found: Membership, wanted: Collection[int]) -> None:
    """Raises Stopped when the publication, or one of the tables, has not been there all the time.

    wanted: OIDs of the tables that exist and shall be captured; only those of them that were known before can have been out.
    """
    if not known.publication:
        return
    if not found.publication:
        raise publication_lost(f"publication {publication!r} does not exist any more")
    if found.publication != known.publication:
        raise publication_lost(f"publication {publication!r} was dropped and created again")
    interrupted = known.interrupted(found, wanted)
    out = [oid for oid in interrupted if oid not in found.tables]
    if interrupted:
        raise table_unpublished(publication, [known.tables[oid][0] for oid in out or interrupted], again=not out)


def check_publishes(publication: Publication | None) -> None:
    """Raises Stopped (PUBLICATION_LOST) when kinds of changes are no longer sent without which a store cannot stay equal."""
    if publication is not None and (kinds := unpublished_kinds(publication)):
        raise publication_lost(f"publication {publication.name!r} does not publish {kinds} any more")


def publication_lost(message: str) -> Stopped:
    """Changes made meanwhile are not sent, or stop the server's decoding for good."""
    return Stopped(StopState.PUBLICATION_LOST, message, hint=rebuild_hint(StopState.PUBLICATION_LOST))


def table_unpublished(publication: str, names: Collection[str], *, again: bool) -> Stopped:
    """``again``: they are published now, but were not for a while."""
    shown = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    what = "was out of publication {} for a while" if again else "has left publication {}"
    return Stopped(
        StopState.TABLE_UNPUBLISHED,
        f"{shown} {what.format(repr(publication))}: changes made meanwhile are not sent",
        hint=f"{rebuild_hint(StopState.TABLE_UNPUBLISHED)}; or take the table out of source.tables, then cdc resume TABLE_UNPUBLISHED",
    )
