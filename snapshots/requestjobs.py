"""Requests as jobs: what ``cdc snapshot`` asked for, read like a table's own snapshot but for its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

import psycopg
import structlog

from cdc.errors import SourceError
from cdc.model.batch import Op
from cdc.model.selection import literal
from cdc.source.connection import reason
from cdc.source.excerpt import PublicationSource
from snapshots.catalog import Look, SourceTable
from snapshots.failures import request_problem
from snapshots.feed import SnapshotFeed
from snapshots.jobs import Board, Job, Task, page_tasks
from snapshots.plan import Key, KeyList, MissingKeys, Pages, range_pages
from snapshots.progress import SnapshotProgress
from snapshots.queries import KeyTypes, Looks, Published
from snapshots.requests import Request, RequestOutcome, Requests
from snapshots.steps import Steps

KEYS_AT_ONCE: Final = 5_000
_LOOK_S: Final = 0.2

log = structlog.get_logger("snapshot")


class ReadingOptions(PublicationSource, Protocol):
    """The part of ``[source]`` that says how tables are read."""

    @property
    def snapshot_chunk_rows(self) -> int: ...
    @property
    def snapshot_workers(self) -> int: ...
    @property
    def snapshot_rows_per_s(self) -> int | None: ...


@dataclass(slots=True)
class _Asked:
    """A job's purpose: one request."""

    requests: Requests
    name: str
    total: int
    rows: int = 0
    failed: bool = False
    told_at: float = float("-inf")

    def show(self, rows: int) -> None:
        self.rows += rows
        if time.monotonic() - self.told_at >= _LOOK_S:
            self.told_at = time.monotonic()
            self.requests.tell(self.name, RequestOutcome("running", self.rows, max(self.total, self.rows)))

    def advance(self, task: Task, rows: int) -> None:
        """A request that is interrupted begins again."""

    @property
    def since(self) -> int:
        return 0  # what is not asked for is left alone

    def swept(self) -> None: ...

    def cannot_sweep(self) -> None: ...

    def finish(self) -> bool:
        if not self.failed:
            self.requests.tell(self.name, RequestOutcome("done", self.rows, self.rows))
            log.info("an asked-for snapshot is in the log", request=self.name, rows=self.rows)
        return True

    def fail(self, source: SourceTable, error: psycopg.Error) -> None:
        self.failed = True
        self.requests.tell(self.name, RequestOutcome("failed", self.rows, error=request_problem(source, error)))
        # The reason may quote what was asked for, keys among it: only who asked is told.
        log.warning("an asked-for snapshot failed", request=self.name)


class Asked:
    """Puts pending requests on the board of one session. One thread uses it."""

    def __init__(
        self,
        source: ReadingOptions,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        requests: Requests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._feed = feed
        self._progress = progress
        self._requests = requests
        self._clock = clock
        self._looked_at = float("-inf")
        self._waiting = False
        self._seen: frozenset[str] = frozenset()
        """The requests that were there at the last look."""

    def offer(self, board: Board, unfinished: AbstractSet[int]) -> Steps[bool]:
        """Whether a request waits, be it for its table's own snapshot (OIDs) or for a worker."""
        if self._clock() - self._looked_at >= _LOOK_S:
            self._looked_at = self._clock()
            pending = self._requests.pending()
            for name, request in pending.items():
                if name not in self._seen:
                    log.info("took up an asked-for snapshot", request=name, table=request.table)
                yield from self._offer(board, unfinished, name, request)
            self._seen = frozenset(pending)
            self._waiting = bool(pending)
        return self._waiting

    def _offer(self, board: Board, unfinished: AbstractSet[int], name: str, request: Request) -> Steps[None]:
        try:
            found: list[SourceTable] = yield Published((literal(request.table),), self._source.publication)
        except SourceError as error:
            self._refuse(name, error.line())
            return
        if not found:
            self._refuse(name, f"table {request.table} is not published")
            return
        (source,) = found
        oid = source.table.oid
        if request.replace:
            self._replace(name, oid)
        elif (
            oid not in unfinished
            and not source.untold
            and not board.reads(oid)
            and self._requests.outcome(name).state in ("queued", "running")
        ):
            # Asked for last: the job of a request that was finished meanwhile tells so before it leaves the board.
            try:
                job = yield from self._job(name, request, source)
                board.add(job)
            except psycopg.errors.DataError as error:
                self._refuse(name, reason(error))

    def _refuse(self, name: str, problem: str) -> None:
        self._requests.tell(name, RequestOutcome("failed", error=problem))
        log.warning("an asked-for snapshot was refused", request=name)

    def _replace(self, name: str, oid: int) -> None:
        """The table's own snapshot, from its beginning; its progress is what gets reported."""
        if self._requests.outcome(name).state == "queued":
            self._feed.read_again(oid, empties=True)
            self._requests.tell(name, RequestOutcome("running"))
            return
        done, total = self._progress.rows(oid)
        finished = self._progress.finished(oid)
        self._requests.tell(name, RequestOutcome("done" if finished else "running", done, total))

    def _job(self, name: str, request: Request, source: SourceTable) -> Steps[Job]:
        total = len(request.keys) if request.keys is not None else source.rows_estimate if request.where is None else 0
        purpose = _Asked(self._requests, name, total)
        if request.keys is None:
            tasks = self._by_page(source, request.where)
        else:
            types: tuple[str, ...] = yield KeyTypes(source)
            tasks = _by_key(request.keys, types)
        oid = source.table.oid
        seen: Mapping[int, Look] = yield Looks([oid])
        return Job(source, seen[oid], purpose, tasks)

    def _by_page(self, source: SourceTable, where: str | None) -> Iterator[Task]:
        chosen = self._source
        step = range_pages(source, chosen.snapshot_chunk_rows, chosen.snapshot_workers, chosen.snapshot_rows_per_s)
        return page_tasks(Pages(source.pages), step, where)


def _by_key(keys: Sequence[Key], types: Sequence[str]) -> Iterator[Task]:
    pieces = [keys[first : first + KEYS_AT_ONCE] for first in range(0, len(keys), KEYS_AT_ONCE)]
    return iter([Task(((KeyList(some), Op.READ), (MissingKeys(some, types), Op.DELETE))) for some in pieces])
