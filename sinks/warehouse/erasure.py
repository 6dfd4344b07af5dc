"""Finds what a store has put into the warehouse's folder, and removes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Set
from pathlib import Path
from uuid import uuid4

from cdc.crashpoint import crashpoint
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.disk import sync
from sinks.warehouse.marks import STORE_KEY
from sinks.warehouse.names import STAGING


def erase(catalog: Catalog, path: Path, store: str, aside: Path, kept: Set[Path] = frozenset()) -> None:
    """Removes every table of the store, its ledger among them, but for those in ``kept``. ``aside``: a folder in the same file system, whose content
    does not count."""
    for location in tables_in(path):
        if location in kept:
            continue
        namespace = location.relative_to(path).parts[:-1]
        table = catalog.load(namespace, location.name)
        if table is not None and table.properties.get(STORE_KEY) == store:
            put_aside(location, aside)


def put_aside(location: Path, aside: Path) -> None:
    """Removes a table at once: a crash leaves it whole, or leaves what is none any more."""
    aside.mkdir(parents=True, exist_ok=True)
    gone = aside / f"erased-{uuid4().hex}"
    location.rename(gone)
    sync(location.parent)
    crashpoint("rebuild.table_erased")
    shutil.rmtree(gone, ignore_errors=True)


def tables_in(path: Path) -> Iterator[Path]:
    """The folders of Iceberg tables, wherever they lie below the path."""
    if not path.is_dir():
        return
    for folder, below, _ in os.walk(path):
        if Path(folder) != path and "metadata" in below and any(Path(folder, "metadata").glob("*.metadata.json")):
            below.clear()
            yield Path(folder)
        elif Path(folder) == path and STAGING in below:
            below.remove(STAGING)
