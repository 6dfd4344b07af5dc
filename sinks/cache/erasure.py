"""Everything that a store name ever put on a server, taken away: whoever wrote it, and nothing else.

This is the one place where keys are found by looking at the server: they may be another log's, which nobody here can ask. A key below one of
the store's prefixes goes when it is a row by its own content (``sinks.cache.rowreader``).

First the ledger is made nobody's, so that every writer is refused; last it goes itself. Interrupted, it is done again from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
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
        ways[:] = _ways(fields)
        return [command("HSET", key, "log", "")] if fields else None

    def only_while_nobody_s(*commands: bytes) -> None:
        def decide(found: Answers) -> Commands:
            if found != [b""]:
                raise lost(store)
            return commands

        transactions.change(["log"], decide)

    if transactions.change_whole(ours):
        crashpoint("erasing.ledger_nobodys")
        for keys, form in ways:
            neighbours.tell_lost(server, store, keys)
            for names in rowreader.scanned(server, keys.prefix):
                _, found = rowreader.read(server, store, keys.schema.topic, names, form)
                mine, _ = rowreader.rows_of(names, found, keys, form)
                if mine:
                    only_while_nobody_s(command("DEL", *mine))
                    crashpoint("erasing.keys")
            neighbours.tell_lost(server, store, keys)
        neighbours.leave(server, store)
        only_while_nobody_s(command("DEL", key, letters))


def _ways(fields: ledger.Fields) -> Iterator[tuple[TableKeys, Form]]:
    """Every way in which a row of the store may stand there. A damaged field says nothing; the others still do."""
    projections: list[Projection] = []
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        projections.append(Projection.decode(fields["projection"]))
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        projections += map(Projection.decode, json.loads(fields.get("former", "[]")))
    for name, text in fields.items():
        if name.startswith(("shape:", "coming:")):
            for projection in dict.fromkeys(projections):
                with suppress(ValueError, KeyError, TypeError, RecursionError, ConfigError):
                    schema = ledger.decode_shape(text).schema
                    yield bind(projection.of(schema).key, schema), form_of(projection, schema)
