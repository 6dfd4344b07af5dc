"""Every row of a table as its own files have it, for the audit: the files that Iceberg says are live, without the rows that their deletion vectors name.

No Spark job: Iceberg's library lists the files, and Parquet's own reader gives their columns some thousand rows at a time. tests/integration/spark holds
this against what Spark reads, so that an audit sees what every reader of the table sees.

Files are merged and expire while a reader is at them, and one that keeps to a budget may take hours. So each file gets a second name in a folder of the
reader's own, under which it stays on the disk until the reader has done with it, whoever expires the snapshot: our own upkeep, in this process or another, or
somebody's SQL. The folder goes with its owner, or is swept by the next writer if that was killed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from cdc.model.batch import EXACT
from cdc.model.topic import TopicSchema
from sinks.warehouse import datafiles
from sinks.warehouse.columns import labels, to_text
from sinks.warehouse.place import Live, TablePlace, positions_of
from sinks.warehouse.scratch import Scratch
from sinks.warehouse.storage import LOCAL


def live_rows(place: TablePlace, schema: TopicSchema, scratch: Scratch) -> Iterator[pa.RecordBatch]:
    """Every live row of the snapshot that ``place`` stands at, as ``sinks.contract.audit_schema(schema)``. ``scratch``: in the same file system.

    Raises StoreError where a file is damaged, and OSError as the disk does: FileNotFoundError, too, where a file went meanwhile.
    """
    wanted = {*labels(schema).values(), EXACT}
    fields = [field for field in place.iceberg.fields if field.name in wanted]
    storage = place.folder.storage
    with _kept(list(place.live().values()), scratch if storage is LOCAL else None) as files:
        for live in files:
            gone, first = positions_of(live.vector, storage), 0
            for piece in datafiles.pieces(live.path, fields, live.file.rows, storage):
                inside = slice(*np.searchsorted(gone, (first, first + piece.num_rows)))
                yield from to_text(datafiles.without(piece, gone[inside] - first), schema).to_batches()
                first += piece.num_rows


@contextmanager
def _kept(files: Sequence[Live], scratch: Scratch | None) -> Iterator[Sequence[Live]]:
    """The files by names that nobody else removes. Where there are no second names (``scratch`` is None: no file system at all), or this account may not give
    them, by their own."""
    if scratch is None:
        yield files
        return
    names, folder = _SecondNames(), None
    try:
        try:
            folder = scratch.folder() / uuid4().hex
            folder.mkdir()
            files = [names.given(live, folder) for live in files]
        except FileNotFoundError:
            raise
        except OSError:
            pass  # a file that goes meanwhile is found missing, and the table is read again
        yield files
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class _SecondNames:
    """``_given``: those of files that have one already, as several vectors lie in one file."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def given(self, live: Live, folder: Path) -> Live:
        vector = None if live.vector is None else replace(live.vector, path=self._name(live.vector.path, folder))
        return Live(replace(live.file, path=self._name(live.path, folder)), vector)

    def _name(self, path: str, folder: Path) -> str:
        if path not in self._given:
            name = folder / str(len(self._given))
            os.link(path, name)
            self._given[path] = str(name)
        return self._given[path]
