"""Finds what a store has put into the warehouse's folder, and removes it: of a table its metadata and its data, and nothing that lies beside them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from cdc.crashpoint import crashpoint
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.disk import sync
from sinks.warehouse.marks import STORE_KEY
from sinks.warehouse.names import GENERATIONS, STAGING

_PARTS: Final = ("data", "metadata")
_GZIP: Final = b"\x1f\x8b"


TableName = tuple[tuple[str, ...], str]
"""Namespace and name."""


def erase(catalog: Catalog, store: str, kept: Set[TableName] = frozenset()) -> None:
    """Removes every table of the store, its ledger among them, but for those in ``kept``."""
    for namespace, name in catalog.tables():
        if (namespace, name) in kept:
            continue
        table = catalog.load(namespace, name)
        if table is not None and table.properties.get(STORE_KEY) == store:
            catalog.remove(namespace, name)


def put_aside(location: Path, aside: Path) -> None:
    """Removes a table at once: a crash leaves it whole, or leaves what is none any more. ``aside``: a folder in the same file system. Where something else lies in its folder, such as another store's
    tables, that stays; then the data go first, so that after a crash the table is still found."""
    aside.mkdir(parents=True, exist_ok=True)
    gone = aside / f"erased-{uuid4().hex}"
    if {path.name for path in location.iterdir()} <= set(_PARTS):
        location.rename(gone)
        sync(location.parent)
    else:
        gone.mkdir()
        for part in _PARTS:
            with suppress(FileNotFoundError):
                (location / part).rename(gone / part)
        sync(location)
    crashpoint("rebuild.table_erased")
    shutil.rmtree(gone, ignore_errors=True)


def holds_table(location: Path) -> bool:
    """Whether an Iceberg table lies in this folder itself, or what is left of one."""
    metadata = location / "metadata"
    return any(_metadata(location)) or (metadata / "version-hint.text").exists()


def owners(location: Path) -> set[str | None]:
    """The stores that the table's metadata name, as far as anybody can read them; None: a table of another program. Empty where there is no table."""
    found: set[str | None] = set()
    for path in _metadata(location):
        with suppress(OSError, EOFError, zlib.error, ValueError, AttributeError, RecursionError):
            content = path.read_bytes()
            text = gzip.decompress(content) if content.startswith(_GZIP) else content
            found.add(json.loads(text).get("properties", {}).get(STORE_KEY))
    return found


def tables_in(path: Path) -> Iterator[Path]:
    """The folders of Iceberg tables, wherever they lie below the path, but for those of other generations."""
    if not path.is_dir():
        return
    for folder, below, _ in os.walk(path):
        if Path(folder) != path and any(_metadata(Path(folder))):
            below[:] = [name for name in below if name not in _PARTS]  # others may have made theirs beside them
            yield Path(folder)
        elif Path(folder) == path:
            below[:] = [name for name in below if name not in (STAGING, GENERATIONS)]


def _metadata(location: Path) -> Iterator[Path]:
    return (location / "metadata").glob("*.metadata.json")
