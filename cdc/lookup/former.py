"""The log as a store sees it (``sinks.heldlog``), where the rows before changes are looked up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from cdc.errors import LookupBehind, StoreError
from cdc.log.contract import LogReader
from cdc.lookup.lookup import Lookup
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks.heldlog import HeldLog
from sinks.places import Former, FormerRows
from sinks.reshape import conformed


def held_log(log: LogReader, store: str, options: StoreOptions, folder: Path) -> HeldLog:
    """``folder``: the log's."""
    return HeldLog(log, store, options, looked_up(log, folder))


def looked_up(log: LogReader, folder: Path) -> FormerRows:
    """Raises what ``Lookup.rows`` does, and StoreError (retryable) while that is being made."""
    lookup = Lookup(log, folder)

    def rows(shape: TopicSchema, upto: Position, asked: pa.Array) -> Former:
        try:
            found = lookup.rows(shape.topic, upto, asked)
        except LookupBehind as behind:
            raise StoreError(str(behind), retryable=True, hint=behind.hint) from behind
        numbers = np.where(found.found, np.cumsum(found.found) - 1, -1)
        there = found.rows.filter(pa.array(found.found))
        return Former(conformed(there, shape) if len(there) else there, numbers)

    return rows
