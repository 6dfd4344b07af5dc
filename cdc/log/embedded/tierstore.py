"""The tier: a folder in any filesystem that pyarrow knows, which holds sealed files and is believed nothing.

What it fails with becomes LogAway, which quotes nothing but codes: messages of such stores may hold anything. Each request is bounded in time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from cdc.errors import ConfigError, LogAway

CHUNK_BYTES: Final = 4 * 2**20
CONNECT_S: Final = 5.0
REQUEST_S: Final = 10.0
ATTEMPTS: Final = 3
RETRY_TIME: Final = timedelta(seconds=30)
_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")
_S3_OPTIONS: Final = ("region", "endpoint_override", "scheme")
_CODE: Final = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d{3})\))?")
HINT: Final = "check [log.tier] url, the credentials in the environment, and whether that store answers; nothing is lost, and it goes on by itself"


class TierStore:
    """The files of one tier, by key: the path below the tier's folder."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError for an invalid address; asks the store nothing."""
        self.url = url
        self._fs, self._base = filesystem_of(url)

    def put(self, key: str, data: pa.Buffer) -> None:
        """Writes the file, whatever stands there. On a local folder it is then durable. Raises LogAway: it may be there all the same."""
        path = self._path(key)
        with self._asked("put", key):
            if self._fs.type_name not in _WITHOUT_FOLDERS:
                self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(path, compression=None) as out:
                for at in range(0, len(data), CHUNK_BYTES):
                    out.write(data.slice(at, min(CHUNK_BYTES, len(data) - at)))
            if self._fs.type_name == "local":
                self._sync(path)

    def size(self, key: str) -> int | None:
        """The file's bytes; None where there is none. Raises LogAway."""
        with self._asked("find", key):
            info = self._fs.get_file_info(self._path(key))
        return int(info.size) if info.type == fs.FileType.File else None

    def chunks(self, key: str) -> Generator[bytes]:
        """The file's content. Raises LogAway."""
        with self._asked("read", key):
            file = self._fs.open_input_stream(self._path(key), compression=None)
        try:
            while True:
                with self._asked("read", key):
                    chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        finally:
            with self._asked("read", key):
                file.close()

    def keys(self, under: str) -> list[str]:
        """Those of all files below a key. Raises LogAway."""
        base = self._path(under)
        with self._asked("list", under):
            found = self._fs.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        return [f"{under}{info.path[len(base) :]}" for info in found if info.type == fs.FileType.File]

    def remove(self, key: str) -> None:
        """Raises LogAway; one that is gone already is fine."""
        with self._asked("remove", key):
            try:
                self._fs.delete_file(self._path(key))
            except FileNotFoundError:
                return

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"

    @contextmanager
    def _asked(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise LogAway(f"cannot {what} {key} in the log's tier {self.url}: {_said(error)}", hint=HINT) from None

    def _sync(self, path: str) -> None:
        """Arrow writes local files without making them durable, and the log's own copy goes next."""
        names = [path]
        while len(names[-1]) > len(self._base):
            names.append(names[-1].rpartition("/")[0])
        for name in (*names, str(Path(self._base).parent)):
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


_make: Callable[[str], TierStore] = TierStore


@lru_cache(maxsize=8)
def store_of(url: str) -> TierStore:
    """Raises ConfigError as TierStore does."""
    return _make(url)


@contextmanager
def made_by(make: Callable[[str], TierStore]) -> Iterator[None]:
    """Has ``make`` give this process its stores, by their addresses. Whoever reads the log may need one, so it is given to the process and not to each
    reader (as ``cdc.crashpoint.decided_by``)."""
    global _make
    before, _make = _make, make
    store_of.cache_clear()
    try:
        yield
    finally:
        _make = before
        store_of.cache_clear()


def filesystem_of(url: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of an address, and the folder's path in it. Credentials come from the environment, as the store's own programs take them."""
    try:
        parts = urlsplit(url)
        if parts.password is not None or (parts.query and parts.scheme != "s3"):
            raise ValueError
        if parts.scheme != "s3":
            filesystem, path = fs.FileSystem.from_uri(url)
            if parts.scheme == "gs":  # by itself it tries for a quarter of an hour
                filesystem = fs.GcsFileSystem(retry_time_limit=RETRY_TIME)
            return filesystem, path.rstrip("/")
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        if not parts.netloc or "@" in parts.netloc or not options.keys() <= set(_S3_OPTIONS):
            raise ValueError
        filesystem = fs.S3FileSystem(
            **options,
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        )
        return filesystem, f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException, OSError):
        hint = (
            f"s3://bucket/folder (behind ?: {', '.join(_S3_OPTIONS)}), gs://bucket/folder or file:///folder; no credentials in it"
        )
        raise ConfigError(f"[log.tier] url is not an address of a store: {parts.scheme}://…", hint=hint) from None


def _said(error: Exception) -> str:
    found = _CODE.search(str(error))
    if found:
        return f"the store says {found[1]}{f' (HTTP {found[2]})' if found[2] else ''}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return type(error).__name__
