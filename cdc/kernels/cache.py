"""When compiled kernels are stale: numba looks at the file of the kernel itself, but machine code also holds the kernels that it calls and the
globals that it names (numba freezes them). And whose word is taken for them: what is found in the cache is unpickled and run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from numba import config
from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator

from cdc.folders import own_code

_TOP: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("cdc", "sinks", "snapshots")
_MARK: Final = b"cdc.kernels.jit import"
_IMPORT: Final = re.compile(rb"^(?:from|import) ((?:cdc|sinks|snapshots)\b[\w.]*)(?: import (\([^)]*\)|[^\n]*))?", re.MULTILINE)


@cache
def stamp() -> str:
    """A digest of all files that hold kernels, and of those that they import: after an upgrade in place no kernel runs with the machine code
    of another version."""
    contents: dict[Path, bytes] = {}
    for package in _PACKAGES:
        for path in (_TOP / package).rglob("*.py"):
            content = path.read_bytes()
            if _MARK in content:
                contents[path] = content
    found = list(contents.values())
    while found:
        for path in _imported(found.pop()):
            if path not in contents and path.is_file():
                contents[path] = path.read_bytes()
                found.append(contents[path])
    digest = hashlib.sha256()
    for path in sorted(contents):
        digest.update(hashlib.sha256(contents[path]).digest())
    return digest.hexdigest()


def _imported(content: bytes) -> Iterator[Path]:
    """Where the modules of ours may lie that a module imports as it is loaded; what it imports of a package may be a module."""
    for module, names in _IMPORT.findall(content):
        place = _TOP.joinpath(*module.decode().split("."))
        for found in (place, *(place / name.decode() for name in re.findall(rb"\w+", names))):
            yield found.with_suffix(".py")
            yield found / "__init__.py"


@cache
def _own(folder: str, setting: str) -> None:
    own_code(Path(folder), setting)


class _Stamped:
    def get_source_stamp(self) -> str:
        return stamp()


class Chosen(_Stamped, UserProvidedCacheLocator):  # type: ignore[misc]
    """In the folder that NUMBA_CACHE_DIR names."""

    def ensure_cache_path(self) -> None:
        """Raises ConfigError when others can write there."""
        _own(str(config.CACHE_DIR), "NUMBA_CACHE_DIR")
        super().ensure_cache_path()
        _own(self.get_cache_path(), "NUMBA_CACHE_DIR")


class BesideSource(_Stamped, InTreeCacheLocator):  # type: ignore[misc]
    """In ``__pycache__``, where that can be written to. Another account that can write there needs no kernels: Python believes the modules there."""


class OfUser(_Stamped, UserWideCacheLocator):  # type: ignore[misc]
    """In the user's cache folder."""

    def ensure_cache_path(self) -> None:
        """Raises ConfigError when others can write there."""
        super().ensure_cache_path()
        _own(self.get_cache_path(), "numba's cache")


LOCATORS = ",".join(f"{locator.__module__}.{locator.__qualname__}" for locator in (Chosen, BesideSource, OfUser))
"""As numba's setting CACHE_LOCATOR_CLASSES names them; the first one that can be written to is taken."""
