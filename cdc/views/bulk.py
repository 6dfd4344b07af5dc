"""Rows of a relation that came in by the many: in files of columns, found by the hashes of their keys and slices. What changes by the few lies in the store beside them.

- **Nothing is written over.** Rows are appended, and a row that goes is *buried*: the store notes its place. Where more than half of the rows are buried, the others
  are written once more, as another *generation* of files.
- **An index is some runs** of (hash, place) in the order of the hashes. Each append makes one, together with those before it that are no longer: so there are few of
  them, and each entry is written again a few times only. A hash says where to look; the values are compared.
- **The store says what counts**: which generation, how long each file is, with a checksum of that, and which runs there are (``BulkFacts``), in the same transaction as
  the rest. What was appended is durable before that, so that a process can end anywhere in between.
- **Files are checked whole when a process opens them**, once. Later nobody looks: a row is some bytes anywhere in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from cdc.views.columnfiles import ColumnFiles, FileExtent, GrowingFile
from cdc.views.contract import StateDamaged
from cdc.views.hashes import HashRun, Places, agreeing, columns_of, hashed, merged

PIECE: Final = 200_000
"""Rows that are taken at once."""
_MERGED: Final = 500_000
"""Entries of an index that are merged at once."""
_FORMAT: Final = 3
"""Of the files, the rows' hashes among them."""
_ENTRY: Final = 16
"""Bytes of an entry of a run: its hash and its place."""


