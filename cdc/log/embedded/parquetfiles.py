"""Which of a topic's changes stand in Parquet files that any reader of Parquet may read in our place. Reads names and footers, no rows."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.errors import LogCorrupt
from cdc.log.contract import ParquetFile
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealedsegment import covering, sealed_in
from cdc.model.position import Position


def parquet_files(root: Path, topic: str, after: Position, upto: Position) -> list[ParquetFile]:
    """See ``cdc.log.home.parquet_files``. Those that are away are left to the reader: a copy of theirs may be pushed out at any time. Raises LogCorrupt for a footer that cannot be read."""
    with closing(EmbeddedLogReader(root)) as reader:
        timeline = reader.timeline
        if timeline is None or topic not in timeline.numbers:
            return []
        index = timeline.topics[timeline.numbers[topic]]
        wanted = {segment for segment, _, _ in index.within_segments(*index.between(after, upto))}
        # Asked before the files are listed: those beside a segment that is still there may not be whole yet.
        runs = [run for run in index.segments() if run.segment in wanted and reader.is_sealed(topic, run)]
    folder = LogPlaces(root).folder(topic)
    sealed_files = sealed_in(folder)
    found = []
    for run in runs:
        for sealed in covering(sealed_files, run) or ():
            if sealed.last > after and sealed.first <= upto:
                path = folder / sealed.file
                with suppress(FileNotFoundError):
                    schema = _schema(path)
                    found.append(ParquetFile(path, Position(sealed.first), Position(sealed.last), sealed.rows, schema))
    return found


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise LogCorrupt(f"{path}: not a sealed segment ({type(error).__name__})") from None
