"""COPY TO STDOUT's blocks as Arrow batches, cut into fields and typed by compiled kernels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.errors import ProtocolError
from cdc.kernels.memory import Take, fresh
from cdc.model.batch import TS, Op, batch_schema
from cdc.model.table import Table
from cdc.pgvalues.binary import binary_columns
from cdc.pgvalues.columns import Columns, columns
from cdc.pgvalues.fields import split
from cdc.pgvalues.values import Bytes
from cdc.source.copyout import Block


def read_rows(block: Block, table: Table, kind: Op = Op.READ, take: Take = fresh) -> pa.RecordBatch:
    """The block as a batch of changes of one kind (``batch_schema``); position, LSN and time are zero, to be set by ``feed.place``.
    ``take``: where its memory comes from. Raises ProtocolError."""
    arrays, exact = (binary_columns if block.binary else _text_columns)(block.data, block.skip, block.rows, table, take)
    schema = batch_schema(table)
    zero = pa.array(np.zeros(block.rows, np.int64))
    op = pa.array(np.full(block.rows, int(kind), np.int8))
    return pa.RecordBatch.from_arrays([zero, op, zero, zero.view(schema.field(TS).type), exact, *arrays], schema=schema)


def _text_columns(data: Bytes, skip: int, rows: int, table: Table, take: Take) -> Columns:
    width = len(table.columns)
    offsets = take(width * rows * 8).view(np.int64).reshape(width, rows)
    lengths = take(width * rows * 4).view(np.int32).reshape(width, rows)
    if split(data, skip, offsets, lengths) != rows:
        raise ProtocolError(f"COPY of table {table.qualified} gave rows of another shape than the catalog says")
    return columns(data, offsets, lengths, table, take)
