"""How a definition changes: the SCHEMA record, and the difference of two versions of a topic's schema. Pure.

A SCHEMA record is a batch of one row whose ``_cdc_op`` is ``Op.SCHEMA``, under the *new* definition. Its ``_cdc_exact`` holds what a
definition alone cannot tell: ``kind`` (one of ``Kind``), ``empties`` (present when every earlier row of the topic is gone), and ``now`` (for
RENAMED: the topic in which the table goes on).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema, table_of, topic_batch_schema, topic_schema
from cdc.model.table import Table
from cdc.model.topic import TopicField, TopicSchema


class Kind(StrEnum):
    """The kind of change to the table."""

    ALTERED = "altered"
    """Columns, types, key or identity differ from the version before; or there is none before, nor a row to bring it."""
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
    """One SCHEMA record, as capture makes it. ``table`` is the definition from here on (the last one, for a table that is gone)."""

    table: Table
    kind: Kind
    empties: bool = False
    """Every earlier row of the topic is gone."""
    now: str | None = None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One SCHEMA record, as stores read it."""

    schema: TopicSchema
    kind: Kind
    empties: bool = False
    now: str | None = None

    @classmethod
    def of(cls, change: SchemaChange) -> TopicChange:
        return cls(TopicSchema.of(change.table), change.kind, change.empties, change.now)


def schema_record(change: SchemaChange | TopicChange, position: int, commit_lsn: int, commit_ts_us: int) -> pa.RecordBatch:
    """The change as a batch of one row; only one that names a table may go into the log."""
    facts = [("kind", str(change.kind))]
    if change.empties:
        facts.append(("empties", "true"))
    if change.now is not None:
        facts.append(("now", change.now))
    schema = batch_schema(change.table) if isinstance(change, SchemaChange) else topic_batch_schema(change.schema)
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
    facts = _facts(batch)
    return None if facts is None else SchemaChange(table_of(batch.schema), *facts)


def topic_change_of(batch: pa.RecordBatch) -> TopicChange | None:
    """The same for stores."""
    facts = _facts(batch)
    return None if facts is None else TopicChange(topic_schema(batch.schema), *facts)


def _facts(batch: pa.RecordBatch) -> tuple[Kind, bool, str | None] | None:
    if len(batch) != 1 or batch.column(1)[0].as_py() != _SCHEMA:
        return None
    facts = dict(batch.column(4)[0].as_py() or ())
    return Kind(facts["kind"]), "empties" in facts, facts.get("now")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field's fate between two versions: ``old`` None: added; ``new`` None: dropped; both: renamed, retyped or re-keyed."""

    old: TopicField | None
    new: TopicField | None

    @property
    def renamed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.name != self.new.name

    @property
    def retyped(self) -> bool:
        return self.old is not None and self.new is not None and self.old.value_type != self.new.value_type

    @property
    def rekeyed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.key != self.new.key


def differences(old: TopicSchema, new: TopicSchema) -> tuple[Difference, ...]:
    """The fate of each field, in the old schema's order, then the added ones. A field goes by its origin where both versions know it and are
    versions of one topic's rows (of the same origin), else by name: a field of an origin that is not known yet changes nothing for the others."""
    numbered = old.origin == new.origin
    after = {field.origin: field for field in new.fields if field.origin} if numbered else {}
    came = {field.name: after.get(field.origin) for field in old.fields}
    taken = {field.name for field in came.values() if field is not None}
    left = {field.name: field for field in new.fields if field.name not in taken}
    for field in old.fields:
        namesake = left.get(field.name)
        if came[field.name] is None and namesake is not None and not (numbered and field.origin and namesake.origin):
            came[field.name] = left.pop(field.name)
    changed = [Difference(field, came[field.name]) for field in old.fields if came[field.name] != field]
    added = [Difference(None, field) for field in left.values()]
    return (*changed, *added)
