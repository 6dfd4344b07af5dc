"""Which generations a cache has, and which of them is live: one hash beside the ledgers, and the pointer that applications read.

=============  =========================================================================================================
``live``       the number of the generation that readers see
``held``       while that is held: a word that is used only once
``building:N``  generation N is there, and readers have never seen it
``kept:N``     it was live before; up to when it is kept (Unix, seconds), or nothing
=============  =========================================================================================================

Where the hash is missing, the pointer says which is live; where that is missing, too, it is the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import ConfigError, StoreError
from sinks.cache import ledger
from sinks.cache.generationnames import FIRST, CacheGenerationNames
from sinks.cache.server import Server
from sinks.generations import GenerationEntry, GenerationState, HeldWatch

_LIVE: Final = "live"
_HELD: Final = "held"
_BUILDING: Final = "building:"
_KEPT: Final = "kept:"


class CacheGenerationReplaced(StoreError):
    """The generation is not the live one, or not held as it was: somebody has put another in its place meanwhile."""

    def __init__(self, store: str) -> None:
        super().__init__(f"store {store}: this generation is no longer the live one, or is being replaced", retryable=True)


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """As it was read. ``others``: those that are not live."""

    live: int
    held: str | None
    others: Mapping[int, GenerationEntry]
    says_so: bool
    """Whether the hash says which is live."""
    points: bytes | None
    """What the pointer holds."""

    @property
    def entries(self) -> list[GenerationEntry]:
        """By number."""
        live = {self.live: GenerationEntry(self.live, GenerationState.LIVE)}
        return sorted({**self.others, **live}.values(), key=lambda one: one.number)


@dataclass(frozen=True, slots=True)
class CacheRegister:
    """One store's. ``pointer``: the key that applications read, where there is one."""

    server: Server
    store: str
    pointer: str | None

    @property
    def key(self) -> str:
        return f"cdc:{{{self.store}}}:generations"

    def read(self) -> CacheRecord:
        return self.server.ask(lambda client: self._record(client.hgetall(self.key), self._points(client)))

    def chosen(self, watch: HeldWatch | None) -> int:
        """The number of the live one, which is the one to work on. ``watch``: a writer's. Raises StoreError (retryable) while another process is about to put
        another one in its place, and seems to live; ConfigError where readers could not find it."""
        record = self.read()
        if watch is not None and record.held is not None:
            if not watch.forgotten(record.held):
                raise StoreError(f"store {self.store}: another generation is about to take the live one's place", retryable=True)
            self.let_go(record.held)
        if record.live != FIRST and self.pointer is None:
            raise ConfigError(
                f"store {self.store}: its readers see generation {record.live}, whose keys begin with {self._prefix(record.live)}, and no `pointer` says so",
                hint=f"set pointer in [stores.{self.store}] as it was",
            )
        return record.live

    def note(self, number: int) -> None:
        """This generation is about to be built, unless it is known already."""

        def change(pipe: Any) -> None:
            record = self._looked(pipe)
            if number not in record.others and number != record.live:
                pipe.hset(self.key, f"{_BUILDING}{number}", "")

        self._change(change)

    def point(self, number: int) -> None:
        """Puts pointer and hash right, where they are not as they should be for the live one. Raises StoreError (retryable) when that is another, or is held."""
        assert self.pointer is not None

        def change(pipe: Any) -> None:
            record = self._looked(pipe)
            if record.live != number or record.held is not None:
                raise CacheGenerationReplaced(self.store)
            if record.points != self._prefix(number).encode():
                pipe.set(self.pointer, self._prefix(number))
            if not record.says_so:
                pipe.hset(self.key, _LIVE, number)

        self._change(change)

    def hold(self, word: str) -> ledger.Fields:
        """The live generation's ledger takes nothing from the writer that it had, as it is then of an older epoch than that one knows. Returns the ledger. Raises
        StoreError (retryable) where there is none."""
        found: dict[str, str] = {}

        def change(pipe: Any) -> None:
            live = self._looked(pipe, queued=False).live
            of_live = ledger.key_of(self._names(live).owner)
            pipe.watch(of_live)
            found.clear()
            found.update(ledger.fields_of(pipe.hgetall(of_live)))
            if not found.get("log"):
                raise StoreError(f"store {self.store}: its live generation has no ledger at present", retryable=True)
            pipe.multi()
            pipe.hset(self.key, mapping={_LIVE: live, _HELD: word})
            pipe.hset(of_live, "epoch", max(0, ledger.epoch_of(found) - 1))

        self._change(change)
        return found

    def let_go(self, word: str) -> bool:
        """The generation that is held by this word is live as before; False where it is not held by it."""
        there = [False]

        def change(pipe: Any) -> None:
            there[0] = self._looked(pipe).held == word
            if there[0]:
                pipe.hdel(self.key, _HELD)

        self._change(change)
        return there[0]

    def swap(self, word: str, number: int, until: float | None) -> None:
        """In one transaction. Raises StoreError (retryable) when the live one is not held by this word."""
        assert self.pointer is not None

        def change(pipe: Any) -> None:
            record = self._looked(pipe)
            if record.held != word:
                raise CacheGenerationReplaced(self.store)
            kept = "" if until is None else str(math.ceil(until))
            pipe.hset(self.key, mapping={_LIVE: number, f"{_KEPT}{record.live}": kept})
            pipe.hdel(self.key, _HELD, f"{_BUILDING}{number}", f"{_KEPT}{number}")
            pipe.set(self.pointer, self._prefix(number))

        self._change(change)

    def forget(self, number: int) -> None:
        """It has been removed."""
        self.server.ask(lambda client: client.hdel(self.key, f"{_BUILDING}{number}", f"{_KEPT}{number}"))

    def erase(self) -> None:
        keys = [self.key] if self.pointer is None else [self.key, self.pointer]
        self.server.ask(lambda client: client.delete(*keys))

    def _looked(self, pipe: Any, *, queued: bool = True) -> CacheRecord:
        """As it is, being watched. ``queued``: from here on commands wait for the end, and are carried out only if it has not changed meanwhile."""
        record = self._record(pipe.hgetall(self.key), self._points(pipe))
        if queued:
            pipe.multi()
        return record

    def _change(self, change: Callable[[Any], None]) -> None:
        """``change`` is called again where somebody else has changed something meanwhile."""
        watched = [self.key] if self.pointer is None else [self.key, self.pointer]
        self.server.ask(lambda client: client.transaction(change, *watched))

    def _points(self, client: Any) -> bytes | None:
        found: bytes | None = None if self.pointer is None else client.get(self.pointer)
        return found

    def _record(self, raw: Mapping[Any, Any], points: bytes | None) -> CacheRecord:
        fields, others = ledger.fields_of(raw), dict[int, GenerationEntry]()
        for name, text in fields.items():
            for kind, state in ((_BUILDING, GenerationState.BUILDING), (_KEPT, GenerationState.KEPT)):
                number = name.removeprefix(kind)
                if number != name and number.isascii() and number.isdecimal():
                    until = float(text) if text.isascii() and text.isdecimal() else None
                    others[int(number)] = GenerationEntry(int(number), state, until)
        live = fields.get(_LIVE, "")
        if live.isascii() and live.isdecimal():
            return CacheRecord(int(live), fields.get(_HELD), others, True, points)
        pointed = FIRST
        with suppress(UnicodeDecodeError):
            pointed = self._names(FIRST).of((points or b"").decode()).number
        return CacheRecord(pointed, fields.get(_HELD), others, False, points)

    def _names(self, number: int) -> CacheGenerationNames:
        return CacheGenerationNames(self.store, number)

    def _prefix(self, number: int) -> str:
        return self._names(number).prefix
