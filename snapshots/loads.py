"""A table's own snapshot as a job: what comes before its first row, and where its progress goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from cdc.crashpoint import crashpoint
from cdc.model.evolution import Kind, SchemaChange
from cdc.model.position import Position
from snapshots.catalog import Look, SourceTable
from snapshots.failures import Unreadable
from snapshots.feed import Chunk, SnapshotFeed, State, Watermarks
from snapshots.flight import SAFE
from snapshots.jobs import Job, Task, page_tasks
from snapshots.plan import Pages, range_pages
from snapshots.progress import SnapshotProgress
from snapshots.requestjobs import ReadingOptions
from snapshots.steps import Await, Emit, Since, Steps
from snapshots.turns import Turns


@dataclass(frozen=True, slots=True)
class _Load:
    """A job's purpose: the table's own snapshot, as its progress knows it."""

    feed: SnapshotFeed
    progress: SnapshotProgress
    oid: int
    run: int
    turns: Turns
    unreadable: Unreadable

    def show(self, rows: int) -> None:
        self.progress.show(self.oid, self.run, rows)

    def advance(self, task: Task, rows: int) -> None:
        self.turns.went_on(self.oid)
        self.unreadable.read(self.oid)
        if task.pages is not None:
            holds = self.progress.holds(self.oid)
            # Rows that had to be let go are lost with the process, too, until the table begins from the beginning.
            waiting = self.oid in self.feed.unsettled()
            self.progress.advance(self.oid, self.run, task.pages, rows, waiting=waiting, holds=holds)

    @property
    def since(self) -> int:
        return self.progress.since(self.oid)

    def swept(self) -> None:
        self.progress.swept(self.oid, self.run)

    def cannot_sweep(self) -> None:
        self.progress.cannot_sweep(self.oid, self.run)

    def finish(self) -> bool:
        return self.feed.finish(self.oid, self.run)

    def fail(self, source: SourceTable, error: psycopg.Error) -> None:
        self.turns.went_on(self.oid)
        self.unreadable.failed(source, error)


class Loads:
    """Makes the jobs of one session."""

    def __init__(
        self,
        source: ReadingOptions,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        unreadable: Unreadable,
        turns: Turns,
        watermarks: Watermarks,
    ) -> None:
        self._source = source
        self._feed = feed
        self._progress = progress
        self._unreadable = unreadable
        self._turns = turns
        self._watermarks = watermarks

    def job(self, source: SourceTable, seen: Look, run: int, *, joined: bool) -> Steps[Job | None]:
        """None when the table has to wait. ``run``: in which the catalog was asked. ``joined``: it waits for no transaction that was open
        when it joined the publication."""
        oid = source.table.oid
        if oid in self._feed.to_read_again():
            self._feed.reading_again(oid)
            joined = False
        if self._progress.joining(oid):
            if not joined:
                return None
            self._progress.joined(oid, run)
        if self._progress.empties(oid) and not (yield from self._announce(source)):
            return None
        self._turns.take(source)
        begun = self._progress.begin(source, seen.files)
        given = self._source
        step = range_pages(source, given.snapshot_chunk_rows, given.snapshot_workers, given.snapshot_rows_per_s)
        tasks: Iterator[Task] = iter(()) if begun.finished else page_tasks(Pages(source.pages, begun.pages), step)
        return Job(source, seen, _Load(self._feed, self._progress, oid, begun.number, self._turns, self._unreadable), tasks)

    def _announce(self, source: SourceTable) -> Steps[bool]:
        """The log says that the table is read in place of what it has of it: under which definition, and whether its earlier rows are gone.

        They stay where those that are not read can be looked for in the source at the end, so that no store shows the table empty or in part.
        Every part's window opens after that: a row that moves between pages meanwhile would otherwise be read on neither.
        """
        oid = source.table.oid
        run = self._progress.run(oid)
        before: Position | None = None if self._progress.outright(oid) else (yield Since(source))
        change = SchemaChange(source.table, Kind.REWRITTEN, empties=before is None)
        chunk = Chunk(self._watermarks.next(), self._feed.open(source.table), announces=change)
        try:
            self._feed.ready(chunk, ())
            yield Emit(chunk.content)
            yield Await(chunk, SAFE)
        finally:
            self._feed.close(chunk.window)
        if chunk.state is State.REFUSED:
            return False
        # What the stream still had of the time before comes ahead of the announcement: it may be of rows that are gone as well.
        behind: Position | None = None if before is None else (yield Since(source))
        crashpoint("snapshot.table.announced")
        return self._progress.announced(oid, run, (before or 0) if behind is None else behind)
