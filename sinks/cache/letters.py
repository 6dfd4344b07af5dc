"""A store's dead letters, in a hash beside its ledger: a field for each, by its id, and one that counts the changes of a table that is set aside."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from cdc.model.position import Position
from sinks.cache import ledger
from sinks.cache.server import Server
from sinks.cache.transactions import RedisTransactions
from sinks.cache.wire import command
from sinks.deadletters import Letter, Letters
from sinks.render.texts import Texts

_ROWS: Final = "@rows"
"""Stands behind the table's name in the field that counts the changes of a table that is set aside: as no letter's id ends."""


class CacheLetters:
    """One store's. Not thread-safe."""

    def __init__(self, store: str, server: Server, transactions: RedisTransactions, beside: Callable[[], int] = lambda: 0) -> None:
        """``beside``: as for ``Letters``."""
        self._store = store
        self._beside = beside
        self._key = ledger.letters_of(store)
        self._server = server
        self._transactions = transactions
        self._known: Letters | None = None

    def reload(self) -> None:
        """Forgets what was known of them."""
        self._known = None

    @property
    def known(self) -> Letters:
        """As this process has read them, or has said that they are to be."""
        if self._known is None:
            self._known = Letters(self._store, self.read(), self._beside)
        return self._known

    def read(self) -> tuple[Letter, ...]:
        """As they are now."""
        raw: Mapping[Any, Any] = self._server.ask(lambda client: client.hgetall(self._key))
        fields = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in raw.items()}
        found = (_letter(name, fields) for name in fields if not name.endswith(_ROWS))
        return tuple(sorted((one for one in found if one is not None), key=lambda one: one.position))

    def settled(self, fresh: Sequence[Letter], ended: Iterable[str]) -> list[bytes]:
        """The commands that record these and remove those; older letters of the same keys go, too. What is known is what they leave."""
        known = self.known
        newest = {(one.table, one.key): one.position for one in fresh}
        gone = {*ended, *(one.id for one in known.all if one.position < newest.get((one.table, one.key), 0))}
        added = known.refused(fresh)
        if len(known.fitting(added)) < len(added):
            raise known.too_many()
        known.remove(gone)
        known.add(added)
        items = [item for one in added for item in (one.id, one.to_json())]
        return [*([command("HDEL", self._key, *gone)] if gone else []), *([command("HSET", self._key, *items)] if items else [])]

    def of_table(self, topic: str, reason: str, lost: Sequence[int]) -> list[bytes]:
        """The commands that name a table that is set aside, once, and count its changes. ``lost``: their positions."""
        if not lost:
            return []
        fresh = Letter(topic, Position(lost[0]), reason, at_s=time.time(), rows=0, whole_table=True)
        letter = self.known.by_id.get(fresh.id, fresh)
        self.known.add([replace(letter, rows=letter.rows + len(lost))])
        return [
            command("HSETNX", self._key, letter.id, letter.to_json()),
            command("HINCRBY", self._key, f"{topic}{_ROWS}", len(lost)),
        ]

    def ended_before(self, topic: str, position: int, *, emptied: bool, again: Collection[int]) -> list[bytes]:
        """The commands that remove a table's, when it changes as a whole (``Letters.before``)."""
        before = self.known.before(topic, position, emptied=emptied, again=again)
        return self._removed([one for one in before if not self.known.by_id[one].whole_table])

    def table_held(self, topic: str) -> list[bytes]:
        """The commands that remove the letter of a table that the store can hold by now."""
        return self._removed([one.id for one in self.known.of(topic) if one.whole_table])

    def keep(self, letters: Collection[Letter]) -> None:
        if letters:
            self._transactions.settle(command("HSET", self._key, *(item for one in letters for item in (one.id, one.to_json()))))
            self.known.add(letters)

    def forget(self, ids: Collection[str]) -> None:
        if ids:
            self._transactions.settle(*self._removed(ids))

    def _removed(self, ids: Collection[str]) -> list[bytes]:
        found = [letter for one in ids if (letter := self.known.by_id.get(one)) is not None]
        fields = [*ids, *(f"{one.table}{_ROWS}" for one in found if one.whole_table)]
        self.known.remove(ids)
        return [command("HDEL", self._key, *fields)] if ids else []


def name_texts(names: Texts) -> pa.Array:
    """Names of keys, utf8."""
    return names.to_array().cast(pa.large_utf8()).cast(pa.utf8())


def _letter(name: str, fields: Mapping[str, str]) -> Letter | None:
    """None for what nobody here wrote."""
    try:
        letter = Letter.from_json(fields[name])
        if letter.id != name:
            return None
        return replace(letter, rows=int(fields[f"{letter.table}{_ROWS}"])) if letter.whole_table else letter
    except (ValueError, KeyError, TypeError):
        return None
