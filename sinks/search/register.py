"""Which generations a search store has, and which of them is live: what the ledgers' names and aliases say.

A generation exists from the creation of its ledger on. The aliases of the ledger say how it stands: ``live``, ``kept`` (with the time up to which), or neither while it
is being built. While the live one is held, it has the alias ``leaving`` in place of ``live``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sinks.generations import GenerationState
from sinks.search.indices import every_index, searched
from sinks.search.names import ANY_NUMBERED, NUMBERED, owner_of
from sinks.search.shown import FIRST, GenerationNames, change_aliases, moved
from sinks.search.wire import Cluster

_LOOKING: Final = "looking for its generations"


@dataclass(frozen=True, slots=True)
class Registered:
    """One generation. ``leaving``: the alias by which it is held."""

    names: GenerationNames
    aliases: tuple[str, ...]

    @property
    def leaving(self) -> str | None:
        return next((alias for alias in self.aliases if alias.startswith(self.names.leaving)), None)

    @property
    def live(self) -> bool:
        return self.names.live in self.aliases or self.leaving is not None

    @property
    def state(self) -> GenerationState:
        if self.live:
            return GenerationState.LIVE
        return GenerationState.KEPT if self.kept else GenerationState.BUILDING

    @property
    def kept(self) -> list[str]:
        """The aliases that say so; more than one where it was kept more than once."""
        names = self.names
        return [alias for alias in self.aliases if alias == names.kept or names.until_of(alias) is not None]

    @property
    def until(self) -> float | None:
        """Up to when it is kept; None: without an end, or not kept."""
        times = [self.names.until_of(alias) for alias in self.kept] if self.state is GenerationState.KEPT else []
        known = [at for at in times if at is not None]
        return max(known) if known and len(known) == len(times) else None


@dataclass(frozen=True, slots=True)
class GenerationRegister:
    """One store's."""

    cluster: Cluster
    store: str
    pattern: str = ANY_NUMBERED
    """As that of ``Indices``."""

    def all(self) -> list[Registered]:
        """By number."""
        ledgers = GenerationNames(self.store).ledgers
        params = {"expand_wildcards": "all", "ignore_unavailable": "true", "filter_path": "*.aliases"}
        held = self.cluster.ask(_LOOKING, "GET", f"/{ledgers},{ledgers}{NUMBERED}*", params=params)
        names = {index: GenerationNames(self.store).of(index) for index in held}
        found = [Registered(one, tuple(held[index].get("aliases", {}))) for index, one in names.items() if one is not None]
        return sorted(found, key=lambda one: one.names.number)

    def live(self, found: Sequence[Registered]) -> GenerationNames:
        """The one that readers see, or are to see. Where no ledger says so (it was lost, or was never there), the one to whose indices their
        aliases lead."""
        says_so = [one for one in found if one.live]
        if says_so:
            return says_so[-1].names
        params = {"expand_wildcards": "all", "filter_path": "*.aliases,*.mappings._meta"}
        held = every_index(self.cluster, _LOOKING, self.pattern, params)
        return max(
            (names for one in held.values() if (names := self._shows(one)) is not None), key=_number, default=_first(self.store)
        )

    def _shows(self, held: Mapping[str, Any]) -> GenerationNames | None:
        """The generation of an index that readers see."""
        owner = owner_of(held)
        if owner is None or not any(searched(options) for options in held.get("aliases", {}).values()):
            return None
        number = owner.store.removeprefix(f"{self.store}@")
        if owner.store == self.store:
            return _first(self.store)
        return GenerationNames(self.store, int(number)) if number != owner.store and number.isdecimal() else None

    def let_go(self, held: Registered) -> None:
        """The generation that is held is live as before. Raises StoreError (retryable) when that has changed meanwhile."""
        assert held.leaving is not None
        ledger = held.names.ledger
        actions = [
            {"remove": {"index": ledger, "alias": held.leaving, "must_exist": True}},
            *moved(held.names.live, ledger, ledger)[1:],
        ]
        change_aliases(self.cluster, "going on with the live generation", actions)


def _first(store: str) -> GenerationNames:
    return GenerationNames(store, FIRST)


def _number(names: GenerationNames) -> int:
    return names.number
