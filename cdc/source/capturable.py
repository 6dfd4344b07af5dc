"""Whether tables can be captured as they are defined: at a start, when one joins, at every look at the catalog, before one is read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.errors import SourceError
from cdc.model.batch import reserved_column
from cdc.model.table import Table


@dataclass(frozen=True, slots=True)
class Definition:
    """A table, and what else decides whether updates and deletes of it can be published."""

    table: Table
    """Its columns are the ones that are published, or can be: without a publication that says otherwise, generated ones are left out."""
    has_primary_key: bool
    deferrable_key: bool
    """The primary key is deferrable, which Postgres does not take for an identity: inside a transaction two rows may share it."""
    computed: bool = False
    """It has stored generated columns, and the server is one that can publish them (18 or newer)."""

    @property
    def identified(self) -> bool:
        """Updates and deletes can be published: the identity is the full row, a valid index, or a usable primary key."""
        return self.table.identity == "f" or bool(self.table.key)


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
    """(what is wrong, the SQL that mends it) with the names of the table's columns, or None."""
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
    """(what is wrong, the SQL that mends it) with the table's replica identity, or None.

    computed: the publication publishes stored generated columns.
    """
    table = definition.table
    quoted = quoted_name(table)
    full = f"ALTER TABLE {quoted} REPLICA IDENTITY FULL"
    back = f"ALTER TABLE {quoted} REPLICA IDENTITY {'DEFAULT' if definition.has_primary_key else 'FULL'}"
    if table.identity in "df" and definition.deferrable_key:
        # Not FULL: while a transaction moves keys about, two rows have one, and no order of deletes and upserts is right.
        return (
            "has a deferrable primary key, which is no replica identity",
            f"add the key anew without DEFERRABLE; or, with another unique index: ALTER TABLE {quoted} REPLICA IDENTITY USING INDEX …",
        )
    if not table.columns:
        return "has no columns that could be published", f"leave it out: source.tables takes !{table.qualified}"
    if table.identity == "f" and definition.computed and not computed:
        return (
            "has REPLICA IDENTITY FULL and generated columns that are not published, with which Postgres refuses its updates and deletes",
            f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT, or a publication WITH (publish_generated_columns = stored)",
        )
    if definition.identified:
        return None
    match table.identity:
        case "d" if definition.has_primary_key:
            return "has a primary key that the publication leaves out", "add its columns to the publication's column list"
        case "d":
            return "has no primary key and so no replica identity", f"add a primary key, or: {full}"
        case "n":
            return "has REPLICA IDENTITY NOTHING", back
        case _:
            return "has lost the index that was its replica identity", back


def refuse_uncapturable(definition: Definition, *, computed: bool) -> None:
    """Raises SourceError when updates and deletes of the table could not be published; publishing it would break them at the source.

    computed: the publication publishes stored generated columns.
    """
    problem = identity_problem(definition, computed=computed)
    if problem is not None:
        raise SourceError(f"table {definition.table.qualified} {problem[0]}", hint=problem[1])
