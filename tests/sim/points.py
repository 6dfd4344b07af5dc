"""Where a process is refused something, or dies: at operations of the disk and at the product's crash points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tests.sim.course import Course
from tests.sim.disk import refused
from tests.sim.stores import Died

FULL_AT: Final = frozenset(("inbox.handed.written_aside", "inbox.refused.written"))
"""Points that stand where files of the inbox are written."""
FAVOURITE_LIKELY: Final = 0.15
FAVOURITE_MOST: Final = 4
"""So often a run: each costs a recovery."""


class Points:
    def __init__(self, course: Course) -> None:
        self._course = course
        self._favours = FAVOURITE_MOST
        self._dying = 0.0
        self._deadlier = 0.0
        self._meanwhile: Callable[[str], None] = lambda _: None
        self.between: Callable[[str], None] = lambda _: None
        """Called at each named point that is reached while faults happen."""

    @contextmanager
    def within(self, deadlier: float, meanwhile: Callable[[str], None]) -> Iterator[None]:
        """Inside, a process dies more often, and at each named point other threads of it may do what ``meanwhile`` does."""
        self._deadlier, self._meanwhile = deadlier, meanwhile
        try:
            yield
        finally:
            self._deadlier, self._meanwhile = 0.0, lambda _: None

    def a_process_lives(self) -> None:
        """From its first start on there is one that can die."""
        self._dying = self._course.dangers.dies_at_point

    def meet_disk(self, operation: str) -> None:
        if not self._course.faulty:
            return
        likely = self._course.dangers.disk_full if operation == "write" else self._course.dangers.disk_fails
        if self._course.chance.random() < likely or self._favours_now(operation):
            self._course.fault(f"disk refuses {operation}")
            raise refused(self._course.chance, operation)
        if self._course.chance.random() < self._dying + self._deadlier:
            self._course.fault(f"dies at {operation}")
            raise Died

    def reach(self, point: str) -> None:
        """A named crash point of the product (``cdc.crashpoint``), of whichever process takes a step now."""
        if point == "newstore.asked":
            self._course.met("empty stores that were to be built")
        if not self._course.faulty:
            return
        if point in FULL_AT and self._course.chance.random() < self._course.dangers.disk_full:
            self._course.fault(f"disk refuses at {point}")
            raise refused(self._course.chance, "write")
        if self._course.chance.random() < self._dying + self._deadlier or self._favours_now(point):
            self._course.fault(f"dies at {point}")
            raise Died
        self._meanwhile(point)
        self.between(point)

    def _favours_now(self, what: str) -> bool:
        if what != self._course.dangers.favourite or not self._favours or self._course.chance.random() >= FAVOURITE_LIKELY:
            return False
        self._favours -= 1
        return True
