"""The index's place of a row that it cannot hold: a document that says "deleted", at the row's own version.

So nobody finds the row as it was before, and a late write of an older change loses, as against any other delete. First the letter is recorded, then the
document is written, and both come before the commit that covers the row: after a crash in between the row is brought again, and both are done again.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.batch import POSITION, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.deadletters import Letter, LetterState, TakenChanges, as_deletes
from sinks.render.jsonrows import Style
from sinks.retry import Fate
from sinks.search import bulk
from sinks.search.placement import former
from sinks.search.rows import Rows
from sinks.search.tables import Tables


class Aside:
    """Over one store."""

    def __init__(self, tables: Tables, rows: Rows) -> None:
        self._tables = tables
        self._rows = rows

    def settle(self, schema: TopicSchema, batch: pa.RecordBatch, verdicts: bulk.Verdicts) -> tuple[Letter, ...]:
        """Sets aside what the index cannot hold, and ends the letters of rows that it holds now. ``batch``: rows that have just been written."""
        letters, positions = self._rows.letters, batch.column(POSITION).to_numpy()
        ids = partial(bulk.ids_of, batch, schema)
        before = letters.known.by_id
        edited = {one.id: one for one in before.values() if one.state is LetterState.EDITED}
        found = self._rows.bury(schema, verdicts, positions, ids, edited_stay=True)
        if found:
            gone = self._clear(schema, batch, [int(np.searchsorted(positions, one.position, "right")) - 1 for one in found])
            # A document that an operator has corrected has a later version. It is gone where this one was taken, with an index that was lost.
            letters.keep([edited[one.id].undecided() for one, taken in zip(found, gone, strict=True) if taken and one.id in edited])
        fates = np.empty(len(batch), np.int8)
        fates[verdicts.rows] = verdicts.fates
        own = self._own(schema, batch)
        taken = TakenChanges(np.isin(fates, (Fate.WRITTEN, Fate.STALE)) & own, (fates == Fate.WRITTEN) & own)
        ended = {*letters.known.ended(schema.topic, ids, positions, taken), *self._replaced(found)}
        if ended:
            letters.forget(ended)
        return found

    def _own(self, schema: TopicSchema, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which changes say something of the document that they name. Where a row leaves a place and its document keeps its id, the row that comes says it."""
        left = former(batch)
        if not left.any() or not self._rows.letters.known.of(schema.topic):
            return ~left
        ids = bulk.ids_of(batch, schema).to_numpy(zero_copy_only=False)
        left[:-1] &= ids[:-1] == ids[1:]
        return ~left

    def _replaced(self, found: tuple[Letter, ...]) -> list[str]:
        """Letters of rows that have a newer one."""
        newest = {(one.table, one.key): one.position for one in found}
        known = self._rows.letters.known.by_id.values()
        return [one.id for one in known if one.position < newest.get((one.table, one.key), 0)]

    def _clear(self, schema: TopicSchema, batch: pa.RecordBatch, rows: list[int]) -> list[bool]:
        """Which of them were taken."""
        deletes = as_deletes(batch.take(pa.array(rows, pa.int64())))
        body = bulk.Body(deletes, schema, self._tables.indices.style(schema))
        verdicts = self._rows.write(schema, self._tables.place(schema), body, deletes.column(POSITION).to_numpy())
        written = set(verdicts.of(Fate.WRITTEN).tolist())
        return [row in written for row in range(len(rows))]

    def compare(self) -> None:
        """Takes over what other processes have set aside, and ends what they have replaced."""
        letters = self._rows.letters
        letters.reload()
        for topic in {one.table for one in letters.known.all}:
            if topic in self._tables.known:
                letters.compare(self._tables.known[topic].names.index, topic)
        if letters.known.room < 0:
            raise letters.known.too_many()  # each of them had room for its own

    def put(self, row: pa.RecordBatch, at: Position, style: Style) -> str | None:
        """See ``LetterBox.put``. ``at`` becomes the document's version, which is free for a row that has no change after its own."""
        schema = topic_schema(row.schema)
        ids = bulk.ids_of(row, schema)  # of its own position, where that names it
        standing = row.set_column(0, row.schema.field(0), pa.array([at], pa.int64()))
        body = bulk.Body(standing, schema, style, ids, over_equal=True)
        verdicts = self._rows.write(schema, self._tables.place(schema), body, np.array([at], np.int64))
        if verdicts.count(Fate.DEAD):
            return verdicts.reasons[0]
        return None if verdicts.count(Fate.WRITTEN) else "a later change of this row is there, or another writer"
