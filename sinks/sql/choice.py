"""Which database a store's URL names."""

from __future__ import annotations

from sinks.sql.dialect import Dialect
from sinks.sql.options import Options


def dialect_of(options: Options) -> Dialect:
    """Each is loaded only where it is used."""
    if options.file is not None:
        from sinks.sql.duck import DuckDialect

        return DuckDialect()
    from sinks.sql.postgres import PostgresDialect

    return PostgresDialect()
