"""A store of events whose channel is a webhook: what the others have, and its dead letters.

A letter is one event's, and as long as it is there the events behind it that have its key wait, unlike a row's, whose later changes go on: of a row the last change
is all that counts, of events every one does, in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, first_position, topic_schema
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Traits
from sinks.deadletters import Letter
from sinks.events.event import Events
from sinks.events.rendering import events_of
from sinks.events.sink import TRAITS, EventSink
from sinks.events.webhook.channel import WebhookChannel
from sinks.events.webhook.options import Options


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

    def _waiting_events(self, log: LogReader) -> Iterator[Events]:
        for topic, positions in self._webhook.lacking.items():
            for batch in log.changes_at(topic, np.array(positions, np.int64)):
                if len(batch):
                    yield events_of(batch, self.options.body, self._choices.style(topic_schema(batch.schema)))


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> WebhookSink:
    return WebhookSink(name, options, WebhookChannel(name, options))
