"""The rows that a view is first computed from, found on Spark's workers: they read the log, find each key's last change, and hand the rows over as Arrow, slice by
slice in order, while the view's process has its kernel take the slices before.

What the workers hand on, to one another (``cdc.replay.inparts``) and to the view's process, lies in files in a folder that all of them see, as they all see the
log: through Spark itself go the numbers of slices and what the log refuses. Its JVM would take more for the rows than finding them does.

Each file is written aside and renamed, so a task that Spark runs again, or twice, does no harm, and a file is there as a whole or not at all. Spark is started beside the
caller, and is ended once the rows are there, or nobody wants the rest: nothing of it is in the process before that, and nothing afterwards.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark import SparkContext

from cdc.derive.netrange import TopicReads, refuse_odd_keys
from cdc.derive.sourcerows import SourcePiece, read_here
from cdc.diskspace import FULL
from cdc.errors import HeadwaterError, PositionGone
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.model.batch import EXACT, EXACT_TYPE
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.inparts import KEYS, PLACES, TopicParts, keys_of_slice, newest_of_bucket, rows_of_slice
from cdc.replay.state import definition_at, refuse_compacted
from cdc.settings.sparkoptions import SparkOptions
from cdc.spark import cluster
from cdc.spark import session as sessions
from cdc.spark.causes import place_of
from cdc.views.contract import StateFull

SLICE_BYTES: Final = 16 * 2**20
"""So much of the log is read by one task …"""
SLICES_MAX: Final = 1000
"""… or more, so that there are no more tasks than this."""
WORKER_BYTES: Final = 64 * 2**20
"""The memory in which a task finds the last change of each key; beyond that it uses files."""
ATTEMPTS: Final = 3
"""A task whose worker was lost is begun again so often."""
END_S: Final = 5.0
"""For so long the end of the process waits for Spark's; it ends by itself once the process is gone."""
POLL_S: Final = 0.02
"""Whoever takes the rows waits so long for the next ones, and then has time for something else."""
SETTLED_S: Final = 1.0
"""The workers of a cluster come one by one: no more of them are waited for once none has come for so long."""
_BEGUN_AGAIN_MAX: Final = 5
_EXACT_FIELD: Final = pa.field(EXACT, EXACT_TYPE)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class TopicTask:
    """One topic's rows as a task is to find them. ``folder``: where its files go. ``start``: rows up to here do not count."""

    log_dir: Path
    folder: Path
    parts: TopicParts
    reads: TopicReads
    shape: TopicSchema
    start: int = 0

    @property
    def failing(self) -> str:
        """Its work, as an error names it."""
        return f"read {self.parts.topic}"

    def keys(self, number: int) -> Path:
        """The keys of a slice: a batch for each bucket."""
        return self.folder / f"keys{number}"

    def places(self, bucket: int) -> Path:
        """The positions of a bucket's rows: a batch for each slice."""
        return self.folder / f"places{bucket}"

    def rows(self, number: int) -> Path:
        """The rows of a slice."""
        return self.folder / f"rows{number}"


