"""The rows that updates and deletes replaced, as Postgres sends them under REPLICA IDENTITY FULL → the batch's column of them. Pure.

Only tables that have them are looked at (``Table.keeps_old_rows``); their messages are then read a second time, for nobody else has a use for the values.
Values that are TOASTed stand in old rows whole, whether or not the update changed them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from cdc.capture.messages import Index
from cdc.capture.tuples import RowFields, old_tuples
from cdc.kernels.memory import Take
from cdc.model.batch import Op
from cdc.model.oldrows import old_rows_column
from cdc.model.table import Table
from cdc.pgvalues import columns
from cdc.pgvalues.values import Bytes

_UPDATED, _DELETED = int(Op.UPDATE), int(Op.DELETE)
_SECOND: Final = 1


def old_rows(block: Bytes, index: Index, table: Table, rows: RowFields, take: Take) -> pa.Array | None:
    """The column for one table's rows, where any replaced one. Raises ProtocolError."""
    # The second row of a changed key replaces none: the DELETE before it has the old row.
    replaces = (rows.op == _DELETED) | ((rows.op == _UPDATED) & (rows.order & _SECOND == 0))
    at = replaces.nonzero()[0]
    if not len(at):
        return None
    offsets, lengths, whole = old_tuples(block, index, rows.order[at] >> 1, len(table.columns))
    replaces[at[~whole]] = False
    values, exact = columns.columns(block, offsets, lengths, table, take)
    return old_rows_column(table, replaces, exact, values)
