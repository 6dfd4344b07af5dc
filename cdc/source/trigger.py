"""The event trigger of deploy/roles.sql, as far as this role sees it: the password of its messages, and what it did to our publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg

# Only a superuser makes the trigger. Anybody who may create a schema could offer a table of her own, or a view that runs as our role.
_OURS: Final = """
select count(*) = 3
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_roles t on t.oid = c.relowner join pg_roles s on s.oid = n.nspowner
where n.nspname = 'headwater' and c.relname in ('ddl_password', 'publications', 'set_aside') and c.relkind = 'r' and not c.relrowsecurity
  and t.rolsuper and s.rolsuper
"""
_HIDDEN: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A table that has left the publication because it could not be captured."""

    entry: int | None
    """The catalog row (OID) by which the trigger has published it again; None: it is still out."""
    again: bool
    """It may be published again as it was: there was no column list and no row filter for it."""


def trigger_password(connection: psycopg.Connection) -> str | None:
    """The password in the trigger's messages; None where this role knows of no trigger."""
    if not _ours(connection):
        return None
    try:
        row = connection.execute("select password from headwater.ddl_password").fetchone()
    except _HIDDEN:
        return None
    return None if row is None else str(row[0])


def looks_after(connection: psycopg.Connection, publication: str) -> bool | None:
    """Whether tables that lose their identity leave the publication at once; None: this role knows of no trigger."""
    if not _ours(connection):
        return None
    try:
        row = connection.execute("select from headwater.publications where name = %s", (publication,)).fetchone()
    except _HIDDEN:
        return None
    return row is not None


def set_aside_by_trigger(connection: psycopg.Connection, publication: str) -> dict[int, SetAside]:
    """By OID, tables that have left the publication inside a DDL statement, whether or not they have come back since."""
    if not _ours(connection):
        return {}
    try:
        rows = connection.execute(
            "select s.relation::int8, coalesce(s.entry, r.oid)::int8, s.again from ("
            "  select distinct on (s.publication, s.relation) s.* from headwater.set_aside s"
            # An older deploy/roles.sql made one row for each table, without a place.
            "  order by s.publication, s.relation, (to_jsonb(s) ->> 'place')::int8 desc) s "
            "left join pg_publication p on p.pubname = s.publication "
            "left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = s.relation "
            "where s.publication = %s and (s.entry is null or s.entry = r.oid)",
            (publication,),
        ).fetchall()
    except _HIDDEN:
        return {}
    return {oid: SetAside(entry, again) for oid, entry, again in rows}


def _ours(connection: psycopg.Connection) -> bool:
    return connection.execute(_OURS).fetchone() == (True,)
