"""A view's next generation: what the configuration says of the view now, computed beside what its topic shows, a slice at a time.

Nothing of it is handed over until its state is as of the log's head: then the topic goes over to it (``cdc.derive.runner``). A process that ends meanwhile leaves a
state that is not whole, which is begun again, or a whole one as of some cut, from which the next process goes on. So does whoever finds the state of a former
definition that is the present one again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.crashpoint import crashpoint
from cdc.derive.around import Around, StepLimits
from cdc.derive.computation import Computation
from cdc.derive.course import useless
from cdc.derive.inforce import ViewInForce, ViewWaits, in_force
from cdc.derive.netrange import Redefined
from cdc.derive.ports import DeclaredView
from cdc.derive.refusals import refused
from cdc.derive.viewgenerations import ViewGenerations
from cdc.derive.wholeness import going_over, lacking
from cdc.errors import PositionGone, Stopped
from cdc.model.position import START, Position
from cdc.state import status
from cdc.views.contract import StateDamaged, StateFull, ViewRefused

BESIDE: Final = StepLimits(20_000, 16 * 2**20)
"""The most of its sources' rows that it takes at once while another one is followed."""
REDEFINED: Final = "a table that it reads was defined otherwise"
UNREADABLE: Final = "its state cannot be read"
OVERTAKEN: Final = "the log no longer has all changes since its last step"

_log = structlog.get_logger("views")


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why the building stands still, and until when by the clock."""

    why: str
    until: float
    refused: bool = False
    """It is not built until that is over (``NextRefusal``)."""


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Rows of its sources that it has been through, since when by the time of day."""

    rows: int
    since: float


