"""A topic's changes as a file: Parquet, NDJSON or Debezium's envelopes. The file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema
from cdc.replay.envelope import documents, envelopes
from cdc.replay.former import WithFormer
from cdc.replay.query import sliced
from cdc.replay.rows import rows_schema, to_rows
from cdc.state import jsonfile


def write(path: Path, form: str, shape: TopicSchema, answer: Iterable[WithFormer]) -> int:
    """Writes the changes to a new file, which only its owner can read, and returns how many they were.

    form: parquet (typed columns of this definition, as ``format("cdc")`` has them), ndjson or debezium.
    Raises ConfigError when the file exists, or a value does not fit the column's type there; OSError.
    """
    if path.exists():
        raise ConfigError(f"{path} exists already", hint="name another file, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", hint=f"mkdir -p {path.parent}")
    aside = path.with_name(f".{path.name}.aside")
    try:
        with open(jsonfile.create(aside), "wb") as file:
            done = _parquet(file, shape, answer) if form == "parquet" else _lines(file, form, answer)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    jsonfile.sync_folder(path.parent)
    return done


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
