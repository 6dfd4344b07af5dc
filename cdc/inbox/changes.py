"""A group's rows as changes for the log: positions, operations, and a SCHEMA record where the
definition is another than before, or there is no row to bring it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.inbox.definition import refuses, rekeyed
from cdc.inbox.rowchecks import DELETE
from cdc.model.batch import EXACT_TYPE, META_FIELDS, OP, Op, batch_schema
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.position import Cut
from cdc.model.table import Table


def changes(table: Table, rows: Sequence[pa.RecordBatch], known: Table | None, head: Cut) -> Iterator[pa.RecordBatch]:
    """The batches to append behind the log's head. ``known``: the topic's definition until now.
    They carry the head's LSN and time, so that these never fall within the log.

    A definition that the topic's rows cannot go on under is entered as that of a table whose rows were rewritten is: under another key the earlier ones are gone, under
    other types they stay until those come that take their place.
    """
    position = head.position + 1
    if known != table and (known is not None or not rows):
        change = SchemaChange(table, Kind.ALTERED)
        if known is not None and refuses(known, table) is not None:
            change = SchemaChange(table, Kind.REWRITTEN, empties=rekeyed(known, table))
        yield schema_record(change, position, head.commit_lsn, head.commit_ts_us)
        position += 1
    for batch in rows:
        yield _numbered(table, batch, position, head)
        position += len(batch)


def _numbered(table: Table, rows: pa.RecordBatch, first: int, head: Cut) -> pa.RecordBatch:
    count = len(rows)
    deleted = pc.equal(rows.column(OP), DELETE).to_numpy(zero_copy_only=False)
    ops = np.where(deleted, int(Op.DELETE), int(Op.UPDATE)).astype(np.int8)
    arrays = [
        pa.array(np.arange(first, first + count, dtype=np.int64)),
        pa.array(ops),
        pa.array(np.full(count, head.commit_lsn, np.int64)),
        pa.array(np.full(count, head.commit_ts_us, np.int64)).view(META_FIELDS[3].type),
        pa.nulls(count, EXACT_TYPE),
        *rows.columns[1:],
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(table))
