"""A cache's generations: listed, held, put in each other's place, removed. See ``sinks.generations``."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.lineage import Mark
from cdc.model.position import Cut
from sinks.cache import ledger
from sinks.cache.erasure import bound, ways_of
from sinks.cache.generationnames import CacheGenerationNames
from sinks.cache.options import Options
from sinks.cache.register import CacheGenerationReplaced, CacheRegister
from sinks.cache.rowreader import scanned
from sinks.cache.seenkeys import SeenKeys
from sinks.cache.server import Server
from sinks.cache.sink import CacheSink
from sinks.generations import Generation, GenerationEntry, GenerationSize

_DAMAGED: Final = (ValueError, KeyError, TypeError)


class CacheGenerations:
    """See ``sinks.generations.Generations``."""

    def __init__(self, name: str, options: Options) -> None:
        """``options``: with a pointer."""
        self.name = name
        self._options = options
        self._server = Server(name, options)
        self._register = CacheRegister(self._server, name, options.pointer)
        self._held: str | None = None
        """The word by which this process holds the live generation."""

    def all(self) -> Sequence[Generation]:
        found = [(one, self._ledger(one.number)) for one in self.entries()]
        return [Generation(one.number, one.state, _mark(fields), one.until) for one, fields in found]

    def entries(self) -> Sequence[GenerationEntry]:
        record = self._register.read()
        # A store that was never written has not even its first.
        there = record.says_so or record.others or self._ledger(record.live)
        return record.entries if there else []

    def size(self, number: int) -> GenerationSize:
        prefixes = {keys.prefix for keys, _ in bound(ways_of(self._ledger(number)))}
        seen = SeenKeys()
        found = (pa.array(names, pa.large_binary()) for prefix in prefixes for names in scanned(self._server, prefix))
        return GenerationSize(sum(len(seen.fresh(names)) for names in found), None)

    def sink(self, number: int) -> CacheSink:
        return CacheSink(self.name, self._options, generation=number)

    def hold(self) -> Cut:
        held = self._register.read().held
        if held is not None:  # by a process that is gone
            self._register.let_go(held)
        word = uuid.uuid4().hex
        fields = self._register.hold(word)
        self._held = word
        crashpoint("generations.cache_held")
        return ledger.cut_of(fields)

    def release(self) -> None:
        if self._held is not None:
            word, self._held = self._held, None
            self._register.let_go(word)  # or somebody has waited long enough

    def swap(self, number: int, until: float | None) -> None:
        if self._held is None:
            raise CacheGenerationReplaced(self.name)
        crashpoint("generations.cache_before_swap")
        self._register.swap(self._held, number, until)
        self._held = None
        crashpoint("generations.cache_swapped")

    def drop(self, number: int) -> None:
        if self._register.read().live == number:
            raise StoreError(f"store {self.name}: generation {number} is live", retryable=False, hint=f"cdc rollback {self.name}")
        with closing(self.sink(number)) as sink:
            sink.erase()
        crashpoint("generations.cache_erased")
        self._register.forget(number)

    def close(self) -> None:
        self._server.close()

    def _ledger(self, number: int) -> ledger.Fields:
        key = ledger.key_of(CacheGenerationNames(self.name, number).owner)
        raw: Any = self._server.ask(lambda client: client.hgetall(key))
        return ledger.fields_of(raw)


def _mark(fields: ledger.Fields) -> Mark | None:
    """None where there is no ledger, or one of nobody's."""
    try:
        return Mark(fields["log"], fields["history"], ledger.cut_of(fields)) if fields.get("log") else None
    except _DAMAGED:
        return None
