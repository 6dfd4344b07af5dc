"""Where the snapshot's chunks meet the stream: what ingest (one thread) and the coordinator (others) share. Thread-safe.

A chunk goes through ``reading`` → ``ready`` (its watermark may come) → ``entered`` (its rows were handed to ingest) → ``durable``;
or ends as ``refused`` (has to be read again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from threading import Condition, RLock
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.model.batch import LSN, POSITION, TS, table_of
from cdc.model.evolution import Kind, SchemaChange, schema_change_of, schema_record
from cdc.model.group import Group, Watermark
from cdc.model.position import Cut, Position
from cdc.model.table import Table
from snapshots.fence import Barrier, Delivered, Keys, Mask, Snapshot, Window
from snapshots.holds import Holds
from snapshots.progress import SnapshotProgress

PREFIX: Final = "headwater"
"""Of our logical messages; one whose content is not a chunk is passed over."""


class State(Enum):
    READING = "reading"
    READY = "ready"
    ENTERED = "entered"
    DURABLE = "durable"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Chunk:
    """Some rows of one table, read in one snapshot. Only the feed changes it."""

    content: bytes
    """The logical message that is its watermark."""
    window: Window
    """It may serve further chunks of the same snapshot: who opened it closes it."""
    announces: SchemaChange | None = None
    """No rows: this is what the log says at its watermark, before the table's rows come."""
    batches: tuple[pa.RecordBatch, ...] = ()
    rows: int = 0
    """Rows read; fewer may enter."""
    state: State = State.READING
    lsn: int = 0


