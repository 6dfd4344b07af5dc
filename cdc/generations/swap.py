"""The last steps of every swap: the other generation has all that the live one has when it takes its place."""

from __future__ import annotations

import time
from contextlib import closing

from cdc.crashpoint import crashpoint
from cdc.generations.decisions import CarriedDecisions, carry
from cdc.generations.follower import GenerationFollower
from cdc.generations.refusals import lacking
from cdc.model.position import Cut
from sinks.contract import Sink
from sinks.generations import Generations


def put_in_place(
    follower: GenerationFollower, generations: Generations, sink: Sink, cut: Cut, numbers: tuple[int, int], keep_s: float | None
) -> tuple[Cut, CarriedDecisions]:
    """``sink``: the generation's, opened by ``follower`` under ``writing``, at ``cut``. ``numbers``: its own, and the live one's, which is then kept for so long
    (None: without an end). To be done ``alone``. Raises StoreError, Stopped, ChangeWaits; readers see the live one as before then."""
    number, live = numbers
    reader, tables = follower.reader, follower.rules.options.tables
    with closing(generations.sink(live)) as former:
        cut = follower.catch_up(sink, cut)
        decided = carry(former, sink, reader, cut, tables)
        crashpoint("generations.decided")
        last = generations.hold()
        try:
            cut = follower.follow(sink, cut, last)
            decided = decided.and_then(carry(former, sink, reader, cut, tables))
            sink.make_visible()
            if sink.applied().position < cut.position:
                raise lacking(follower.rules.store, number)
            generations.swap(number, None if keep_s is None else time.time() + keep_s)
        finally:
            generations.release()  # nothing to end once it has swapped
    return cut, decided
