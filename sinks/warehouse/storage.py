"""Where the files of tables lie: what is written, read, listed and removed there, and when that is durable.

A location is an absolute path or an address (``s3://bucket/key``), as Iceberg writes it without ``file:``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, Protocol

import pyarrow as pa

from sinks.warehouse.disk import sync


class Storage(Protocol):
    """All of it raises OSError, FileNotFoundError for what is not there, and StoreError where a server does not answer."""

    def make(self, folder: str) -> None:
        """The folder is there, durably."""
        ...

    def written(self, location: str) -> AbstractContextManager[Any]:
        """A file to write into, which is durable once it is left without an error, but for its name (``settle``)."""
        ...

    def settle(self, folder: str) -> None:
        """The names of the files in it are durable."""
        ...

    def opened(self, location: str) -> pa.NativeFile: ...

    def size(self, location: str) -> int: ...

    def exists(self, location: str) -> bool: ...

    def names(self, folder: str) -> set[str]:
        """Those of the files in it; none where the folder does not exist."""
        ...

    def stamp(self, folder: str) -> object:
        """Another value once files have come or gone there. It may be another one by itself, too."""
        ...

    def remove(self, location: str) -> None:
        """Removes a file; one that is gone already is fine."""
        ...

    def clear(self, folder: str) -> None:
        """Removes all that is below it."""
        ...


class LocalStorage:
    """Folders of this machine."""

    def make(self, folder: str) -> None:
        if not Path(folder).is_dir():
            Path(folder).mkdir(parents=True, exist_ok=True)
            sync(Path(folder).parent)

    @contextmanager
    def written(self, location: str) -> Iterator[pa.NativeFile]:
        with pa.OSFile(location, "wb") as file:
            yield file
        sync(Path(location))

    def settle(self, folder: str) -> None:
        sync(Path(folder))

    def opened(self, location: str) -> pa.NativeFile:
        return pa.memory_map(location)

    def size(self, location: str) -> int:
        return Path(location).stat().st_size

    def exists(self, location: str) -> bool:
        return Path(location).exists()

    def names(self, folder: str) -> set[str]:
        try:
            return {path.name for path in Path(folder).iterdir()}
        except FileNotFoundError:
            return set()

    def stamp(self, folder: str) -> object:
        try:
            return Path(folder).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remove(self, location: str) -> None:
        path = Path(location)
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's, of what Java has written

    def clear(self, folder: str) -> None:
        rmtree(folder, ignore_errors=True)


LOCAL: Final = LocalStorage()
