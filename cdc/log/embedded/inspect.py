"""Looks into an embedded log for ``cdc log ls|stat``; returns plain data. Opens readers only, so it may run at any time."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cdc.errors import ConfigError
from cdc.log.embedded.away import Stub, read_stub
from cdc.log.embedded.names import LogPlaces, away_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import standing_files


def ls(dir: Path, captured: Collection[str] = ()) -> list[dict[str, Any]]:
    """One entry per topic, by name: rows, bytes (as appended), bytes on disk, segments (sealed ones among them), first and last position.

    ``captured``: topics that may have no change yet; an entry of zeros for each that has none.
    """
    reader = _open(dir)
    try:
        found = [_topic(reader, LogPlaces(Path(dir)), name) for name in _names(reader)]
        empty = [{"topic": name, **_NOTHING} for name in sorted({*captured}.difference(_names(reader)))]
        return sorted([*found, *empty], key=lambda entry: str(entry["topic"]))
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
            "away_files": sum(topic["away_files"] for topic in topics),
            "away_bytes": sum(topic["away_bytes"] for topic in topics),
            "states": sum(topic["states"] for topic in topics),
            "state_bytes": sum(topic["state_bytes"] for topic in topics),
            "sealed_ratio": round(sealed / segments, 4) if segments else 0.0,
        }
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


_NOTHING: Final = dict.fromkeys(
    (
        "rows",
        "bytes",
        "disk_bytes",
        "away_files",
        "away_bytes",
        "states",
        "state_bytes",
        "segments",
        "sealed_segments",
        "first",
        "last",
    ),
    0,
)


def _topic(reader: EmbeddedLogReader, places: LogPlaces, name: str) -> dict[str, Any]:
    timeline = reader.timeline
    assert timeline is not None
    index = timeline.topics[timeline.numbers[name]]
    segments = index.segments()
    sealed = sum(reader.is_sealed(name, run) for run in segments)
    folder = places.folder(name)
    away = _away(folder, timeline.log_id)
    states, state_bytes = standing_files(places.root, name)
    return {
        "topic": name,
        "rows": index.rows,
        "bytes": index.bytes,
        "disk_bytes": sum(_size(path) for path in folder.iterdir()),
        "away_files": len(away),
        "away_bytes": sum(stub.size for stub in away),
        "states": states,
        "state_bytes": state_bytes,
        "segments": len(segments),
        "sealed_segments": sealed,
        "first": index.first,
        "last": index.last,
    }


def _away(folder: Path, log_id: int) -> list[Stub]:
    """Of the files in a topic's folder those that are in the tier."""
    found = []
    for name in (away_of(path.name) for path in folder.iterdir()):
        if name is not None:
            with suppress(FileNotFoundError):
                found.append(read_stub(folder / name.away, name, log_id))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # sealed and removed since it was listed
