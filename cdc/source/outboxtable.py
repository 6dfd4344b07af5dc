"""The outbox table in the database: what makes it, and what of that is missing there. Each statement may be run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc.errors import ConfigError, SourceError
from cdc.outbox.router import MAX_NAME_BYTES, UnfitTable, check
from cdc.settings.models import Settings
from cdc.settings.outbox import Outbox
from cdc.source.catalog import CatalogTable, find_tables
from cdc.source.connection import parse, reason
from cdc.source.options import effective
from cdc.source.publication import add_tables, read_publication


@dataclass(frozen=True, slots=True)
class OutboxSetup:
    """``role``: the one that capture connects as, which reads the table and, where rows are removed, deletes from it."""

    outbox: Outbox
    role: str
    publication: str

    @classmethod
    def of(cls, settings: Settings) -> OutboxSetup:
        """Raises ConfigError where there is no outbox, or the source's DSN does not say the role."""
        if settings.outbox is None:
            raise ConfigError(
                "cdc.toml has no outbox", hint='add the section [outbox] with table = "public.outbox" (docs/outbox.md)'
            )
        parts = parse(settings.source.dsn.get_secret_value())
        role = parts.get("user") or effective(parts).get("user")
        if not role:
            raise ConfigError(
                "source.dsn does not say which role capture connects as", hint="write postgresql://ROLE@host/database"
            )
        return cls(settings.outbox, role, settings.source.publication)

    def create(self) -> sql.Composed:
        """The table. What could be no event is refused when it is written."""
        columns = self.outbox.columns
        longest = MAX_NAME_BYTES - len(self.outbox.topic_name(""))
        parts = [
            sql.SQL("{} uuid primary key").format(sql.Identifier(columns.id)),
            sql.SQL("{0} text not null check (octet_length({0}) between 1 and {1})").format(
                sql.Identifier(columns.route), sql.Literal(longest)
            ),
            sql.SQL("{} text not null").format(sql.Identifier(columns.key)),
            sql.SQL("{} text not null").format(sql.Identifier(columns.type)),
            sql.SQL("{} jsonb").format(sql.Identifier(columns.payload)),
            *([sql.SQL("{} jsonb").format(sql.Identifier(columns.headers))] if columns.headers else []),
            *(sql.SQL("{} text").format(sql.Identifier(name)) for name in self._of_headers()),
            *([sql.SQL("{} timestamptz not null default now()").format(sql.Identifier(columns.time))] if columns.time else []),
        ]
        return sql.SQL("create table {} (\n  {}\n)").format(sql.Identifier(*self.outbox.parts), sql.SQL(",\n  ").join(parts))

    def _of_headers(self) -> list[str]:
        """The columns that are headers and nothing else."""
        own = {getattr(self.outbox.columns, field) for field in type(self.outbox.columns).model_fields}
        return [name for name in dict.fromkeys(self.outbox.headers.values()) if name not in own]

    def usage(self) -> sql.Composed:
        return sql.SQL("grant usage on schema {} to {}").format(sql.Identifier(self.outbox.parts[0]), sql.Identifier(self.role))

    @property
    def rights(self) -> tuple[str, ...]:
        """On the table."""
        return ("select",) if self.outbox.keep_s is None else ("select", "delete")

    def grant(self) -> sql.Composed:
        rights = sql.SQL(", ").join(map(sql.SQL, self.rights))
        return sql.SQL("grant {} on {} to {}").format(rights, sql.Identifier(*self.outbox.parts), sql.Identifier(self.role))

    def publish(self) -> sql.Composed:
        return sql.SQL("alter publication {} add table only {}").format(
            sql.Identifier(self.publication), sql.Identifier(*self.outbox.parts)
        )

    def statements(self) -> tuple[sql.Composed, ...]:
        """All of them, as for a database that has nothing yet but the publication."""
        return self.create(), self.usage(), self.grant(), self.publish()


