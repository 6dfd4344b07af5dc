"""Other stores on the same server, ours or another service's: which keys they write, by their ledgers, which one hash names (``ledger.stores_of``).

No two stores write the same key, not even the same row of one log in one form: the one that is behind, as it is paused or still being filled, would take the
other's rows back in time. Only what a table has left behind in one store may be taken over by another. And a store that takes keys away which another one writes, too, says so in that one's ledger: the table's progress goes, before and after, so
that whatever the other writes meanwhile counts as lost as well, and is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from cdc.errors import ConfigError, StoreError
from sinks.cache import ledger
from sinks.cache.keytemplate import TableKeys, bind
from sinks.cache.ledger import CacheLedger
from sinks.cache.namepattern import may_meet, pattern_of
from sinks.cache.server import Server


@dataclass(frozen=True, slots=True)
class Claim:
    """A table's keys, as a store of this log writes them."""

    log: str
    keys: TableKeys
    left: bool = False
    """The table is no longer followed there: its rows stay as they were."""

    def meets(self, other: Claim) -> bool:
        """Whether a row of one may have the key of a row of the other: as far as their types show it, and whatever these are where the templates are the same."""
        return _form(self.keys) == _form(other.keys) or may_meet(pattern_of(self.keys), pattern_of(other.keys))

    def may_take(self, other: Claim) -> bool:
        """Whether the other one has left these keys to us."""
        return other.left and (self.log, self.keys.schema.topic) == (other.log, other.keys.schema.topic)


def register(server: Server, store: str) -> None:
    _ask(server, lambda client: client.hset(ledger.stores_of(store), store, ""))


def leave(server: Server, store: str) -> None:
    _ask(server, lambda client: client.hdel(ledger.stores_of(store), store))


def refuse_shared(server: Server, store: str, claims: list[Claim]) -> None:
    """Raises StoreError where a key of one of these may be another store's."""
    if not claims:
        return
    for other, theirs in _others(server, store):
        for claim in claims:
            if claim.meets(theirs) and not claim.may_take(theirs):
                raise _shared(store, claim.keys, other, theirs.keys)


def _shared(store: str, keys: TableKeys, other: str, theirs: TableKeys) -> StoreError:
    nobody = f"if nobody follows store {other} on this server: DEL '{ledger.key_of(other)}'"
    mine, its = keys.schema.topic, theirs.schema.topic
    if keys.prefix == theirs.prefix:
        what, helps = f"the keys of {mine} are those of {its} in store {other}", "give one of the two stores another `key`"
    else:
        begin = f"they begin with {keys.prefix}, those with {theirs.prefix}"
        what = f"keys of {mine} could be those of {its} in store {other}: {begin}"
        helps = "give one of the two stores a `key` that begins differently, so that neither beginning is the other's, too"
    return StoreError(f"store {store}: {what}", retryable=True, hint=f"{helps}; {nobody}")


def taken(server: Server, store: str, keys: TableKeys) -> bool:
    """Whether keys of this form are another store's, which keeps them up."""
    mine = Claim("", keys)
    return any(mine.meets(theirs) and not theirs.left for _, theirs in _others(server, store))


def tell_lost(server: Server, store: str, keys: TableKeys) -> None:
    """Keys of this form are taken away, or have just been: every other store that writes them has lost its table's rows."""
    gone = Claim("", keys)
    for other, theirs in _others(server, store):
        if gone.meets(theirs):
            topic = theirs.keys.schema.topic
            _ask(server, partial(_forget, name=ledger.key_of(other), field=f"at:{topic}"))


def _others(server: Server, store: str) -> Iterator[tuple[str, Claim]]:
    names: list[bytes] = _ask(server, lambda client: client.hkeys(ledger.stores_of(store))) or []
    for other in sorted(name.decode(errors="replace") for name in names):
        if other != store:
            for claim in _claims(server, other):
                yield other, claim


def _claims(server: Server, store: str) -> Iterator[Claim]:
    fields: Mapping[bytes, bytes] = _ask(server, lambda client: client.hgetall(ledger.key_of(store))) or {}
    try:
        held = CacheLedger.decode({name.decode(): text.decode() for name, text in fields.items()})
    except (ValueError, KeyError, TypeError):
        return  # there is none, or nobody can read it
    if not held.log:
        return  # it is being erased
    for projection in dict.fromkeys((held.projection, *held.former)):
        for topic in (*held.prefixes, *held.left):
            for shapes in (held.shapes, held.coming):
                with suppress(ConfigError, KeyError):
                    schema = shapes[topic].schema
                    yield Claim(held.log, bind(projection.of(schema).key, schema, projection.lane), topic in held.left)


def _form(keys: TableKeys) -> tuple[str, ...]:
    return (keys.prefix, *(literal for _, literal in keys.columns))


def _forget(client: redis.Redis, name: str, field: str) -> None:
    client.hdel(name, field)


def _ask(server: Server, question: Callable[[redis.Redis], Any]) -> Any:
    """None where the server's user may touch no keys but those of its own store: then nobody can tell who else is there."""

    def allowed(client: redis.Redis) -> Any:
        try:
            return question(client)
        except redis.exceptions.NoPermissionError:
            return None

    return server.ask(allowed)
