"""Changes that wait for the commit: in memory, and beyond a size in a file that the operating system may page out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa


class Staging:
    """The staged batches of all tables, in the order in which they came."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._in_memory: dict[str, int] = {}
        self._files: list[Path] = []

    @property
    def tables(self) -> Sequence[str]:
        return tuple(self._batches)

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        self._batches.setdefault(table, []).append(batch)
        self._in_memory[table] = self._in_memory.get(table, 0) + batch.nbytes
        if sum(self._in_memory.values()) > self._limit_bytes:
            self._spill(max(self._in_memory, key=lambda name: self._in_memory[name]))

    def batches(self, table: str) -> Sequence[pa.RecordBatch]:
        return self._batches[table]

    def drop(self, table: str) -> None:
        """Forgets what is committed. Its file goes with ``clear``."""
        del self._batches[table]
        self._in_memory.pop(table, None)

    def clear(self) -> None:
        self._batches.clear()
        self._in_memory.clear()
        for path in self._files:
            path.unlink(missing_ok=True)  # what is still mapped stays readable
        self._files.clear()

    def _spill(self, table: str) -> None:
        """Moves a table's batches to a file. Batches of another schema version begin another file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        spilled: list[pa.RecordBatch] = []
        run: list[pa.RecordBatch] = []
        for batch in [*self._batches[table], None]:
            if batch is not None and (not run or batch.schema.equals(run[0].schema, check_metadata=True)):
                run.append(batch)
                continue
            spilled += self._written(run)
            run = [] if batch is None else [batch]
        self._batches[table] = spilled
        self._in_memory[table] = 0

    def _written(self, run: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        path = self._folder / f"{os.getpid()}-{uuid4().hex}.arrow"
        self._files.append(path)
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, run[0].schema) as writer:
            for batch in run:
                writer.write_batch(batch)
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
