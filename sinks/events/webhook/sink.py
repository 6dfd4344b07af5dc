"""A store of events whose channel is a webhook."""

from __future__ import annotations

from sinks.contract import Traits
from sinks.events.sink import TRAITS, EventSink
from sinks.events.webhook.channel import WebhookChannel
from sinks.events.webhook.options import Options


def traits(options: Options) -> Traits:  # noqa: ARG001
    return TRAITS


def make(name: str, options: Options) -> EventSink:
    return EventSink(name, options, WebhookChannel(name, options))
