"""Whether tables can be captured as they are defined: at a start, when one joins, at every look at the catalog, before one is read. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from cdc.errors import SourceError
from cdc.model.batch import reserved_column
from cdc.model.facts import STORED, VIRTUAL, Facts
from cdc.model.table import Table

COMPUTED_VERSION: Final = 180000
"""The first server_version_num that can publish stored generated columns."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table, and what else decides whether updates and deletes of it can be published."""

    table: Table
    """Its columns are the ones that are published, or can be: without a publication that says otherwise, generated ones are left out."""
    has_primary_key: bool
    deferrable_key: bool
    """The primary key is deferrable, which Postgres does not take for an identity: inside a transaction two rows may share it."""
    stored: bool = False
    """It has stored generated columns, and the server is one that can publish them (18 or newer)."""
    virtual: bool = False
    """It has virtual generated columns (18 or newer), which no publication publishes."""
    left_out: tuple[str, ...] = ()
    """Columns of the index that identifies rows (under FULL: of the primary key) that are not published."""
    generated: bool = False
    """All that are left out are stored generated columns: they are as soon as the publication publishes such."""
    listed: bool = False
    """The publication has a column list for it."""

    @property
    def identified(self) -> bool:
        """Updates and deletes can be published: the identity is the full row, a valid index, or a usable primary key."""
        return self.table.identity == "f" or bool(self.table.key)


def define(facts: Facts, primary: bool | None, version: int) -> Definition:
    """``primary``: whether the table's primary key can be an identity (is not deferrable); None where it has none. ``version``: the server's."""
    kinds = {column.generated for column in facts.columns}
    sent = {column.attnum for column in facts.published}
    left_out = [column for column in facts.columns if column.attnum in facts.index and column.attnum not in sent]
    listed = facts.publishing is not None and facts.publishing.listed is not None
    return Definition(
        facts.table(),
        has_primary_key=primary is not None,
        deferrable_key=primary is False,
        stored=version >= COMPUTED_VERSION and STORED in kinds,
        virtual=VIRTUAL in kinds,
        left_out=tuple(column.name for column in left_out),
        generated=bool(left_out) and not listed and all(column.generated == STORED for column in left_out),
        listed=listed,
    )


KEYLESS: Final = "has no key: rows that are equal in every column are one row in the stores, and with one of them that is deleted or changed that row goes"


def keyless_hint(table: Table) -> str:
    return f"add a primary key; until then, what the stores lack comes back with: cdc snapshot {shlex.quote(table.qualified)}"


def keyless_line(facts: Facts) -> str:
    """The line about a table whose rows no index identifies."""
    table = facts.table()
    return f"{table.qualified} {KEYLESS} → {keyless_hint(table)}"


def quoted_name(table: Table) -> str:
    """The table's name as SQL."""
    return sql.Identifier(table.schema, table.name).as_string()


def refuse_twins(tables: Sequence[Table]) -> None:
    """Raises SourceError when two tables would have one topic: schema and table name are put together with a dot, which names may hold."""
    seen: dict[str, Table] = {}
    for table in tables:
        if (twin := seen.setdefault(table.qualified, table)) is not table:
            raise SourceError(
                f"tables {quoted_name(twin)} and {quoted_name(table)} would both be called {table.qualified}",
                hint=f"rename one of them: ALTER TABLE {quoted_name(table)} RENAME TO …",
            )


def reserved_problem(table: Table) -> tuple[str, str] | None:
    """(what is wrong, the SQL that repairs it) with the names of the table's columns, or None."""
    column = reserved_column(table)
    if column is None:
        return None
    rename = f'ALTER TABLE {quoted_name(table)} RENAME COLUMN {sql.Identifier(column).as_string()} TO "{column.lstrip("_")}"'
    return (
        f"has a column {column}, a name that Headwater uses itself",
        f"{rename}; or leave the column out of the publication with a column list",
    )


def refuse_reserved(table: Table) -> None:
    """Raises SourceError when a column's name is one of ours; ``table`` as it is published, or as it would be."""
    problem = reserved_problem(table)
    if problem is not None:
        raise SourceError(f"table {table.qualified} {problem[0]}", hint=problem[1])


def identity_problem(definition: Definition, *, computed: bool = False) -> tuple[str, str] | None:
    """(what is wrong, the SQL that repairs it) with the table's replica identity, or None.

    computed: the publication publishes stored generated columns. Where this finds nothing, Postgres takes the table's updates and deletes
    with a publication that has the table, on every version (CheckCmdReplicaIdentity in execReplication.c; tests/integration/source).
    """
    table = definition.table
    if table.identity in "df" and definition.deferrable_key:
        # Not FULL: while a transaction moves keys about, two rows have one, and no order of deletes and upserts is right.
        return (
            "has a deferrable primary key, which cannot be a replica identity",
            f"add the key again without DEFERRABLE; or, with another unique index: {_other_index(table)}",
        )
    if not table.columns:
        return "has no columns that could be published", f"leave it out: source.tables takes !{table.qualified}"
    return _full_row_problem(definition, computed=computed) or _key_problem(definition, computed=computed)


def _full_row_problem(definition: Definition, *, computed: bool) -> tuple[str, str] | None:
    table = definition.table
    back = f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY DEFAULT"
    if table.identity != "f":
        return None
    if definition.virtual:
        what = "virtual generated columns, which Postgres never publishes and with which it refuses updates and deletes"
        return f"has REPLICA IDENTITY FULL and {what}", f"{back} (with a primary key)"
    if definition.stored and not computed:
        return (
            "has REPLICA IDENTITY FULL and generated columns that are not published, with which Postgres refuses its updates and deletes",
            f"{back}, or a publication WITH (publish_generated_columns = stored)",
        )
    if definition.listed:
        return (
            "has REPLICA IDENTITY FULL and a column list in the publication, with which Postgres refuses its updates and deletes",
            f"{back}, or the table in the publication without a column list",
        )
    return None


def _key_problem(definition: Definition, *, computed: bool) -> tuple[str, str] | None:
    table, key = definition.table, "primary key" if definition.table.identity in "df" else "replica identity"
    if table.identity != "n" and definition.left_out and not (definition.generated and computed):
        columns = ", ".join(definition.left_out)
        if definition.generated:
            publish = "a publication WITH (publish_generated_columns = stored), or " if definition.stored else ""
            return (
                f"has a {key} with a generated column that is not published ({columns})",
                f"{publish}another unique index: {_other_index(table)}",
            )
        return f"has a {key} that the publication leaves out ({columns})", "add its columns to the publication's column list"
    if definition.identified:
        return None
    full = f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY FULL"
    back = f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY {'DEFAULT' if definition.has_primary_key else 'FULL'}"
    match table.identity:
        case "d":
            return "has no primary key and so no replica identity", f"add a primary key, or: {full}"
        case "n":
            return "has REPLICA IDENTITY NOTHING", back
        case _:
            return "has lost the index that was its replica identity", back


def _other_index(table: Table) -> str:
    return f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY USING INDEX …"
