"""A disk that fails on demand and, at a power loss, keeps only what was synced (and any part of what was not).

The files are real (in a memory file system): they are what the system's page cache would answer. Beside them stands what a power loss
would leave: per file the synced bytes, per folder the synced names. After a failed sync the pages count as clean though they never
reached the disk, as on Linux, so a later sync that succeeds says nothing about them unless they are written again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal

import pyarrow as pa

from cdc.log.embedded.disk import Disk

Loss = Literal["lost", "torn"]
BLOCK: Final = 512
"""What a disk writes at once or not at all."""


class _File:
    """An inode: what of it is durable."""

    __slots__ = ("changes", "clean", "durable", "folder", "whole_at")

    def __init__(self, *, folder: bool = False) -> None:
        self.durable = b""
        self.clean: set[int] = set()
        """Blocks that a failed sync has marked as clean."""
        self.folder = folder
        self.changes = 0
        """How often it was written, cut or synced."""
        self.whole_at = (-1, 0)
        """(changes, length): a power loss at that moment would have left so many bytes as they were."""


class ModelDisk(Disk):
    """``meet`` is called with the name of each operation before it happens; what it raises happens instead (a write is done in part)."""

    def __init__(self, root: Path, chance: Random) -> None:
        self.root = root
        self.meet: Callable[[str], None] = lambda _: None
        self._chance = chance
        self._open: dict[int, _File] = {}
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}

    # --- the port ---------------------------------------------------------------------------------------------------------------

    def make_folder(self, path: Path) -> None:
        self.meet("make_folder")
        super().make_folder(path)
        name, root = str(path), str(self.root)
        while name == root or name.startswith(f"{root}/"):
            self._names.setdefault(name, _File(folder=True))
            name = _parent(name)

    def create(self, path: Path) -> int:
        self.meet("create")
        fd = super().create(path)
        self._open[fd] = self._names[str(path)] = _File()
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._open[fd] = self._names[str(path)]
        return fd

    def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        try:
            self.meet("write")
        except BaseException:
            data = b"".join(bytes(memoryview(part)) for part in parts)
            ends = [0, *range(BLOCK - offset % BLOCK, len(data), BLOCK), len(data)]
            self._written(fd, offset, os.pwrite(fd, data[: self._chance.choice(ends)], offset))
            raise
        super().write(fd, parts, offset)
        self._written(fd, offset, sum(map(len, parts)))

    def truncate(self, fd: int, length: int) -> None:
        self.meet("truncate")
        super().truncate(fd, length)
        self._open[fd].changes += 1

    def sync(self, fd: int) -> None:
        file = self._open[fd]
        file.changes += 1
        now = os.pread(fd, os.fstat(fd).st_size, 0)
        try:
            self.meet("sync")
        except OSError:
            file.clean.update(at for at in range((len(now) + BLOCK - 1) // BLOCK) if _block(now, at) != _block(file.durable, at))
            raise
        if file.clean:
            pieces = (file.durable if at in file.clean else now for at in range((len(now) + BLOCK - 1) // BLOCK))
            now = b"".join(_block(piece, at).ljust(BLOCK, b"\0") for at, piece in enumerate(pieces))[: len(now)]
        file.durable = now

    def sync_folder(self, path: Path) -> None:
        self.meet("sync_folder")
        folder = str(path)
        self._durable_names = {name: file for name, file in self._durable_names.items() if _parent(name) != folder}
        self._durable_names |= {name: file for name, file in self._names.items() if _parent(name) == folder}

    def rename(self, old: Path, new: Path) -> None:
        self.meet("rename")
        super().rename(old, new)
        self._names[str(new)] = self._names.pop(str(old))

    def remove(self, path: Path) -> None:
        self.meet("remove")
        super().remove(path)
        del self._names[str(path)]

    # --- for the simulation -------------------------------------------------------------------------------------------------------

    def durable(self, path: Path) -> bytes | None:
        """What the worst power loss now would leave of the file; None when not even its name."""
        file = self._durable_names.get(str(path))
        folder, root = _parent(str(path)), str(self.root)
        while folder != root:
            if folder not in self._durable_names:
                return None
            folder = _parent(folder)
        return file.durable if file is not None else None

    def lacks(self, path: Path, length: int) -> bool:
        """Whether the worst power loss now would take anything of the file's first ``length`` bytes. A file that has been removed lacks nothing."""
        file = self._names.get(str(path))
        if file is None:
            return False
        durable = self.durable(path)
        if durable is None:
            return True
        if durable is file.durable and file.whole_at == (file.changes, length):
            return False  # nothing has happened to it since it was last compared
        fd = os.open(path, os.O_RDONLY)
        try:
            lacks = durable[:length] != os.pread(fd, length, 0)
        finally:
            os.close(fd)
        if not lacks and durable is file.durable:
            file.whole_at = (file.changes, length)
        return lacks

    def lose_power(self, loss: Loss) -> None:
        """Leaves on the real files what a reboot finds: of what was not synced nothing, or some."""
        names = dict(self._durable_names)
        if loss == "torn":
            for name in sorted({*self._names, *self._durable_names}, key=_parts):
                chosen = self._chance.choice((self._names, self._durable_names)).get(name)
                if chosen is None:
                    names.pop(name, None)
                else:
                    names[name] = chosen
        standing = {file: name for name, file in self._names.items() if not file.folder}
        contents = {file: (Path(name).read_bytes() if Path(name).exists() else file.durable) for file, name in standing.items()}
        root = str(self.root)
        for name in sorted(self._names, key=_parts, reverse=True):
            path = Path(name)
            if not self._names[name].folder:
                path.unlink(missing_ok=True)
            elif name != root and not any(path.iterdir()):
                path.rmdir()
        kept: dict[str, _File] = {root: _File(folder=True)}
        for name in sorted(names, key=_parts):
            file, path = names[name], Path(name)
            if name == root or not path.parent.exists():
                continue
            if file.folder:
                path.mkdir(mode=0o700, exist_ok=True)
            else:
                file.durable = self._content(file, contents.get(file, file.durable), loss)
                path.write_bytes(file.durable)
            file.clean.clear()
            file.changes += 1
            kept[name] = file
        self._names, self._durable_names, self._open = kept, dict(kept), {}

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _written(self, fd: int, offset: int, length: int) -> None:
        file = self._open[fd]
        file.changes += 1
        clean = file.clean
        if clean and length:
            clean.difference_update(range(offset // BLOCK, (offset + length - 1) // BLOCK + 1))

    def _content(self, file: _File, now: bytes, loss: Loss) -> bytes:
        if loss == "lost" or now == file.durable:
            return file.durable
        length = self._chance.choice((len(file.durable), len(now)))
        out = bytearray()
        for at in range((length + BLOCK - 1) // BLOCK):
            chosen = file.durable if at in file.clean else self._chance.choice((file.durable, now))
            out += _block(chosen, at).ljust(BLOCK, b"\0")
        return bytes(out[:length])


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _parts(name: str) -> list[str]:
    """Sorted by this, a folder comes right before what is in it."""
    return name.split("/")


def _block(data: bytes, number: int) -> bytes:
    return data[number * BLOCK : (number + 1) * BLOCK]


def refused(chance: Random, name: str) -> OSError:
    """What a disk says that is full, or broken."""
    code = errno.EIO if name == "sync" else chance.choice((errno.ENOSPC, errno.EIO))
    return OSError(code, os.strerror(code))
