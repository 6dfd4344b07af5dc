"""The view of a run and the processes that keep it up: the newest first, those that it has outdone behind."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from cdc.derive.around import Around, StepLimits
from cdc.derive.declarations import declared_views
from cdc.derive.inforce import ViewWaits, in_force
from cdc.derive.runner import ViewRunner
from cdc.derive.statefolder import StateFolder
from cdc.errors import HeadwaterError, LogAway, Stopped, StopState
from cdc.inbox.folder import FOLDER
from cdc.inbox.groupfile import name_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.settings.models import Settings
from cdc.state import status, stops
from cdc.views.contract import ViewRefused
from tests.sim.checker import Checker, Violation
from tests.sim.course import Course
from tests.sim.process import Process
from tests.sim.source import Source
from tests.sim.stores import Died
from tests.sim.strand import Strand
from tests.sim.viewcheck import NAME, PRODUCER
from tests.sim.viewmodel import ModelView, deal_views, refused_view

STEP_LIKELY: Final = 0.3
"""Between two steps of others, how likely a process of the view takes one."""
DIES: Final = 0.02
"""At how many of the named points that it reaches."""
HOMES: Final = 2
"""Machines that it may run on, each with a state of its own."""


class ViewLife:
    """One process. ``steps``: of it, taken one at a time."""

    def __init__(self, home: Path, model: ModelView) -> None:
        self.home = home
        self.model = model
        self.refused = False
        """It has a definition that nothing can be computed by."""
        self.beside_another = False
        """It may have been outdone: which of the two opens the producer later, nobody says."""
        self.runner: ViewRunner | None = None
        self.steps: Strand


class Views:
    """Their chance is their own, so that the other parts of a run are what they would be without them."""

    def __init__(self, course: Course, seed: int, folder: Path, source: Source, process: Process, checker: Checker) -> None:
        self._course, self._process, self._checker, self._source = course, process, checker, source
        self._chance = chance = Random(f"{seed} views")
        self._folder, self._run_dir = folder, folder.parent / "run"
        self._models = deal_views(chance, list(source.tables.values())) if course.rare.view else []
        self._refused = False
        """The configuration has a definition that nothing can be computed by."""
        self._version = 0
        self._pins = chance.random() < 0.6
        self._limits = StepLimits(rows=chance.choice((2, 7, 200_000)))
        self._homes = [folder.parent / f"views{number}" for number in range(HOMES)]
        self._lives: list[ViewLife] = []
        self._running: ViewLife | None = None
        self._told: list[status.TableProgress] | None = None

    @property
    def there(self) -> bool:
        return bool(self._models)

    @property
    def pins(self) -> list[int]:
        """The position that compaction keeps for it."""
        mark = self._checker.views.mark if self._pins and self.there else None
        return [] if mark is None else [mark.reflected]

    def step(self) -> None:
        """One of theirs, or none."""
        chance, head = self._chance, self._process.head
        if not self.there or chance.random() >= STEP_LIKELY or self._process.unrecovered or head is None or not head.commit_lsn:
            return
        number = 0
        if self._course.faulty:
            self._befall()
        if len(self._lives) > 1 and chance.random() < 0.3:
            number = chance.randrange(1, len(self._lives))
        if not self._lives:
            self._lives.append(self._begun())
        self._say_how_capture_is()
        self._live(self._lives[number])

    def _befall(self) -> None:
        chance = self._chance
        if self._lives and chance.random() < 0.01:
            self._course.fault("a process of a view dies")
            self._lives.pop(0).steps.kill()
        if self._lives and chance.random() < 0.01:
            life = self._lives.pop(0)
            life.steps.kill()
            self._define_otherwise()
            self._lives.insert(0, self._begun_in(life.home))
            self._lives[0].beside_another = life.beside_another
        if len(self._lives) == 1 and chance.random() < 0.015:
            self._course.fault("a process of a view sleeps, another begins")
            self._lives.insert(0, self._begun())
            for life in self._lives:
                life.beside_another = True

    def between(self, point: str) -> None:
        """A named crash point was reached: the process dies there, or others take steps before it takes its next."""
        if self._running is None:
            return
        roll = self._chance.random()
        if roll < DIES:
            self._course.fault(f"dies at {point}")
            raise Died
        if roll < DIES + 0.2 and point.startswith("derive."):
            self._running.steps.pause()

    def lose_power(self) -> None:
        self.close()

    def calm(self) -> None:
        """From now on one process keeps it up: none that was outdone, which would find that out with its next change only."""
        self.close()

    def close(self) -> None:
        for life in self._lives:
            life.steps.kill()
        self._lives.clear()
        self._be_defined(self._version)

    def left(self) -> list[str]:
        """What is not equal yet."""
        if not self.there:
            return []
        runner, head = self._lives[0].runner if self._lives else None, self._process.head
        if runner is None or head is None or runner.at < head.position:
            return [f"the view is not at the head, {head}"]
        if runner.building:
            return ["the next generation of the view is being built"]
        try:
            self._checker.views.compare(self._models[self._version].rows(self._checker.cuts[-1][1]), "at the end")
        except Violation as differs:
            return [str(differs)]
        return []

    # --- one process ----------------------------------------------------------------------------------------------------------------

    def _live(self, life: ViewLife) -> None:
        self._running = life
        try:
            life.steps.step()
            return
        except Died:
            self._course.met("processes of views died where a crash matters")
        except OSError:
            self._course.met("what a view handed over was refused by the disk")
        except LogAway:
            self._course.met("views that met a tier which did not answer")
        except Stopped as stopped:
            if not life.refused or stopped.state is not StopState.VIEW_REFUSED:
                raise Violation("p", f"the view is stopped as {stopped.state}: {stopped}") from None
            self._course.met("views that were stopped by a refused definition, as nothing was live")
            self._be_defined(self._version)
        except HeadwaterError as error:
            if not life.beside_another:
                raise Violation("p", f"the view was refused: {error}") from None
            self._course.met("processes of views that were outdone")
        finally:
            self._running = None
            self._note_what_waits()
        if life in self._lives:
            self._lives.remove(life)

    def _note_what_waits(self) -> None:
        for path in (self._folder / FOLDER).glob(f"{PRODUCER}~*"):
            if (group := name_of(path.name)) is not None:
                self._checker.views.offers(group)

    def _begun(self) -> ViewLife:
        chance = self._chance
        if self._course.faulty and chance.random() < 0.15:
            self._define_otherwise()
        home = chance.choice([one for one in self._homes if all(one != life.home for life in self._lives)])
        if self._course.faulty:
            self._hurt(home)
        return self._begun_in(home)

    def _define_otherwise(self) -> None:
        self._course.fault("a view is defined otherwise")
        self._be_defined(1 - self._version, refused=self._chance.random() < 0.3)

    def _be_defined(self, version: int, *, refused: bool = False) -> None:
        """``refused``: by a definition over a column that its table does not have; ``version`` is what it will be after that."""
        self._version, self._refused = version, refused
        stops.clear_part(self._run_dir, status.next_part(NAME))

    def _begun_in(self, home: Path) -> ViewLife:
        life = ViewLife(home, self._models[self._version])
        if self._refused:
            life.model, life.refused = replace(life.model, view=refused_view(life.model.view)), True
        life.steps = Strand(lambda: self._keep_up(life))
        self._course.counts["processes of views begun"] += 1
        return life

    def _hurt(self, home: Path) -> None:
        """The state is lost, damaged, or as it once was; or it is kept for that."""
        states = sorted(home.glob(f"{NAME}/g*/kernel/state.sqlite"))
        roll, kept, state = self._chance.random(), home.with_suffix(".kept"), self._chance.choice(states) if states else None
        if roll < 0.15:
            self._course.fault("state of a view lost")
            shutil.rmtree(home, ignore_errors=True)
        elif roll < 0.2 and state is not None:
            self._course.fault("state of a view damaged")
            state.write_bytes(b"\0" * 4096)
        elif roll < 0.4 and kept.exists():
            self._course.fault("state of a view set back")
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(kept, home)
        elif roll < 0.8 and home.exists():
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(home, kept)

    def _keep_up(self, life: ViewLife) -> None:
        """As ``cdc.derive.process`` does it, with a pause where that waits."""
        pause, clock, chance = life.steps.pause, self._course.clock, self._chance
        declared = declared_views(Settings.model_construct(views={NAME: life.model.view}))[NAME]
        with closing(EmbeddedLogReader(self._folder)) as log, closing(StateFolder(life.home, NAME)) as state:
            around = Around(log, self._folder, self._run_dir, pause, clock, lambda: f"{chance.getrandbits(128):032x}")
            with closing(ViewRunner(NAME, declared, around, state, self._limits)) as runner:
                while True:
                    try:
                        with suppress(ViewRefused):
                            self._checker.views.models[in_force(declared, log, log.head().position).digest] = life.model
                        runner.begin()
                        break
                    except ViewWaits:
                        pause()
                if runner.why:
                    self._course.met(f"views computed again: {runner.why}")
                life.runner = runner
                if life.refused and stops.held_by(self._run_dir, status.next_part(NAME)) is not None:
                    self._course.met("views whose next generation was refused, and that went on")
                elif runner.building:
                    self._course.met("views of which the next generation was built beside the live one")
                while True:
                    pause()
                    runner.move_mark()
                    if log.head().position > runner.at:
                        try:
                            runner.step()
                        except ViewWaits:
                            pause()
                    self._build(life, runner)

    def _build(self, life: ViewLife, runner: ViewRunner) -> None:
        if not runner.building:
            return
        life.steps.pause()
        if runner.build() and not runner.building:
            how = "computed" if runner.why else "kept"
            self._course.met(f"views that went over to a generation that was {how}")

    def _say_how_capture_is(self) -> None:
        """Its status, which says which tables are in the log as a whole."""
        capture = self._process.capture
        assert capture is not None
        tables = self._source.tables.items()
        now = [status.TableProgress(f"public.{table.name}", 0, 0, finished=capture.complete(oid)) for oid, table in tables]
        if now != self._told:
            with suppress(Died):  # whoever writes it, no process of a view does
                status.write(self._run_dir, "capture", status.CaptureStatus(snapshot=now))
                self._told = now
