"""`cdc init`: a commented cdc.toml for the tables that the source has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import invocation
from cdc.errors import ConfigError
from cdc.settings import interpolate

if TYPE_CHECKING:
    from cdc.source.catalog import SourceTable


def init(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Option(help="The database, as postgresql://user@host/database; ${NAME} is the environment's.")
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
    tables: list[SourceTable] = []
    if source is not None:
        try:
            dsn = interpolate(source, os.environ, conninfo=True)
        except KeyError as error:
            raise ConfigError(
                f"--source: the environment has no variable {error.args[0]}", hint=f"export {error.args[0]}=…"
            ) from None
        with connect(dsn, application="headwater-init", given_as="--source") as connection:
            tables = [table for table in find_tables(connection) if table.capturable and table.root_oid is None]
    text = "".join(f"{line}\n" for line in configuration(source, tables))
    write_new(path, text)
    left_out = sum(identity_problem(table.definition) is not None for table in tables)
    without = f" ({left_out} more cannot be captured as they are)" if left_out else ""
    typer.echo(f"wrote {path} for {len(tables) - left_out} tables{without}; next: edit it, then cdc doctor")


def write_new(path: Path, text: str) -> None:
    """Raises ConfigError when the file exists or the folder cannot be written to."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="move it away, or name another with --config") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
