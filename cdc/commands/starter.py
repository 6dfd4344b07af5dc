"""The text of a new cdc.toml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from cdc.model.selection import literal
from cdc.source.capturable import identity_problem
from cdc.source.catalog import CatalogTable
from cdc.terminal import visible
from sinks import KINDS, options_model

PLACEHOLDER_DSN: Final = "postgresql://cdc@localhost:5432/postgres"
MANY_TABLES: Final = 40
"""From here on the file lists schemas instead of tables."""


def configuration(source: str | None, tables: Sequence[CatalogTable]) -> Iterator[str]:
    """The lines of a cdc.toml. source: the DSN with ${NAME} for its password, if it has one."""
    dsn = source or PLACEHOLDER_DSN
    patterns = _patterns(tables)
    yield "# Headwater. Every key: docs/configuration.md. ${NAME} in a value is the environment's variable NAME."
    yield ""
    yield "[source]"
    if "${" in dsn:
        yield "# ${NAME} is read from the environment at each start; a passfile (~/.pgpass) or dsn_file do as well."
    else:
        yield "# A password: ${NAME} for a variable of the environment, a passfile (~/.pgpass), or dsn_file with the whole DSN."
    yield f"dsn = {_string(dsn)}"
    yield f"tables = [{', '.join(map(_string, patterns))}]      # schema.table, * and ? match, !pattern takes out"
    for table in tables:
        problem = identity_problem(table.definition)
        if problem is not None:
            yield _comment(f"{table.name} {problem[0]}; to capture it: {problem[1]}")
    yield 'slot = "cdc"                    # made by `cdc doctor --fix` or on first run'
    yield 'publication = "cdc"'
    yield ""
    yield "[log]"
    yield 'dir = "var/log"                 # on a disk that fsync can be trusted on'
    yield ""
    yield "# One table for each derived store. Uncomment what you have."
    yield from _stores(patterns)
    yield ""
    yield "[http]"
    yield 'listen = "127.0.0.1:8642"       # status page, API and metrics; loopback only'


def _stores(patterns: Sequence[str]) -> Iterator[str]:
    """A store of each kind that is proposed; the first shows how its tables are selected."""
    proposed = [(kind, *options_model(kind).example) for kind in KINDS if options_model(kind).example]
    for number, (kind, name, *lines) in enumerate(proposed):
        yield from (*(() if number == 0 else ("#",)), f"# [stores.{name}]", f"# kind = {_string(kind)}")
        yield from (f"# {line}" for line in lines)
        if number == 0:
            yield f"# tables = [{', '.join(map(_string, patterns[:2]))}]"


def _patterns(tables: Sequence[CatalogTable]) -> list[str]:
    capturable = [table for table in tables if identity_problem(table.definition) is None]
    if not capturable:
        return ["public.*"]
    if len(capturable) < MANY_TABLES:
        return [literal(table.name) for table in capturable]
    refused = [f"!{literal(table.name)}" for table in tables if identity_problem(table.definition) is not None]
    return sorted({f"{literal(table.table.schema)}.*" for table in capturable}) + refused


def _comment(text: str) -> str:
    """A name may hold whatever would end a TOML comment or not be allowed in one."""
    return f"# {visible(text)}"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML basic string
