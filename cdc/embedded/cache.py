"""The one folder for what is fetched or built once: jars, the Java wrapper, class data archives."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.folders import own_code
from cdc.state import jsonfile


def cache_folder() -> Path:
    """$HEADWATER_CACHE, else headwater in $XDG_CACHE_HOME or ~/.cache; created when missing. What lies there is run, so ConfigError when
    anybody but us and root may write there."""
    chosen = os.environ.get("HEADWATER_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"
    base = base.absolute()
    own_code(base, "HEADWATER_CACHE" if chosen else "the cache")
    return base


@contextmanager
def locked(name: str, folder: Path | None = None) -> Iterator[None]:
    """Holds the lock ``name`` against every other process of this machine; released by the kernel when the holder dies."""
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces ``path`` in one step; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(jsonfile.create(aside), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fchmod(handle.fileno(), mode)
        os.fsync(handle.fileno())
    aside.replace(path)


def forget() -> None:
    """Removes the cache folder with everything in it."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
