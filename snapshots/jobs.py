"""The reading under way, and by whom: the list that the coordinator fills and the workers empty. Thread-safe.

A job is one reading of one table under one definition. It is cut into tasks, each of which one worker reads in one transaction. When
anything about the table turns out to be different, the job is given up and the coordinator makes another, from what is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Condition
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


def page_tasks(pages: Pages, step: int, condition: str | None = None) -> Iterator[Task]:
    """All that is still to be read, in order."""
    while (interval := pages.claim(step)) is not None:
        yield Task(((PageRange(*interval, condition), Op.READ),), interval)


class Board:
    """The jobs of one session."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._jobs: list[Job] = []
        self._closed = False
        self._failure: BaseException | None = None

    # --- the coordinator's side ----------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def reads(self, oid: int) -> bool:
        """Whether some worker reads this table."""
        with self._changed:
            return any(job.source.table.oid == oid for job in self._jobs)

    @property
    def busy(self) -> bool:
        with self._changed:
            return bool(self._jobs)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until a job has ended or a worker has failed. Raises what the worker failed with."""
        with self._changed:
            if self._failure is None:
                self._changed.wait(timeout_s)
            if self._failure is not None:
                raise self._failure

    # --- the workers' side -----------------------------------------------------------------------------------------------------

    def next(self) -> Job | None:
        """A job with something to do: tasks, or (``finishing`` is set then) only the end. None: the session is over."""
        with self._changed:
            while not self._closed:
                for job in self._jobs:
                    if not job.over and (not job.exhausted or (job.busy == 0 and not job.finishing)):
                        job.busy += 1
                        job.finishing = job.exhausted
                        return job
                self._changed.wait(_WAIT_S)
            return None

    def claim(self, job: Job) -> Task | None:
        """The job's next task; None when there is none, or the job is over."""
        with self._changed:
            if self._closed or job.over or job.exhausted:
                return None
            task = next(job.tasks, None)
            job.exhausted = task is None
            return task

    def leave(self, job: Job) -> None:
        """Says that all that the worker had claimed of the job is durable."""
        with self._changed:
            job.busy -= 1
            if job.over and not job.busy:
                self._jobs.remove(job)
            self._changed.notify_all()

    def end(self, job: Job) -> None:
        """The job is finished, or to be recreated as soon as every worker has left it."""
        with self._changed:
            job.over = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._closed = True
            self._changed.notify_all()
