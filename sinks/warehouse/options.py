"""The warehouse's part of ``cdc.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from sinks.warehouse.catalogoptions import CatalogOptions
from sinks.warehouse.owncolumns import OwnFields

MB: Final = 2**20


class Options(CatalogOptions):
    """The options that only a warehouse has."""

    example = ("warehouse", 'path = "var/warehouse"')

    path: Path
    """The warehouse's folder: an Iceberg catalog of type `hadoop`, which every Iceberg reader can open. With another `catalog` the tables may lie elsewhere
    (`warehouse`); then it holds only what waits for a commit, and has to be on the machine that writes."""
    namespace: str | None = Field(None, pattern=r"^[a-z0-9_]+$")
    """Put before `schema.table` in the tables' names."""
    pointer: Path | None = None
    """A symbolic link that readers open as their warehouse instead of `path`: it leads to the folder of the live generation, so that `cdc bootstrap` can put the
    next one in its place ([stores.md](stores.md#generations-of-a-warehouse)). Made by Headwater; outside `path`. Left out: `cdc bootstrap` builds in place, but for
    `catalog = "sql"`, whose readers need none."""
    commit_interval_ms: int = Field(3000, ge=0)
    """Under steady changes, commits are no closer together than this; a change that comes alone is committed at once."""
    batch_rows: int = Field(1_000_000, ge=1)
    """As for every store."""
    batch_bytes: int = Field(256 * MB, ge=1)
    """As for every store."""
    staged_bytes: int = Field(256 * MB, ge=1)
    """Staged changes beyond this go to the `_staging` folder until the commit."""
    key_cache_bytes: int = Field(256 * MB, ge=0)
    """Keys of data files kept in memory, so that the next commit finds the rows that it replaces without reading them again."""
    file_bytes: int = Field(128 * MB, ge=1)
    """Data files are closed at about this size, and files near it are left alone by compaction."""
    compact_files: int = Field(16, ge=2)
    """This many data files of about the same size become one."""
    keep_snapshots_s: int = Field(600, ge=0)
    """How long old snapshots stay readable."""

    cuts: bool = False
    """A table `headwater.cuts` beside the others, with a row for each commit of the last `keep_snapshots_s`: its position and time, and the snapshot of each
    table that holds it, so that several tables can be read as of one moment ([warehouse.md](warehouse.md#several-tables-at-one-moment))."""

    @model_validator(mode="after")
    def _readers_find_the_pointer_outside(self) -> Self:
        if self.pointer is not None and self.catalog != "hadoop":
            how = "builds the next generation without one" if self.catalog == "sql" else "builds in place"
            raise ValueError(
                f'catalog = "{self.catalog}" knows no `pointer`: its readers ask the catalog, and `cdc bootstrap` {how}'
            )
        if self.pointer is not None and self.pointer.absolute().is_relative_to(self.path.absolute()):
            raise ValueError("pointer lies in path, where a reader of path would take it for a namespace; name one beside path")
        return self

    def own_columns(self, topic: str) -> OwnFields:
        """The columns that the topic's table has beside the source's."""
        return OwnFields(self.deleted_of(topic), self.loaded_at_of(topic))

    @property
    def generational(self) -> bool:
        return self.pointer is not None or self.catalog == "sql"

    @property
    def why_not_generational(self) -> str:
        if self.catalog == "rest":
            return "no catalog's server has to change several tables in one step, so readers would see some of one generation and some of the other"
        return "" if self.generational else "readers open its folder itself, and not a `pointer` to it"

    @property
    def disk_path(self) -> Path:
        return self.path

    @property
    def commit_interval_s(self) -> float:
        return self.commit_interval_ms / 1e3
