"""The rows of a view's sources as of a cut, which a view is first computed from: read here, in steps, or by others (``RowWorkers``)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from cdc.derive.netrange import TopicReads
from cdc.log.contract import LogReader
from cdc.model.position import Position
from cdc.replay.state import rows_as_of, rows_in_steps

PAST_BYTES: Final = 256 * 2**20
"""The memory for finding a table's rows among its changes, as much as a kernel is given: up to some millions of rows, no key goes by way of a file."""
PAUSE_BATCHES: Final = 8
"""So many batches without a row are looked through in one go: some 0.1 s."""


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Some rows of one topic, with the columns that are read of it and ``_cdc_exact`` at least. None of them: others are on their way, and whoever takes them has time
    for something else."""

    reads: TopicReads
    batches: Sequence[pa.RecordBatch] = ()


class RowWorkers(Protocol):
    """Processes beside this one that find a view's rows. ``from_rows``: they are for logs of at least so many."""

    from_rows: int

    def rows(self, log: LogReader, reads: Sequence[TopicReads], cut: Position, folder: Path) -> Generator[SourcePiece]:
        """The same as ``read_here``, in the same order. ``folder``: for files that are gone afterwards; it need not exist. Whoever closes it before its end has none of it left.
        Raises PositionGone, Stopped, StateFull, and HeadwaterError where a worker failed: then it can be asked again."""
        ...

    def end(self) -> None:
        """Returns once nothing of them is left in the process."""
        ...


def read_here(log: LogReader, reads: Sequence[TopicReads], cut: Position) -> Iterator[SourcePiece]:
    """In this process, each topic's rows in the order of their last changes. Raises PositionGone where the log no longer has a topic as a whole."""
    for one in reads:
        passed = 0
        for batch in rows_in_steps(log, one.topic, cut, memory_bytes=PAST_BYTES):
            passed += batch is None
            if batch is not None:
                yield SourcePiece(one, (batch,))
            elif passed % PAUSE_BATCHES == 0:
                yield SourcePiece(one)


def rows_at_head(log: LogReader, topic: str) -> list[pa.RecordBatch]:
    """A topic's rows as of the log's head, in one go. Raises PositionGone as ``read_here``."""
    return list(rows_as_of(log, topic, log.head().position, memory_bytes=PAST_BYTES))
