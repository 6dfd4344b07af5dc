"""The rights that an account needs in a Postgres target, and the statements that give those it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.errors import StoreError
from sinks.sql.dialect import SqlSession
from sinks.sql.names import LEDGER_SCHEMA, TargetPlace, quoted
from sinks.sql.postgres.table import standing
from sinks.sql.table import refused


def missing(session: SqlSession, store: str, places: Sequence[TargetPlace]) -> Iterator[StoreError]:
    """``places``: where the store's tables are to stand. Each with the least that helps: a schema of its own needs no right to make schemas."""
    [(role, database, creates, temporary)] = session.rows(
        """select current_user, current_database(), has_database_privilege(current_database(), 'CREATE'),
        has_database_privilege(current_database(), 'TEMPORARY')"""
    )

    def lacks(what: str, statement: str) -> StoreError:
        return StoreError(
            f"{role} may not {what} in the database of store {store}", retryable=False, hint=f"as its owner: {statement}"
        )

    if not temporary:
        yield lacks("make temporary tables", f"GRANT TEMPORARY ON DATABASE {quoted(database)} TO {quoted(role)}")
    for schema in dict.fromkeys([LEDGER_SCHEMA, *(place.schema for place in places)]):
        found = session.rows(
            """select has_schema_privilege(n.oid, 'USAGE') and has_schema_privilege(n.oid, 'CREATE')
            from pg_catalog.pg_namespace n where n.nspname = :name""",
            name=schema,
        )
        if not found and not creates:
            yield lacks(f"make the schema {schema}", f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(role)}")
        elif found and not found[0][0]:
            yield lacks(f"make tables in the schema {schema}", f"GRANT CREATE, USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}")
    for place in dict.fromkeys(places):
        there = standing(session, place)
        if there is None:
            continue
        if there.sign is None or not there.plain:
            yield refused(place, "is not one that this store has made, and is left as it is")
        elif not session.rows(
            "select 1 from pg_catalog.pg_class where oid = :number and pg_has_role(relowner, 'USAGE')", number=there.number
        ):
            yield lacks(f"change the table {place}", f"ALTER TABLE {place.sql} OWNER TO {quoted(role)}")
