"""Marks of the store's tables, as Iceberg's properties: of a table, and in the summary of each snapshot. Pure.

A table carries its ``Signed`` and where its rows come from (``SOURCE_KEY``, ``TABLE_KEY``: the schema that was written last, as JSON);
the ledger's table carries the store's own mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc.model.lineage import Mark
from cdc.model.position import Cut, Lsn, Position

POSITION_KEY: Final = "headwater.position"
LSN_KEY: Final = "headwater.commit-lsn"
TS_KEY: Final = "headwater.commit-ts-us"
LOG_KEY: Final = "headwater.log"
HISTORY_KEY: Final = "headwater.history"
EPOCH_KEY: Final = "headwater.epoch"
STORE_KEY: Final = "headwater.store"
SOURCE_KEY: Final = "headwater.source"
TABLE_KEY: Final = "headwater.table"
COMPLETE_KEY: Final = "headwater.complete-from"
"""Of a table of versions: the time from which on it has every one that there was. Empty: the log's beginning."""
GENERATION_KEY: Final = "headwater.generation"
"""Of a table in a catalog that has several generations of a store: the number of its own, where that is not the first."""
HELD_KEY: Final = "headwater.held"
"""Of a ledger that takes no cut at present: the word of whoever holds it. Empty: it is not held."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A commit's statement about itself: who wrote it, under which lease, and what the table holds from then on."""

    store: str
    epoch: int
    mark: Mark

    def properties(self) -> dict[str, str]:
        return {STORE_KEY: self.store, EPOCH_KEY: str(self.epoch), **mark_properties(self.mark)}


def mark_properties(mark: Mark) -> dict[str, str]:
    """The mark as Iceberg's properties; ``mark_of`` reads them."""
    cut = mark.cut
    said = {POSITION_KEY: str(cut.position), LSN_KEY: str(cut.commit_lsn), TS_KEY: str(cut.commit_ts_us)}
    return {LOG_KEY: mark.log, HISTORY_KEY: mark.history, **said}


def mark_of(properties: Mapping[str, str]) -> Mark | None:
    """None where the properties hold no mark. Raises KeyError or ValueError for one that is damaged."""
    if LOG_KEY not in properties:
        return None
    cut = Cut(Position(int(properties[POSITION_KEY])), Lsn(int(properties[LSN_KEY])), int(properties[TS_KEY]))
    return Mark(properties[LOG_KEY], properties[HISTORY_KEY], cut)
