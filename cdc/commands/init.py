"""`cdc init`: a commented cdc.toml for the tables that the source has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from psycopg.conninfo import make_conninfo

from cdc.commands.invocation import invocation
from cdc.errors import ConfigError
from cdc.settings import interpolate
from cdc.source.catalog import SourceTable, find_tables
from cdc.source.connection import connect, parse
from cdc.source.publication import identity_problem

PLACEHOLDER_DSN = "postgresql://cdc@localhost:5432/postgres"
PASSWORD_VARIABLE = "CDC_SOURCE_PASSWORD"
MANY_TABLES = 40
"""From here on the file lists schemas instead of tables."""


def init(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Option(help="The database, as postgresql://user@host/database; ${NAME} is the environment's.")
    ] = None,
) -> None:
    """Write a commented cdc.toml for the tables it finds. Refuses to overwrite one."""
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
        with connect(dsn, application="headwater-init") as connection:
            tables = [table for table in find_tables(connection) if table.capturable and table.root_oid is None]
    text = "".join(f"{line}\n" for line in configuration(source, tables))
    write_new(path, text)
    typer.echo(f"wrote {path} for {len(tables)} tables; next: edit it, then cdc doctor")


def write_new(path: Path, text: str) -> None:
    """Raises ConfigError when the file exists or the folder cannot be written to."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="move it away, or name another with --config") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def configuration(source: str | None, tables: Sequence[SourceTable]) -> Iterator[str]:
    """The lines of a cdc.toml. A password in ``source`` is left out."""
    dsn, had_password = without_password(source or PLACEHOLDER_DSN)
    patterns = _patterns(tables)
    yield '# Headwater. Every key: README.md, "Configuration". ${NAME} in a value is the environment\'s variable NAME.'
    yield ""
    yield "[source]"
    if had_password:
        yield f"# The password is not written here: export {PASSWORD_VARIABLE}, or use a passfile (~/.pgpass) and leave it out."
    yield f"dsn = {_string(dsn)}"
    yield f"tables = [{', '.join(map(_string, patterns))}]      # schema.table, * and ? match, !pattern takes out"
    for table in tables:
        problem = identity_problem(table)
        if problem is not None:
            yield f"# {table.name} {problem[0]}; to capture it: {problem[1]}"
    yield 'slot = "cdc"                    # made by `cdc doctor --fix` or on first run'
    yield 'publication = "cdc"'
    yield ""
    yield "[log]"
    yield 'dir = "var/log"                 # on a disk that fsync can be trusted on'
    yield ""
    yield "# One table for each derived store. Uncomment what you have."
    yield "# [stores.search]"
    yield '# kind = "opensearch"'
    yield '# url = "http://127.0.0.1:9200"'
    yield f"# tables = [{', '.join(map(_string, patterns[:2]))}]"
    yield "#"
    yield "# [stores.cache]"
    yield '# kind = "redis"'
    yield '# url = "redis://127.0.0.1:6379/0"'
    yield "#"
    yield "# [stores.warehouse]"
    yield '# kind = "iceberg"'
    yield '# path = "var/warehouse"'
    yield ""
    yield "[http]"
    yield 'listen = "127.0.0.1:8642"       # status page, API and metrics; loopback only'


def without_password(dsn: str) -> tuple[str, bool]:
    """The DSN with ${CDC_SOURCE_PASSWORD} in its password's place, and whether it had one. A ${NAME} that is there stays."""
    if "${" in dsn:
        return dsn, False
    parts = parse(dsn)
    if "password" not in parts:
        return dsn, False
    del parts["password"]
    return f"{make_conninfo(**parts)} password=${{{PASSWORD_VARIABLE}}}".strip(), True


def _patterns(tables: Sequence[SourceTable]) -> list[str]:
    capturable = [table for table in tables if identity_problem(table) is None]
    if not capturable:
        return ["public.*"]
    if len(capturable) < MANY_TABLES:
        return [table.name for table in capturable]
    refused = [f"!{table.name}" for table in tables if identity_problem(table) is not None]
    return sorted({f"{table.table.schema}.*" for table in capturable}) + refused


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML basic string
