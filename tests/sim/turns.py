"""Whose turn it is, step by step, as chance decides.

Once the faults have stopped, whoever finds nothing to do rests until what he looks at changes, or for a while: many steps of a run are taken
then, and most of them would find nothing.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tests.sim.course import Course

REST_S: Final = 5.0
"""By the run's clock: what only takes time goes on, too."""


@dataclass(eq=False, slots=True)
class Party:
    act: Callable[[], object]
    """A step. False: there was nothing to do."""
    weight: float
    """How often it is asked."""
    sees: Callable[[], object] = lambda: None
    """What gives it something to do when it changes."""
    rests_until: float = 0.0
    saw: object = None


class Turns:
    def __init__(self, course: Course, parties: Sequence[Party], *, resting: bool = False) -> None:
        """``resting``: who found nothing to do rests."""
        self._course = course
        self._random = course.chance.random
        self._parties = parties
        self._weights = list(accumulate(party.weight for party in parties))
        self._resting = resting

    def step(self) -> bool:
        """Somebody's. False: all of them rest, so none was taken; the next time all are asked again."""
        course, random = self._course, self._random
        course.steps += 1
        course.clock.now += random() * 0.4
        if not self._resting:
            self._parties[bisect(self._weights, random() * self._weights[-1])].act()
            return True
        now = course.clock.now
        able = [party for party in self._parties if party.rests_until <= now or party.sees() != party.saw]
        if not able:
            for party in self._parties:
                party.rests_until = 0.0
            return False
        weights = list(accumulate([party.weight for party in able]))
        party = able[bisect(weights, random() * weights[-1])]
        party.rests_until = 0.0
        if party.act() is False:
            party.saw, party.rests_until = party.sees(), now + REST_S
        return True
