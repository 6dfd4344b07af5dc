"""The folder of one view's state: the kernel's own files, what lies beside them, and the lock of whoever works on them."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any, Final

from cdc.derive.course import KernelFacts
from cdc.errors import HeadwaterError
from cdc.state import jsonfile
from cdc.state.statefile import StateFile

FOLDER: Final = "views"
"""In the log's folder."""
_FACTS: Final = "view.json"
_KERNEL: Final = "kernel"


class _Unreadable(Exception):
    """The file is damaged, or another version's."""


def _encode(facts: KernelFacts) -> dict[str, Any]:
    even = None if facts.even is None else list(facts.even)
    return {"digest": facts.digest, "log": facts.log, "history": facts.history, "loading": facts.loading, "even": even}


def _decode(raw: dict[str, Any]) -> KernelFacts:
    even = raw["even"]
    return KernelFacts(
        str(raw["digest"]),
        str(raw["log"]),
        str(raw["history"]),
        bool(raw["loading"]),
        None if even is None else (int(even[0]), int(even[1])),
    )


_FILE: Final = StateFile(1, _encode, _decode, lambda path, what: _Unreadable(f"{path} {what}"))


class StateHeld(HeadwaterError):
    """Another process works on the view's state."""


class StateFolder:
    """One view's, held until ``close``; the kernel releases the lock when the process ends, in whatever way."""

    def __init__(self, folder: Path, view: str) -> None:
        """Raises StateHeld, OSError."""
        self._folder = folder / view
        jsonfile.make_folder(self._folder)
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StateHeld(f"another process keeps view {view} up", hint="cdc views says which") from None

    @property
    def kernel(self) -> Path:
        """The kernel's own folder, which exists."""
        path = self._folder / _KERNEL
        jsonfile.make_folder(path)
        return path

    def load(self) -> KernelFacts | None:
        """None where there is no state that can be used."""
        try:
            return _FILE.load(self._folder / _FACTS)
        except _Unreadable:
            return None

    def save(self, facts: KernelFacts) -> None:
        """Durable on return."""
        _FILE.save(self._folder / _FACTS, facts)

    def clear(self) -> None:
        """Removes the state."""
        _FILE.remove(self._folder / _FACTS)
        shutil.rmtree(self._folder / _KERNEL, ignore_errors=True)

    def bytes(self) -> int:
        """Its size on the disk."""
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    def close(self) -> None:
        os.close(self._lock)
