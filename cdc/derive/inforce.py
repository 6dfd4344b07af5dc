"""A view over its topics as they are defined now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdc.derive.netrange import TopicReads
from cdc.derive.ports import BoundView, DeclaredView
from cdc.log.contract import LogReader
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.state import definition_at

FORMAT: Final = 1
"""The version of how views are computed: one of Headwater that computes otherwise has another."""


class ViewWaits(Exception):
    """The view stands still; the message says what for."""


@dataclass(frozen=True, slots=True)
class ViewInForce:
    """``digest``: stands for the definition, and for all of its topics' that its rows follow from."""

    declared: DeclaredView
    view: BoundView
    reads: Mapping[str, TopicReads]
    digest: str


def in_force(declared: DeclaredView, log: LogReader, at: Position) -> ViewInForce:
    """As of this cut. Raises ViewWaits, ViewRefused, Stopped."""
    schemas: dict[str, TopicSchema] = {}
    for topic in declared.topics:
        schema = definition_at(log, topic, at)
        if schema is None:
            raise ViewWaits(f"{topic} has nothing in the log yet")
        schemas[topic] = schema
    view = declared.bind(schemas)
    reads = {topic: TopicReads.of(schemas[topic], columns) for topic, columns in view.reads.items()}
    return ViewInForce(declared, view, reads, _digest(view, reads))


def _digest(view: BoundView, reads: Mapping[str, TopicReads]) -> str:
    facts: dict[str, Any] = {
        "format": FORMAT,
        "identity": view.identity,
        "key": list(view.key),
        "reads": {topic: [list(map(str, fact)) for fact in one.signature] for topic, one in sorted(reads.items())},
    }
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
