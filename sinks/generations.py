"""The generations of a store: whole copies of it, built beside each other from the log, of which readers are shown one.

A store that can have several offers ``Generations`` (its module's ``generations``). Each generation is a store in itself: it has its own rows, marks, ledger and
dead letters, so it is opened, followed and audited by a sink as any store is. Which one is live is recorded in the store itself, and nowhere else.

One step makes another one live (``swap``): readers see all of the former until then, and all of the other from then on. So that nobody has waited for a change
which the other one does not show yet, the live one is held first (``hold``): its writer commits nothing any more, and whoever opens the store to write waits.
What is held and forgotten, because the process that did it is gone, goes on after ``HELD_AT_MOST_S``.

One that was live before is *kept*, up to a time that is recorded with the swap. Somebody brings it on until then (``cdc.generations.feeder``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from cdc.model.lineage import Mark
from cdc.model.position import Cut
from sinks.contract import Sink

HELD_AT_MOST_S: Final = 10.0
"""How long a writer leaves a generation alone that is held, as far as it can see."""


class GenerationState(StrEnum):
    BUILDING = "building"
    """Readers have never seen it."""
    LIVE = "live"
    KEPT = "kept"
    """It was live before."""


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """One generation in the store's register. ``until``: Unix time in seconds, up to which it is kept; None: without an end, or not kept."""

    number: int
    state: GenerationState
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation as the store records it. ``mark``: how far it says it is; None where it says nothing (yet)."""

    number: int
    state: GenerationState
    mark: Mark | None
    until: float | None = None
    """As in ``GenerationEntry``."""


@dataclass(frozen=True, slots=True)
class GenerationSize:
    """``bytes``: None where the store does not know."""

    rows: int
    bytes: int | None


class HeldWatch:
    """For how long a writer has seen that the live generation is held by the same word."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds, from anywhere on."""
        self._clock = clock
        self._since: tuple[str, float] | None = None

    def forgotten(self, word: str) -> bool:
        """Whether whoever has held it seems to be gone."""
        now = self._clock()
        if self._since is None or self._since[0] != word:
            self._since = word, now
        return now - self._since[1] >= HELD_AT_MOST_S


class Generations(Protocol):
    """The generations of one store. All of it raises StoreError."""

    def all(self) -> Sequence[Generation]:
        """Those that exist, by number. None where the store has never been written."""
        ...

    def entries(self) -> Sequence[GenerationEntry]:
        """The same by the register alone, which takes next to no time."""
        ...

    def size(self, number: int) -> GenerationSize:
        """How large a generation is. That may take a while."""
        ...

    def sink(self, number: int) -> Sink:
        """An unopened sink for this generation alone, whether readers see it or not. Whatever it does, it leaves what readers see as it is."""
        ...

    def hold(self) -> Cut:
        """Nobody commits anything to the live generation from now on. Returns the last cut that anybody has committed to it. Only one process at a time may
        ask: what another one holds is taken for forgotten. Raises StoreError."""
        ...

    def release(self) -> None:
        """Ends what ``hold`` has begun, where ``swap`` has not."""
        ...

    def swap(self, number: int, until: float | None) -> None:
        """Makes this generation live instead of the one that is held, which is kept ``until`` then, in one step. Raises StoreError when that is not held any
        more: nothing has changed then."""
        ...

    def drop(self, number: int) -> None:
        """Removes a generation, which must not be live. Interrupted and done again it comes to the same."""
        ...

    def close(self) -> None: ...
