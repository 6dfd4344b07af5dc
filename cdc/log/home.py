"""The one place that makes a log's readers and its writer. Who asks here knows where a log lives, and not which kind of home that is."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from cdc.log.contract import SOURCE_NAME, ClosedRange, LogReader, LogStates, LogTiering, LogUpkeep, LogWriter, ParquetFile
from cdc.log.embedded import parquetfiles
from cdc.log.embedded.away import TierPlace
from cdc.log.embedded.names import HEAD
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import EmbeddedStates
from cdc.log.embedded.upkeep import EmbeddedUpkeep
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Position


def open_reader(folder: Path) -> LogReader:
    """A reader of the log in this folder, whether or not there is one yet."""
    return EmbeddedLogReader(folder)


def open_writer(folder: Path, *, segment_bytes: int, source: str = SOURCE_NAME) -> LogWriter:
    """The writer, which makes the log when there is none and recovers it after a crash. ``source``: the name of the producer whose LSNs the cuts
    carry.

    Raises ConfigError when another process writes there, the folder is not ours to write, or the log was filled from another source; LogCorrupt
    for damage, OSError when the disk refuses.
    """
    return EmbeddedLogWriter(folder, segment_bytes=segment_bytes, source=source)


def upkeep_of(writer: LogWriter) -> LogUpkeep | None:
    """How compaction reaches the log of this writer; None where the log's home sees to that itself."""
    return writer.upkeep if isinstance(writer, EmbeddedLogWriter) else None


def tiering_of(writer: LogWriter, url: str, cache_bytes: int) -> LogTiering | None:
    """How sealed files of this writer's log move to the tier at ``url``; None where the log's home sees to that itself. Raises ConfigError."""
    return writer.tiering(TierPlace(url, cache_bytes)) if isinstance(writer, EmbeddedLogWriter) else None


def closed_ranges(folder: Path, topic: str) -> list[ClosedRange]:
    """The ranges of a topic that can go as a whole (``LogUpkeep.ranges``), also for whoever does not write the log."""
    with closing(EmbeddedUpkeep(folder)) as upkeep:
        return upkeep.ranges(topic)


def states_of(folder: Path, log: LogReader) -> LogStates:
    """Where the states of the log in this folder are kept; ``log``: a reader of it."""
    return EmbeddedStates(folder, log)


def await_seals(writer: LogWriter) -> None:
    """Returns when all that the writer has closed can be compacted, or the disk refuses that (``LogWriter.alarm``)."""
    while isinstance(writer, EmbeddedLogWriter) and not writer.sealed():
        time.sleep(0.02)


def head_file(folder: Path) -> Path:
    """The file that is written whenever the log's head moves."""
    return folder / HEAD


def parquet_files(folder: Path, topic: str, after: Position, upto: Position) -> list[ParquetFile]:
    """The Parquet files that hold changes of the topic in (after, upto], in position order; the reader alone has all others. A file may hold
    changes before and behind that range, too."""
    return parquetfiles.parquet_files(folder, topic, after, upto)
