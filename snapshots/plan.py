"""How a table is cut into ranges, as SQL. Pure.

A range is what one transaction reads: some of the table's pages, in their own order. A row stays on its page until it is changed, and
a change is in the stream, so ranges read in different snapshots miss nothing; what moves rows without an event (VACUUM FULL, CLUSTER,
a partition that is attached) gives the table other files, which every range checks (``catalog.look``). No key is compared, so
collations, NULLs and keys of several columns need no thought here, any number of ranges can be read at once, and pages come at the
speed of the disk. Rows that are wanted by their keys are read through the key's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from snapshots.catalog import SourceTable

Key = tuple[str, ...]
"""A key as text, in the order of ``SourceTable.index``."""

Interval = tuple[int, int]
"""Pages [first, end)."""

LAST_PAGE: Final = 2**32
"""Behind every page that a table can have (its block numbers have 32 bits)."""
RANGE_PARTS: Final = 16
"""How many times ``snapshot_chunk_rows`` a range has: a crash costs reading that again, so long is a snapshot held open."""
RANGE_BYTES: Final = 256 * 2**20
PAGE_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class PageRange:
    """The rows on pages in [first, end) that meet the ``condition`` (SQL)."""

    first: int
    end: int
    condition: str | None = None

    def query(self, source: SourceTable, *, binary: bool = False) -> str:
        """``binary``: in COPY's binary format instead of its text format."""
        conditions = [f"ctid >= '({self.first},0)'"]
        if self.end < LAST_PAGE:
            conditions.append(f"ctid < '({self.end},0)'")
        if self.condition is not None:
            # On lines of its own, so that a comment at its end comments nothing else out.
            conditions.append(f"(\n{self.condition}\n)")
        return _copy(source, conditions, binary=binary)


@dataclass(frozen=True, slots=True)
class KeyList:
    """Exactly these rows, as far as they exist. ``keys`` is not empty."""

    keys: Sequence[Key]

    def query(self, source: SourceTable, *, binary: bool = False) -> str:
        """``binary``: as for a ``PageRange``. In text format the server writes no bytea of more than 500 MB."""
        index = ", ".join(map(quoted, source.index))
        return _copy(source, [f"({index}) IN ({', '.join(map(_tuple, self.keys))})"], binary=binary)


@dataclass(frozen=True, slots=True)
class MissingKeys:
    """Those of the keys that no row has: the table's columns, NULL but for the key's. ``types``: of the index's columns, as SQL.

    Equal is not enough: under a collation that ignores case, and for numbers of another scale, a row may be equal to a key and have another.
    """

    keys: Sequence[Key]
    types: Sequence[str]

    def query(self, source: SourceTable) -> str:
        index = [quoted(name) for name in source.index]
        typed = ", ".join(f"given.{name}::{kind} AS {name}" for name, kind in zip(index, self.types, strict=True))
        selected = ", ".join(quoted(name) if name in source.index else "NULL" for name in source.table.names)
        present, wanted = ([f"{side}.{name}" for name in index] for side in ("present", "wanted"))
        equal = " AND ".join(f"{one} = {other}" for one, other in zip(present, wanted, strict=True))
        same = f"{equal} AND {_text(present)} = {_text(wanted)}"
        filtered = "" if source.row_filter is None else f" WHERE ({source.row_filter})"
        rows = f"(SELECT {', '.join(index)} FROM {relation(source)}{filtered}) present"
        keys = f"(SELECT {typed} FROM (VALUES {', '.join(map(_tuple, self.keys))}) given ({', '.join(index)})) wanted"
        distinct = f"(SELECT DISTINCT ON ({_text(wanted)}) * FROM {keys}) wanted"
        return f"COPY (SELECT {selected} FROM {distinct} WHERE NOT EXISTS (SELECT FROM {rows} WHERE {same})) TO STDOUT"


Range = PageRange | KeyList | MissingKeys


class Pages:
    """Which of a table's pages are still to be read. Not thread-safe."""

    def __init__(self, count: int, done: Iterable[Interval] = ()) -> None:
        """``count``: how many the table has about now; rows behind them were inserted meanwhile, the last range has them too."""
        self._count = count
        self._free = _complement(done)

    def claim(self, step: int) -> Interval | None:
        """The next ``step`` pages that nobody reads yet."""
        if not self._free:
            return None
        first, end = self._free[0]
        cut = first + step
        if cut >= min(end, self._count):
            self._free.pop(0)
            return first, end
        self._free[0] = (cut, end)
        return first, cut


def merged(done: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same pages in as few intervals as possible, in order."""
    out: list[Interval] = []
    for first, end in sorted(done):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((first, end))
    return tuple(out)


def _complement(done: Iterable[Interval]) -> list[Interval]:
    free, at = [], 0
    for first, end in merged(done):
        if at < first:
            free.append((at, first))
        at = end
    return [*free, (at, LAST_PAGE)] if at < LAST_PAGE else free


def range_pages(source: SourceTable, chunk_rows: int, workers: int, rows_per_s: int | None) -> int:
    """How many pages a range has: by rows, by bytes, and so that every worker finds several."""
    pages = max(1, source.pages)
    rows = RANGE_PARTS * chunk_rows
    if rows_per_s is not None:
        rows = min(rows, max(chunk_rows, 5 * rows_per_s))
    by_rows = rows * pages / max(1, source.rows_estimate)
    by_bytes = RANGE_BYTES / max(PAGE_BYTES, source.bytes / pages)
    shared = pages / (4 * workers) if workers > 1 else pages
    return max(1, int(min(by_rows, by_bytes, max(shared, RANGE_BYTES / 64 / PAGE_BYTES))))


def lock(source: SourceTable) -> str:
    """Taken before the snapshot: a rewrite or TRUNCATE that the snapshot does not see would show it an empty table."""
    return f"LOCK TABLE {relation(source)} IN ACCESS SHARE MODE"


def relation(source: SourceTable) -> str:
    """A table's children by inheritance are tables of their own; a partitioned table's partitions are not."""
    name = f"{quoted(source.table.schema)}.{quoted(source.table.name)}"
    return name if source.partitioned else f"ONLY {name}"


def quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _copy(source: SourceTable, conditions: Sequence[str], *, binary: bool) -> str:
    # The row filter is pg_get_expr's own words from the catalog.
    every = [*conditions, *([] if source.row_filter is None else [f"({source.row_filter})"])]
    selected = ", ".join(map(quoted, source.table.names))
    return f"COPY (SELECT {selected} FROM {relation(source)} WHERE {' AND '.join(every)}) TO STDOUT{' (FORMAT binary)' if binary else ''}"


def _text(columns: Sequence[str]) -> str:
    return f"ROW({', '.join(columns)})::text"


def _tuple(key: Key) -> str:
    return f"({', '.join(map(_literal, key))})"


def _literal(text: str) -> str:
    """An untyped literal, which takes the type of the column that it is compared with, whatever standard_conforming_strings says."""
    quoted_text = text.replace("'", "''")
    return f"E'{quoted_text.replace(chr(92), chr(92) * 2)}'" if "\\" in quoted_text else f"'{quoted_text}'"
