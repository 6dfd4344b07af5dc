"""A generation that was live before, put back: at once for readers, who then see what it held when it was replaced, until its follower has brought it up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from cdc.errors import ConfigError
from cdc.generations.refusals import lacking, refuse_beyond
from cdc.model.position import Cut
from sinks.generations import Generation, Generations, GenerationState
from sinks.heldlog import HeldLog


@dataclass(frozen=True, slots=True)
class RolledBack:
    """``behind``: how many changes of the log it lacks."""

    number: int
    former: int
    cut: Cut
    behind: int


def roll_back(name: str, generations: Generations, reader: HeldLog, number: int | None = None) -> RolledBack:
    """``number``: which; by default the newest that is kept. To be done ``alone``. Raises ConfigError where there is none such, Stopped where the log cannot bring it on any more,
    StoreError, also where it has lost something; nothing has changed then."""
    there = generations.all()
    live = next((one.number for one in there if one.state is GenerationState.LIVE), None)
    chosen = _chosen(name, there, number)
    with closing(generations.sink(chosen.number)) as sink:
        cut = sink.open(reader)
        if chosen.mark is None or cut.position < chosen.mark.cut.position:
            raise lacking(name, chosen.number)
        head = reader.head()
        refuse_beyond(head, cut, f"generation {chosen.number} of store {name}")
        if head.position > cut.position:
            reader.cut_within(cut.position, 1, 1)
    generations.hold()
    try:
        generations.swap(chosen.number)
    finally:
        generations.release()
    return RolledBack(chosen.number, live or 0, cut, max(0, head.position - cut.position))


def _chosen(name: str, there: Sequence[Generation], number: int | None) -> Generation:
    kept = [one for one in there if one.state is GenerationState.KEPT and number in (None, one.number)]
    if not kept:
        which = "generation that was live before" if number is None else f"generation {number} that was live before"
        raise ConfigError(f"store {name} has no {which}", hint=f"cdc generations {name}")
    return kept[-1]
