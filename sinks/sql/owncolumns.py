"""Columns that a store adds to a table beside the source's, by choice: which rows are deleted, and when a row was written. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sinks.sql.names import quoted

WHEN: Final = "timestamp with time zone"


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """Their names; None: there is none."""

    deleted: str | None = None
    """A row that is deleted stays, and this is true."""
    loaded_at: str | None = None
    """When the row was written."""

    def definitions(self) -> Iterator[tuple[str, str]]:
        """Name → type, as ALTER TABLE takes it."""
        if self.deleted is not None:
            yield self.deleted, "boolean default false"
        if self.loaded_at is not None:
            yield self.loaded_at, WHEN

    @property
    def live(self) -> str:
        """The condition that the row ``t`` is not deleted."""
        return "true" if self.deleted is None else f"t.{quoted(self.deleted)} is not true"

    def set(self, *, deleted: bool) -> list[str]:
        """Assignments of an UPDATE."""
        return [f"{quoted(name)} = {value}" for name, value in self.values(deleted=deleted)]

    def values(self, *, deleted: bool) -> Iterator[tuple[str, str]]:
        """Name → the value as an expression."""
        if self.deleted is not None:
            yield self.deleted, "true" if deleted else "false"
        if self.loaded_at is not None:
            yield self.loaded_at, "now()"
