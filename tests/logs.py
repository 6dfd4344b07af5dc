"""Logs for tests that need a sink but no log of their own, or one that they write as they feed the sink."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import OP, Op, first_position, last_position, table_of, topic_schema
from cdc.model.position import Cut, Lsn, Position
from sinks.render.rowtext import row_keys, row_text

EMPTY: Final = MemoryLog().reader()
"""An empty log, the same for every sink of a test run, so that their marks agree."""


def cut(position: int) -> Cut:
    return Cut(Position(position), Lsn(position * 10), position * 1_000_000)


class LooseLog(MemoryLog):
    """A log that is written in any order and with gaps, as tests feed a sink. What is put in again is there once."""

    def put(self, batch: pa.RecordBatch) -> None:
        """Ends with a cut, unless the log is further already."""
        if len(batch) and (table_of(batch.schema).qualified, first_position(batch)) not in self._there():
            self.batches = sorted([*self.batches, batch], key=first_position)
            self.reach(cut(last_position(batch)))

    def reach(self, end: Cut) -> None:
        """Everything up to this cut is in the log."""
        if (end.position, end.commit_lsn) > (self.head.position, self.head.commit_lsn):
            self.cuts.append(end)

    def forget(self, topic: str, floor: int) -> None:
        """Compacts a topic: below the floor only rows that were there then have a change left."""
        self._compact(topic, floor, deletes=False)
        self.raise_floor(topic, Position(floor))

    def supersede(self, topic: str, clean: int) -> None:
        """Compacts a topic: below that position only each row's last change is left, be it a DELETE."""
        self._compact(topic, clean, deletes=True)
        self.clean_from[topic] = Position(clean)

    def _compact(self, topic: str, floor: int, *, deletes: bool) -> None:
        left: dict[str, pa.RecordBatch] = {}
        others = []
        for one in self.batches:
            if table_of(one.schema).qualified != topic or first_position(one) >= floor:
                others.append(one)
                continue
            assert last_position(one) < floor
            schema = topic_schema(one.schema)
            for number, key in enumerate(row_keys(row_text(one, schema), one, schema).to_pylist()):
                left.pop(key, None)
                if deletes or one.column(OP)[number].as_py() != Op.DELETE:
                    left[key] = one.slice(number, 1)
        self.batches = sorted([*others, *left.values()], key=first_position)

    def copied(self) -> LooseLog:
        """The same log as an older copy of its folder would be."""
        copy = LooseLog()
        copy.cuts, copy.batches, copy.lineage = list(self.cuts), list(self.batches), self.lineage
        copy.floors = dict(self.floors)
        return copy

    def begin_history(self) -> None:
        self.writer().begin_history()

    def reader(self) -> MemoryReader:
        return MemoryReader(self)

    def _there(self) -> set[tuple[str, int]]:
        return {(table_of(batch.schema).qualified, first_position(batch)) for batch in self.batches}
