"""How a view goes on after a start: decided from the log's mark of it and from the state that lies beside, and nothing else. Pure.

==============================================  =========================================================================
the log's mark, the state                       course
==============================================  =========================================================================
no state, or another definition's               ``REBUILD``: the view is computed from the log and compared with its topic
no mark, or another definition's                ``REBUILD``
the state is of another log or history          ``REBUILD``
the state is ahead of the mark                  ``REBUILD``, unless it says that nothing came out in between
at the same cut, the range's output in the log  ``GO_ON``
at the same cut, some of the output missing     ``RECONCILE``: the state's rows are compared with the topic
the state is behind                             ``CATCH_UP``: the range is computed again, and what the log has of it left out;
                                                ``REBUILD`` where the output is not whole and the state is not before its range
==============================================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cdc.model.lineage import Lineage
from cdc.model.position import Position
from cdc.views.marks import ViewMark


class ViewCourse(StrEnum):
    GO_ON = "go on"
    CATCH_UP = "catch up"
    RECONCILE = "reconcile"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class LeftState:
    """A state that is kept although its definition is live no more. ``at``: since when, in seconds since 1970. ``cut``: the state's."""

    at: float
    cut: Position


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The facts beside a kernel's state. ``loading``: it is not whole yet. ``even``: nothing came out of the view between these two cuts. ``definition``: the whole of
    it, as ``DeclaredView`` has it."""

    digest: str
    log: str
    history: str
    loading: bool
    even: tuple[int, int] | None = None
    left: LeftState | None = None
    definition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    course: ViewCourse
    why: str = ""


def decide(digest: str, mark: ViewMark | None, facts: KernelFacts | None, cut: Position, lineage: Lineage) -> Decision:
    """``digest``: the definition's. ``cut``: the kernel's."""
    if (why := useless(digest, facts, cut, lineage)) is not None:
        return Decision(ViewCourse.REBUILD, why)
    assert facts is not None
    if mark is None:
        return Decision(ViewCourse.REBUILD, "the log has no mark of it")
    if mark.digest != digest:
        return Decision(ViewCourse.REBUILD, "its definition is another than that of its rows in the log")
    if mark.done is not None and cut != mark.cut and not 0 < mark.begin >= cut:
        return Decision(ViewCourse.REBUILD, "its rows in the log are not whole, and its state cannot tell the others")
    if cut > mark.cut:
        if mark.done is None and facts.even is not None and facts.even[0] <= mark.cut and cut <= facts.even[1]:
            return Decision(ViewCourse.GO_ON)
        return Decision(ViewCourse.REBUILD, "its state is ahead of the log")
    if cut == mark.cut:
        return Decision(ViewCourse.GO_ON if mark.done is None else ViewCourse.RECONCILE)
    return Decision(ViewCourse.CATCH_UP)


def useless(digest: str, facts: KernelFacts | None, cut: Position, lineage: Lineage) -> str | None:
    """Why this state is none of what the definition makes of the log's changes up to the state's cut; None: it is that, whatever the log has of the view."""
    if facts is None:
        return "it has no state yet"
    if facts.digest != digest:
        return "its definition is another than its state's"
    if facts.loading or not cut:
        return "its state is not whole"
    until = lineage.until(facts.history)
    if facts.log != lineage.log or until is None or cut > until:
        return "its state is of another history of the log"
    return None
