"""The parts that one generation of a cache is worked on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sinks.cache.cluster import LaneShare
from sinks.cache.generationnames import CacheGenerationNames
from sinks.cache.ledger import Projection
from sinks.cache.letters import CacheLetters
from sinks.cache.options import Options
from sinks.cache.rowwriter import Rowwriter
from sinks.cache.server import Server
from sinks.cache.transactions import RedisTransactions
from sinks.cache.values import shown


@dataclass(frozen=True, slots=True)
class CacheParts:
    """``projection``: with the generation's prefix."""

    names: CacheGenerationNames
    projection: Projection
    transactions: RedisTransactions
    letters: CacheLetters
    writing: Rowwriter

    def close(self) -> None:
        self.writing.close()


def parts_of(
    names: CacheGenerationNames,
    options: Options,
    server: Server,
    channel_of: Callable[[str], bytes],
    share: LaneShare | None = None,
) -> CacheParts:
    """``channel_of``: as for ``Rowwriter``."""
    projection = names.projection(Projection(options.template, options.value, shown(options.as_rules), options.table_rules))
    transactions = RedisTransactions(names.owner, server)
    beside = (lambda: 0) if share is None else share.letters_beside
    letters = CacheLetters(names.owner, server, transactions, beside)
    return CacheParts(names, projection, transactions, letters, Rowwriter(letters, transactions, channel_of))
