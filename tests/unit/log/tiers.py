"""Tiers for tests: a folder behind a filesystem that fails as object stores do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from cdc.log.embedded import tierstore


class FaultyHandler(fs.FileSystemHandler):
    """A local folder; the next calls of a kind meet what was put into ``faults`` for it: an exception, or what is done with the answer."""

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()
        self.faults: dict[str, list[Any]] = {}
        self.calls: list[str] = []

    def _meet(self, what: str) -> Any:
        self.calls.append(what)
        waiting = self.faults.get(what)
        fault = waiting.pop(0) if waiting else None
        if isinstance(fault, BaseException):
            raise fault
        return fault

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._meet("find")
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._meet("list")
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_file(self, path: str) -> Any:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        fault = self._meet("remove")
        self._local.delete_file(path)
        if fault == "lost answer":
            raise OSError("AWS Error NETWORK_CONNECTION during DeleteObject operation: secret-of-the-store")

    def open_input_stream(self, path: str) -> Any:
        fault = self._meet("read")
        data = Path(path).read_bytes()
        if fault == "half":
            data = data[: len(data) // 2]
        if fault == "changed":
            data = bytes([data[0] ^ 1]) + data[1:]
        return pa.PythonFile(pa.BufferReader(data), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ARG002
        fault = self._meet("put")
        out = self._local.open_output_stream(path)
        if fault == "half":
            return pa.PythonFile(Half(out), mode="w")
        if fault == "lost answer":
            return pa.PythonFile(LostAnswer(out), mode="w")
        return out


class Half:
    """Keeps the first half of what it is given, and says nothing of it."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.closed = False

    def write(self, data: bytes) -> int:
        self._out.write(bytes(data)[: len(data) // 2])
        return len(data)

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._out.close()


class LostAnswer(Half):
    """Keeps all, and says that it could not."""

    def write(self, data: bytes) -> int:
        self._out.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError("AWS Error REQUEST_TIMEOUT during PutObject operation: secret-of-the-store")


def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyHandler:
    """Every tier that is opened from now on is such a one."""
    handler = FaultyHandler()
    opened = tierstore.filesystem_of

    def of(url: str) -> tuple[fs.FileSystem, str]:
        return fs.PyFileSystem(handler), opened(url)[1]

    monkeypatch.setattr(tierstore, "filesystem_of", of)
    tierstore.store_of.cache_clear()
    return handler


SLOW_DOWN = "AWS Error SLOW_DOWN during GetObject operation (HTTP status 503): secret-of-the-store"
