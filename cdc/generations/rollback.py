"""A generation that was live before, put back. As long as it is kept it is fed, so there is next to nothing to bring to it first, and readers lose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import ConfigError, StoreError
from cdc.follow.ranges import ChangeWaits
from cdc.generations.alone import writing
from cdc.generations.bootstrap import hand_over
from cdc.generations.decisions import CarriedDecisions
from cdc.generations.follower import GenerationFollower
from cdc.generations.refusals import refuse_beyond
from cdc.generations.reporter import GenerationReporter
from cdc.generations.swap import put_in_place
from cdc.model.position import Cut
from sinks.generations import Generation, Generations, GenerationState


@dataclass(frozen=True, slots=True)
class RolledBack:
    """``brought``: how many changes of the log it lacked, and was given before readers saw it."""

    number: int
    former: int
    cut: Cut
    brought: int
    decisions: CarriedDecisions


def roll_back(
    follower: GenerationFollower, generations: Generations, run_dir: Path, keep_s: float | None, number: int | None = None
) -> RolledBack:
    """``number``: which; by default the newest that is kept. ``keep_s``: for so long the one that is live now is kept, None: without an end. To be done ``alone``.
    Raises ConfigError where there is none such, Stopped where the log cannot bring it on any more, HeadwaterError, StoreError; nothing has changed then."""
    name, reader, there = follower.rules.store, follower.reader, generations.all()
    live = next((one.number for one in there if one.state is GenerationState.LIVE), 0)
    chosen = _chosen(name, there, number)
    if not live:
        raise StoreError(f"nobody can say which generation of store {name} is live", retryable=True, hint=f"cdc generations {name}")
    with writing(follower.log_dir, name, chosen.number), closing(generations.sink(chosen.number)) as sink:
        try:
            cut = begin = follower.open(sink)
            refuse_beyond(reader.head(), cut, f"generation {chosen.number} of store {name}")
            cut, decided = put_in_place(follower, generations, sink, cut, (chosen.number, live), keep_s)
        except ChangeWaits as waits:
            raise waits.pause.stopped from None
        GenerationReporter(run_dir, name, chosen.number, "kept").gone()
        hand_over(generations, run_dir, name, live, cut)
    return RolledBack(chosen.number, live, cut, cut.position - begin.position, decided)


def _chosen(name: str, there: Sequence[Generation], number: int | None) -> Generation:
    kept = [one for one in there if one.state is GenerationState.KEPT and number in (None, one.number)]
    if not kept:
        which = "generation that was live before" if number is None else f"generation {number} that was live before"
        raise ConfigError(f"store {name} has no {which}", hint=f"cdc generations {name}")
    return kept[-1]
