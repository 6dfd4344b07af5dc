"""Logs for tests that need a sink but no log of their own, or one that they write as they feed the sink."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import first_position, last_position, table_of
from cdc.model.position import Cut, Lsn, Position

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

    def copied(self) -> LooseLog:
        """The same log as an older copy of its folder would be."""
        copy = LooseLog()
        copy.cuts, copy.batches, copy.lineage = list(self.cuts), list(self.batches), self.lineage
        return copy

    def begin_history(self) -> None:
        self.writer().begin_history()

    def reader(self) -> MemoryReader:
        return MemoryReader(self)

    def _there(self) -> set[tuple[str, int]]:
        return {(table_of(batch.schema).qualified, first_position(batch)) for batch in self.batches}
