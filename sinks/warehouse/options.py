"""The warehouse's part of ``cdc.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field

from cdc.settings.models import StoreOptions

MB: Final = 2**20


class Options(StoreOptions):
    """``path`` is the warehouse's folder: an Iceberg catalog of type ``hadoop`` that every Iceberg reader can open."""

    example = ("warehouse", 'path = "var/warehouse"')

    path: Path
    namespace: str | None = Field(None, pattern=r"^[a-z0-9_]+$")
    """Tables are ``schema.table``, or ``namespace.schema.table`` when this is set."""
    history: tuple[str, ...] = ()
    """Tables that also keep every former version of a row. Not built yet: only empty is accepted."""
    commit_interval_ms: int = Field(3000, ge=0)
    """A table format likes few commits: changes are gathered for this long."""
    batch_rows: int = Field(1_000_000, ge=1)
    batch_bytes: int = Field(256 * MB, ge=1)
    staged_bytes: int = Field(256 * MB, ge=1)
    """Staged changes beyond this go to the ``_staging`` folder until the commit."""
    key_cache_bytes: int = Field(256 * MB, ge=0)
    """Keys of data files kept in memory, so that the next commit finds the rows that it replaces without reading them again."""
    file_bytes: int = Field(128 * MB, ge=1)
    """Data files are closed at about this size, and files near it are left alone by compaction."""
    compact_files: int = Field(16, ge=2)
    """So many data files of about the same size become one."""
    keep_snapshots_s: int = Field(600, ge=0)
    """Old snapshots stay readable for so long."""

    @property
    def disk_path(self) -> Path:
        return self.path

    @property
    def commit_interval_s(self) -> float:
        return self.commit_interval_ms / 1e3
