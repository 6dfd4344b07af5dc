"""The parts that one generation of a warehouse is worked on with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sinks.warehouse.catalog import Catalog
from sinks.warehouse.connection import connect
from sinks.warehouse.generationnames import WarehouseFolders, below
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.options import Options
from sinks.warehouse.register import WarehouseRegister
from sinks.warehouse.scratch import Scratch, Staging


@dataclass(frozen=True, slots=True)
class WarehouseParts:
    """``options``: with the generation's own folder as ``path``. ``aside``: a folder whose content does not count."""

    number: int
    options: Options
    aside: Path
    scratch: Scratch
    staging: Staging
    keys: KeyCache

    @property
    def path(self) -> Path:
        """The generation's folder, absolute."""
        return self.options.path

    def close(self) -> None:
        with suppress(OSError):
            self.staging.clear()
        self.scratch.remove()


def parts_of(folders: WarehouseFolders, number: int, options: Options) -> WarehouseParts:
    """``options``: as the configuration says them."""
    aside = folders.staging(number)
    scratch = Scratch(aside)
    own = _own_options(folders, number, options)
    return WarehouseParts(number, own, aside, scratch, Staging(scratch, options.staged_bytes), KeyCache(options.key_cache_bytes))


def catalog_of(store: str, register: WarehouseRegister, number: int, options: Options) -> Catalog:
    """One generation's. ``options``: as the configuration says them."""
    folders = register.folders
    return connect(store, _own_options(folders, number, options), folders.staging(number), register.served(number))


def _own_options(folders: WarehouseFolders, number: int, options: Options) -> Options:
    """Those of one generation: with its own folder as ``path``, and its own part of the ``warehouse``."""
    where = options.warehouse
    if options.catalog == "sql" and where is not None:
        where = below(where, folders.store, number)
    return options.model_copy(update={"path": folders.root(number), "warehouse": where})
