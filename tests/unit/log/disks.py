"""Disks for tests: one without the wait for the disk, one that fails on demand, one that loses what was not synced."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from cdc.log.embedded.disk import Disk

Loss = Literal["lost", "torn", "kept"]
BLOCK = 512
"""What a disk writes at once or not at all."""


class QuickDisk(Disk):
    """The real files without the syncs: for tests that crash nothing."""

    def sync(self, fd: int) -> None:  # noqa: ARG002
        return

    def sync_folder(self, path: Path) -> None:  # noqa: ARG002
        return


class FailingDisk(QuickDisk):
    """Fails chosen calls: ``fail('write', ENOSPC, after=2)`` lets two writes pass and fails the third, having written half of it."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, int]] = {}
        self.calls: list[str] = []

    def fail(self, method: str, code: int, after: int = 0) -> None:
        self._failures[method] = (code, after)

    def _meet(self, method: str) -> None:
        self.calls.append(method)
        if method in self._failures:
            code, after = self._failures[method]
            if after == 0:
                del self._failures[method]
                raise OSError(code, os.strerror(code))
            self._failures[method] = (code, after - 1)

    def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        try:
            self._meet("write")
        except OSError:
            data = b"".join(bytes(memoryview(part)) for part in parts)
            os.pwrite(fd, data[: len(data) // 2], offset)
            raise
        super().write(fd, parts, offset)

    def create(self, path: Path) -> int:
        self._meet("create")
        return super().create(path)

    def sync(self, fd: int) -> None:  # noqa: ARG002
        self._meet("sync")

    def sync_folder(self, path: Path) -> None:  # noqa: ARG002
        self._meet("sync_folder")

    def truncate(self, fd: int, length: int) -> None:
        self._meet("truncate")
        super().truncate(fd, length)


class Crash(BaseException):
    """The power is gone."""


class _File:
    """An inode: what of it is durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.durable = b""
        self.folder = path.is_dir()


class CrashDisk(Disk):
    """Real files, and beside them a model of what a power loss would leave. Operation number ``crash_at`` and all later ones crash."""

    def __init__(self, root: Path, crash_at: int, chance: random.Random) -> None:
        self.root = root
        self.operations = 0
        self._crash_at = crash_at
        self._chance = chance
        self._open: dict[int, _File] = {}
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}

    def _operate(self) -> None:
        self.operations += 1
        if self.operations >= self._crash_at:
            raise Crash

    def make_folder(self, path: Path) -> None:
        self._operate()
        super().make_folder(path)
        for folder in (path, *path.parents):
            if folder.is_relative_to(self.root):
                self._names.setdefault(folder, _File(folder))

    def create(self, path: Path) -> int:
        self._operate()
        fd = super().create(path)
        self._names[path] = self._open[fd] = _File(path)
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._open[fd] = self._names[path]
        return fd

    def write(self, fd: int, parts: Sequence[bytes | pa.Buffer], offset: int) -> None:
        try:
            self._operate()
        except Crash:
            if self.operations == self._crash_at:
                data = b"".join(bytes(memoryview(part)) for part in parts)
                os.pwrite(fd, data[: self._chance.randrange(len(data))], offset)
            raise
        super().write(fd, parts, offset)

    def truncate(self, fd: int, length: int) -> None:
        self._operate()
        super().truncate(fd, length)

    def sync(self, fd: int) -> None:
        self._operate()
        self._open[fd].durable = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_folder(self, path: Path) -> None:
        self._operate()
        self._durable_names = {name: file for name, file in self._durable_names.items() if name.parent != path}
        self._durable_names |= {name: file for name, file in self._names.items() if name.parent == path}

    def rename(self, old: Path, new: Path) -> None:
        self._operate()
        super().rename(old, new)
        self._names[new] = self._names.pop(old)

    def remove(self, path: Path) -> None:
        self._operate()
        super().remove(path)
        del self._names[path]

    def close(self, fd: int) -> None:
        super().close(fd)

    def after_power_loss(self, target: Path, loss: Loss) -> None:
        """What a reboot finds, as files below ``target``: of what was not synced nothing, some, or (the process alone died) all."""
        names = dict(self._durable_names)
        if loss == "kept":
            names = dict(self._names)
        elif loss == "torn":
            for name in {*self._names, *self._durable_names}:
                chosen = self._chance.choice((self._names, self._durable_names)).get(name)
                if chosen is None:
                    names.pop(name, None)
                else:
                    names[name] = chosen
        target.mkdir()
        for name in sorted(names):
            copy = target / name.relative_to(self.root)
            if names[name].folder:
                if copy.parent.exists():
                    copy.mkdir(exist_ok=True)
            elif copy.parent.exists():
                copy.write_bytes(self._content(names[name], name, loss))

    def _content(self, file: _File, name: Path, loss: Loss) -> bytes:
        standing = next((path for path, known in self._names.items() if known is file), None)
        now = (standing or name).read_bytes() if standing is not None else file.durable
        if loss == "lost":
            return file.durable
        if loss == "kept" or now == file.durable:
            return now
        length = self._chance.choice((len(file.durable), len(now)))
        blocks = bytearray()
        for at in range(0, length, BLOCK):
            source = self._chance.choice((file.durable, now))
            end = min(at + BLOCK, length)
            blocks += source[at:end].ljust(end - at, b"\0")
        return bytes(blocks)
