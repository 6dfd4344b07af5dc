"""Object storage that speaks S3: what is written there is durable and whole, or not there. It has no folders, and nothing is renamed.

Its messages may hold anything: of an error, only its code is said.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow import fs

from cdc.errors import StoreError
from sinks.warehouse.options import Options

_SCHEME: Final = re.compile(r"\As3a?://")
_CODE: Final = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d{3})\))?")
_CONNECT_S: Final = 5.0
_REQUEST_S: Final = 30.0
_ATTEMPTS: Final = 3
_LISTED_EVERY_S: Final = 60.0
"""Whether files have gone can only be seen by listing them."""


class ObjectStorage:
    """See ``sinks.warehouse.storage.Storage``."""

    def __init__(self, options: Options) -> None:
        endpoint = options.s3_endpoint
        scheme, _, host = (endpoint or "").partition("://")
        key, secret = options.s3_access_key, options.s3_secret_key
        self._fs = fs.S3FileSystem(
            access_key=None if key is None else key.get_secret_value(),
            secret_key=None if secret is None else secret.get_secret_value(),
            region=options.s3_region,
            scheme=scheme or "https",
            endpoint_override=host.rstrip("/") or None,
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )

    def make(self, folder: str) -> None:
        """There are no folders."""

    @contextmanager
    def written(self, location: str) -> Iterator[pa.NativeFile]:
        with _asked("write a file"), self._fs.open_output_stream(_path(location), compression=None) as file:
            yield file

    def settle(self, folder: str) -> None:
        """A file that was written is there."""

    def opened(self, location: str) -> pa.NativeFile:
        with _asked("read a file"):
            return self._fs.open_input_file(_path(location))

    def size(self, location: str) -> int:
        with _asked("find a file"):
            info = self._fs.get_file_info(_path(location))
        if info.type != fs.FileType.File:
            raise FileNotFoundError
        return int(info.size)

    def exists(self, location: str) -> bool:
        with _asked("find a file"):
            return bool(self._fs.get_file_info(_path(location)).type == fs.FileType.File)

    def names(self, folder: str) -> set[str]:
        with _asked("list files"):
            found = self._fs.get_file_info(fs.FileSelector(_path(folder), allow_not_found=True))
        return {info.base_name for info in found if info.type == fs.FileType.File}

    def stamp(self, folder: str) -> object:  # noqa: ARG002
        return int(time.monotonic() / _LISTED_EVERY_S)

    def remove(self, location: str) -> None:
        with _asked("remove a file"):
            try:
                self._fs.delete_file(_path(location))
            except FileNotFoundError:
                return

    def clear(self, folder: str) -> None:
        with _asked("remove files"):
            self._fs.delete_dir_contents(_path(folder), missing_dir_ok=True)


def _path(location: str) -> str:
    return _SCHEME.sub("", location)


@contextmanager
def _asked(doing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"object storage could not {doing}: {_said(error)}", retryable=True) from None


def _said(error: Exception) -> str:
    found = _CODE.search(str(error))
    if found:
        return f"it says {found[1]}{f' (HTTP {found[2]})' if found[2] else ''}"
    return type(error).__name__
