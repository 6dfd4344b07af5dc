"""Redis (or Valkey) as a derived store: one row is one key that holds JSON, or a hash."""

from sinks.cache.generations import CacheGenerations as generations
from sinks.cache.lanesink import make
from sinks.cache.options import Options
from sinks.cache.sink import traits

__all__ = ["Options", "generations", "make", "traits"]
