"""Whether a ledger that was read is one that a log vouches for."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import StoreError
from cdc.log.contract import Topic
from cdc.model.lineage import Lineage, Mark, believed, of_another_log
from sinks.cache import ledger
from sinks.cache.ledger import CacheLedger, Fields, Projection
from sinks.followedlog import refuse_missed


def decoded(store: str, owner: str, fields: Fields, wanted: Projection) -> CacheLedger:
    """Raises StoreError for a damaged one, and for one whose store was divided into another number of lanes than ``wanted`` is."""
    try:
        held = CacheLedger.decode(fields)
    except (ValueError, KeyError, TypeError):
        hint = "see who writes to it; cdc resume STORE_REFUSES --rebuild builds the store again"
        raise StoreError(f"store {store}: {ledger.key_of(owner)} is damaged", retryable=False, hint=hint) from None
    before, now = (0 if one.lane is None else one.lane.of for one in (held.projection, wanted))
    if before != now:
        raise StoreError(
            f"store {store} is divided into {before} lanes, and `lanes` says {now}",
            retryable=False,
            hint=f"put lanes = {before} back into [stores.{store}]; or cdc resume STORE_REFUSES --rebuild, which divides it again",
        )
    return held


def refuse_unvouched(store: str, held: CacheLedger, lineage: Lineage | None, topics: Sequence[Topic]) -> None:
    """Raises Stopped. ``lineage``: the log's; ``topics``: those that the store is to hold."""
    mark, where = Mark(held.log, held.history, held.furthest), f"store {store}"
    if lineage is None:
        raise of_another_log(mark, where)
    believed(mark, lineage, where)
    for topic in topics:
        if topic.floor and (topic.name in held.at or topic.name in held.shapes):
            at = max(held.at[topic.name], held.cut.position) if topic.name in held.at else 0
            refuse_missed(topic, at, [held.history], lineage, where)
