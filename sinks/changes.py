"""Changes as a store is given them that hands them on: those that its condition is true of, each with the row that it replaced. Pure.

The row before comes with the change where the source sent it (REPLICA IDENTITY FULL). Else it is looked up, by its key, where the condition asks for it, and not
otherwise: that costs runs in the log's folder (``cdc.lookup``), which are kept for such a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc.model.batch import OP, Op, topic_schema
from cdc.model.oldrows import taken_apart, with_old_rows
from cdc.model.topic import TopicSchema
from sinks.condition import Condition, ReplacedRows
from sinks.oldvalues import of_their_types
from sinks.places import ChangesBefore, FormerRows

_UPDATE, _DELETE = int(Op.UPDATE), int(Op.DELETE)


@dataclass(frozen=True, slots=True)
class ChangesAsked:
    """The changes of one topic that a store asks for. ``condition``: None: all."""

    condition: Condition | None
    former_rows: FormerRows

    @classmethod
    def of(cls, store: str, when: str, schema: TopicSchema, former_rows: FormerRows) -> ChangesAsked:
        """``when``: empty: all changes."""
        return cls(Condition.of(store, when, schema) if when else None, former_rows)

    @property
    def looks_up(self) -> bool:
        return self.condition is not None and self.condition.asks_old_rows

    def given(self, batch: pa.RecordBatch, made: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.RecordBatch:
        """Those of a batch's changes, rows or one TRUNCATE as they were logged, that the store is given, with the column of old rows
        (``cdc.model.oldrows``). ``made``: a batch as the store has it."""
        changes, replaced = self._replaced(batch)
        if self.condition is not None:
            kept = self.condition.true_of(changes, replaced)
            if not kept.all():
                changes, replaced = changes.filter(pa.array(kept)), replaced.filter(kept)
        return with_old_rows(made(changes), replaced.has, None if replaced.rows is None else made(replaced.rows))

    def _replaced(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, ReplacedRows]:
        changes, has, old = taken_apart(batch)
        schema = topic_schema(changes.schema)
        if not self.looks_up or schema.identity == "row" or not schema.key:
            return changes, ReplacedRows(has, old)
        ops = changes.column(OP).to_numpy()
        asked = (ops == _UPDATE) | (ops == _DELETE)
        if not asked.any():
            return changes, ReplacedRows(has, old)
        before = ChangesBefore.of(changes, schema, self.former_rows, asked)
        found = np.flatnonzero(asked & (before.numbers >= 0))
        has = np.zeros(len(changes), np.bool_)
        has[found] = True
        return changes, ReplacedRows(has, of_their_types(before.rows_at(found)) if len(found) else None)
