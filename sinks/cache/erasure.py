"""Everything that a store name ever put on a server, taken away: whoever wrote it, and nothing else.

Here, and where a store is built again (``rebuild``), keys are found by looking at the server: they may be another log's, which nobody here can
ask. A key below one of the store's prefixes goes when it is a row by its own content (``sinks.cache.rowreader``).

First the ledger is made nobody's, so that every writer is refused; last it goes itself. Interrupted, it is done again from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema
from sinks.cache import ledger, neighbours, rowreader
from sinks.cache.keytemplate import TableKeys, bind
from sinks.cache.ledger import Projection
from sinks.cache.server import Server
from sinks.cache.transactions import Answers, Commands, RedisTransactions, lost
from sinks.cache.values import Form, form_of
from sinks.cache.wire import command


def erase(store: str, server: Server, transactions: RedisTransactions) -> None:
    """Raises StoreError when the server is down, or somebody else begins to write there."""
    key, letters = ledger.key_of(store), ledger.letters_of(store)
    ways: list[tuple[TableKeys, Form]] = []

    def ours(fields: ledger.Fields) -> Commands | None:
        ways[:] = bound(ways_of(fields))
        return [command("HSET", key, "log", "")] if fields else None

    def only_while_nobody_s(*commands: bytes) -> None:
        def decide(found: Answers) -> Commands:
            if found != [b""]:
                raise lost(store)
            return commands

        transactions.change(["log"], decide)

    if transactions.change_whole(ours):
        for keys, form in ways:
            neighbours.tell_lost(server, store, keys)
            for names in rowreader.scanned(server, keys.prefix):
                _, found = rowreader.read(server, store, keys.schema.topic, names, form)
                mine, _ = rowreader.rows_of(names, found, keys, form)
                if mine:
                    only_while_nobody_s(command("DEL", *mine))
            neighbours.tell_lost(server, store, keys)
        neighbours.leave(server, store)
        only_while_nobody_s(command("DEL", key, letters))


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a row of a store may stand there."""

    projection: Projection
    schema: TopicSchema

    @staticmethod
    def encode_all(ways: Iterable[Way]) -> str:
        """As ``ledger.REBUILDING`` has it."""
        return json.dumps([[way.projection.encode(), way.schema.to_json()] for way in ways], ensure_ascii=False)


def bound(ways: Iterable[Way]) -> Iterator[tuple[TableKeys, Form]]:
    """The keys and values of each, but for those in which no row of its table can ever have been named, or has been written."""
    for way in ways:
        with suppress(ConfigError):
            keys = bind(way.projection.of(way.schema).key, way.schema, way.projection.lane)
            form = form_of(way.projection, way.schema)
            if form.keeps:
                yield keys, form


def lanes_of(fields: ledger.Fields) -> int:
    """Into how many lanes its store was ever divided, as far as a ledger says; 0: into none."""
    return max((way.projection.lane.of for way in ways_of(fields) if way.projection.lane is not None), default=0)


_DAMAGED: Final = (ValueError, KeyError, TypeError, RecursionError)


def ways_of(fields: ledger.Fields) -> list[Way]:
    """Every one that the ledger names. A damaged field says nothing; the others still do."""
    projections: list[Projection] = []
    with suppress(*_DAMAGED):
        projections.append(Projection.decode(fields["projection"]))
    with suppress(*_DAMAGED):
        projections += map(Projection.decode, json.loads(fields.get("former", "[]")))
    found: dict[Way, None] = {}
    for name, text in fields.items():
        if name.startswith(("shape:", "coming:")):
            with suppress(*_DAMAGED):
                schema = ledger.decode_shape(text).schema
                found.update((Way(projection, schema), None) for projection in projections)
    with suppress(*_DAMAGED):
        for projection, schema_text in json.loads(fields.get(ledger.REBUILDING, "[]")):
            found[Way(Projection.decode(projection), TopicSchema.from_json(schema_text))] = None
    return list(found)
