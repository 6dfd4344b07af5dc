"""The small JSON files that one process leaves for another, or for its next start: JSON with its own checksum in front.

Without it a single flipped bit could make pages that were never read look read, or move an LSN, and nobody would see. What a damaged file
means, its owner says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import google_crc32c

_BEGINNING: Final = re.compile(rb'\{"crc32c": "([0-9a-f]{8})", ')
_BEGINNING_BYTES: Final = len('{"crc32c": "00000000", ')


def encode(content: Mapping[str, Any]) -> str:
    """``content`` (not empty, keys are text) as one JSON object, whose first entry is the CRC-32C of all that follows it. Raises ValueError when it
    is empty."""
    if not content:
        raise ValueError("an empty object says nothing")
    rest = json.dumps(content)[1:]
    return f'{{"crc32c": "{google_crc32c.value(rest.encode()):08x}", {rest}'


def decode(data: bytes) -> dict[str, Any]:
    """Decodes what ``encode`` made. Raises ValueError when a single bit differs."""
    found = _BEGINNING.match(data)
    if found is None or google_crc32c.value(data[_BEGINNING_BYTES:]) != int(found[1], 16):
        raise ValueError("the checksum differs")
    content: dict[str, Any] = json.loads(data)
    del content["crc32c"]
    return content


def write(path: Path, content: Mapping[str, Any], *, aside: Path | None = None) -> None:
    """Puts what ``encode`` makes of the content in the file's place: durable on return, and whole or not there at all at any time.

    aside: where it is written first, in the same folder; to be a name of the writer's own where several may write at once.
    Raises OSError, which names the file.
    """
    aside = aside or path.with_suffix(".aside")
    try:
        with open(create(aside), "wb") as file:
            file.write(encode(content).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(aside)) from error  # a write does not say where
    aside.replace(path)
    sync_folder(path.parent)


def create(path: Path) -> int:
    """A descriptor of a new file, private to the folder's owner: never one that somebody else has put there, nor what a link leads to.

    What a process that ended left under that name goes.
    """
    descriptor = create_own(path)
    hand_over(path.parent, descriptor)
    return descriptor


def create_own(path: Path) -> int:
    """As ``create``, but private to whoever makes it, whoever the folder belongs to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        path.unlink(missing_ok=True)
        return os.open(path, flags, 0o600)


def make_folder(folder: Path) -> None:
    """Makes the folder, and what leads to it, each private to the owner of the one that it is in. Durable on return."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Whoever owns the folder around it may have put a link in its place by now.
        made = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            hand_over(folder.parent, made)
        finally:
            os.close(made)
        sync_folder(folder.parent)


def hand_over(folder: Path, made: int) -> None:
    """Gives what root made in an account's folder (``sudo cdc resume``) to that account, which has to read it. ``made``: its descriptor, as its
    name may come to lead elsewhere."""
    if os.geteuid() == 0 and (owner := folder.stat()).st_uid != 0:
        os.fchown(made, owner.st_uid, owner.st_gid)


def sync_folder(folder: Path) -> None:
    """Makes what was renamed or removed in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