class NextGeneration:
    """For one thread."""

    def __init__(self, name: str, declared: DeclaredView, around: Around, generations: ViewGenerations, limits: StepLimits) -> None:
        self.name = name
        self._declared, self._around, self._generations, self._limits = declared, around, generations, limits
        self._slices: Generator[None] | None = None
        self.beside = True
        """Another one is followed meanwhile: slices are small."""
        self.suspended: Suspension | None = None
        self.computation: Computation | None = None
        self.loaded: LoadedRows | None = None
        """None while it does not load."""
        self.at = START
        """The cut that it is as of, or is loaded as of."""
        self.why = ""
        """Why it is computed from the beginning, if it is."""

    def bind(self) -> ViewInForce:
        """The definition over its topics as they are now, of which there is a state from here on, which may be empty. Raises ViewWaits, Stopped."""
        view = bound(self.name, self._declared, self._around, self._around.log.head().position)
        if self.computation is None or self.computation.view.digest != view.digest:
            state = self._generations.of(view.digest) or self._generations.made()
            self.computation = Computation(self.name, view, state, self._around, self._limits)
        return view

    def step(self) -> bool:
        """One slice of the work; True once the state is as of the log's head, as it was when this was asked.

        Raises ViewWaits, Stopped, StateFull, OSError; it can be called again, and goes on where it was, or begins again.
        """
        if self.computation is None:
            self.bind()
        if self._slices is None:
            self._slices = self._work()
        slices, self._slices = self._slices, None
        try:
            for _ in slices:
                self._slices, self.suspended = slices, None
                return False
            return True
        except Redefined:
            self.begin_again(REDEFINED)
        except PositionGone as gone:
            if self.loaded is not None:
                raise
            _log.warning(f"view {self.name} is computed from the beginning: {gone}", facts={"view": self.name})
            self.begin_again(OVERTAKEN)
        except StateDamaged as damaged:
            if self.why == UNREADABLE:
                raise  # not by what it was before
            _log.warning(f"the state of view {self.name} cannot be read", problem=str(damaged))
            self.begin_again(UNREADABLE)
        return False

    def report(self) -> Iterator[status.ViewGeneration]:
        """How far it is, as the view's status says it."""
        if self.refused is not None:
            yield status.ViewGeneration(self._generations.next_number, "refused", error=self.refused)
        elif self.computation is not None:
            one = status.ViewGeneration(self.computation.state.number, "building", self.at)
            one.error = self.suspended.why if self.suspended else None
            if self.loaded is not None:
                one.done, one.expected = self.loaded.rows, self.computation.source_rows()
                one.rows_per_s = self.loaded.rows / max(self._around.now() - self.loaded.since, 0.001)
            yield one

    def begin_again(self, why: str = "") -> None:
        """With the next slice. What there is of it is gone on return."""
        self.why = why
        self.close()
        self.loaded = None
        if self.computation is not None:
            self._generations.forget(self.computation.state)
            self.computation = None

    def close(self) -> None:
        """Ends what is under way."""
        if self._slices is not None:
            self._slices.close()
        self._slices = None

    @property
    def due(self) -> bool:
        """A slice can be taken now."""
        return self.suspended is None or self._around.clock.monotonic() >= self.suspended.until

    def suspend(self, why: str, seconds: float) -> None:
        """It goes on after so long."""
        if self.suspended is None or self.suspended.why != why:
            _log.info(f"the next generation of view {self.name} waits: {why}", facts={"view": self.name})
        self.suspended = Suspension(why, self._around.clock.monotonic() + seconds, self.refused is not None)

    def refuse(self, why: str) -> None:
        """It is not built for now. What there is of it is gone on return."""
        self.begin_again()
        self.suspended = Suspension(why, self._around.clock.monotonic(), refused=True)

    @property
    def refused(self) -> str | None:
        """Why it is not built."""
        return self.suspended.why if self.suspended is not None and self.suspended.refused else None

    def _work(self) -> Generator[None]:
        one = self.computation
        assert one is not None
        why = self._useless(one)
        if why is not None:
            self.why, self.at = self.why or why, self._around.log.head().position
            self.loaded = LoadedRows(0, self._around.now())
            # It may have been bound long ago.
            if bound(self.name, self._declared, self._around, self.at).digest != one.view.digest:
                raise Redefined
            for rows in one.load(self.at, self._most):
                self.loaded = LoadedRows(rows, self.loaded.since)
                yield
            self.loaded = None
        head, self.at = self._around.log.head().position, one.cut
        while (to := one.reach(one.cut)) < head:
            one.pass_to(to, wait=True)
            crashpoint("derive.brought_on")
            self.at = to
            yield
            head = self._around.log.head().position
        if one.cut < head:
            one.pass_to(head, wait=True)
        crashpoint("derive.at_the_head")

    @property
    def _most(self) -> StepLimits:
        """Of its sources' rows, in one slice."""
        limits = self._limits
        return StepLimits(min(limits.rows, BESIDE.rows), min(limits.bytes, BESIDE.bytes)) if self.beside else limits

    def _useless(self, one: Computation) -> str | None:
        """Why its state cannot be gone on with. Opens it."""
        facts, lineage = one.state.facts, self._around.log.lineage()
        assert lineage is not None
        if facts is None or facts.loading:
            return useless(one.view.digest, facts, START, lineage)
        try:
            return useless(one.view.digest, facts, one.state.open(one.view).cut, lineage)
        except (Stopped, StateFull):
            raise
        except Exception as error:  # whatever a damaged file leads to
            problem = str(error) if isinstance(error, StateDamaged) else type(error).__name__
            _log.warning(f"the state of view {self.name} cannot be read", problem=problem)
            return UNREADABLE


def bound(name: str, declared: DeclaredView, around: Around, at: Position) -> ViewInForce:
    """The definition as of this cut. Raises ViewWaits while one of its topics is not whole, Stopped."""
    if (why := lacking(around.log, around.run_dir, declared.topics)) is not None:
        raise ViewWaits(why)
    try:
        return in_force(declared, around.log, at)
    except ViewRefused as refusal:
        if (former := going_over(declared.views, around.log, at)) is not None:
            raise ViewWaits(f"{former} is not yet as it is defined now") from None
        raise refused(name, refusal) from None
