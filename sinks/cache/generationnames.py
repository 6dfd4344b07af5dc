"""The names of one generation of a cache: whose its ledger is, and what its keys begin with. Pure.

The first has the names that the configuration gives. The keys of any other have a prefix before what `key` says (``g2:``); a key of the user's choice, the
*pointer*, holds the prefix of the live one, empty for the first, so that an application puts it before the name of the row that it looks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from cdc.errors import ConfigError
from sinks.cache.keytemplate import DEFAULT, TableKeys
from sinks.cache.lane import Lane
from sinks.cache.ledger import OF_LANE, Projection

FIRST: Final = 1
_PREFIX: Final = re.compile(r"g([1-9][0-9]{0,8}):")
_BEGINNING: Final = re.compile(r"g([1-9][0-9]{0,8})?")
"""What the text of a column could make such a prefix of."""


@dataclass(frozen=True, slots=True)
class CacheGenerationNames:
    """``pointer``: None where a store has no generations beside each other."""

    store: str
    number: int = FIRST
    pointer: str | None = None
    lane: Lane | None = None
    """Of a store that is divided, whose only generation is the first."""

    @property
    def owner(self) -> str:
        """The store that its ledger and its dead letters are said to be of. No store's name has an @ or a / in it."""
        if self.lane is not None:
            return f"{self.store}{OF_LANE}{self.lane.number}"
        return self.store if self.number == FIRST else f"{self.store}@{self.number}"

    @property
    def prefix(self) -> str:
        return "" if self.number == FIRST else f"g{self.number}:"

    def projection(self, given: Projection) -> Projection:
        """How rows become this generation's keys and values. ``given``: as the configuration says it."""
        rules = tuple(one if one.key is None else replace(one, key=self.prefix + one.key) for one in given.tables)
        return replace(given, key=self.prefix + given.key, tables=rules, lane=self.lane)

    def refuse(self, keys: TableKeys) -> None:
        """Raises ConfigError where a row could have the name of another generation's row, or of the pointer: whoever names tables, and writes rows, would
        decide what readers see. The same tables are refused in every generation. ``keys``: this one's."""
        if self.pointer is None:
            return
        own = keys.prefix.removeprefix(self.prefix)
        if begins_like_a_generation(own) or _BEGINNING.fullmatch(own) is not None:
            raise ConfigError(
                f"store {self.store}: keys of {keys.schema.topic} could be those of a generation, which begin like g2:",
                hint=f'let `key` begin with another text, as "{DEFAULT}" does',
            )
        if self.pointer.startswith(own):
            raise ConfigError(
                f"store {self.store}: its pointer {self.pointer} could be a key of {keys.schema.topic}",
                hint=f"give pointer in [stores.{self.store}] another beginning",
            )

    def of(self, prefix: str) -> CacheGenerationNames:
        """The generation with this prefix; the first for any other text."""
        found = _PREFIX.fullmatch(prefix)
        return CacheGenerationNames(self.store, FIRST if found is None else int(found[1]))


def begins_like_a_generation(text: str) -> bool:
    return _PREFIX.match(text) is not None
