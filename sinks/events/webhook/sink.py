"""A store of events whose channel is a webhook: what the others have, and its dead letters.

A letter is one event's, and as long as it is there the events behind it that have its key wait, unlike a row's, whose later changes go on: of a row the last change
is all that counts, of events every one does, in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.errors import PositionGone
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, first_position, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Traits
from sinks.deadletters import Letter
from sinks.events.event import EventBatch
from sinks.events.eventcolumns import events_of
from sinks.events.sink import TRAITS, EventSink
from sinks.events.webhook.channel import WebhookChannel
from sinks.events.webhook.options import Options

RUN_GAP: Final = 2_000
"""Waiting events that are no farther apart than this are read in one go, with what stands between them."""


class WebhookSink(EventSink):
    """See ``sinks.contract.Sink`` and ``sinks.deadletters.LetterBox``."""

    def __init__(self, name: str, options: Options, channel: WebhookChannel) -> None:
        super().__init__(name, options, channel)
        self._webhook = channel
        self._writing = False

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        applied = super().open(log, epoch)
        if epoch is not None:
            self._webhook.resume(self._waiting_events(log))
            self._writing = True
        return applied

    def applied(self) -> Cut:
        if self._writing:
            self._webhook.look()
        return super().applied()

    def close(self) -> None:
        self._writing = False
        super().close()

    def returns_to(self) -> Position | None:
        return self._webhook.first_waiting

    def letters(self) -> tuple[Letter, ...]:
        return self._webhook.letters

    def keep(self, letters: Collection[Letter]) -> None:
        self._webhook.keep(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._webhook.forget(ids)

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:  # noqa: ARG002
        """Sends the letter's event again, as it was: ``row`` only says which."""
        return self._webhook.again((topic_schema(row.schema).topic, int(first_position(row))))

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        topic = topic_schema(rows.schema).topic
        return pa.array([f"{topic}@{one}" for one in rows.column(POSITION).to_pylist()], pa.utf8())

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:  # noqa: ARG002
        """No row has a place."""
        return pa.nulls(len(keys), pa.utf8())

    def _waiting_events(self, log: LogReader) -> Iterator[EventBatch]:
        """Those that the channel lacks, as far as the log still has them, read as they were the first time."""
        history = self._writer().history
        for topic, positions in self._webhook.lacking.items():
            wanted = np.array(positions, np.int64)
            for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > RUN_GAP) + 1):
                with suppress(PositionGone):
                    for batch in log.read(topic, Position(int(run[0]) - 1), Position(int(run[-1])), history):
                        kept = np.isin(batch.column(POSITION).to_numpy(), run)
                        if kept.any() and topic_change_of(batch) is None:
                            yield events_of(batch.filter(pa.array(kept)), self._form(topic_schema(batch.schema)))


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> WebhookSink:
    return WebhookSink(name, options, WebhookChannel(name, options))
