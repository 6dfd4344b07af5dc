"""How a table is cut into chunks, as SQL. Pure.

A table with a key is read in the order of its key's index, so many rows at a time; a chunk's last row is where the next one
begins. Only the server ever compares keys, so collations and composite keys need no thought here, and the boundary costs no query
of its own. A table without an index on its identity is read in ranges of pages, under one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from snapshots.catalog import SourceTable

Boundary = tuple[str, ...]
"""A key as text, in the order of ``SourceTable.index``."""

CHUNK_BYTES: Final = 32 * 2**20
"""A chunk is held in memory until its watermark has come back; wide rows make it shorter than the configured number of rows."""

UNKNOWN_ROWS: Final = 2_000
"""The first chunk of a table whose rows' width nobody knows yet."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The next ``rows`` rows after ``after`` (None: from the beginning) in the index's order."""

    after: Boundary | None
    rows: int

    def query(self, source: SourceTable) -> str:
        index = ", ".join(map(_quoted, source.index))
        conditions = [] if self.after is None else [f"({index}) > {_tuple(self.after)}"]
        return _copy(source, conditions, f" ORDER BY {index} LIMIT {self.rows}")


@dataclass(frozen=True, slots=True)
class PageRange:
    """The rows whose pages are in [first, end); ``end`` None: all from ``first`` on."""

    first: int
    end: int | None

    def query(self, source: SourceTable) -> str:
        conditions = [f"ctid >= '({self.first},0)'"]
        if self.end is not None:
            conditions.append(f"ctid < '({self.end},0)'")
        return _copy(source, conditions)


@dataclass(frozen=True, slots=True)
class KeyList:
    """Exactly these rows, as far as they exist. ``keys`` is not empty."""

    keys: Sequence[Boundary]

    def query(self, source: SourceTable) -> str:
        index = ", ".join(map(_quoted, source.index))
        return _copy(source, [f"({index}) IN ({', '.join(map(_tuple, self.keys))})"])


Range = KeyRange | PageRange | KeyList


def page_ranges(source: SourceTable, chunk_rows: int) -> Iterator[PageRange]:
    """The whole table; the last range has no end, so rows on pages that the table grew meanwhile are in it."""
    rows_per_page = max(1.0, source.rows_estimate / max(1, source.pages))
    step = max(1, min(int(chunk_rows / rows_per_page), CHUNK_BYTES // 8192))
    starts = range(0, max(1, source.pages), step)
    for first in starts:
        yield PageRange(first, first + step if first != starts[-1] else None)


def first_rows(source: SourceTable, chunk_rows: int) -> int:
    """How many rows the first chunk has: by the catalog's idea of their width."""
    if not source.rows_estimate:
        return min(chunk_rows, UNKNOWN_ROWS)
    return fitting_rows(source.bytes, source.rows_estimate, chunk_rows)


def fitting_rows(size_bytes: int, rows: int, chunk_rows: int) -> int:
    """How many rows of the width that these had make a chunk."""
    if not rows or not size_bytes:
        return chunk_rows
    return max(1, min(chunk_rows, CHUNK_BYTES * rows // size_bytes))


def lock(source: SourceTable) -> str:
    """Taken before the snapshot: a rewrite or TRUNCATE that the snapshot does not see would show it an empty table."""
    return f"LOCK TABLE {_relation(source)} IN ACCESS SHARE MODE"


def _relation(source: SourceTable) -> str:
    """A table's children by inheritance are tables of their own; a partitioned table's partitions are not."""
    name = f"{_quoted(source.table.schema)}.{_quoted(source.table.name)}"
    return name if source.partitioned else f"ONLY {name}"


def _copy(source: SourceTable, conditions: Sequence[str], tail: str = "") -> str:
    # The row filter is pg_get_expr's own words from the catalog.
    every = [*conditions, *([] if source.row_filter is None else [f"({source.row_filter})"])]
    where = f" WHERE {' AND '.join(every)}" if every else ""
    selected = ", ".join(map(_quoted, source.table.names))
    return f"COPY (SELECT {selected} FROM {_relation(source)}{where}{tail}) TO STDOUT"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _tuple(key: Boundary) -> str:
    return f"({', '.join(map(_literal, key))})"


def _literal(text: str) -> str:
    """An untyped literal, which takes the type of the column that it is compared with, whatever standard_conforming_strings says."""
    quoted = text.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in quoted else f"'{quoted}'"
