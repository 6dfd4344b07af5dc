"""Formats in which keys and values come with a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from sinks.condition import ReplacedRows


class Encoding(Protocol):
    """Encodes the changes of one topic under one definition. Gives the columns ``body``, ``wire_key`` and ``unfit`` of ``sinks.events.event``. Pure."""

    def of_changes(self, changes: pa.RecordBatch, replaced: ReplacedRows) -> Mapping[str, pa.Array]:
        """Writes a table's changes as Debezium's envelope."""
        ...

    def of_payloads(self, payloads: pa.Array, keys: pa.Array) -> Mapping[str, pa.Array]:
        """Writes events that an application wrote. ``payloads``: utf8 or large_binary; ``keys``: utf8."""
        ...
