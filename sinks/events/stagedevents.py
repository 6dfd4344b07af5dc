"""Events that wait for the commit, and the order in which they go: by position over all topics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc.model.position import Position
from sinks.events.event import EVENTS, EventBatch
from sinks.stagedchanges import StagedChanges


class StagedEvents:
    """The events that a range of the log has brought, each topic's in order."""

    def __init__(self, limit_bytes: int) -> None:
        """``limit_bytes``: so many of them stay in memory."""
        self._staged = StagedChanges(limit_bytes)

    def reach(self, topic: str) -> Position:
        """Everything of the topic up to here waits already; 0: nothing does."""
        return self._staged.reach(topic)

    def add(self, topic: str, events: EventBatch) -> None:
        self._staged.add(topic, events.rows)

    def in_order(self) -> Iterator[EventBatch]:
        """All of them, as they go. Takes memory for one batch of each topic. May be asked again, until ``clear``."""
        sources = [self._staged.batches(topic) for topic in self._staged.topics]
        heads = [(next(source), source) for source in sources]
        while heads:
            bound = min(int(batch.column(0)[-1].as_py()) for batch, _ in heads)
            taken, left = [], []
            for batch, source in heads:
                count = int(np.searchsorted(batch.column(0).to_numpy(), bound, side="right"))
                taken.append(batch.slice(0, count))
                rest = batch.slice(count) if count < len(batch) else next(source, None)
                if rest is not None:
                    left.append((rest, source))
            heads = left
            yield _merged(taken)

    def clear(self) -> None:
        self._staged.clear()


def _merged(parts: list[pa.RecordBatch]) -> EventBatch:
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return EventBatch(filled[0])
    whole = pa.Table.from_batches(filled, EVENTS).combine_chunks().to_batches()[0]
    return EventBatch(whole.take(pa.array(np.argsort(whole.column(0).to_numpy(), kind="stable"))))
