"""The table of cases, one file for each part of the contract."""

from __future__ import annotations

from typing import Final

from tests.cases.case import Case
from tests.cases.entries.alone import ALONE, LEAVES, REFUSALS, STOPS
from tests.cases.entries.between_looks import BETWEEN_LOOKS
from tests.cases.entries.evolution import EVOLUTION
from tests.cases.entries.partitions import TABLES
from tests.cases.entries.publications import PUBLICATIONS
from tests.cases.entries.rows import ROWS
from tests.cases.entries.scalars import SCALARS
from tests.cases.entries.structured import STRUCTURED
from tests.cases.entries.transactions import TRANSACTIONS

TOGETHER: Final[tuple[Case, ...]] = (
    *SCALARS,
    *STRUCTURED,
    *ROWS,
    *TABLES,
    *EVOLUTION,
    *BETWEEN_LOOKS,
    *TRANSACTIONS,
    *PUBLICATIONS,
)
"""Cases that share a database and a capture with others of their rig."""

__all__ = ["ALONE", "LEAVES", "REFUSALS", "STOPS", "TOGETHER"]