@dataclass(slots=True)
class BulkFacts:
    """The facts of the files that count. ``extents``: those of columns. ``runs``: for each index the numbers of its runs, with their files' extents. ``drawn``: numbers of
    runs so far."""

    generation: int = 0
    rows: int = 0
    drawn: int = 0
    extents: dict[str, FileExtent] = field(default_factory=dict)
    runs: list[list[tuple[int, FileExtent]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return json.dumps([_FORMAT, self.generation, self.rows, self.drawn, self.extents, self.runs])

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises StateDamaged."""
        written_as, *found = json.loads(text)
        if written_as != _FORMAT:
            raise StateDamaged("the state is of another version")
        generation, rows, drawn, extents, runs = found
        return cls(
            generation,
            rows,
            drawn,
            {name: FileExtent(*extent) for name, extent in extents.items()},
            [[(number, FileExtent(*extent)) for number, extent in one] for one in runs],
        )


class BulkRows:
    """One relation's, of one generation. ``indices``: the columns of each."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, indices: Sequence[tuple[str, ...]], facts: BulkFacts) -> None:
        """Raises StateDamaged."""
        self._folder, self._name, self._schema = folder, name, schema
        self._stem = f"{name}.{facts.generation}"
        self._indices = {columns: number for number, columns in enumerate(indices)}
        self._facts = BulkFacts.read(facts.text)
        self._facts.runs = self._facts.runs or [[] for _ in indices]
        self._columns = {
            one.name: ColumnFiles(folder, f"{self._stem}.{number}", one.type, facts.extents) for number, one in enumerate(schema)
        }
        self._runs = [[self._run(number, extent) for number, extent in runs] for runs in self._facts.runs]
        self._buried = np.zeros(facts.rows, np.bool_)
        self._buried_count = 0

    def _run(self, number: int, extent: FileExtent | None = None) -> GrowingFile:
        return GrowingFile(self._folder / f"{self._stem}.run{number}", extent)

    @property
    def _files(self) -> list[GrowingFile]:
        columns = [file for column in self._columns.values() for file in column.files]
        return [*columns, *(file for runs in self._runs for file in runs)]

    def check(self) -> None:
        """Reads all files. Raises StateDamaged where one is not as it was written."""
        for file in self._files:
            file.check()

    @property
    def rows(self) -> int:
        """Those that are not buried."""
        return self._facts.rows - self._buried_count

    @property
    def wasteful(self) -> bool:
        """More than half of the rows are buried."""
        return self._buried_count > self.rows

    @property
    def facts(self) -> BulkFacts:
        """As of now."""
        files = [file for column in self._columns.values() for file in column.files]
        self._facts.extents = {file.path.name: file.extent for file in files if file.size}
        return self._facts

    @property
    def names(self) -> set[str]:
        """The files' names."""
        return {file.path.name for file in self._files if file.size}

    # --- changes

    def append(self, rows: pa.Table) -> None:
        """Raises StateFull."""
        first = self._facts.rows
        for name, column in self._columns.items():
            column.append(rows.column(name).combine_chunks(), first)
        for columns, number in self._indices.items():
            self._index(number, HashRun.of(hashed(columns_of(rows, columns), rows.num_rows), first))
        self._facts.rows += rows.num_rows
        self._buried = np.concatenate([self._buried, np.zeros(rows.num_rows, np.bool_)])

    def _index(self, number: int, new: HashRun) -> None:
        entries, joined = len(new.hashes), 0
        runs, facts = self._runs[number], self._facts.runs[number]
        while joined < len(runs) and runs[-1 - joined].size <= entries * _ENTRY:
            joined += 1
            entries += runs[-joined].size // _ENTRY
        kept = len(runs) - joined
        file = self._run(self._facts.drawn)
        whole = merged([*map(_opened, runs[kept:]), new], _MERGED)
        _write(file, entries, whole)
        runs[kept:], facts[kept:] = [file], [(self._facts.drawn, file.extent)]
        self._facts.drawn += 1

    def bury(self, places: Places) -> None:
        """None of them is buried yet."""
        self._buried[places] = True
        self._buried_count += len(places)

    def sync(self) -> None:
        """Everything that was appended is durable. Raises StateFull, OSError."""
        for file in self._files:
            file.sync()
        fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rewritten(self) -> BulkRows:
        """The rows that are not buried, as the next generation."""
        facts = BulkFacts(self._facts.generation + 1)
        made = BulkRows(self._folder, self._name, self._schema, list(self._indices), facts)
        for piece in self.pieces():
            made.append(piece)
        return made

    # --- questions

    def found(self, columns: tuple[str, ...], values: pa.Table) -> tuple[Places, Places]:
        """Which of ``values``, and the places of the rows that have them in these columns, which are an index's."""

        def stored(places: Places) -> list[pa.Array]:
            if len(places) and not 0 <= places.min() <= places.max() < self._facts.rows:
                raise StateDamaged("the state is damaged (an index)")
            return [self._columns[name].taken(places, self._facts.rows) for name in columns]

        runs = map(_opened, self._runs[self._indices[columns]])
        which, places = agreeing(runs, columns_of(values, values.column_names), values.num_rows, stored)
        there = ~self._buried[places]
        return which[there], places[there]

    def taken(self, places: Places) -> pa.Table:
        """The rows at these places."""
        pieces = [
            pa.Table.from_arrays(
                [one.taken(places[at : at + PIECE], self._facts.rows) for one in self._columns.values()], schema=self._schema
            )
            for at in range(0, len(places), PIECE)
        ]
        return pa.concat_tables(pieces) if pieces else self._schema.empty_table()

    def pieces(self) -> Iterator[pa.Table]:
        """Everything."""
        places = np.flatnonzero(~self._buried)
        for at in range(0, len(places), PIECE):
            yield self.taken(places[at : at + PIECE])


def _opened(file: GrowingFile) -> HashRun:
    entries = file.size // _ENTRY
    whole = file.array(np.uint64)
    return HashRun(whole[:entries], whole[entries:].view(np.int64))


def _write(file: GrowingFile, entries: int, run: Iterable[HashRun]) -> None:
    """The hashes, and behind them the places."""
    places: list[Any] = []
    for piece in run:
        file.append(piece.hashes)
        places.append(piece.places)
    file.append(*places)
    assert file.size == entries * _ENTRY
