"""The folder of one view's states: one for each generation, with the kernel's own files and what lies beside them; and the lock of whoever works on them.

```
<log>/views/NAME/lock
<log>/views/NAME/gN/view.json, gN/kernel/
```
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cdc.derive.course import KernelFacts, LeftState
from cdc.errors import HeadwaterError
from cdc.model.position import Position
from cdc.state import jsonfile
from cdc.state.statefile import StateFile

FOLDER: Final = "views"
"""In the log's folder."""
_LOCK: Final = "lock"
_GENERATION: Final = re.compile(r"g([1-9]\d{0,8})")
_FACTS: Final = "view.json"
_KERNEL: Final = "kernel"
_SCRATCH: Final = "scratch"


class _Unreadable(Exception):
    """The file is damaged, or another version's."""


def _encode(facts: KernelFacts) -> dict[str, Any]:
    return {
        "digest": facts.digest,
        "log": facts.log,
        "history": facts.history,
        "loading": facts.loading,
        "even": None if facts.even is None else list(facts.even),
        "left": None if facts.left is None else {"at": facts.left.at, "cut": facts.left.cut},
        "definition": dict(facts.definition),
    }


def _decode(raw: dict[str, Any]) -> KernelFacts:
    even, left = raw["even"], raw["left"]
    return KernelFacts(
        str(raw["digest"]),
        str(raw["log"]),
        str(raw["history"]),
        bool(raw["loading"]),
        None if even is None else (int(even[0]), int(even[1])),
        None if left is None else LeftState(float(left["at"]), Position(left["cut"])),
        dict(raw["definition"]),
    )


_FILE: Final = StateFile(2, _encode, _decode, lambda path, what: _Unreadable(f"{path} {what}"))


class StateHeld(HeadwaterError):
    """Another process works on the view's state."""


class GenerationFolder:
    """The folder of one generation's state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def kernel(self) -> Path:
        """The kernel's own folder, which exists."""
        path = self._folder / _KERNEL
        jsonfile.make_folder(path)
        return path

    @property
    def scratch(self) -> Path:
        """A folder for whatever makes the state, gone with it."""
        return self._folder / _SCRATCH

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
        for name in (_KERNEL, _SCRATCH):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def remove(self) -> None:
        """Removes the state, and the folder."""
        self.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def bytes(self) -> int:
        """Its size on the disk."""
        total = 0
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # the kernel's files come and go
                total += path.stat().st_size if path.is_file() else 0
        return total


class StateFolder:
    """One view's, held until ``close``; the kernel releases the lock when the process ends, in whatever way."""

    def __init__(self, folder: Path, view: str) -> None:
        """Raises StateHeld, OSError."""
        self._folder = folder / view
        jsonfile.make_folder(self._folder)
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StateHeld(f"another process keeps view {view} up", hint="cdc views says which") from None
        self._remove_strange()

    def _remove_strange(self) -> None:
        """What is neither the lock nor a generation takes room only."""
        for path in self._folder.iterdir():
            if path.name == _LOCK or _GENERATION.fullmatch(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()

    def generations(self) -> Mapping[int, GenerationFolder]:
        """Those that there are, by number."""
        return generations_in(self._folder)

    def generation(self, number: int) -> GenerationFolder:
        """The one with this number, whether it is there or not."""
        return GenerationFolder(self._folder / f"g{number}")

    def close(self) -> None:
        os.close(self._lock)


def generations_in(folder: Path) -> Mapping[int, GenerationFolder]:
    """The generations of the view whose folder this is, by number; none where it does not exist. For whoever only looks: it needs no lock."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = sorted(int(one[1]) for name in names if (one := _GENERATION.fullmatch(name)))
    return {number: GenerationFolder(folder / f"g{number}") for number in found}
