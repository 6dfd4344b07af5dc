"""Changes that wait for the commit: in memory, and beyond a size in a temporary file without a name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from cdc.model.batch import last_position
from cdc.model.position import START, Position


class StagedChanges:
    """Batches by topic, each topic's in the order in which they came."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[str, list[pa.RecordBatch | SpilledBatches]] = {}
        self._bytes = 0
        self._reach: dict[str, Position] = {}

    @property
    def topics(self) -> Sequence[str]:
        return tuple(self._kept)

    def reach(self, topic: str) -> Position:
        """Everything up to here that was brought waits already."""
        return self._reach.get(topic, START)

    def add(self, topic: str, batch: pa.RecordBatch) -> None:
        self._reach[topic] = Position(last_position(batch))
        kept = self._kept.setdefault(topic, [])
        if self._bytes + batch.nbytes <= self._limit_bytes:
            kept.append(batch)
            self._bytes += batch.nbytes
            return
        last = kept[-1] if kept else None
        if not isinstance(last, SpilledBatches) or not last.takes(batch):
            last = SpilledBatches(batch.schema)
            kept.append(last)
        last.write(batch)

    def batches(self, topic: str) -> Iterator[pa.RecordBatch]:
        """May be asked again, until ``clear``."""
        for one in self._kept[topic]:
            if isinstance(one, SpilledBatches):
                yield from one.batches()
            else:
                yield one

    def clear(self) -> None:
        for kept in self._kept.values():
            for one in kept:
                if isinstance(one, SpilledBatches):
                    one.close()
        self._kept, self._reach, self._bytes = {}, {}, 0


class SpilledBatches:
    """Batches of one definition, in a file."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._writer: Any = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)
        self._ended = False

    def takes(self, batch: pa.RecordBatch) -> bool:
        return not self._ended and bool(self._schema.equals(batch.schema, check_metadata=True))

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if not self._ended:
            self._writer.close()
            self._ended = True
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))

    def close(self) -> None:
        self._file.close()
