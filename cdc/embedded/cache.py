"""The one folder for what is fetched or built once: jars, the Java wrapper, class data archives."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """$HEADWATER_CACHE, else headwater in $XDG_CACHE_HOME or ~/.cache; created when missing."""
    chosen = os.environ.get("HEADWATER_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"
    base = base.absolute()
    base.mkdir(parents=True, exist_ok=True)
    return base


@contextmanager
def locked(name: str, folder: Path | None = None) -> Iterator[None]:
    """Holds the lock ``name`` against every other process of this machine; released by the kernel when the holder dies."""
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces ``path`` in one step; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fchmod(handle.fileno(), mode)
        os.fsync(handle.fileno())
    aside.replace(path)


def forget() -> None:
    """Removes the cache folder with everything in it."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
