"""A topic that another producer brings, group by group, written into a log by hand: its key and its types may be others with each group, as a view's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cdc.inbox.changes import changes
from cdc.inbox.definition import numbered, table_for
from cdc.model.batch import OP
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from tests.logs import LooseLog, cut

Values = dict[str, Any]


class RedefinedTopic:
    """``views.v``."""

    def __init__(self, log: LooseLog) -> None:
        self._log = log
        self.known: Table | None = None
        self._head = Cut(Position(0), cut(0).commit_lsn, 0)

    def brings(
        self, schema: pa.Schema, key: Sequence[str], rows: Sequence[Values], gone: Sequence[Values] = ()
    ) -> list[pa.RecordBatch]:
        """One group. Returns what of it stands in the log now: a SCHEMA record where there is one, and the changes."""
        table = numbered(table_for("views.v", list(schema), key), self.known, self._head.position + 1)
        ops = pa.array(["u"] * len(rows) + ["d"] * len(gone), pa.utf8())
        batch = pa.RecordBatch.from_pylist([*rows, *gone], schema).add_column(0, pa.field(OP, pa.utf8()), ops)
        made = list(changes(table, [batch], self.known, self._head))
        for one in made:
            self._log.put(one)
        self.known, self._head = table, cut(self._head.position + sum(map(len, made)))
        self._log.reach(self._head)
        return made
