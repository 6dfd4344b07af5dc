"""Which database a store's URL names."""

from __future__ import annotations

from sinks.sql.dialect import Dialect
from sinks.sql.options import Options


def dialect_of(options: Options) -> Dialect:
    """Each is loaded only where it is used."""
    if options.file is not None:
        from sinks.sql.duck import Duck

        return Duck()
    from sinks.sql.postgres import Postgres

    return Postgres()
