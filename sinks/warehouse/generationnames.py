"""Where the generations of a warehouse lie. Pure.

Each is a folder of its own with everything in it: a catalog that any Iceberg reader opens. The first lies in the configured folder itself, any other in
``_generations/STORE/gN`` below it, with tables of the same names. With a SQL catalog the tables lie likewise in the warehouse, wherever that is, and stay there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sinks.warehouse.names import GENERATIONS, LEDGERS, STAGING, safe

FIRST: Final = 1
_FOLDER: Final = re.compile(r"g([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class WarehouseFolders:
    """One store's. ``path``: the configured folder, absolute."""

    path: Path
    store: str

    @property
    def home(self) -> Path:
        """The folder of all generations but the first, and of the register."""
        return self.path / GENERATIONS / safe(self.store)

    def root(self, number: int) -> Path:
        return self.path if number == FIRST else self.home / f"g{number}"

    def ledger(self, number: int) -> Path:
        return self.root(number) / LEDGERS / safe(self.store)

    def staging(self, number: int) -> Path:
        return self.root(number) / STAGING / safe(self.store)

    def numbered(self, name: str) -> int | None:
        """The generation that a folder in ``home`` is of; None for any other.

        >>> WarehouseFolders(Path("/lake"), "wh").numbered("g2")
        2
        """
        found = _FOLDER.fullmatch(name)
        return None if found is None or int(found[1]) == FIRST else int(found[1])

    def led_to(self, target: Path) -> int | None:
        """The generation whose root this is, without detours (``os.path.normpath``); None where it is none's."""
        path, home = (Path(os.path.normpath(one)) for one in (self.path, self.home))
        if target == path:
            return FIRST
        return self.numbered(target.name) if target.parent == home else None


def below(warehouse: str, store: str, number: int) -> str:
    """Where a generation's tables lie in a warehouse, which may be an address.

    >>> below("s3://bucket/lake", "wh", 2)
    's3://bucket/lake/_generations/wh/g2'
    """
    return warehouse if number == FIRST else f"{warehouse.rstrip('/')}/{GENERATIONS}/{safe(store)}/g{number}"


def numbered_in(store: str, location: str) -> int:
    """The generation of the store that a table's location is of.

    >>> numbered_in("wh", "s3://bucket/lake/_generations/wh/g2/public/orders/metadata/00001.json")
    2
    >>> numbered_in("wh", "/lake/public/orders/metadata/00001.json")
    1
    """
    found = re.search(f"/{GENERATIONS}/{re.escape(safe(store))}/{_FOLDER.pattern}/", location)
    return FIRST if found is None else int(found[1])
