"""When compiled kernels are stale: numba looks at the file of the kernel itself, but machine code also holds the kernels that it calls."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator

_TOP = Path(__file__).parents[2]
_PACKAGES = ("cdc", "sinks", "snapshots")
_MARK = b"cdc.model.kernel import"


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


class _Stamped:
    def get_source_stamp(self) -> str:
        return stamp()


class Chosen(_Stamped, UserProvidedCacheLocator):  # type: ignore[misc]
    """In the folder that NUMBA_CACHE_DIR names."""


class BesideSource(_Stamped, InTreeCacheLocator):  # type: ignore[misc]
    """In ``__pycache__``, where that can be written to."""


class OfUser(_Stamped, UserWideCacheLocator):  # type: ignore[misc]
    """In the user's cache folder."""


LOCATORS = ",".join(f"{locator.__module__}.{locator.__qualname__}" for locator in (Chosen, BesideSource, OfUser))
"""As numba's setting CACHE_LOCATOR_CLASSES names them; the first one that can be written to is taken."""
