"""The reading under way, and by whom: the list that the coordinator fills and the workers empty. Thread-safe.

A job is one reading of one table under one definition. It is cut into tasks, each of which one worker reads in one transaction. When
anything about the table turns out to be different, the job is given up and the coordinator makes another, from what is durable. A task
whose table is locked goes back to its job, which waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from threading import Condition, RLock
from typing import Final, Protocol

import psycopg

from cdc.model.batch import Op
from snapshots.catalog import Look, SourceTable
from snapshots.plan import Interval, PageRange, Pages, Range

_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one transaction: each piece's rows become changes of one kind."""

    reads: tuple[tuple[Range, Op], ...]
    pages: Interval | None = None
    """Where it is one of page ranges."""


class Purpose(Protocol):
    """For whom a job reads."""

    def show(self, rows: int) -> None:
        """Reports that ``rows`` more are durable."""

    def advance(self, task: Task, rows: int) -> None:
        """All of the task's rows are durable (and were shown)."""

    @property
    def since(self) -> int:
        """Up to which position of the log rows that were not read are looked for in the source once every task has been; 0: none are."""

    def swept(self) -> None:
        """Those that the source has no longer are deleted, durably."""

    def cannot_sweep(self) -> None:
        """They cannot be looked for."""

    def finish(self) -> bool:
        """Every task has been. False: what was read is of no use any more, or rows are still held."""

    def fail(self, source: SourceTable, error: psycopg.Error) -> None:
        """The server refuses to read the table's rows."""


@dataclass(slots=True, eq=False)
class Job:
    """See the module's text. Only the board changes it."""

    source: SourceTable
    look: Look
    """The table's facts and files when the job was made; a task under others is refused."""
    purpose: Purpose
    tasks: Iterator[Task]
    busy: int = 0
    """Workers that read one of its tasks, or wait for theirs to become durable."""
    exhausted: bool = False
    finishing: bool = False
    over: bool = False
    locked: bool = False
    """Nothing is claimed of it until ``Board.resume``: somebody keeps its table locked."""
    refused: list[Task] = field(default_factory=list)
    """Claimed, and given back because of that."""


def page_tasks(pages: Pages, step: int, condition: str | None = None) -> Iterator[Task]:
    """All that is still to be read, in order."""
    while (interval := pages.claim(step)) is not None:
        yield Task(((PageRange(*interval, condition), Op.READ),), interval)


class Board:
    """The jobs of one session."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._jobs: list[Job] = []
        self._closed = False
        self._failure: BaseException | None = None

    # --- the coordinator's side ----------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._changed.notify_all()

    def reads(self, oid: int) -> bool:
        """Whether some worker reads this table."""
        with self._lock:
            return any(job.source.table.oid == oid for job in self._jobs)

    def read(self) -> set[int]:
        """The tables (OIDs) that workers read."""
        with self._lock:
            return {job.source.table.oid for job in self._jobs}

    def resume(self, locked: Collection[int]) -> None:
        """The jobs go on whose tables are not among these (OIDs)."""
        with self._lock:
            for job in self._jobs:
                if job.locked and job.source.table.oid not in locked:
                    job.locked = False
                    self._changed.notify_all()

    @property
    def busy(self) -> bool:
        with self._lock:
            return bool(self._jobs)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until a job has ended or a worker has failed. Raises what the worker failed with."""
        with self._lock:
            if self._failure is None:
                self._changed.wait(timeout_s)
            if self._failure is not None:
                raise self._failure

    # --- the workers' side -----------------------------------------------------------------------------------------------------

    def next(self) -> Job | None:
        """Waits for a job with something to do, as ``take`` gives it. None: the session is over."""
        with self._lock:
            while not self._closed:
                if (job := self.take()) is not None:
                    return job
                self._changed.wait(_WAIT_S)
            return None

    def take(self) -> Job | None:
        """A job with something to do: tasks, or (``finishing`` is set then) only the end. None when no job has."""
        with self._lock:
            for job in self._jobs:
                if not (job.over or job.locked) and (not job.exhausted or (job.busy == 0 and not job.finishing)):
                    job.busy += 1
                    job.finishing = job.exhausted
                    return job
            return None

    def claim(self, job: Job) -> Task | None:
        """The job's next task; None when it has none left, is over, or has to wait."""
        with self._lock:
            if self._closed or job.over or job.locked or job.exhausted:
                return None
            task = job.refused.pop(0) if job.refused else next(job.tasks, None)
            job.exhausted = task is None
            return task

    def give_back(self, job: Job, task: Task | None) -> None:
        """The table is locked. ``task``: which could not be read; None where the job was being finished."""
        with self._lock:
            job.locked = True
            job.finishing = False
            if task is not None:
                job.refused.append(task)
                job.exhausted = False

    def leave(self, job: Job) -> None:
        """Says that all that the worker had claimed of the job is durable."""
        with self._lock:
            job.busy -= 1
            if job.over and not job.busy:
                self._jobs.remove(job)
            self._changed.notify_all()

    def end(self, job: Job) -> None:
        """The job is finished, or cannot be."""
        with self._lock:
            job.over = True
            self._changed.notify_all()

    def recreate(self, job: Job) -> None:
        """The job is given up: the coordinator makes another as soon as every worker has left it."""
        self.end(job)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
            self._closed = True
            self._changed.notify_all()
