"""The superuser's password of the embedded servers, over TCP: one for a process and its children, in a libpq passfile of theirs.

Other users of the machine reach the loopback interface, too, and a superuser may run programs. libpq finds the password by itself
(PGPASSFILE), so no address and no configuration holds it.
"""

from __future__ import annotations

import atexit
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "PGPASSFILE"
_OURS: Final = "# of Headwater's embedded servers\n"
_ENTRY: Final = "127.0.0.1:*:*:postgres:"


def password() -> str:
    """Made, and put into the environment for libpq, when it is first asked for; a child process has its parent's."""
    known = _known(Path(os.environ.get(VARIABLE, "")))
    return known if known is not None else _make()


def _known(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    _, found, rest = text.partition(_OURS + _ENTRY)
    return rest.strip() if found else None


def _make() -> str:
    made = secrets.token_urlsafe(24)
    descriptor, name = tempfile.mkstemp(prefix="headwater-pgpass-")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{_OURS}{_ENTRY}{made}\n")
    os.environ[VARIABLE] = name
    atexit.register(_remove, Path(name), os.getpid())
    return made


def _remove(path: Path, owner: int) -> None:
    """A forked child leaves it to its parent."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
