"""The definition that the rows of a view's topic are of, the computation that they come from, and how that goes on."""

from __future__ import annotations

import structlog

from cdc.derive.around import Around, StepLimits
from cdc.derive.computation import Computation
from cdc.derive.course import Decision, ViewCourse, decide
from cdc.derive.inforce import ViewWaits, in_force
from cdc.derive.netrange import Redefined
from cdc.derive.nextgeneration import OVERTAKEN, REDEFINED, UNREADABLE
from cdc.derive.ports import DeclaredView
from cdc.derive.viewgenerations import ViewGenerations
from cdc.derive.wholeness import lacking
from cdc.errors import HeadwaterError, PositionGone, Stopped
from cdc.log.contract import LogReader
from cdc.model.position import START
from cdc.views.contract import StateDamaged, StateFull
from cdc.views.marks import ViewMark

_log = structlog.get_logger("views")


def former_by(generations: ViewGenerations, declared: DeclaredView, mark: ViewMark | None) -> DeclaredView | None:
    """The definition that the mark is of, where there is a state of it and it can be computed still."""
    state = None if mark is None else generations.of(mark.digest)
    return None if state is None or state.facts is None else declared.former(state.facts.definition)


def shown_by(
    name: str, former: DeclaredView | None, mark: ViewMark, generations: ViewGenerations, around: Around, limits: StepLimits
) -> Computation | None:
    """The computation that the topic's rows are of, by its ``former`` definition; None where it cannot be done."""
    state = generations.of(mark.digest)
    if state is None or former is None or lacking(around.log, around.run_dir, former.topics) is not None:
        return None
    try:
        view = in_force(former, around.log, around.log.head().position)
    except (ViewWaits, HeadwaterError):
        return None
    return Computation(name, view, state, around, limits) if view.digest == mark.digest else None


def course_of(shown: Computation, mark: ViewMark, log: LogReader) -> Decision:
    """Opens its state, where there is one."""
    facts, lineage = shown.state.facts, log.lineage()
    assert lineage is not None
    digest = shown.view.digest
    if facts is None or facts.loading:
        return decide(digest, mark, facts, START, lineage)
    try:
        cut = shown.state.open(shown.view).cut
    except (Stopped, StateFull):
        raise
    except Exception as error:  # whatever a damaged file leads to
        problem = str(error) if isinstance(error, StateDamaged) else type(error).__name__
        _log.warning(f"the state of view {shown.name} cannot be read", problem=problem)
        return Decision(ViewCourse.REBUILD, UNREADABLE)
    return decide(digest, mark, facts, cut, lineage)


def why_lost(name: str, lost: Redefined | PositionGone | StateDamaged) -> str:
    """Why a state cannot be gone on with."""
    if isinstance(lost, PositionGone):
        _log.warning(f"view {name} is computed from the beginning: {lost}", facts={"view": name})
        return OVERTAKEN
    if isinstance(lost, StateDamaged):
        _log.warning(f"the state of view {name} cannot be read", problem=str(lost))
        return UNREADABLE
    return REDEFINED
