"""How a table's definition changes: the SCHEMA record, and the difference of two versions. Pure.

A SCHEMA record is a batch of one row whose ``_cdc_op`` is ``Op.SCHEMA``, under the *new* definition. Its ``_cdc_exact`` holds what a
definition alone cannot tell: ``kind`` (one of ``Kind``), ``empties`` (present when every earlier row of the topic is gone), and ``now`` (for
RENAMED: the topic in which the table goes on).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema, table_of
from cdc.model.table import Column, Table


class Kind(StrEnum):
    """The kind of change to the table."""

    ALTERED = "altered"
    """Columns, types, key or identity differ from the version before."""
    CREATED = "created"
    """Another table has this name now (a new OID or epoch); its rows follow as reads."""
    DROPPED = "dropped"
    RENAMED = "renamed"
    """The table, or its schema, has another name; its rows follow as reads in the topic ``now``."""
    REWRITTEN = "rewritten"
    """Stored rows changed, came or went without events (type change, partitions, enum labels …); they follow as reads."""
    UNPUBLISHED = "unpublished"
    """The table has left the publication: nothing more comes."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One SCHEMA record. ``table`` is the definition from here on (the last one, for a table that is gone)."""

    table: Table
    kind: Kind
    empties: bool = False
    """Every earlier row of the topic is gone."""
    now: str | None = None


def schema_record(change: SchemaChange, position: int, commit_lsn: int, commit_ts_us: int) -> pa.RecordBatch:
    """The change as a batch of one row in ``batch_schema(change.table)``."""
    facts = [("kind", str(change.kind))]
    if change.empties:
        facts.append(("empties", "true"))
    if change.now is not None:
        facts.append(("now", change.now))
    schema = batch_schema(change.table)
    arrays = [
        pa.array([position], pa.int64()),
        pa.array([Op.SCHEMA], pa.int8()),
        pa.array([commit_lsn], pa.int64()),
        pa.array([commit_ts_us], pa.int64()).view(META_FIELDS[3].type),
        pa.array([facts], EXACT_TYPE),
        *(pa.nulls(1, field.type) for field in list(schema)[len(META_FIELDS) :]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_SCHEMA: Final = int(Op.SCHEMA)


def schema_change_of(batch: pa.RecordBatch) -> SchemaChange | None:
    """Reads the batch as a schema change when it is a SCHEMA record (readers hand one out alone), else None."""
    if len(batch) != 1 or batch.column(1)[0].as_py() != _SCHEMA:
        return None
    facts = dict(batch.column(4)[0].as_py() or ())
    return SchemaChange(table_of(batch.schema), Kind(facts["kind"]), "empties" in facts, facts.get("now"))


def _type(column: Column) -> tuple[int, int, str, str]:
    return column.type_oid, column.typmod, column.type_name, column.structure


@dataclass(frozen=True, slots=True)
class Difference:
    """One column's fate between two versions: ``old`` None: added; ``new`` None: dropped; both: renamed, retyped or re-keyed."""

    old: Column | None
    new: Column | None

    @property
    def renamed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.name != self.new.name

    @property
    def retyped(self) -> bool:
        return self.old is not None and self.new is not None and _type(self.old) != _type(self.new)

    @property
    def rekeyed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.key != self.new.key


def differences(old: Table, new: Table) -> tuple[Difference, ...]:
    """The fate of each column, in the old table's order, then the added ones. Columns go by attnum where both versions know it
    and are versions of one table (same OID and epoch), else by name."""
    numbered = (old.oid, old.epoch) == (new.oid, new.epoch) and all(column.attnum for column in (*old.columns, *new.columns))

    def identity(column: Column) -> int | str:
        return column.attnum if numbered else column.name

    after = {identity(column): column for column in new.columns}
    before = {identity(column): column for column in old.columns}
    changed = [Difference(column, after.get(which)) for which, column in before.items() if after.get(which) != column]
    added = [Difference(None, column) for which, column in after.items() if which not in before]
    return (*changed, *added)
