"""The facts an audit reports, while it goes on and in the end.

``StoreAudit.to_json()``:

==============  ==============================================================================================================
``store``       the store's name
``equal``       true when no table has an error or a difference
``whole``       the same, as it is after the rows that differed were sent again
``lsn``         the source snapshot's LSN that the scan was compared at
``position``    what the store had applied when its scan began
``seconds``     how long the store's audit took
``tables``      [{``table``, ``equal``, ``error`` (null, or why it could not be compared), ``source_rows``, ``store_rows``, ``distinct_rows`` (true
                where rows have no key but all of their columns: then distinct rows are compared, as a store holds equal rows once),
                ``repeated`` (rows of the database that are equal to another, which the comparison leaves out), ``missing`` (rows
                that the store lacks), ``extra`` (rows that only the store has), ``different`` (keys whose rows have other values),
                ``unsettled`` (keys that changed in every look, so that nothing can be said of them), ``in_flight`` (keys that
                differed in the scan and agreed afterwards), ``aside``, ``edited``, ``accepted`` (keys of dead letters, which are counted in none of the
                others: rows that the store cannot hold, or holds as an operator has corrected them), ``expired`` (rows that have outlived their
                time in the store, counted in none of the others either), ``columns`` ({name: in how many of ``differences``}),
                ``differences`` (the first few: [{``kind``: missing | extra | different, ``key``: {column: text}, ``columns``:
                [name]}]), ``lsn``, ``position`` (of the last look), ``seconds``, ``rows_per_s``, ``repair`` (null where nothing was to be sent again;
                else {``missing``, ``extra``, ``different``: how many rows were sent again, by what they had been found to be, ``left``: how many of
                them differ still, ``aside``: how many of them the store could not take, and has set aside, ``problem``: null, or why others were not sent again, and what helps}), ``whole``}]
==============  ==============================================================================================================

Keys are shown, other values never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The audit's work at this moment; rows so far of the table at hand."""

    store: str
    table: str
    phase: str
    """waiting | scanning | comparing | settling | repairing"""
    source_rows: int = 0
    store_rows: int = 0
    expected_rows: int = 0
    """How many rows the log says the table may have at most."""


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RowDifference:
    kind: str
    """missing (the store lacks it) | extra (only the store has it) | different"""
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()
    """The columns whose values differ; empty unless ``different``."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The rows that both sides showed."""

    source_rows: int = 0
    store_rows: int = 0
    repeated: int = 0
    """Rows of the source that repeat another."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many rows, or keys, do not agree."""

    missing: int = 0
    extra: int = 0
    different: int = 0
    unsettled: int = 0
    in_flight: int = 0
    aside: int = 0
    edited: int = 0
    accepted: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Repair:
    """The rows of one table that were sent again, by what they had been found to be."""

    missing: int = 0
    extra: int = 0
    different: int = 0
    left: int = 0
    """How many of them differ still."""
    aside: int = 0
    """How many of them the store could not take, and has set aside."""
    problem: str | None = None
    """Why others were not sent again, and what helps."""

    @property
    def rows(self) -> int:
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class TableAudit:
    """See the module's text. ``columns`` counts among the listed differences only."""

    table: str
    equal: bool
    error: str | None = None
    distinct_rows: bool = False
    scanned: Scanned = field(default_factory=Scanned)
    tally: Tally = field(default_factory=Tally)
    columns: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[RowDifference, ...] = ()
    lsn: str | None = None
    position: int = 0
    seconds: float = 0.0
    repair: Repair | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing differs by now."""
        if self.repair is None or self.error is not None:
            return self.equal
        return self.repair.left == 0 and self.repair.problem is None

    @property
    def rows_per_s(self) -> float:
        return max(self.scanned.source_rows, self.scanned.store_rows) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Flat, as the module's text has it."""
        facts = asdict(self)
        scanned, tally = facts.pop("scanned"), facts.pop("tally")
        return {**facts, **scanned, **tally, "rows_per_s": self.rows_per_s, "whole": self.whole}


@dataclass(frozen=True, slots=True)
class StoreAudit:
    store: str
    equal: bool
    lsn: str
    position: int
    seconds: float
    tables: tuple[TableAudit, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing differs by now."""
        return all(table.whole for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "whole": self.whole, "tables": [table.to_json() for table in self.tables]}