def set_up(connection: psycopg.Connection, setup: OutboxSetup) -> Iterator[str]:
    """Runs what is missing, and gives each statement once it has been run. connection: in autocommit, as the owner of the table.

    Raises ConfigError for a table that is there and cannot be an outbox, SourceError for what the role may not do.
    """
    found = _find(connection, setup)
    if found is None:
        yield _run(connection, setup.create())
        found = _find(connection, setup)
    if found is None:
        raise SourceError(f"{setup.outbox.table} was removed just after it was made", hint="cdc outbox init")
    try:
        check(found.table, setup.outbox)
    except UnfitTable as unfit:
        raise ConfigError(
            f"{setup.outbox.table} cannot be an outbox: {unfit}", hint="correct outbox.table or [outbox.columns] in cdc.toml"
        ) from None
    if not _holds(connection, "select has_schema_privilege(%s, %s::regnamespace, 'usage')", setup.role, _schema(setup)):
        yield _run(connection, setup.usage())
    table = sql.Identifier(*setup.outbox.parts).as_string()
    if not all(
        _holds(connection, "select has_table_privilege(%s, %s::regclass, %s)", setup.role, table, right) for right in setup.rights
    ):
        yield _run(connection, setup.grant())
    publication = read_publication(connection, setup.publication)
    if publication is not None and found.name not in publication.tables:
        add_tables(connection, setup.publication, [found], computed=publication.computed)
        yield setup.publish().as_string(connection)


def refusals(outbox: Outbox, found: Sequence[CatalogTable]) -> Iterator[ConfigError]:
    """Whatever of the database's tables does not go together with the outbox, or is missing for it."""
    taken = next((table for table in found if table.capturable and table.table.schema == outbox.topic_schema), None)
    if taken is not None:
        yield ConfigError(
            f"outbox.topic: the database has a table {taken.name}, and the topics of events have such names",
            hint='write another topic in [outbox], such as "events.{route}"',
        )
    if not outbox.table:
        return
    own = next((table for table in found if table.table.parts == outbox.parts), None)
    if own is None:
        yield ConfigError(f"outbox.table: {outbox.table} does not exist", hint="cdc outbox init")
        return
    try:
        check(own.table, outbox)
    except UnfitTable as unfit:
        yield ConfigError(
            f"outbox.table: {outbox.table} cannot be an outbox: {unfit}",
            hint="correct outbox.table or [outbox.columns] in cdc.toml",
        )


def lacks_right_to_delete(connection: psycopg.Connection, setup: OutboxSetup) -> bool:
    """Whether rows would stay. Raises SourceError where the table does not exist."""
    table = sql.Identifier(*setup.outbox.parts).as_string()
    return not all(
        _holds(connection, "select has_table_privilege(current_user, %s::regclass, %s)", table, right) for right in setup.rights
    )


def is_published(connection: psycopg.Connection, setup: OutboxSetup) -> bool | None:
    """Whether the publication has the table; None where there is no publication yet."""
    publication = read_publication(connection, setup.publication)
    return None if publication is None else setup.outbox.table in publication.tables


def rows_left(connection: psycopg.Connection, outbox: Outbox) -> int:
    """How many rows the table has now. Raises SourceError."""
    try:
        row = connection.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(*outbox.parts))).fetchone()
    except psycopg.Error as error:
        raise SourceError(f"cannot count the rows of {outbox.table}: {reason(error)}", hint="cdc outbox init") from None
    assert row is not None
    return int(row[0])


def _find(connection: psycopg.Connection, setup: OutboxSetup) -> CatalogTable | None:
    return next((table for table in find_tables(connection) if table.table.parts == setup.outbox.parts), None)


def _schema(setup: OutboxSetup) -> str:
    return sql.Identifier(setup.outbox.parts[0]).as_string()


def _holds(connection: psycopg.Connection, question: str, *arguments: str) -> bool:
    try:
        row = connection.execute(question.encode(), arguments).fetchone()
    except psycopg.Error as error:
        raise SourceError(f"cannot set up the outbox: {reason(error)}", hint="cdc doctor") from None
    return bool(row and row[0])


def _run(connection: psycopg.Connection, statement: sql.Composed) -> str:
    text = statement.as_string(connection)
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"role {connection.info.user!r} may not set up the outbox: {reason(error)}",
            hint="cdc outbox init --source with the tables' owner; or cdc outbox init --sql, for whoever may",
        ) from None
    except psycopg.Error as error:
        raise SourceError(
            f"cannot set up the outbox: {reason(error)}", hint="cdc outbox init --sql prints the statements"
        ) from None
    return text
