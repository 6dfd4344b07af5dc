"""Why a generation is not put into anybody's hands."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import Stopped, StopState, StoreError
from cdc.model.lineage import Lineage, believed, of_another_log
from cdc.model.position import Cut
from sinks.generations import Generation


def lacking(store: str, number: int) -> StoreError:
    return StoreError(
        f"generation {number} of store {store} is not shown: it lacks what it said that it holds (an index was deleted, or is an older copy)",
        retryable=False,
        hint=f"cdc bootstrap {store}",
    )


def refuse_beyond(head: Cut, held: Cut, where: str) -> None:
    """Raises Stopped where what is held lies beyond the log's end, so that nothing could be brought to it."""
    if held.position > head.position:
        raise Stopped(
            StopState.DIVERGED,
            f"{where} holds position {held.position}, the log ends at {head.position}: the log or the store was restored",
            hint=f"put the right copy back; or cdc resume {StopState.DIVERGED} --rebuild, which builds the store again from the log",
        )


def refuse_another_log(store: str, there: Sequence[Generation], lineage: Lineage | None) -> None:
    """Raises Stopped where another log feeds the store: what is there is not this configuration's to remove. ``lineage``: of this one's log, where there is one."""
    for one in there:
        if one.mark is not None and lineage is None:
            raise of_another_log(one.mark, f"store {store}")
        if one.mark is not None and lineage is not None and one.mark.log != lineage.log:
            believed(one.mark, lineage, f"store {store}")
