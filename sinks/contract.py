"""What every derived store's adapter must do. The suite in tests/contract/test_sinks.py holds each sink and its in-memory twin to it.

A follower drives a sink like this, again and again::

    applied = sink.open()
    for each range of the log (applied, cut]:
        sink.prepare(table)            # once per table and schema version, before its first batch
        sink.apply(batch) …            # rows in any order between batches, any number of times; a TRUNCATE or SCHEMA in its turn
        sink.commit(cut)               # now, and only now, the store says "I hold everything up to cut"

The guard is the position: a row written at position p loses against the same key's row at p' > p, and against a commit that
already covers p, whoever writes it and however late. That makes replays, retries, zombies and out-of-order tasks harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdc.model.position import Cut, Position
from cdc.model.selection import matches as matches
from cdc.model.table import Table


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that the store cannot hold: named and counted, never silently dropped. Carries no row values."""

    table: str
    position: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch: every row is in exactly one of the three."""

    written: int
    stale: int = 0
    dead: tuple[DeadLetter, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.written + other.written, self.stale + other.stale, self.dead + other.dead)


NOTHING = Outcome(0)


@dataclass(frozen=True, slots=True)
class Shape:
    """The definition that a store's rows of one topic stand under, and the change (0: none yet) that made it so."""

    table: Table
    position: Position


class Sink(Protocol):
    """One derived store. Not thread-safe; each task opens its own."""

    name: str
    """The store's name in the configuration."""

    parallel: bool
    """True when ``apply`` may run in several processes at once (each with its own opened sink)."""

    def open(self) -> Cut:
        """Connects, checks that the store is usable, creates the ledger when there is none, returns what is applied.

        Raises StoreError (``retryable`` when the store is merely down).
        """
        ...

    def prepare(self, table: Table) -> None:
        """Makes or evolves the place for this table's rows so that ``apply`` of its batches can succeed. Idempotent.

        The first definition of a topic becomes its ``shape``; any other leaves it as it is.
        """
        ...

    def shape(self, topic: str) -> Shape | None:
        """The definition that the rows of this topic (``schema.table``) stand under, read from the store; None before the first."""
        ...

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        """Writes one batch (schema: ``cdc.model.batch.batch_schema``) and returns when the store has taken it.

        A batch holds either rows or exactly one TRUNCATE or SCHEMA record; these come after everything before them was applied and
        before anything after them is. A SCHEMA record makes its table the topic's ``shape``: afterwards every row that is there is what
        it would be had it been written under that definition (a dropped column's value is gone from documents and values, a renamed
        one has its new name), or no row at all when the record empties the topic. Within a batch the last change of a key wins. A store that commits as a whole may stage the rows
        until ``commit``. Raises StoreError when the batch as a whole was not taken; calling again is then safe.
        """
        ...

    def commit(self, cut: Cut) -> None:
        """Records durably, inside the store, that everything up to ``cut`` is applied. A lower cut than recorded is ignored."""
        ...

    def applied(self) -> Cut:
        """The highest committed cut, read from the store itself."""
        ...

    def make_visible(self) -> None:
        """Returns once everything committed is visible to every way of reading (OpenSearch: refresh)."""
        ...

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Every live row of the table, in any order, for the audit. Schema: ``audit_schema(table)``."""
        ...

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The live rows with these keys (absent ones left out), in any order. ``keys``: the key's columns as canonical text."""
        ...

    def close(self) -> None: ...


def audit_schema(table: Table) -> pa.Schema:
    """All of the table's columns as the text that Postgres gives under the pinned settings; NULL is SQL NULL."""
    return pa.schema([pa.field(name, pa.utf8()) for name in table.names])
