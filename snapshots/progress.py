"""How far each table's snapshot has come: durably in the log's folder, so that a finished chunk is never read again; and shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.status import TableProgress
from snapshots.catalog import SourceTable
from snapshots.plan import Boundary

FILE: Final = "snapshot.json"
_FORMAT: Final = 1
_LINE_EVERY_S: Final = 5.0
INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Record:
    """One table, by its OID. ``after``: the key up to which every row is in the log; None: nothing is."""

    table: str
    shape: str
    """``SourceTable.shape`` when its rows were read."""
    done: int = 0
    total: int = 0
    after: Boundary | None = None
    finished: bool = False
    waiting: bool = False
    """Updates wait in memory for rows of this table. They are lost with the process, so it then begins from the beginning."""
    joining: bool = False
    """It has joined the publication; what was changed in transactions open at that moment is not streamed, so they are waited for."""
    empties: bool = False
    """Before its first row comes, the log has to say that every earlier row is gone."""


class SnapshotProgress:
    """Thread-safe. Every change that a restart must know is on disk (written aside, synced, renamed) before the call returns.

    Finished chunks are the exception: they are written at most every ``interval_s``, since a sync costs as much as reading a chunk,
    and a chunk that is read twice does no harm.
    """

    def __init__(
        self, folder: Path, *, interval_s: float = INTERVAL_S, secret_keys: Callable[[str], bool] = lambda _: False
    ) -> None:
        """``folder``: the log's. ``secret_keys``: whether a table's (``schema.name``) keys must not be written to a file; after a crash
        such a table is read from its beginning. Raises LogCorrupt when the file there is not ours."""
        self._secret_keys = secret_keys
        self._path = folder / FILE
        self._interval_s = interval_s
        self._written_at = float("-inf")
        self._lock = Lock()
        self._records = _read(self._path)
        for oid, record in self._records.items():
            if record.waiting:
                self._records[oid] = replace(record, after=None, done=0, finished=False, waiting=False)

    def begin(self, source: SourceTable) -> Record:
        """What is done of the table. Columns or a key other than before let an unfinished one begin anew."""
        oid = source.table.oid
        with self._lock:
            record = self._records.get(oid)
            if record is None or (record.shape != source.shape and not record.finished):
                record = Record(
                    source.name,
                    source.shape,
                    joining=record is not None and record.joining,
                    empties=record is not None and record.empties,
                )
            total = record.done if record.finished else max(source.rows_estimate, record.done)
            self._records[oid] = replace(record, table=source.name, total=total)
            self._write()
            return self._records[oid]

    def known(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records

    def finished(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].finished

    def advance(self, oid: int, rows: int, after: Boundary | None, *, waiting: bool) -> None:
        """A chunk is durable in the log. ``after``: the key of its last row (None keeps the old: the table is not resumable)."""
        with self._lock:
            record = self._records[oid]
            done = record.done + rows
            self._records[oid] = replace(
                record, done=done, total=max(record.total, done), after=after or record.after, waiting=waiting
            )
            if waiting or time.monotonic() - self._written_at >= self._interval_s:
                self._write()

    def wait_for_rows(self, oid: int) -> None:
        """Before an update is held back in memory (see ``Record.waiting``)."""
        with self._lock:
            record = self._records.get(oid)
            if record is not None and not record.waiting:
                self._records[oid] = replace(record, waiting=True)
                self._write()

    def restart(self, oid: int, *, empties: bool = False) -> None:
        """The table is to be read from the beginning; one that is not known yet has joined the publication."""
        with self._lock:
            record = self._records.get(oid) or Record("", "", joining=True)
            self._records[oid] = replace(
                record, done=0, after=None, finished=False, waiting=False, empties=empties or record.empties
            )
            self._write()

    def joining(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].joining

    def joined(self, oid: int) -> None:
        with self._lock:
            if oid in self._records:
                self._records[oid] = replace(self._records[oid], joining=False)
                self._write()

    def empties(self, oid: int) -> bool:
        with self._lock:
            return oid in self._records and self._records[oid].empties

    def emptied(self, oid: int) -> None:
        """The log says so, durably."""
        with self._lock:
            self._records[oid] = replace(self._records[oid], empties=False)
            self._write()

    def finish(self, oid: int) -> None:
        with self._lock:
            record = self._records[oid]
            self._records[oid] = replace(record, total=record.done, finished=True, waiting=False)
            self._write()

    def forget(self, oid: int) -> None:
        """The table is gone."""
        with self._lock:
            if self._records.pop(oid, None) is not None:
                self._write()

    def forget_all(self) -> None:
        """Every table is to be taken in as if none had been."""
        with self._lock:
            self._records.clear()
            self._write()

    def tables(self) -> list[TableProgress]:
        """For ``CaptureStatus.snapshot``, by name."""
        with self._lock:
            found = [TableProgress(r.table, r.done, r.total, r.finished) for r in self._records.values()]
        return sorted(found, key=lambda one: one.table)

    def _writable(self, record: Record) -> Record:
        if record.after is None or not self._secret_keys(record.table):
            return record
        return replace(record, after=None) if record.finished else replace(record, after=None, done=0)

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": _FORMAT, "tables": {str(oid): asdict(self._writable(record)) for oid, record in self._records.items()}}
        aside = self._path.with_suffix(".aside")
        # Keys are rows' values: nobody else reads them.
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        crashpoint("snapshot.progress.written_aside")
        aside.replace(self._path)
        crashpoint("snapshot.progress.renamed")
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> dict[int, Record]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        content = json.loads(text)
        known = content["format"] == _FORMAT
        records = {int(oid): _record(entry) for oid, entry in content["tables"].items()} if known else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LogCorrupt(f"{path} is damaged; removing it makes the snapshot begin from the beginning") from None
    if not known:
        raise LogCorrupt(f"{path} has format {content['format']}, this version reads {_FORMAT}")
    return records


def _record(entry: dict[str, Any]) -> Record:
    after = entry.pop("after")
    return Record(after=None if after is None else tuple(after), **entry)


class ProgressDisplay:
    """The snapshot's progress for people: bars with rows, rows/s and ETA at a terminal, a plain line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed_at: dict[str, float] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._ended: set[str] = set()

    def update(self, tables: Sequence[TableProgress]) -> None:
        """As often as the caller likes; tables that were finished when first seen are passed over."""
        for table in tables:
            if table.table not in self._began:
                self._began[table.table] = (time.monotonic(), table.done)
                if table.finished:
                    self._ended.add(table.table)
            if table.table not in self._ended:
                self._show(table)
        if self._bars is not None and all(table.finished for table in tables):
            self.close()

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _show(self, table: TableProgress) -> None:
        began, done = self._began[table.table]
        rate = (table.done - done) / max(1e-3, time.monotonic() - began)
        if self._console.is_terminal:
            self._show_bar(table, rate)
        else:
            self._show_line(table, rate)
        if table.finished:
            self._ended.add(table.table)

    def _show_bar(self, table: TableProgress, rate: float) -> None:
        if self._bars is None:
            self._tasks.clear()
            self._bars = Progress(
                TextColumn("snapshot {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} rows/s"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bars.start()
        if table.table not in self._tasks:
            self._tasks[table.table] = self._bars.add_task(table.table, total=table.total or None, rate="0")
        total = table.done if table.finished else max(table.total, table.done) or None
        self._bars.update(self._tasks[table.table], completed=table.done, total=total, rate=f"{rate:,.0f}")

    def _show_line(self, table: TableProgress, rate: float) -> None:
        now = time.monotonic()
        if not table.finished and now - self._printed_at.get(table.table, -_LINE_EVERY_S) < _LINE_EVERY_S:
            return
        self._printed_at[table.table] = now
        if table.finished:
            self._console.print(f"snapshot {table.table}: {table.done} rows, done", highlight=False)
            return
        left = max(0, table.total - table.done)
        eta = f", {left / rate:.0f} s left" if rate > 0 and table.total else ""
        self._console.print(
            f"snapshot {table.table}: {table.done} of about {table.total} rows, {rate:.0f} rows/s{eta}", highlight=False
        )