class ViewRowWorkers:
    """See ``cdc.derive.sourcerows.RowWorkers``. ``scratch``: for Spark's own files. ``options``: ``[spark]``. For one thread."""

    def __init__(self, log_dir: Path, scratch: Path, from_rows: int, options: SparkOptions | None = None) -> None:
        self._log_dir, self._scratch, self.from_rows = log_dir.absolute(), scratch, from_rows
        self._options = options or SparkOptions()
        self._starter = InTurn("spark-start")
        """Starts and ends Spark, and nobody waits for an end."""
        self._ours = False
        self._jobs: SparkJobs | None = None

    def rows(self, log: LogReader, reads: Sequence[TopicReads], cut: Position, folder: Path) -> Generator[SourcePiece]:
        folder = folder / uuid4().hex  # what an earlier one has left may be removed later
        starting = self._starter.begin(self._started)
        try:
            for _ in _awaited(starting):
                yield SourcePiece(reads[0])
            jobs = self._jobs = SparkJobs(_answer(starting, "be started"))
            for number, one in enumerate(reads):
                yield from self._topic(jobs, log, one, cut, folder / str(number))
        finally:
            self._halt()
            self._starter.begin(self._ended, folder)

    def end(self) -> None:
        """Returns once nothing of Spark is left in the process, whether or not somebody is still taking rows. A Spark that is just starting ends with the process."""
        self._halt()
        with suppress(NotYet):
            self._starter.begin(self._ended).result(END_S)

    def _halt(self) -> None:
        if self._jobs is not None:
            self._jobs.end()
        self._jobs = None

    def _started(self) -> SparkContext:
        self._ours = sessions.running() is None
        # A local master gives a task one attempt, unless it is told otherwise.
        options = self._options.locally(len(os.sched_getaffinity(0)), ATTEMPTS)
        made = sessions.session(app="headwater-views", options=options, scratch=self._scratch, iceberg_sql=False)
        _gather(made.sparkContext)
        return made.sparkContext

    def _ended(self, folder: Path | None = None) -> None:
        if self._ours:
            sessions.stop()
        self._ours = False
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _topic(self, jobs: SparkJobs, log: LogReader, reads: TopicReads, cut: Position, folder: Path) -> Iterator[SourcePiece]:
        refuse_compacted(log, reads.topic, cut)
        shape = definition_at(log, reads.topic, cut)
        if shape is None:
            return
        for left in reversed(range(_BEGUN_AGAIN_MAX)):
            begun = False
            size = sum(one.bytes for one in log.topics() if one.name == reads.topic)
            parts = TopicParts.of(log, reads.topic, cut, max(SLICE_BYTES, size // SLICES_MAX), jobs.parallel)
            try:
                for batches in jobs.slices(TopicTask(self._log_dir, folder / str(left), parts, reads, shape)):
                    begun |= bool(batches)
                    yield SourcePiece(reads, batches)
                break
            except RekeyedBehindItsBeginning:
                yield from read_here(log, [reads], cut)
                return
            except PositionGone:
                # The log was compacted between the planning and a task. Whoever begins again finds all that is left, unless the beginning is gone.
                if begun or not left:
                    raise
                refuse_compacted(log, reads.topic, cut)
        refuse_compacted(log, reads.topic, cut)  # it may have been meanwhile, and then rows were missing


class RekeyedBehindItsBeginning(Exception):
    """The columns that tell a topic's rows apart were changed. Its parts do not come to its rows then: one reader has to."""


class SparkJobs:
    """Tasks for the workers, one job after another, beside whoever takes what they find."""

    def __init__(self, context: SparkContext) -> None:
        self._context, self._watch = context, cluster.WorkerWatch(context)
        self.parallel = context.defaultParallelism
        self._group = f"view-{uuid4().hex}"
        self._turn = InTurn("spark-rows")
        self._ended = False

    def slices(self, task: TopicTask) -> Iterator[Sequence[pa.RecordBatch]]:
        """The rows of each slice, in order; nothing at all now and then, while whoever asks has to wait. Raises RekeyedBehindItsBeginning, PositionGone, Stopped, StateFull, and
        HeadwaterError for whatever befalls a worker."""
        task.folder.mkdir(mode=0o700, parents=True)
        found = self._turn.begin(self._found, task)
        yield from self._nothing(found)
        task = replace(task, start=_answer(found, task.failing))
        reading = self._turn.begin(self._all, _rows, task, len(task.parts.slices))
        for number in range(len(task.parts.slices)):
            path = task.rows(number)
            while not path.exists():
                if reading.done():
                    _answer(reading, task.failing)
                yield from self._nothing(reading, once=True)
            yield _batches(path)
            path.unlink()
        yield from self._nothing(reading)
        _answer(reading, task.failing)

    def _nothing(self, future: Future[Any], once: bool = False) -> Iterator[Sequence[pa.RecordBatch]]:
        """Until it is done, or for a moment. Raises HeadwaterError where there is nobody to do it."""
        for _ in _awaited(future):
            self._watch.check()
            yield ()
            if once:
                return

    def _found(self, task: TopicTask) -> int:
        """Has each key's last change found; returns the position up to which rows do not count."""
        marks = self._all(_keys, task, len(task.parts.slices))
        start, rekeyed = (max((mark[at] for mark in marks), default=0) for at in (0, 1))
        if rekeyed > start:
            raise RekeyedBehindItsBeginning
        self._all(_newest, replace(task, start=start), task.parts.buckets)
        return start

    def _all(self, does: Callable[[TopicTask, int], Any], task: TopicTask, count: int) -> list[Any]:
        """A task for each of so many numbers; returns the answers, in order. Raises the first that it refuses."""
        if not count:
            return []
        if self._ended:
            raise HeadwaterError("nobody wants the rows any more")
        self._context.setJobGroup(self._group, "the rows of a view's sources")  # of this thread
        answers: list[Any] = self._context.parallelize(range(count), count).map(partial(_tried, does, task)).collect()
        for one in answers:
            if isinstance(one, HeadwaterError):
                raise one
        return answers

    def end(self) -> None:
        """Nothing more is wanted. Does not wait for what is under way."""
        self._ended = True
        if sessions.running() is not None:
            with suppress(Exception):  # the JVM may be ending
                self._context.cancelJobGroup(self._group)


class InTurn:
    """Runs one thing after another beside the caller, in threads that no end of the process waits for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: threading.Thread | None = None

    def begin(self, does: Callable[..., Answer], *given: Any) -> Future[Answer]:
        """Once all that was begun before has ended."""
        before, found = self._last, Future[Answer]()

        def run() -> None:
            if before is not None:
                before.join()
            try:
                found.set_result(does(*given))
            except BaseException as error:
                found.set_exception(error)

        self._last = threading.Thread(target=run, name=self._name, daemon=True)
        self._last.start()
        return found


def _awaited(future: Future[Any]) -> Iterator[None]:
    """Until it is done: something else can be done at each step."""
    while not future.done():
        with suppress(NotYet):
            future.exception(POLL_S)
            return
        yield


def _gather(context: SparkContext) -> None:
    """Returns once the workers that a cluster has for this session have come, so that the work is divided among all of them. Raises HeadwaterError where none comes."""
    if cluster.is_local(context):
        return
    watch, came = cluster.WorkerWatch(context), 0
    # Where workers come only when there is work.
    first = InTurn("spark-first").begin(lambda: context.parallelize([0], 1).map(int).collect())
    for _ in _awaited(first):
        watch.check()
    first.result()
    while (now := cluster.workers(context)) > came:
        came = now
        time.sleep(SETTLED_S)


def _answer(future: Future[Any], what: str) -> Any:
    """Raises HeadwaterError for whatever befell Spark, its JVM, or the way there."""
    try:
        return future.result()
    except (HeadwaterError, RekeyedBehindItsBeginning):
        raise
    except Exception as error:
        raise HeadwaterError(
            f"Spark's workers could not {what}: {place_of(error)}",
            hint="it is tried again by itself; with workers_from_rows = 0 the view does without them",
        ) from None


def _batches(path: Path) -> list[pa.RecordBatch]:
    """They stay readable once the file is gone."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


# --- what tasks do


def _tried(does: Callable[[TopicTask, int], Any], task: TopicTask, number: int) -> Any:
    """The task's answer, or what it refuses as a value: Spark would make a text of it."""
    try:
        return does(task, number)
    except HeadwaterError as refusal:
        return refusal
    except OSError as error:
        if error.errno not in FULL:
            raise
        return StateFull("the rows that a view is computed from do not fit on its disk", hint="free space there: it is tried again")


def _keys(task: TopicTask, number: int) -> tuple[int, int]:
    found = keys_of_slice(_opened(task.log_dir), task.parts, number)
    _put(task.keys(number), KEYS, found.buckets)
    return found.emptied, found.rekeyed


def _newest(task: TopicTask, bucket: int) -> None:
    handed = (_batch(task.keys(number), bucket) for number in range(len(task.parts.slices)))
    _put(task.places(bucket), PLACES, newest_of_bucket(task.parts, handed, task.start, WORKER_BYTES))


def _rows(task: TopicTask, number: int) -> None:
    reads = task.reads
    handed = [_batch(task.places(bucket), number) for bucket in range(task.parts.buckets)]
    schema = pa.schema([_EXACT_FIELD, *reads.schema])

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        refuse_odd_keys(reads, batch)
        return pa.RecordBatch.from_arrays(batch.select(schema.names).columns, schema=schema)

    found = rows_of_slice(_opened(task.log_dir), task.parts, handed, task.shape, WORKER_BYTES)
    _put(task.rows(number), schema, map(read, found))


@lru_cache(maxsize=1)
def _opened(log_dir: Path) -> LogReader:
    """A worker's: it has many tasks, and to open a log takes as long as a task does. It ends with the worker."""
    gc.freeze()  # behind each task a worker collects garbage, and would walk through the libraries' objects each time
    return open_reader(log_dir)


def _batch(path: Path, number: int) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(number)


def _put(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    aside = path.with_name(f"{path.name}-{uuid4().hex}")
    with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    aside.rename(path)
