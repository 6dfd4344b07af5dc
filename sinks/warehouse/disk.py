"""The warehouse's folder as the file system has it: what is durable, what has changed, and whether what is missing may come back."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from cdc.errors import StopState, StoreError
from sinks.warehouse.failures import Vanished, errors

_STANDS_STILL_S: Final = 2.0
"""A table whose files come or go changes again within this time, in one of its folders, also on a machine that is short of time."""

_PUT_BACK: Final = f"put it back, or build the store again: cdc resume {StopState.STORE_REFUSES} --rebuild"

Seen = TypeVar("Seen")


def sync(path: Path) -> None:
    """fsync of a file or a folder. A file that upkeep has already replaced needs none."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stamp(path: Path) -> tuple[int, int] | None:
    """Which file or folder it is, and when it was last changed; None when it is gone. Raises StoreError where the disk does not say."""
    with errors("look at a table's folder"):
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns


def looked_at(table: str, folder: Path, look: Callable[[], Seen]) -> Seen:
    """Returns what ``look`` finds in the table's metadata.

    Raises Vanished while files come or go there, as they do when a folder is removed or put back, and StoreError (not retryable) when one
    is missing and nothing changes: it was deleted by hand, and no waiting brings it back.
    """
    for _ in range(2):
        before = _stamps(folder)
        try:
            return look()
        except Vanished as error:
            missing = error
        time.sleep(_STANDS_STILL_S)
        if None in before[:2] or _stamps(folder) != before:
            raise missing
    raise Lacking(table, "a part of its metadata") from missing


def refuse_lacking(table: str, folder: Path, missing: Callable[[], str | None]) -> None:
    """Raises what ``looked_at`` does where the table still lacks a data file after a while. ``missing``: names it, or None."""
    before = _stamps(folder)
    time.sleep(_STANDS_STILL_S)
    if (name := missing()) is not None:
        raise Lacking(table, name) if _stamps(folder) == before else Vanished("look at a table's files", table)


def _stamps(folder: Path) -> list[tuple[int, int] | None]:
    """A new table has no ``data`` yet."""
    return [stamp(one) for one in (folder, folder / "metadata", folder / "data")]


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises StoreError where the file holds something else than was written. What the disk itself fails with passes as it is."""
    try:
        yield
    except (pa.ArrowInvalid, struct.error, ValueError) as error:  # their words may show values
        raise _damaged(path) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damaged(path) from error  # Arrow's word for bytes that it cannot unpack


class Lacking(StoreError):
    """A table that nobody can read whole any more, and no waiting brings back what is missing."""

    def __init__(self, table: str, name: str) -> None:
        super().__init__(f"the warehouse's table {table} lacks a file that it needs: {name}", retryable=False, hint=_PUT_BACK)


def _damaged(path: str) -> StoreError:
    where = "/".join(Path(path).parts[-3:])
    return StoreError(f"a file of the warehouse is damaged: {where}", retryable=False, hint=_PUT_BACK)
