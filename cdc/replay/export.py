"""A topic's changes as a file: Parquet, NDJSON or Debezium's envelopes. The file is whole or not there."""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.diskspace import FULL, MAKE_ROOM
from cdc.errors import ConfigError, HeadwaterError
from cdc.model.topic import TopicSchema
from cdc.replay.envelope import documents, envelopes
from cdc.replay.former import WithFormer
from cdc.replay.query import sliced
from cdc.replay.rows import rows_schema, to_rows
from cdc.state import jsonfile


def write(path: Path, form: str, shape: TopicSchema, answer: Iterable[WithFormer]) -> int:
    """Writes the changes to a new file, which belongs to whoever runs this and which nobody else can read, and returns how many they were.

    form: parquet (typed columns of this definition, as ``format("cdc")`` has them), ndjson or debezium.
    Raises ConfigError when something of that name exists, before or at the end, or a value does not fit the column's type there; HeadwaterError
    when the file cannot be written.
    """
    # A name of its own: another export to the same file writes aside, too.
    aside = path.parent / f".{os.getpid()}-{secrets.token_hex(8)}.aside"
    try:
        if _is_there(path):
            raise _exists(path)
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent}", hint=f"mkdir -p {path.parent}")
        with io.BufferedWriter(_NamedFile(jsonfile.create_own(aside), aside)) as file:
            done = _parquet(file, shape, answer) if form == "parquet" else _lines(file, form, answer)
            file.flush()
            os.fsync(file.fileno())
        _link(aside, path)
        jsonfile.sync_folder(path.parent)
    except OSError as error:
        if error.filename not in (str(aside), str(path)):
            raise  # the log's
        hint = MAKE_ROOM if error.errno in FULL else "name another file"
        raise HeadwaterError(f"{path} cannot be written: {error.strerror}", hint=hint) from error
    finally:
        with suppress(OSError):
            aside.unlink()
    return done


class _NamedFile(io.FileIO):
    """A file whose errors say which it is."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def _is_there(path: Path) -> bool:
    """Whether anything has the name, a link that leads nowhere among them."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _link(aside: Path, path: Path) -> None:
    """Gives the file its name, unless something has come to have it."""
    try:
        try:
            os.link(aside, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # a file system without links
            aside.rename(path)
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> ConfigError:
    if path.is_dir():
        return ConfigError(f"{path} is a folder", hint="name a file in it")
    return ConfigError(f"{path} exists already", hint="name another file, or remove it")


def rendered(form: str, replaced: WithFormer) -> bytes:
    """The changes as lines of JSON."""
    return envelopes(replaced) if form == "debezium" else documents(replaced.changes)


def _lines(file: IO[bytes], form: str, answer: Iterable[WithFormer]) -> int:
    done = 0
    for replaced in sliced(answer):
        file.write(rendered(form, replaced))
        done += len(replaced.changes)
    return done


def _parquet(file: IO[bytes], shape: TopicSchema, answer: Iterable[WithFormer]) -> int:
    schema, done = rows_schema(shape), 0
    with pq.ParquetWriter(pa.PythonFile(file, "w"), schema, compression="zstd") as writer:
        for replaced in answer:
            writer.write_batch(to_rows(replaced.changes, schema))
            done += len(replaced.changes)
    return done
