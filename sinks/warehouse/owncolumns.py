"""Columns that the warehouse adds to a table beside the source's, by choice: which rows are deleted, and when a row was written. Pure.

They are known by their ``doc``: a column of the source that is gone, and stays in the table, may have the same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from sinks.warehouse.columns import Add, Change, IcebergField, Rename, parse_schema

_DELETED: Final = "headwater: whether the row is deleted"
_LOADED_AT: Final = "headwater: when the row was written"
_WHEN: Final = pa.timestamp("us", tz="UTC")


def is_own(field: IcebergField) -> bool:
    """Whether the column is one of these, of whatever name."""
    return field.doc in (_DELETED, _LOADED_AT)


@dataclass(frozen=True, slots=True)
class OwnFields:
    """Their names; None: there is none."""

    deleted: str | None = None
    """A row that is deleted stays, and this is true."""
    loaded_at: str | None = None
    """When the row was written."""

    def __bool__(self) -> bool:
        return self.deleted is not None or self.loaded_at is not None

    def definitions(self) -> Iterator[Add]:
        """The columns, as they are added to a table."""
        if self.deleted is not None:
            yield Add(self.deleted, "boolean", _DELETED)
        if self.loaded_at is not None:
            yield Add(self.loaded_at, "timestamptz", _LOADED_AT)

    def missing(self, fields: Sequence[IcebergField]) -> list[Change]:
        """The changes after which a table of these columns has them, too. Whatever has such a name gets another one."""
        changes: list[Change] = []
        for wanted in self.definitions():
            there = next((field for field in fields if field.name.lower() == wanted.name.lower()), None)
            if there is not None and (there.name, there.kind, there.doc) == (wanted.name, wanted.kind, wanted.doc):
                continue
            if there is not None:
                changes.append(Rename(there.name, f"{there.name}__{there.id}"))
            changes.append(wanted)
        return changes

    def mark_of(self, fields: Sequence[IcebergField]) -> IcebergField | None:
        """The column, of a table's, that says which rows are deleted; None where it has none (yet)."""
        return next((field for field in fields if field.name == self.deleted and field.doc == _DELETED), None)

    def values(self, *, deleted: bool) -> Mapping[str, pa.Scalar]:
        """Their values in a row that is written now."""
        found: dict[str, pa.Scalar] = {}
        if self.deleted is not None:
            found[self.deleted] = pa.scalar(deleted, pa.bool_())
        if self.loaded_at is not None:
            found[self.loaded_at] = pa.scalar(datetime.now(UTC), _WHEN)
        return found

    def added(self, schema: str) -> str:
        """The Iceberg schema (JSON) of a new table with them."""
        raw = json.loads(schema)
        last = max(max(field.id, field.key_id, field.value_id) for field in parse_schema(schema))
        for number, wanted in enumerate(self.definitions(), last + 1):
            raw["fields"].append({"id": number, "name": wanted.name, "required": False, "type": wanted.kind, "doc": wanted.doc})
        return json.dumps(raw)
