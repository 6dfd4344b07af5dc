"""One version of a table's metadata: what Python looks at often, read from Iceberg once, and the files on disk that make it durable."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cdc.model.lineage import Mark
from cdc.model.position import ZERO_CUT
from sinks.warehouse.columns import IcebergField, parse_schema
from sinks.warehouse.disk import sync
from sinks.warehouse.java import Java
from sinks.warehouse.marks import mark_of

KEPT_VERSIONS: Final = 10
"""So many former versions of a table's metadata stay on disk, for readers that are just opening one."""
_METADATA: Final = re.compile(r"\.?v(\d+)(\.gz)?\.metadata\.json(\.crc)?")


@dataclass(frozen=True, slots=True)
class Version:
    """``file``: where its metadata lies. ``mark``: what the rows that are there now are marked with."""

    file: str
    updated_ms: int
    properties: Mapping[str, str]
    snapshot: int | None
    mark: Mark | None
    schema_id: int
    fields: tuple[IcebergField, ...]


def read_version(use: Java, current: Any, before: Version | None) -> Version:
    """``current``: Iceberg's object for it. ``before``: the version that was read last, whose columns may be these, too."""
    properties = use.values.strings(current.properties())
    snapshot = current.currentSnapshot()
    described = {} if snapshot is None else json.loads(use.snapshot_parser.toJson(snapshot))
    schema_id = current.currentSchemaId()
    known = before is not None and before.schema_id == schema_id
    return Version(
        current.metadataFileLocation(),
        current.lastUpdatedMillis(),
        properties,
        described.get("snapshot-id"),
        _marked(use, current, described, properties),
        schema_id,
        before.fields if known and before is not None else parse_schema(use.schema_parser.toJson(current.schema())),
    )


def _marked(use: Java, current: Any, described: Mapping[str, Any], properties: Mapping[str, str]) -> Mark | None:
    """Marked by the snapshot, or where others have made it (a rewrite, a DELETE), by the nearest of ours before it. So a table that was
    rolled back says so. Properties speak where no snapshot can: of the newest commit, so not where the table was rolled back to an earlier
    one."""
    newest, sequence = described, described.get("sequence-number")
    while described:
        if (found := mark_of(described.get("summary", {}))) is not None:
            return found
        parent = described.get("parent-snapshot-id")
        snapshot = None if parent is None else current.snapshot(parent)
        if snapshot is None and parent is not None:
            break  # it has expired
        described = {} if snapshot is None else json.loads(use.snapshot_parser.toJson(snapshot))
    written = mark_of(properties)
    if written is None or not newest or (described and sequence == current.lastSequenceNumber()):
        return written
    return replace(written, cut=ZERO_CUT)


class MetadataFiles:
    """The files of a table's metadata."""

    def __init__(self, table: Path) -> None:
        self.folder = table / "metadata"
        self._synced: frozenset[str] | None = None
        """Those that are known to be durable; None where this object only reads, and nobody counts on what it has read."""

    @property
    def counted_on(self) -> bool:
        return self._synced is not None

    def sync(self) -> None:
        """Iceberg's own files are renamed into place but never synced; a power cut must not take back what the ledger promises."""
        present = [Path(entry.path) for entry in os.scandir(self.folder) if not entry.name.startswith(".")]
        known = self._synced or frozenset()
        for path in (self.folder / "version-hint.text", *(path for path in present if path.name not in known)):
            sync(path)
        sync(self.folder)
        self._synced = frozenset(path.name for path in present)
        _tidy(present)


def _tidy(present: Sequence[Path]) -> None:
    """Deletes versions that no reader is just opening."""
    numbered = [(int(found[1]), path) for path in present if (found := _METADATA.fullmatch(path.name))]
    newest = max((number for number, _ in numbered), default=0)
    for number, path in numbered:
        if number < newest - KEPT_VERSIONS:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
