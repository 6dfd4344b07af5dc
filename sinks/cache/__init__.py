"""Redis (or Valkey) as a derived store: one row is one key that holds JSON, or a hash."""

from sinks.cache.sink import Options, make

__all__ = ["Options", "make"]
