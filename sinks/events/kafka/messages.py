"""Events → messages, as the client takes them. Pure. It takes one message a call, so here there is a Python object for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from sinks.events.event import EventBatch
from sinks.events.kafka.options import Options

Headers = list[tuple[str, bytes | None]]


def messages(events: EventBatch, options: Options) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each event's position and message, and its tombstone behind it. Of ``order_by`` the ``group`` is what decides on the partition, which the
    caller has to compute; without it the key does."""
    names = {topic: options.topic_of(topic) for topic in set(events.column("topic").unique().to_pylist())}
    columns = (
        events.column(name).to_pylist() for name in ("position", "topic", "op", "id", "key", "wire_key", "group", "body", "headers")
    )
    for position, topic, op, event_id, key, wire_key, group, body, headers in zip(*columns, strict=True):
        keyed = {"topic": names[topic], "key": key.encode() if wire_key is None and key is not None else wire_key}
        if options.order_by:
            keyed["group"] = group
        message: dict[str, Any] = keyed | {"value": body, "headers": _headers(event_id, headers)}
        yield position, message
        if options.writes_tombstones and op == "delete" and key is not None:
            yield position, keyed | {"value": None}


def sizes_of(events: EventBatch) -> npt.NDArray[np.int64]:
    """The bytes of each event's key, value and headers, or a few more: headers are counted as they were written."""
    found = np.zeros(len(events), np.int64)
    for name in ("key", "wire_key", "body", "headers", "id"):
        found += pc.binary_length(events.column(name)).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _headers(event_id: str, written: str | None) -> Headers:
    """The application's, as text, and ``id`` behind them, so that it is the last of that name, which is what clients ask for."""
    found: Headers = []
    if written is not None:
        try:
            said = json.loads(written)
        except (ValueError, RecursionError):  # a number of more digits than Python reads, or brackets within brackets
            said = None
        found = (
            [(name, _text(value)) for name, value in said.items()] if isinstance(said, Mapping) else [("headers", written.encode())]
        )
    return [*found, ("id", event_id.encode())]


def _text(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
