"""How far each table's snapshot has come: durably in the log's folder, so that a finished range is never read again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from cdc.errors import LogCorrupt
from cdc.state import jsonfile
from cdc.state.status import TableProgress
from snapshots.catalog import SourceTable
from snapshots.plan import Interval, merged

FILE: Final = "snapshot.json"
_FORMAT: Final = 2
INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Record:
    """One table, by its OID."""

    table: str
    shape: str
    """``SourceTable.shape`` when its rows were read."""
    files: str
    """``Look.files`` when its rows were read: page numbers mean something as long as it is the same."""
    pages: tuple[Interval, ...] = ()
    """Those whose rows are in the log, whichever worker read them."""
    done: int = 0
    total: int = 0
    finished: bool = False
    waiting: bool = False
    """Updates wait in memory for rows of this table. They are lost with the process, so it then begins from the beginning."""
    joining: bool = False
    """It has joined the publication; what was changed in transactions open at that moment is not streamed, so they are waited for."""
    empties: bool = False
    """It is read in place of all that the log has of it, and the log has to say so before its first row comes."""
    outright: bool = False
    """The log then says that every earlier row is gone: what the source no longer has cannot be looked for by its key."""
    since: int = 0
    """Once it has been read: rows whose last change stands at or before this position of the log are looked for in the source, and deleted
    where it has them no longer. 0: none are."""
    outdated: bool = False
    """It has begun from the beginning again, and is not finished: the log may have some of its rows as they were before a change that it lacks."""

    def restarted(self, *, empties: bool = False) -> Record:
        """Nothing of it has been read. What has to happen before its first row, or after its last, still has to."""
        return Record(
            self.table,
            self.shape,
            self.files,
            joining=self.joining,
            empties=self.empties or empties,
            outright=self.outright,
            since=self.since,
            outdated=True,
        )


_RECORD_FIELDS: Final = tuple(field.name for field in fields(Record))


@dataclass(frozen=True, slots=True)
class Run:
    """One reading of a table from its beginning, which may last over several processes. ``number`` tells late words of an earlier one."""

    number: int
    pages: tuple[Interval, ...]
    finished: bool


class SnapshotProgress:
    """Thread-safe. Every change that a restart must know is on disk (written aside, synced, renamed) before the call returns.

    What is done is the exception: finished ranges and tables are written at most every ``interval_s`` (and with ``flush``), since a sync
    costs more than reading a small table, and a range that is read twice does no harm. No row's value stands in the file.
    """

    def __init__(self, folder: Path, *, interval_s: float = INTERVAL_S) -> None:
        """``folder``: the log's. Raises LogCorrupt when the file there is not ours."""
        self._path = folder / FILE
        self._interval_s = interval_s
        self._written_at = float("-inf")
        self._unwritten = False
        """The file is older than the records, or may be."""
        self._lock = Lock()
        self._runs: Counter[int] = Counter()
        self._holds: Counter[int] = Counter()
        self._parts: Counter[int] = Counter()
        """Rows that are durable but belong to ranges that are not finished; for showing only."""
        self._records = {oid: record.restarted() if record.waiting else record for oid, record in _read(self._path).items()}

    def take_in(self, found: Iterable[tuple[SourceTable, str]], *, joined_later: bool) -> None:
        """Notes tables (each with its ``Look.files``) that are to be read, all in one write. ``joined_later``: those that are not known yet
        have joined the publication since the log began."""
        with self._lock:
            before = dict(self._records)
            for source, files in found:
                oid = source.table.oid
                if joined_later and oid not in self._records:
                    self._records[oid] = self._anew(oid, Record("", "", "", joining=True))
                self._begin(source, files)
            if self._unwritten or self._records != before:
                self._write()

    def begin(self, source: SourceTable, files: str) -> Run:
        """Returns how much of the table is done. Other columns, key or files than before let an unfinished one start over."""
        oid = source.table.oid
        with self._lock:
            before, number = self._records.get(oid), self._runs[oid]
            begun = self._begin(source, files)
            if before is None or number != self._runs[oid]:
                self._write()
            elif before != begun:
                self._write_soon()
            return Run(self._runs[oid], begun.pages, begun.finished)

    def known(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records

    def name(self, oid: int) -> str:
        """``schema.table`` as it was last seen; the OID of one that has not been."""
        with self._lock:
            record = self._records.get(oid)
            return record.table if record is not None and record.table else f"OID {oid}"

    def finished(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].finished

    def unfinished(self) -> list[int]:
        """The tables (OIDs) that are still to be read."""
        with self._lock:
            return [oid for oid, record in self._records.items() if not record.finished]

    def show(self, oid: int, run: int, rows: int) -> None:
        """Counts rows that are durable in the log, whose range is not finished."""
        with self._lock:
            if self._runs[oid] == run:
                self._parts[oid] += rows

    def outdated(self, oid: int) -> bool:
        """Whether the log may have rows of the table in an older version than the stream has brought (see ``Record``)."""
        with self._lock:
            record = self._records.get(oid)
            return record is None or record.waiting or record.outdated

    def holds(self, oid: int) -> int:
        """How often ``wait_for_rows`` was called for the table."""
        with self._lock:
            return self._holds[oid]

    def advance(self, oid: int, run: int, pages: Interval, rows: int, *, waiting: bool, holds: int | None = None) -> None:
        """A range with so many rows (all of them shown before) is durable in the log. Passed over when the table has started over since.

        holds: as it was before somebody found out whether updates are ``waiting``: if one has been held since, they are."""
        with self._lock:
            record = self._records.get(oid)
            if record is None or record.finished or self._runs[oid] != run:
                return
            self._parts[oid] -= rows
            done = record.done + rows
            waiting = waiting or (record.waiting and holds not in (None, self._holds[oid]))
            self._records[oid] = replace(
                record, done=done, total=max(record.total, done), pages=merged((*record.pages, pages)), waiting=waiting
            )
            if waiting:
                self._write()
            else:
                self._write_soon()

    def wait_for_rows(self, oid: int) -> None:
        """Before an update is held back in memory (see ``Record.waiting``)."""
        with self._lock:
            self._holds[oid] += 1
            record = self._records.get(oid)
            if record is not None and not record.waiting:
                self._records[oid] = replace(record, waiting=True)
                self._write()

    def run(self, oid: int) -> int:
        """Another one whenever the table starts over, see ``Run``."""
        with self._lock:
            return self._runs[oid]

    def restart(self, oid: int, *, empties: bool = False, joined: bool = False) -> None:
        """The table is to be read from the beginning; one that is not known yet has joined the publication, as others may have again."""
        with self._lock:
            record = self._records.get(oid, Record("", "", "", joining=True))
            self._records[oid] = self._anew(oid, replace(record, joining=record.joining or joined), empties=empties)
            self._write()

    def restart_unlogged(self, topics: Collection[str]) -> None:
        """Tables that were read, and had no row, are read once more: so the log, which has these topics, gets to know how they are defined."""
        with self._lock:
            read = ((oid, record) for oid, record in self._records.items() if record.finished and not record.done)
            unlogged = [oid for oid, record in read if record.table not in topics]
            for oid in unlogged:
                self._records[oid] = self._anew(oid, self._records[oid])
            if unlogged:
                self._write()

    def joining(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].joining

    def joined(self, oid: int, run: int) -> None:
        """Every transaction that was open when it joined is visible. Passed over when the table has started over since."""
        with self._lock:
            if oid in self._records and self._runs[oid] == run:
                self._records[oid] = replace(self._records[oid], joining=False)
                self._write_soon()

    def empties(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].empties

    def outright(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].outright

    def announced(self, oid: int, run: int, since: int) -> bool:
        """The log says, durably, that the table is read in place of what it has: as its rows are gone (``since`` is 0), or up to ``since``.
        False when the table has started over since."""
        with self._lock:
            if oid not in self._records or self._runs[oid] != run:
                return False
            self._records[oid] = replace(self._records[oid], empties=False, outright=False, since=since)
            self._write()
            return True

    def since(self, oid: int) -> int:
        with self._lock:
            return self._records[oid].since if oid in self._records else 0

    def swept(self, oid: int, run: int) -> None:
        """Notes that what the source has no longer is deleted, durably. Passed over when the table has started over since."""
        with self._lock:
            if oid in self._records and self._runs[oid] == run:
                self._records[oid] = replace(self._records[oid], since=0)
                self._write()

    def cannot_sweep(self, oid: int, run: int) -> None:
        """The table starts over, and the log says that every earlier row is gone."""
        with self._lock:
            record = self._records.get(oid)
            if record is not None and self._runs[oid] == run:
                self._records[oid] = self._anew(oid, replace(record, outright=True, since=0), empties=True)
                self._write()

    def finish(self, oid: int, run: int) -> bool:
        """False when the table has started over since."""
        with self._lock:
            record = self._records.get(oid)
            if record is None or self._runs[oid] != run:
                return False
            self._parts.pop(oid, None)
            self._records[oid] = replace(record, total=record.done, finished=True, waiting=False, outdated=False, pages=())
            if record.waiting:
                self._write()  # else a crash would let it begin from the beginning
            else:
                self._write_soon()
            return True

    def forget(self, oid: int) -> None:
        """The table is gone."""
        with self._lock:
            self._runs[oid] += 1
            self._parts.pop(oid, None)
            if self._records.pop(oid, None) is not None:
                self._write()

    def forget_all(self) -> None:
        """Every table is to be taken in as if none had been."""
        with self._lock:
            for oid in self._records:
                self._runs[oid] += 1
            self._parts.clear()
            self._records.clear()
            self._write()

    def rows(self, oid: int) -> tuple[int, int]:
        """(durable in the log, about how many there are)"""
        with self._lock:
            record = self._records.get(oid)
            done = 0 if record is None else record.done + max(0, self._parts[oid])
            return done, 0 if record is None else max(record.total, done)

    def tables(self, without: Collection[int] = ()) -> list[TableProgress]:
        """For ``CaptureStatus.snapshot``, by name; without the tables (OIDs) that are not read now."""
        with self._lock:
            found = [
                TableProgress(r.table, done, max(r.total, done), r.finished)
                for oid, r in self._records.items()
                if r.table and oid not in without
                for done in (r.done + max(0, self._parts[oid]),)
            ]
        return sorted(found, key=lambda one: one.table)

    def _anew(self, oid: int, record: Record, *, empties: bool = False) -> Record:
        self._runs[oid] += 1
        self._parts.pop(oid, None)
        return record.restarted(empties=empties)

    def flush(self, *, when_due: bool = False) -> None:
        """Writes what is not on disk yet; ``when_due``: only once ``interval_s`` has passed since the last write."""
        with self._lock:
            if self._unwritten and (not when_due or self._due()):
                self._write()

    def _begin(self, source: SourceTable, files: str) -> Record:
        oid, shape = source.table.oid, source.shape
        record = self._records.get(oid, Record(source.name, shape, files))
        if not record.finished and (record.shape, record.files) != (shape, files):
            record = self._anew(oid, record)
        total = record.done if record.finished else max(source.rows_estimate, record.done)
        self._records[oid] = replace(record, table=source.name, shape=shape, files=files, total=total)
        return self._records[oid]

    def _due(self) -> bool:
        return time.monotonic() - self._written_at >= self._interval_s

    def _write_soon(self) -> None:
        self._unwritten = True
        if self._due():
            self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self._unwritten = True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": _FORMAT, "tables": {str(oid): _entry(record) for oid, record in self._records.items()}}
        jsonfile.write(self._path, content)
        self._unwritten = False


def _read(path: Path) -> dict[int, Record]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        content = jsonfile.decode(data)
        known = content["format"] == _FORMAT
        records = {int(oid): _record(entry) for oid, entry in content["tables"].items()} if known else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LogCorrupt(f"{path} is damaged; removing it makes the snapshot begin from the beginning") from None
    if not known:
        raise LogCorrupt(f"{path} has format {content['format']}, this version reads {_FORMAT}")
    return records


def _entry(record: Record) -> dict[str, Any]:
    # Written with every chunk of a small table; asdict copies every page range on its way.
    return {name: getattr(record, name) for name in _RECORD_FIELDS}


def _record(entry: dict[str, Any]) -> Record:
    pages = tuple((int(first), int(end)) for first, end in entry.pop("pages"))
    return Record(pages=pages, **entry)
