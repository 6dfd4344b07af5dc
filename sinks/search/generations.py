"""A search store's generations: listed, held, put in each other's place, removed. See ``sinks.generations``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import ZERO_CUT, Cut
from sinks.generations import Generation, GenerationEntry, GenerationSize, GenerationState
from sinks.render.choices import Choices
from sinks.search import fields
from sinks.search.indices import Found, by_alias, measured, searched, searching
from sinks.search.ledger import SearchLedger
from sinks.search.options import Options
from sinks.search.parts import Parts, parts_of, remove
from sinks.search.register import GenerationRegister, Registered
from sinks.search.shown import GenerationNames, GenerationReplaced, Shown, change_aliases, moved
from sinks.search.sink import SearchSink
from sinks.search.wire import Cluster

_UNDER_WAY_S: Final = 0.2
"""A commit that had found its way to the ledger before that was held has been written by then."""


class SearchGenerations:
    """See ``sinks.generations.Generations``."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._cluster = Cluster(name, options)
        self._register = GenerationRegister(self._cluster, name, options.index_pattern)
        self._held: tuple[GenerationNames, str] | None = None
        """The live generation and the alias by which this process holds it."""

    def all(self) -> Sequence[Generation]:
        found = self._register.all()
        live = self._register.live(found)
        return [self._described(one, GenerationState.LIVE if one.names == live else one.state) for one in found]

    def entries(self) -> Sequence[GenerationEntry]:
        found = self._register.all()
        # Where no ledger says so, it takes a look at what readers see.
        live = None if not found or any(one.live for one in found) else self._register.live(found)
        return [
            GenerationEntry(one.names.number, GenerationState.LIVE if one.names == live else one.state, one.until) for one in found
        ]

    def _described(self, one: Registered, state: GenerationState) -> Generation:
        entry = SearchLedger(self._cluster, Shown(one.names, live=False)).peek()
        return Generation(one.names.number, state, None if entry is None else entry.mark, one.until)

    def size(self, number: int) -> GenerationSize:
        used = self._used(GenerationNames(self.name, number))
        return GenerationSize(*measured(self._cluster, [index.index for index in used]))

    def sink(self, number: int) -> SearchSink:
        return SearchSink(self.name, self._options, generation=number)

    def hold(self) -> Cut:
        held = next((one for one in self._register.all() if one.leaving is not None), None)
        if held is not None:  # by a process that is gone
            self._register.let_go(held)
        live = next((one.names for one in self._register.all() if one.live), None)
        if live is None:
            raise GenerationReplaced(self.name)
        alias = f"{live.leaving}{uuid.uuid4().hex[:16]}"
        # Without its alias nothing is written to the ledger; whoever would give it back finds that the generation is not live.
        writers = SearchLedger(self._cluster, Shown(live)).document.alias
        ended = {"remove": {"index": live.ledger, "alias": writers, "must_exist": False}}
        change_aliases(self._cluster, "holding the live generation", [*self._replaced(live, live.live, alias), ended])
        self._held = live, alias
        crashpoint("generations.search_held")
        time.sleep(_UNDER_WAY_S)
        entry = SearchLedger(self._cluster, Shown(live, live=False)).peek()
        return ZERO_CUT if entry is None else entry.mark.cut

    def release(self) -> None:
        if self._held is not None:
            live, alias = self._held
            self._held = None
            with suppress(GenerationReplaced):  # somebody has waited long enough
                change_aliases(self._cluster, "going on with the live generation", self._replaced(live, alias, live.live))

    def swap(self, number: int, until: float | None) -> None:
        if self._held is None:
            raise StoreError(f"store {self.name}: the live generation is not held", retryable=True)
        live, alias = self._held
        fresh = GenerationNames(self.name, number)
        used = {one.index: one for one in self._used(fresh)}
        kept = [alias for one in self._register.all() if one.names == fresh for alias in one.kept]
        actions = [
            *moved(alias, live.ledger, live.ledger)[:1],
            {"add": {"index": live.ledger, "alias": live.kept_until(until), "is_hidden": True}},
            *({"remove": {"index": fresh.ledger, "alias": alias, "must_exist": False}} for alias in kept),
            {"add": {"index": fresh.ledger, "alias": fresh.live, "is_hidden": True}},
        ]
        for one in self._there(live):
            if one.owner is not None and live.related(one.owner.store) and one.index not in used:
                left = (name for name, options in one.aliases.items() if searched(options))
                actions += [{"remove": {"index": one.index, "alias": name}} for name in left]
        for one in used.values():
            if one.places is not None and one.owner is not None:
                names = dict.fromkeys((one.places.alias, one.owner.part_of or one.places.alias))
                actions += [searching(one.index, fresh.searched(name)) for name in names]
        crashpoint("generations.search_before_swap")
        change_aliases(self._cluster, "swapping the generations", actions)
        self._held = None
        crashpoint("generations.search_swapped")

    def drop(self, number: int) -> None:
        names = GenerationNames(self.name, number)
        if self._register.live(self._register.all()) == names:
            raise StoreError(f"store {self.name}: generation {number} is live", retryable=False, hint=f"cdc rollback {self.name}")
        with self._parts(names) as parts:
            remove(parts)

    def close(self) -> None:
        self._cluster.close()

    def _replaced(self, live: GenerationNames, old: str, new: str) -> list[dict[str, Any]]:
        """Actions that give the generation's ledger another alias, where it has the old one."""
        return [*moved(old, live.ledger, live.ledger)[:1], *moved(new, live.ledger, live.ledger)[1:]]

    def _used(self, names: GenerationNames) -> list[Found]:
        """The index of each table that the generation's rows are in, or its home index and all of its parts."""
        with self._parts(names) as parts:
            indices = parts.tables.indices
            found = [
                indices.live(alias, together, topic)
                for alias, together in by_alias(indices.all()).items()
                for topic in {one.owner.table for one in together if one.owner is not None and indices.mine(one)}
            ]
        return [unit for one in found if one is not None and one.said for unit in one.units]

    def _there(self, names: GenerationNames) -> list[Found]:
        with self._parts(names) as parts:
            return parts.tables.indices.all(standings=False)

    @contextmanager
    def _parts(self, names: GenerationNames) -> Iterator[Parts]:
        choices = Choices(self.name, self._options.as_rules, fields.style_of)
        parts = parts_of(Shown(names, live=False), self._options, choices, dict, time.monotonic)
        try:
            yield parts
        finally:
            parts.close()