class Watermarks:
    """Contents of watermarks that nobody else has. ``run``: a text of its own for each session. Thread-safe."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._numbers = count(1)

    def next(self) -> bytes:
        return f"chunk:{self._run}:{next(self._numbers)}".encode()


class SnapshotFeed:
    """See the module's text. Every method may raise what the coordinator failed with."""

    def __init__(self, progress: SnapshotProgress) -> None:
        self._progress = progress
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._delivered: Delivered | None = Delivered()
        self._barrier: Barrier | None = None
        self._windows: list[Window] = []
        self._ready: dict[bytes, Chunk] = {}
        self._entered: list[Chunk] = []
        self._holds: dict[int, Holds] = {}
        self._again: set[int] = set()
        self._fell_behind = False
        self._error: Exception | None = None

    # --- ingest's side -----------------------------------------------------------------------------------------------------

    def on_group(self, group: Group, durable_lsn: int = 0) -> None:
        """Each group of whole transactions, in stream order, before it is appended.

        durable_lsn: transactions that end at or before it are in the log, so that the group tells nothing of their changes."""
        with self._lock:
            self._check()
            if self._delivered is not None:
                self._delivered.add(group.transactions.xid)
            if self._barrier is not None:
                # One that the log has comes without its changes, so no window can hold it against a snapshot that does not see it.
                self._barrier.deliver(group.transactions.xid[group.transactions.end_lsn > durable_lsn])
            if not self._windows and not self._holds:
                return
            for batch in group.batches:
                table = table_of(batch.schema)
                self._refuse_gone(table)
                if schema_change_of(batch) is not None:
                    self._refuse_open(table.oid)
                    continue
                for window in self._windows:
                    if window.table.oid == table.oid:
                        window.add(batch, table, group.transactions)
                if table.oid in self._holds and self._holds[table.oid].concerned(batch) and self._same_shape(table):
                    self._forget(table.oid, batch)
            for holds in self._holds.values():
                holds.settle()

    def expects(self, content: bytes) -> bool:
        """Whether this is the watermark of a chunk that has been read. Whether that has been given up since, ``chunk_at`` says."""
        return content in self._ready  # no lock: asked of every message with our prefix, whoever emitted it

    def chunk_at(self, watermark: Watermark) -> list[pa.RecordBatch] | None:
        """The rows of the chunk whose watermark came as the last transaction of the group given to ``on_group`` just before.

        Batches in ``batch_schema``, to be completed by ``place``; none when no row survived. Where no row was found, a SCHEMA record (ALTERED): it can
        make a table known that has none. None when the message is not a chunk's, or the chunk has to be read again.
        """
        with self._lock:
            self._check()
            chunk = self._ready.pop(watermark.content, None)
            if chunk is None:
                return None
            if chunk.window.mixed:
                self._settle(chunk, State.REFUSED)
                return None
            table = chunk.window.table
            if chunk.announces is not None:
                survivors = [schema_record(chunk.announces, 0, 0, 0)]
            else:
                survivors = chunk.window.survivors(chunk.batches)
            if chunk.announces is None and table.oid in self._holds and self._same_shape(table):
                holds = self._holds[table.oid]
                survivors, completed = holds.complete(holds.without_their_deletes(survivors))
                self._cover(table, completed)
                self._drop_if_empty(table.oid)
            if not (chunk.rows or survivors):
                survivors = [schema_record(SchemaChange(table, Kind.ALTERED), 0, 0, 0)]
            chunk.batches = ()
            chunk.lsn = watermark.lsn
            self._entered.append(chunk)
            crashpoint("snapshot.chunk.entered")
            self._settle(chunk, State.ENTERED)
            return survivors

    def on_durable(self, cut: Cut) -> None:
        """After the log's fsync of everything up to ``cut``."""
        if not self._entered:
            return
        with self._lock:
            self._check()
            for chunk in self._entered:
                if chunk.lsn <= cut.commit_lsn:
                    chunk.state = State.DURABLE
            crashpoint("snapshot.chunk.durable")
            self._entered = [chunk for chunk in self._entered if chunk.state is not State.DURABLE]
            self._changed.notify_all()

    def hold(self, rows: pa.RecordBatch, missing: Mapping[str, Mask]) -> None:
        """Updates of one table that lack unchanged TOAST values which the log does not have; the caller does not log them.

        rows: ``batch_schema``, in stream order, handed over before the group that they belong to; ``_cdc_position`` is the position
        that the next logged change after the row gets. missing: column → which rows lack it. Returns when a restart is safe.
        """
        table = table_of(rows.schema)
        with self._lock:
            self._check()
            self._progress.wait_for_rows(table.oid)
            for window in self._windows:
                if window.table.oid == table.oid:
                    window.meet(table)
            if table.oid not in self._holds or not self._same_shape(table):
                self._holds[table.oid] = Holds(table)
            self._holds[table.oid].add(rows, missing)
            self._fell_behind = True
            self._changed.notify_all()

    def unresolved(self, table_oid: int) -> bool:
        """Whether rows of this table may be missing from the log because its snapshot is not finished, so that ``hold`` is in order."""
        with self._lock:
            return table_oid in self._holds or table_oid in self._again or not self._progress.finished(table_oid)

    def outdated(self, table_oid: int) -> bool:
        """Whether the log may have rows of this table in an older version than the stream has brought: some were held back and not read since."""
        with self._lock:
            return table_oid in self._holds or table_oid in self._again or self._progress.outdated(table_oid)

    def reset(self) -> None:
        """The stream starts over after its last durable commit, and what was appended since is gone: open chunks are read again."""
        with self._lock:
            for chunk in (*self._ready.values(), *self._entered):
                chunk.state = State.REFUSED
            for window in self._windows:
                # Chunks that are still being read, or share it.
                window.mixed = True
            # The stream brings some of the held rows again, under other positions.
            self._again |= self._holds.keys()
            self._holds.clear()
            self._ready.clear()
            self._entered.clear()
            self._changed.notify_all()

    def read_again(self, table_oid: int, *, empties: bool = False, joined: bool = False) -> None:
        """The table's snapshot begins from the beginning, while streaming goes on; for a table that the progress does not know (it has just
        joined the publication) after the transactions that are open now. What was held of it is let go. Durable on return: a crash
        later changes nothing. From any thread; in ingest's, call it before the group with the SCHEMA record is made durable.

        empties: it is read in place of all that the log has of it, so that rows that the source has no more vanish (``loads``). For callers that
        log no emptying record of their own. joined: it has just joined the publication, be it for the second time.
        """
        with self._lock:
            self._check()
            self._progress.restart(table_oid, empties=empties, joined=joined)
            self._refuse_open(table_oid)
            self._holds.pop(table_oid, None)
            self._again.add(table_oid)
            self._fell_behind = True
            self._changed.notify_all()

    def fell_behind(self) -> bool:
        """Whether, since the last call, rows were held or a table is to be read again. Ingest's thread asks it before every commit."""
        if not self._fell_behind:
            return False  # without the lock, and without writing: somebody may be about to set it
        self._fell_behind = False
        return True

    def check(self) -> None:
        """Raises what the coordinator failed with; for ingest while the stream is idle."""
        self._check()  # without the lock: one look at one reference, in every round of ingest

    # --- the coordinator's side --------------------------------------------------------------------------------------------

    def track(self) -> None:
        """From now on delivered transactions are remembered; before the barrier is taken, before the first window."""
        with self._lock:
            if self._delivered is None:
                self._delivered = Delivered()

    def untrack(self) -> None:
        """Nothing is to be read any more."""
        with self._lock:
            self._delivered = self._barrier = None

    def set_barrier(self, barrier: Barrier) -> None:
        with self._lock:
            assert self._delivered is not None, "track comes first"
            barrier.deliver(self._delivered.so_far())
            self._barrier = barrier

    def exclude(self, xids: npt.NDArray[np.int64]) -> None:
        """These transactions of the barrier are known not to have committed yet."""
        with self._lock:
            if self._barrier is not None:
                self._barrier.exclude(xids)

    def barrier_suspects(self) -> npt.NDArray[np.int64]:
        with self._lock:
            return np.empty(0, np.int64) if self._barrier is None else self._barrier.suspects

    def open(self, table: Table) -> Window:
        """Before the snapshot is taken."""
        with self._lock:
            assert self._delivered is not None, "track comes first"
            window = Window(table, self._delivered.so_far(), barred=self._barrier is not None)
            self._windows.append(window)
            return window

    def admit(self, window: Window, snapshot: Snapshot) -> bool:
        """Whether rows read in this snapshot can be used at all; if not the window is closed."""
        with self._lock:
            assert self._delivered is not None, "track comes first"
            # What let the barrier pass meanwhile was a later snapshot than this one may be.
            usable = window.admit(snapshot) and not (window.barred and self._barrier is None)
            if self._barrier is not None and self._barrier.passed_by(snapshot):
                self._barrier = None
            self._delivered.prune(snapshot)
            if not usable or self._barrier is not None:
                self._windows.remove(window)
                return False
            return True

    def close(self, window: Window) -> None:
        """Once every chunk of it is durable, or to be read again."""
        with self._lock:
            self._shut(window)

    def ready(self, chunk: Chunk, batches: Sequence[pa.RecordBatch]) -> None:
        """Everything is read; to be called before the watermark is emitted."""
        with self._lock:
            if chunk.state is State.REFUSED:
                return
            chunk.batches = tuple(batches)
            chunk.rows = sum(batch.num_rows for batch in batches)
            self._ready[chunk.content] = chunk
            self._settle(chunk, State.READY)

    def abandon(self, chunk: Chunk) -> None:
        """The chunk is given up (it may already have entered, which does no harm), and with it its window."""
        with self._lock:
            self._ready.pop(chunk.content, None)
            if chunk in self._entered:
                self._entered.remove(chunk)
            chunk.batches = ()
            self._shut(chunk.window)
            self._settle(chunk, State.REFUSED)

    def wait(self, chunk: Chunk, states: frozenset[State], timeout_s: float) -> bool:
        """Until the chunk is in one of the states."""
        with self._lock:
            return self._changed.wait_for(lambda: chunk.state in states, timeout_s)

    def wait_for_work(self, timeout_s: float) -> bool:
        """Whether rows are held or a table is to be read again, as soon as that is so."""
        with self._lock:
            return self._changed.wait_for(lambda: bool(self._holds or self._again), timeout_s)

    def held(self, table_oid: int) -> bool:
        with self._lock:
            return table_oid in self._holds

    def held_keys(self, table_oid: int, limit: int) -> pa.RecordBatch | None:
        """At most so many held rows of the table, for their keys."""
        with self._lock:
            return self._holds[table_oid].keys(limit) if table_oid in self._holds else None

    def forget(self, table_oid: int, run: int) -> None:
        """The table is gone, or no longer published: nothing more is read of it, unless it has started over since ``run``. From any thread."""
        with self._lock:
            if self._progress.run(table_oid) != run:
                return
            self._refuse_open(table_oid)
            self._holds.pop(table_oid, None)
            self._again.discard(table_oid)
            self._progress.forget(table_oid)
            self._changed.notify_all()

    def unsettled(self) -> set[int]:
        """Tables (OIDs) of which rows are held, or which are to be read again."""
        with self._lock:
            return {*self._holds, *self._again}

    def to_read_again(self) -> set[int]:
        """Tables (OIDs) whose snapshot has to begin from the beginning, because rows were held and had to be let go."""
        with self._lock:
            return set(self._again)

    def reading_again(self, table_oid: int) -> None:
        """The table begins from the beginning: every later window sees what was let go."""
        with self._lock:
            self._progress.restart(table_oid)
            self._again.discard(table_oid)

    def finish(self, table_oid: int, run: int) -> bool:
        """Marks the table's snapshot finished unless rows are held, or it has started over since ``run``; False then."""
        with self._lock:
            if table_oid in self._holds or table_oid in self._again:
                return False
            crashpoint("snapshot.table.before_finish")
            return self._progress.finish(table_oid, run)

    def fail(self, error: Exception) -> None:
        """Sets the error that ingest is to end with."""
        with self._lock:
            self._error = error
            self._changed.notify_all()

    # --- within the lock ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _settle(self, chunk: Chunk, state: State) -> None:
        chunk.state = state
        self._changed.notify_all()

    def _shut(self, window: Window) -> None:
        """It gets no further changes, so none of its chunks may enter any more."""
        window.mixed = True
        if window in self._windows:
            self._windows.remove(window)

    def _refuse_open(self, oid: int) -> None:
        """Chunks of this table that are being read, or wait for their watermarks, are of no use any more."""
        for window in self._windows:
            if window.table.oid == oid:
                window.mixed = True

    def _refuse_gone(self, table: Table) -> None:
        """Who had this table's name before no longer does, though the snapshot of an open window may not see that yet. A later window's will."""
        for window in self._windows:
            if window.table.oid != table.oid and window.table.qualified == table.qualified:
                window.mixed = True

    def _cover(self, table: Table, completed: Sequence[Keys]) -> None:
        """Another chunk may have been read earlier than these rows' held changes, and enter later."""
        for keys in completed:
            for window in self._windows:
                if window.table.oid == table.oid:
                    window.cover(keys, table)

    def _forget(self, oid: int, batch: pa.RecordBatch) -> None:
        self._holds[oid].forget(batch)
        self._drop_if_empty(oid)

    def _drop_if_empty(self, oid: int) -> None:
        if not len(self._holds[oid]):
            del self._holds[oid]

    def _same_shape(self, table: Table) -> bool:
        """Whether the held rows have the table's columns; if not they are let go and the table is read again."""
        if self._holds[table.oid].table.columns == table.columns:
            return True
        del self._holds[table.oid]
        self._again.add(table.oid)
        self._changed.notify_all()
        return False


def place(batches: Sequence[pa.RecordBatch], first_position: Position, commit_lsn: int, commit_ts_us: int) -> list[pa.RecordBatch]:
    """The chunk's batches with dense positions from ``first_position`` on, and the watermark's commit as theirs."""
    placed = []
    position = int(first_position)
    for batch in batches:
        rows = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[POSITION] = pa.array(np.arange(position, position + rows, dtype=np.int64))
        columns[LSN] = pa.array(np.full(rows, commit_lsn, np.int64))
        columns[TS] = pa.array(np.full(rows, commit_ts_us, np.int64)).view(columns[TS].type)
        placed.append(pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema))
        position += rows
    return placed
