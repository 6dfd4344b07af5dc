"""Whoever builds, swaps and removes generations is killed at every step: of each kind of store the same is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from cdc.crashpoint import KILLED
from cdc.errors import StoreError
from sinks.generations import HELD_AT_MOST_S, GenerationState
from tests.faults import points


class KilledShop(Protocol):
    """A log, the store that follows it, and an application that reads that."""

    clock: Any

    def change(self, position: int, status: str) -> None:
        """Row 1 has this status."""
        ...

    def follow(self) -> None: ...
    def bootstrap(self) -> Any: ...
    def drop(self, number: int) -> None: ...
    def generations(self) -> dict[int, GenerationState]: ...
    def found(self) -> dict[int, str]:
        """What the application finds."""
        ...


def killed_at_every_step(shop: KilledShop, kind: str, while_held: Callable[[], None] = lambda: None) -> None:
    """Each time in a process of its own; then the follower goes on, and whoever builds begins again.

    ``kind``: as the names of its steps have it. ``while_held``: asserts more while the live generation is held by somebody who is gone.
    """
    before = shop.found()
    steps = points.generation_steps(kind)
    assert len(steps) == 7
    for number, point in enumerate(steps, start=2):
        assert points.killed(lambda: print(shop.bootstrap()), f"{point}=kill") == KILLED, point
        swapped = point == f"generations.{kind}_swapped"
        live = next(one for one, state in shop.generations().items() if state is GenerationState.LIVE)
        assert live == (number if swapped else number - 1), point
        assert shop.found() == before, point
        if point in (f"generations.{kind}_held", f"generations.{kind}_before_swap"):
            while_held()
            with pytest.raises(StoreError, match="about to take"):
                shop.follow()
            shop.clock.now += HELD_AT_MOST_S
        shop.change(10 + number, f"after {number}")
        shop.follow()
        before[1] = f"after {number}"
        assert shop.found() == before, point
        if not swapped:
            assert shop.bootstrap().number == number, point
            shop.follow()
        assert shop.found() == before, point


def killed_while_the_first_is_removed(shop: KilledShop, point: str) -> None:
    """Done again, it is removed; the application finds the same."""
    before = shop.found()
    assert points.killed(lambda: shop.drop(1), f"{point}=kill") == KILLED
    assert 1 in shop.generations()
    shop.drop(1)
    assert 1 not in shop.generations()
    assert shop.found() == before
