"""The stores of a run and who writes to them: the newest follower first, zombies behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cdc.errors import StopState
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.position import Cut, Position
from cdc.state import rebuilds
from sinks.memory import Options
from sinks.memoryunits import Store
from tests.sim.checker import Checker
from tests.sim.course import Course
from tests.sim.life import Life
from tests.sim.process import Process
from tests.sim.stores import Died, Moods, Site


@dataclass(slots=True)
class Follow:
    """Who follows a store: the newest first, zombies behind."""

    site: Site
    lives: list[Iterator[str]] = field(default_factory=list)


class Followers:
    def __init__(
        self, course: Course, seed: int, log: EmbeddedLogReader, run_dir: Path, process: Process, checker: Checker
    ) -> None:
        self._course = course
        self._seed = seed
        self._log = log
        self._run_dir = run_dir
        self._process = process
        self._checker = checker
        self.follows = [self._store(number) for number in range(course.chance.choice((1, 1, 2)))]

    @property
    def stores(self) -> list[tuple[str, Store]]:
        """Each with its name."""
        return [(follow.site.name, follow.site.store) for follow in self.follows]

    @property
    def hurt(self) -> bool:
        """One of them lost rows, was set back, or was taken over."""
        return any(follow.site.hurt for follow in self.follows)

    def calm(self) -> None:
        """From now on nothing befalls them."""
        for follow in self.follows:
            follow.site.moods = Moods()

    def lose_power(self) -> None:
        """They live on capture's machine."""
        for follow in self.follows:
            follow.lives.clear()

    def close(self) -> None:
        for follow in self.follows:
            follow.site.close()

    def _store(self, number: int) -> Follow:
        chance = self._course.chance
        way = chance.choice(("versioned", "sequenced", "staged"))
        options = Options(
            kind="memory",
            sequenced=way == "sequenced",
            staged=way == "staged",
            batch_rows=chance.choice((1, 7, 1000)),
            schema=chance.choice(("apply", "apply", "ignore", "pause")),
        )
        site = Site(f"sim-{self._seed}-{number}", options, replace(self._course.dangers.store), chance, self._course.fault)

        def written(cut: Cut | None = None) -> None:
            self._process.look()
            if not site.theirs:
                self._checker.stores.wrote(site.name, site.store, staged=options.staged, cut=cut)

        def claimed(at: Position) -> None:
            self._process.look()
            self._checker.stores.claims(site.name, site.store, at)

        def steady(begins: Cut | None) -> None:
            self._process.look()
            self._checker.stores.steady(site.name, site.store, begins=begins)

        def anew() -> None:
            self._process.look()
            if not site.theirs:
                self._checker.stores.anew(site.name, site.store)

        site.written, site.claimed = written, claimed
        site.steady, site.anew = steady, anew
        self._checker.stores.terms[site.name] = site.terms
        site.reshapes = partial(self._checker.stores.reshapes, site.name)
        site.struck = lambda: self._checker.stores.struck(site.name, site.store)
        return Follow(site)

    def step(self, follow: Follow | None = None) -> bool:
        """Of one of them, or of this one's. False: its follower stands by."""
        chance = self._course.chance
        follow = follow or chance.choice(self.follows)
        site = follow.site
        if self._process.unrecovered:
            self._process.look()  # a start that failed may have published what it found, and a follower reads it
        if site.late and chance.random() < 0.5:
            site.deliver_late()
            return True
        site.befall()
        often = self._course.rare.rebuilds
        if often and self._course.faulty and chance.random() < often:
            self._course.met("operator has a store built again")
            rebuilds.request(self._run_dir, site.name, StopState.STORE_REFUSES)
            follow.lives.insert(0, self._life(site))
        if not follow.lives:
            follow.lives.append(self._life(site))
        if len(follow.lives) > 1 and chance.random() < 0.2:
            number = chance.randrange(1, len(follow.lives))
            self._live(follow, number)
            if chance.random() < 0.3:
                del follow.lives[number:]
            return True
        done = self._live(follow, 0)
        if done in ("applied", "committed") and chance.random() < site.moods.sleeps:
            self._course.fault("follower sleeps, another begins")
            follow.lives.insert(0, self._life(site))
        return done != "idle" or site.store.applied.position < self._log.head().position

    def _life(self, site: Site) -> Iterator[str]:
        return Life(site, self._log, self._run_dir, self._course.clock).steps()

    def _live(self, follow: Follow, number: int) -> str:
        try:
            return next(follow.lives[number])
        except Died:
            del follow.lives[number]
            return "died"
