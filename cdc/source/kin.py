"""Which tables are partitions or inheritance children of others: when one of them goes its own way, it takes the parent's rows along."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import psycopg

from cdc.model.table import Table

_KIN: Final = """
with recursive kin(oid, parent) as (
    select i.inhrelid, n.nspname || '.' || c.relname
    from pg_inherits i join pg_class c on c.oid = i.inhparent join pg_namespace n on n.oid = c.relnamespace
    where n.nspname || '.' || c.relname = any (%s)
    union
    select i.inhrelid, kin.parent from pg_inherits i join kin on i.inhparent = kin.oid)
select oid::int8, parent from kin
"""
_STILL: Final = "select oid::int8 from pg_class where oid = any (%s::oid[])"


class Undecided(Protocol):
    """What the catalog's watch asks of the column policies, from its own thread."""

    @property
    def guarded(self) -> Sequence[str]:
        """The tables (``schema.name``) that have policies."""
        ...

    @property
    def kin(self) -> Mapping[int, str]: ...

    def note_kin(self, kin: Mapping[int, str]) -> None:
        """Tables (OIDs) that are, or were, partitions or children of those."""
        ...

    def barred(self, table: Table) -> tuple[str, str] | None:
        """(why, what helps) when no row of this table can be logged yet."""
        ...

    def lines(self, table: Table) -> list[str]:
        """What of this table is kept out of the log until somebody decides, one line each with what helps."""
        ...


def read_kin(connection: psycopg.Connection, parents: Collection[str], known: Mapping[int, str]) -> dict[int, str]:
    """Every table (OID) below these parents, with the parent's name; and those of ``known`` that still exist, wherever they are now."""
    if not parents and not known:
        return {}
    now: dict[int, str] = dict(connection.execute(_KIN, (list(parents),)).fetchall())
    still = {oid for (oid,) in connection.execute(_STILL, (list(known),)).fetchall()}
    return {**{oid: parent for oid, parent in known.items() if oid in still}, **now}
