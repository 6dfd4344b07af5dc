"""States: a topic's changes up to a cut without those that make no difference any longer, as files beside the log, so that whoever asks how a table was need not
begin at the topic's beginning.

A state is made from the log alone, and can be made again; so the timeline knows nothing of it, and a log without its states is whole. In a topic's
folder below ``states/`` stands, for each,

- its *record*, ``<cut>.json``: whose it is, and which files belong to it. It is written last: without it the files count for nothing;
- its files, Parquet like the log's sealed ones, with the checksum of all their bytes in their names.

A state is believed only if the log still has, at its cut, the change that it ends with: a log that was put back from a copy may have come to other changes
since. What is damaged, torn or not this log's counts for nothing, and is made again. A record may also say that at its cut a state would have been too large
to be worth it; then it has no files.

Written: files aside and synced → renamed → folder synced → record aside and synced → renamed → folder synced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt, Stopped
from cdc.log.contract import LogReader, StateFacts, StateTooLarge, Topic
from cdc.log.embedded import plainfile
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import ASIDE, Sealed, folder_of, sealed_of
from cdc.log.embedded.sealedsegment import SealedFile, encode, sealed_in
from cdc.log.embedded.sealer import put
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.views import alone
from cdc.model.batch import LSN
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import START, Cut, Lsn, Position
from cdc.state import jsonfile

FOLDER: Final = "states"
FORMAT: Final = 1
FILE_BYTES: Final = 64 * 2**20
"""So much of a state, in memory, becomes one file."""
_RECORD: Final = re.compile(r"^(\d{20})\.json$")

_log = structlog.get_logger("states")


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The content of a record. ``history``: the log's, when it was made. ``last``: position and LSN of the topic's last change at or below the cut; zeros without one.
    ``size``: bytes of the files together."""

    log: str
    history: str
    topic: str
    cut: int
    last: tuple[int, int]
    rows: int
    size: int
    files: tuple[Sealed, ...]

    @property
    def kept(self) -> bool:
        """Whether there is a state; else it would have had so many rows."""
        return bool(self.files) or not self.rows

    @property
    def name(self) -> str:
        return _name_of(self.cut)

    @property
    def facts(self) -> StateFacts:
        return StateFacts(Position(self.cut), self.rows, self.size, self.kept)

    def place(self) -> SegmentPlace:
        """As what its files name themselves: they begin no segment, so the cut stands there."""
        return SegmentPlace(int(self.log, 16), 0, self.topic, self.cut)

    def encode(self) -> bytes:
        said = {"format": FORMAT, "log": self.log, "history": self.history, "topic": self.topic, "cut": self.cut, "last": self.last}
        return jsonfile.encode({**said, "rows": self.rows, "bytes": self.size, "files": [one.file for one in self.files]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> StateRecord:
        """Raises ValueError, KeyError, TypeError for what nobody here wrote."""
        said = jsonfile.decode(data)
        if said["format"] != FORMAT:
            raise ValueError("another format")
        position, lsn = said["last"]
        files = tuple(_sealed(name) for name in said["files"])
        last = (int(position), int(lsn))
        log, history, topic = str(said["log"]), str(said["history"]), str(said["topic"])
        return cls(log, history, topic, int(said["cut"]), last, int(said["rows"]), int(said["bytes"]), files)


class EmbeddedState:
    """See ``cdc.log.contract.TopicState``. Its files stay readable once they are removed."""

    def __init__(self, folder: Path, record: StateRecord) -> None:
        """Reads all of it once. Raises FileNotFoundError, LogCorrupt."""
        self.cut = Position(record.cut)
        self._files = [SealedFile(folder / name.file, name, record.place()) for name in sorted(record.files)]
        if sum(one.name.rows for one in self._files) != record.rows:
            raise LogCorrupt(f"{folder / record.name}: its files have another number of rows")

    def batches(self, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            if file.name.last > after and file.name.first <= upto:
                for batch in file.batches(after, upto):
                    yield from alone(batch)


class EmbeddedStates:
    """See ``cdc.log.contract.LogStates``."""

    def __init__(self, root: Path, log: LogReader, disk: Disk | None = None, file_bytes: int = FILE_BYTES) -> None:
        self._root = Path(root)
        self._log = log
        self._disk = disk or Disk()
        self._file_bytes = file_bytes

    def standing(self, topic: str) -> Iterator[StateFacts]:
        return (record.facts for record in self._believed(topic))

    def newest(self, topic: str, upto: Position) -> EmbeddedState | None:
        """See ``LogReader.state``."""
        folder = _folder(self._root, topic)
        if not folder.is_dir():
            return None  # nearly always
        found = next((one for one in self._log.topics() if one.name == topic), None)
        if found is None or not whole(found):
            return None
        for record in self._believed(topic, upto):
            if record.kept:
                try:
                    return EmbeddedState(folder, record)
                except (FileNotFoundError, LogCorrupt) as error:
                    _log.warning(
                        "a state of a topic counts for nothing", file=str(folder / record.name), problem=type(error).__name__
                    )
        return None

    def keep(
        self, topic: str, cut: Position, rows: int, batches: Iterable[pa.RecordBatch] | None, most_bytes: int = 1 << 62
    ) -> StateFacts:
        """See ``LogStates.keep``."""
        folder, lineage = _folder(self._root, topic), self._log.lineage()
        assert lineage is not None
        self._make(folder)
        made = StateRecord(lineage.log, lineage.history, topic, int(cut), self._last(topic, cut), rows, 0, ())
        if batches is not None:
            generation = 1 + max((name.generation for name in sealed_in(folder)), default=0)
            crashpoint("states.begun")
            files = put(self._disk, folder, self._files(made.place(), batches, generation, most_bytes))
            crashpoint("states.written")
            names = tuple(name for name, _ in files)
            made = StateRecord(
                made.log,
                made.history,
                topic,
                made.cut,
                made.last,
                sum(one.rows for one in names),
                sum(size for _, size in files),
                names,
            )
        self._record(folder, made)
        return made.facts

    def tidy(self, topic: str, beyond: Position | None = None) -> None:
        """See ``LogStates.tidy``."""
        folder = _folder(self._root, topic)
        if not folder.is_dir():
            return
        records = list(self._believed(topic, 1 << 62 if beyond is None else beyond))
        # Of those that only say how large a state would have been, the newest is enough.
        stay = {one.name for one in records if one.kept or one is records[0]}
        stay |= {name.file for one in records for name in one.files}
        gone = [path for path in folder.iterdir() if path.name not in stay]
        # Records first: one without its files would be called damaged.
        for path in sorted(gone, key=lambda one: _RECORD.match(one.name) is None):
            with suppress(FileNotFoundError):
                self._disk.remove(path)
            crashpoint("states.removed")
        if gone:
            self._disk.sync_folder(folder)

    def remove_others(self, topics: Iterable[str]) -> None:
        """See ``LogStates.remove_others``."""
        states, stay = self._root / FOLDER, {folder_of(topic) for topic in topics}
        for folder in states.iterdir() if states.is_dir() else ():
            if folder.name not in stay and folder.is_dir():
                for path in sorted(folder.iterdir(), key=lambda one: _RECORD.match(one.name) is None):
                    path.unlink(missing_ok=True)
                folder.rmdir()

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._disk.make_folder(folder)
            self._disk.sync_folder(folder.parent)
            self._disk.sync_folder(self._root)

    def _files(
        self, place: SegmentPlace, batches: Iterable[pa.RecordBatch], generation: int, most_bytes: int
    ) -> Iterator[tuple[Sealed, pa.Buffer]]:
        size = 0
        for piece in _pieces(batches, self._file_bytes):
            for name, data in encode(place, piece, generation):
                size += data.size
                if size > most_bytes:
                    raise StateTooLarge
                yield name, data

    def _record(self, folder: Path, made: StateRecord) -> None:
        aside = folder / f"{ASIDE}{made.name}"
        aside.unlink(missing_ok=True)
        try:
            fd = self._disk.create(aside)
            try:
                self._disk.write(fd, [made.encode()], 0)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
            crashpoint("states.record_aside")
            self._disk.rename(aside, folder / made.name)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self._disk.sync_folder(folder)
        crashpoint("states.recorded")

    def _believed(self, topic: str, upto: int = 1 << 62) -> Iterator[StateRecord]:
        """The records of cuts at or below that are of this log as it is, the newest first. Each is looked at when it is asked for: there may be thousands."""
        folder = _folder(self._root, topic)
        # The log is asked after the files were listed: it has all that they tell of.
        there = _cuts(folder)
        lineage, head = self._log.lineage(), self._log.head().position
        if lineage is None:
            return
        for cut in there:
            one = _read(folder, cut) if cut <= min(upto, head) else None
            if one is None or one.topic != topic or not _of(lineage, one):
                continue
            if self._last(topic, Position(cut)) == one.last:
                yield one

    def _last(self, topic: str, cut: Position) -> tuple[int, int]:
        position = self._log.last_change(topic, cut)
        if position != START:
            for batch in self._log.changes_at(topic, np.array([position], np.int64)):
                return int(position), int(batch.column(LSN)[0].as_py())
        return int(position), 0


def whole(topic: Topic) -> bool:
    """Whether the log has all changes that the topic ever had."""
    return not (topic.kept_from or topic.floor or topic.clean_from)


def standing_files(root: Path, topic: str) -> tuple[int, int]:
    """How many states the topic has, and their bytes, as their records say."""
    folder = _folder(root, topic)
    found = [one for cut in _cuts(folder) if (one := _read(folder, cut)) is not None and one.kept]
    return len(found), sum(record.size for record in found)


def _folder(root: Path, topic: str) -> Path:
    return root / FOLDER / folder_of(topic)


def _cuts(folder: Path) -> list[int]:
    """Of which there are records, the highest first."""
    found = (_RECORD.match(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((int(name[1]) for name in found if name), reverse=True)


def _read(folder: Path, cut: int) -> StateRecord | None:
    """The record of this cut; None where it is gone by now, or damaged."""
    with suppress(FileNotFoundError, LogCorrupt, ValueError, KeyError, TypeError):
        record = StateRecord.decode(plainfile.content(folder / _name_of(cut)))
        return record if record.cut == cut else None
    return None


def _name_of(cut: int) -> str:
    return f"{cut:020d}.json"


def _of(lineage: Lineage, record: StateRecord) -> bool:
    try:
        believed(Mark(record.log, record.history, Cut(Position(record.cut), Lsn(0))), lineage, "a state")
    except Stopped:
        return False
    return True


def _sealed(name: Any) -> Sealed:
    found = sealed_of(str(name))
    if found is None:
        raise ValueError("not the name of a sealed file")
    return found


def _pieces(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[Sequence[pa.RecordBatch]]:
    """The batches, divided so that each piece is of about so many bytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting
