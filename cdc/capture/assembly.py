"""One group in the making: runs of plain rows, and between them what concerns tables as a whole, in positions without a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import letters
from cdc.capture.definitions import Definitions
from cdc.capture.eventmessages import EventMessages
from cdc.capture.messages import Index
from cdc.capture.rows import RowBatches
from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.group import Group, Transactions, Watermark
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes

FILL_BYTES: Final = 64 * 2**20
"""A group ends where more than this would be filled in: an update of many rows says little of each, and each may get megabytes."""


class Grouping:
    """Messages [begin, end) of an indexed block as one group whose first change gets ``position``; fewer once it is ``full``."""

    def __init__(self, rows: RowBatches, block: Bytes, index: Index, begin: int, end: int, position: int) -> None:
        self._rows = rows
        self._block = block
        self._index = index
        self._begin = begin
        self.end = end
        """Which message is the first that is not in the group."""
        self._last = end
        self._weighed = begin
        self._filled_bytes = 0
        self._run = begin
        self._position = position
        self._changed: npt.NDArray[np.int64] = np.zeros(len(index.xid), np.int64)
        self._batches: list[pa.RecordBatch] = []

    def full(self, until: int) -> bool:
        """Whether the group has to end before message ``until`` (it then does). Rows before it have the definitions that are in force now."""
        room = FILL_BYTES - self._filled_bytes
        cut, filled = self._rows.weigh(self._block, self._index, self._weighed, until, room, some=self._filled_bytes == 0)
        self._weighed = until + 1  # that message itself is not a row, and has been taken in when this is asked again
        self._filled_bytes += filled
        if cut == until:
            return False
        self.end = cut
        return True

    @property
    def whole(self) -> bool:
        """Whether the last transaction does not go on behind the group, as far as the index knows."""
        index, end = self._index, self.end
        return end == self._last or bool(index.kind[end - 1] == letters.COMMIT)

    def flush(self, until: int) -> None:
        """Takes in the rows before message ``until``, under the definitions that are in force now; that message itself is not a row."""
        for batch in self._rows.run(self._block, self._index, self._run, until, self._position, self._changed):
            self._batches.append(batch)
            self._position += len(batch)
        self._run = until + 1

    def has_rows(self, oid: int, until: int) -> bool:
        """Whether rows of the table have come, before message ``until``, that are not taken in yet."""
        return bool(np.any(self._index.relation[self._run : until] == oid))

    def tell(self, changes: Sequence[SchemaChange], at: int) -> None:
        """Takes in the changes of tables that message ``at`` brought."""
        transaction = int(self._index.transaction[at])
        for change in changes:
            if change.kind is not Kind.ALTERED:
                self._rows.forget(change.table.oid)
            lsn, ts_us = int(self._index.commit_lsn[transaction]), int(self._index.commit_ts_us[transaction])
            self._add(schema_record(change, self._position, lsn, ts_us), transaction)

    def truncate(self, tables: Sequence[Table], at: int) -> None:
        transaction = int(self._index.transaction[at])
        for table in tables:
            self._rows.forget(table.oid)
            self._add(_truncate(table, self._position, self._index, transaction), transaction)

    def finish(self, watermark: Watermark | None, definitions: Definitions, events: EventMessages, *, complete: bool) -> Group:
        self.flush(self.end)
        index = self._index
        some = self.end > self._begin
        first, last = (int(index.transaction[self._begin]), int(index.transaction[self.end - 1]) + 1) if some else (0, 1)
        base = self._position - int(self._changed.sum()) - 1
        end_lsn = index.end_lsn[first:last]
        if not self.whole:
            end_lsn = np.append(end_lsn[:-1], 0)
        transactions = Transactions(
            index.xid[first:last].astype(np.uint32),
            end_lsn,
            index.commit_ts_us[first:last],
            base + np.cumsum(self._changed[first:last]),
        )
        messages = events.taken(self._block, index, self._begin, self.end)
        return Group(tuple(self._batches), transactions, watermark, complete, definitions.take_again(), messages)

    def _add(self, record: pa.RecordBatch, transaction: int) -> None:
        self._batches.append(record)
        self._position += 1
        self._changed[transaction] += 1


def _truncate(table: Table, position: int, index: Index, transaction: int) -> pa.RecordBatch:
    schema = batch_schema(table)
    arrays = [
        pa.array([position], pa.int64()),
        pa.array([Op.TRUNCATE], pa.int8()),
        pa.array([int(index.commit_lsn[transaction])], pa.int64()),
        pa.array([int(index.commit_ts_us[transaction])], pa.int64()).view(META_FIELDS[3].type),
        pa.nulls(1, EXACT_TYPE),
        *(pa.nulls(1, field.type) for field in list(schema)[len(META_FIELDS) :]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
