"""Looks into an embedded log for ``cdc log ls|cat|stat``; returns plain data. Opens readers only, so it may run at any time."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import EXACT, LSN, META_FIELDS, POSITION, TS, Op, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.pgtypes import canonical_text
from cdc.model.position import Lsn, Position
from cdc.model.table import Table


def ls(dir: Path) -> list[dict[str, Any]]:
    """One entry per topic, by name: rows, bytes (as appended), bytes on disk, segments (sealed ones among them), first and last position."""
    reader = _open(dir)
    try:
        return sorted(
            (_topic(reader, LogPlaces(Path(dir)), name) for name in _names(reader)), key=lambda entry: str(entry["topic"])
        )
    finally:
        reader.close()


def stat(dir: Path) -> dict[str, Any]:
    """The log as a whole: its id and present history, head cut, epoch of its writer, groups and bytes of the timeline, topics, rows, bytes, how much is sealed."""
    reader = _open(dir)
    try:
        head = reader.head()
        timeline, lineage = reader.timeline, reader.lineage()
        topics = [_topic(reader, LogPlaces(Path(dir)), name) for name in _names(reader)]
        segments = sum(topic["segments"] for topic in topics)
        sealed = sum(topic["sealed_segments"] for topic in topics)
        return {
            "dir": str(dir),
            "log_id": lineage.log if lineage else None,
            "history": lineage.history if lineage else None,
            "position": head.position,
            "commit_lsn": head.commit_lsn,
            "commit_ts_us": head.commit_ts_us,
            "epoch": timeline.epoch if timeline else 0,
            "groups": timeline.groups if timeline else 0,
            "timeline_bytes": timeline.total_bytes if timeline else 0,
            "topics": len(topics),
            "rows": sum(topic["rows"] for topic in topics),
            "bytes": sum(topic["bytes"] for topic in topics),
            "disk_bytes": sum(topic["disk_bytes"] for topic in topics) + (timeline.total_bytes if timeline else 0),
            "segments": segments,
            "sealed_segments": sealed,
            "sealed_ratio": round(sealed / segments, 4) if segments else 0.0,
        }
    finally:
        reader.close()


def cat(
    dir: Path,
    topic: str | None = None,
    after: int = 0,
    upto: int | None = None,
    limit: int | None = None,
    lsn: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Changes as Debezium-style envelopes, in position order: those in (after, upto] of one topic or of all.

    ``lsn``: only what was committed at or after this LSN. Values are JSON integers and booleans where the column is one,
    and else exactly the text that Postgres gives; a DELETE's ``before`` holds the key only, because nothing else was sent.
    Raises ConfigError for a topic that the log does not have.
    """
    reader = _open(dir)
    try:
        names = _names(reader)
        if topic is not None and topic not in names:
            raise ConfigError(f"the log in {dir} has no topic {topic}", hint="cdc log ls")
        low, high = Position(after), Position(reader.head().position if upto is None else upto)
        if lsn is not None:
            low = max(low, reader.cut_before_lsn(Lsn(lsn)).position)
        each = (_envelopes(reader, name, low, high, lsn) for name in names if topic in (None, name))
        merged = heapq.merge(*each, key=lambda envelope: int(envelope["payload"]["source"]["position"]))
        yield from islice(merged, limit)
    finally:
        reader.close()


def _open(dir: Path) -> EmbeddedLogReader:
    reader = EmbeddedLogReader(Path(dir))
    if reader.timeline is None:
        raise ConfigError(f"there is no log in {dir}", hint="cdc run makes one; [log] dir in cdc.toml names the place")
    return reader


def _names(reader: EmbeddedLogReader) -> list[str]:
    timeline = reader.timeline
    return sorted(timeline.numbers) if timeline else []


def _topic(reader: EmbeddedLogReader, places: LogPlaces, name: str) -> dict[str, Any]:
    timeline = reader.timeline
    assert timeline is not None
    index = timeline.topics[timeline.numbers[name]]
    segments = index.segments()
    sealed = sum(reader.is_sealed(name, run) for run in segments)
    return {
        "topic": name,
        "rows": index.rows,
        "bytes": index.bytes,
        "disk_bytes": sum(_size(path) for path in places.folder(name).iterdir()),
        "segments": len(segments),
        "sealed_segments": sealed,
        "first": index.first,
        "last": index.last,
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # sealed and removed since it was listed


def _envelopes(reader: EmbeddedLogReader, topic: str, after: Position, upto: Position, lsn: int | None) -> Iterator[dict[str, Any]]:
    for batch in reader.read(topic, after, upto):
        chosen = batch if lsn is None else batch.filter(pc.greater_equal(batch.column(LSN), lsn))
        for start in range(0, chosen.num_rows, 1000):
            yield from _of_batch(chosen.slice(start, 1000))


def _of_batch(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    change = schema_change_of(batch)
    if change is not None:
        yield _schema_envelope(change, batch)
        return
    table = table_of(batch.schema)
    columns = [json_values(batch.column(len(META_FIELDS) + number)) for number in range(len(table.columns))]
    exact = batch.column(EXACT).to_pylist()
    sources = zip(
        batch.column(POSITION).to_pylist(),
        batch.column(1).to_pylist(),
        batch.column(LSN).to_pylist(),
        batch.column(TS).cast(pa.int64()).to_pylist(),
        strict=True,
    )
    for row, (position, op, lsn, ts_us) in enumerate(sources):
        values = {column.name: column_values[row] for column, column_values in zip(table.columns, columns, strict=True)}
        values.update(exact[row] or ())
        yield _envelope(table, Op(op), values, position, lsn, ts_us)


def _envelope(table: Table, op: Op, values: dict[str, Any], position: int, lsn: int, ts_us: int | None) -> dict[str, Any]:
    before = {column.name: values[column.name] for column in table.key} if op is Op.DELETE else None
    after = None if op in (Op.DELETE, Op.TRUNCATE) else values
    source = {"schema": table.schema, "table": table.name, "lsn": lsn, "position": position, "ts_us": ts_us}
    return {"payload": {"before": before, "after": after, "source": source, "op": chr(op)}}


def _schema_envelope(change: SchemaChange, batch: pa.RecordBatch) -> dict[str, Any]:
    """A SCHEMA record: no row, but what happened (``kind``, ``empties``, ``now``) and the definition from here on."""
    position, lsn, ts_us = (batch.column(name).cast(pa.int64())[0].as_py() for name in (POSITION, LSN, TS))
    envelope = _envelope(change.table, Op.SCHEMA, {}, position, lsn, ts_us)
    table = json.loads(change.table.to_json())
    envelope["payload"] |= {"after": None, "kind": str(change.kind), "empties": change.empties, "now": change.now, "table": table}
    return envelope


def json_values(values: pa.Array) -> list[Any]:
    """A column's values for JSON: integers and booleans as themselves, everything else as its canonical text, NULL as None."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return list(values.to_pylist())
    return list(canonical_text(values).to_pylist())
