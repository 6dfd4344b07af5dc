"""When compiled kernels are stale: numba looks at the file of the kernel itself, but machine code also holds the kernels that it calls. And
whose word is taken for them: what is found in the cache is unpickled and run."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from numba import config
from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator

from cdc.folders import own_code

_TOP = Path(__file__).parents[2]
_PACKAGES = ("cdc", "sinks", "snapshots")
_MARK = b"cdc.kernels.jit import"


@cache
def stamp() -> str:
    """Of all files that hold kernels, by their content: after an upgrade in place no kernel runs with the machine code of another version."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_TOP / package).rglob("*.py")):
            content = path.read_bytes()
            if _MARK in content:
                digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


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
