"""A disk that has no room left, in words."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Final

FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
"""The error numbers of a full disk, and of a quota that is used up."""
MAKE_ROOM: Final = "free space there (df -h shows how much is left)"
GOES_ON: Final = f"{MAKE_ROOM}; it then goes on by itself"


def free_bytes(folder: Path) -> int:
    """The room that this account may still fill on the disk of a folder. Raises OSError."""
    return shutil.disk_usage(folder).free


def described(error: OSError) -> str:
    """Says what the disk refuses and where, without the error's number."""
    said = error.strerror or type(error).__name__
    return f"{said}: {error.filename}" if error.filename is not None else said
