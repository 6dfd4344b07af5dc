"""`cdc init`: a commented cdc.toml for the tables that the source has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdc.commands.invocation import invocation
from cdc.commands.output import say
from cdc.errors import ConfigError
from cdc.settings.interpolation import holds_secret, interpolate
from cdc.terminal import counted

PASSWORD_VARIABLE: Final = "CDC_SOURCE_PASSWORD"

if TYPE_CHECKING:
    from cdc.source.catalog import CatalogTable


def init(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Option(
            help="The database, as postgresql://user@host/database; for a password write '${NAME}', in single quotes: it stays in the file, and is read from the environment."
        ),
    ] = None,
) -> None:
    """Write a commented cdc.toml for the tables it finds. Refuses to overwrite one."""
    from cdc.commands.starter import configuration
    from cdc.source.capturable import identity_problem
    from cdc.source.catalog import find_tables
    from cdc.source.connection import connect

    path = invocation(context).config
    if path.exists():
        raise ConfigError(f"{path} exists already", hint="move it away, or name another with --config")
    tables: list[CatalogTable] = []
    if source is not None:
        dsn = given_source(source)
        with connect(dsn, application="headwater-init", given_as="--source") as connection:
            tables = [table for table in find_tables(connection) if table.capturable and table.root_oid is None]
    text = "".join(f"{line}\n" for line in configuration(source, tables))
    write_new(path, text)
    left_out = sum(identity_problem(table.definition) is not None for table in tables)
    without = f" ({left_out} more cannot be captured as they are)" if left_out else ""
    found = (
        "without looking at a database (--source)" if source is None else f"for {counted(len(tables) - left_out, 'table')}{without}"
    )
    say(f"wrote {path} {found}; next: edit it, then cdc doctor")


def given_source(source: str) -> str:
    """The DSN of ``--source``, with the environment's variables in it. Raises ConfigError for one that holds a password."""
    if holds_secret(source, address=True):
        raise ConfigError(
            "--source holds a password, which every user of this machine can see among its processes",
            hint=f"export {PASSWORD_VARIABLE}=… and write '${{{PASSWORD_VARIABLE}}}' for it, in single quotes; or use a passfile (~/.pgpass)",
        )
    try:
        return interpolate(source, os.environ, conninfo=True)
    except KeyError as error:
        raise ConfigError(f"--source: the environment has no variable {error.args[0]}", hint=f"export {error.args[0]}=…") from None


def write_new(path: Path, text: str) -> None:
    """Raises ConfigError when the file exists or the folder cannot be written to."""
    try:
        # A password may be written into it later; nobody need think of its mode then.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="move it away, or name another with --config") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
