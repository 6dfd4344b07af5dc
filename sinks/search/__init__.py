"""OpenSearch as a derived store: one row is one document, versioned by position."""

from sinks.search.generations import SearchGenerations as generations
from sinks.search.sink import Options, make, traits

__all__ = ["Options", "generations", "make", "traits"]
