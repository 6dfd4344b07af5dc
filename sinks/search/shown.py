"""The names of one generation of a search store, and what its readers see of it.

The first generation has the names that the configuration gives: its indices' alias is the one that users search. Any other has an alias of its own for
each table, hidden and with an ending (``public.orders.gen2``); while it is live, the one that users search leads to its index, too.

Which generation is live says an alias on its ledger. Every change of what users search carries that as a condition: an action that removes the alias, which must
be there, and one that gives it back. So a process that still works for a generation which is no longer live changes nothing of what users see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import StoreError
from sinks.search.names import index_name
from sinks.search.wire import Cluster

FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class GenerationNames:
    store: str
    number: int = FIRST

    @property
    def owner(self) -> str:
        """Whose the indices are, as their mappings say. No store's name has an @ in it."""
        return self.store if self.number == FIRST else f"{self.store}@{self.number}"

    @property
    def ending(self) -> str:
        return "" if self.number == FIRST else f".gen{self.number}"

    @property
    def ledgers(self) -> str:
        """How the names of the store's ledgers begin, and what the first is called."""
        return f".headwater-{index_name(self.store, self.store)}"

    @property
    def ledger(self) -> str:
        return self.ledgers if self.number == FIRST else f"{self.ledgers}@g{self.number}"

    @property
    def live(self) -> str:
        """The alias on the ledger of the live generation."""
        return f"{self.ledgers}@live"

    @property
    def kept(self) -> str:
        """How the alias begins that is on the ledgers of those that were live before."""
        return f"{self.ledgers}@kept"

    def kept_until(self, until: float | None) -> str:
        """That alias, for one that is kept up to this time (Unix, seconds), or without an end."""
        return self.kept if until is None else f"{self.kept}.{math.ceil(until)}"

    def until_of(self, kept: str) -> float | None:
        """The way back."""
        said = kept.removeprefix(f"{self.kept}.")
        return float(said) if said != kept and said.isascii() and said.isdecimal() else None

    @property
    def leaving(self) -> str:
        """How the alias begins that the ledger of the live generation has instead while it is held; its ending is never used twice."""
        return f"{self.ledgers}@leaving."

    def own(self, searched: str) -> str:
        """The alias of a table's index in this generation. ``searched``: the one that users search."""
        return f"{searched}{self.ending}"

    def searched(self, own: str) -> str:
        return own.removesuffix(self.ending)

    def related(self, owner: str) -> bool:
        """Whether this is a generation of the same store."""
        return owner == self.store or owner.startswith(f"{self.store}@")

    def of(self, ledger: str) -> GenerationNames | None:
        """The generation with this ledger; None when it is not the name of one."""
        if ledger == self.ledgers:
            return GenerationNames(self.store)
        number = ledger.removeprefix(f"{self.ledgers}@g")
        return GenerationNames(self.store, int(number)) if number != ledger and number.isascii() and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Shown:
    """A generation, and whether what users search leads to it."""

    names: GenerationNames
    live: bool = True

    def condition(self) -> list[dict[str, Any]]:
        """Actions with which a request does nothing unless the generation is live."""
        return moved(self.names.live, self.names.ledger, self.names.ledger)


def moved(alias: str, from_: str, to: str) -> list[dict[str, Any]]:
    """Actions that give an index's alias to another, or fail where it has it no longer."""
    return [
        {"remove": {"index": from_, "alias": alias, "must_exist": True}},
        {"add": {"index": to, "alias": alias, "is_hidden": True}},
    ]


def change_aliases(cluster: Cluster, doing: str, actions: Sequence[Mapping[str, Any]]) -> None:
    """All of these actions, or none. Raises StoreError (retryable) when an alias is not where it must be."""
    answer = cluster.send("POST", "/_aliases", {"actions": list(actions)})
    if answer.status == 404 and answer.error_type == "aliases_not_found_exception":
        raise GenerationReplaced(cluster.store)
    if answer.status >= 400:
        raise cluster.error(doing, answer)


class GenerationReplaced(StoreError):
    """The generation is not the live one, or not held as it was: somebody has put another in its place meanwhile."""

    def __init__(self, store: str) -> None:
        super().__init__(f"store {store}: this generation is no longer the live one, or is being replaced", retryable=True)
