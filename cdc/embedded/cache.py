"""The one folder for what is fetched or built once: jars, the Java wrapper, class data archives."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.embedded import EmbeddedError
from cdc.folders import own_code
from cdc.state import jsonfile

_HINT: Final = "set HEADWATER_CACHE to a folder that this account can write to"


def cache_folder() -> Path:
    """$HEADWATER_CACHE, else headwater in $XDG_CACHE_HOME or ~/.cache; created when missing. What lies there is run, so ConfigError when
    anybody but us and root may write there, and EmbeddedError when it cannot be made."""
    chosen = os.environ.get("HEADWATER_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "headwater"
    base = base.absolute()
    try:
        own_code(base, "HEADWATER_CACHE" if chosen else "the cache")
    except OSError as error:
        raise EmbeddedError(f"the cache: cannot make {base}: {error.strerror}", hint=_HINT) from None
    return base


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise EmbeddedError("this account has no home folder for the cache", hint=_HINT) from None


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
