"""The one apply function on Arrow, and the two ways to reach it: here in the driver, or on Spark's workers for large ranges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.log.reader import EmbeddedLogReader
from cdc.model.batch import OP, Op, table_of
from cdc.model.position import Position
from cdc.model.table import Table
from cdc.settings import StoreOptions
from sinks import make_sink
from sinks.contract import NOTHING, DeadLetter, Outcome, Sink

RESULT: Final = pa.schema(
    [
        ("written", pa.int64()),
        ("stale", pa.int64()),
        ("dead", pa.utf8()),
        ("error", pa.utf8()),
        ("hint", pa.utf8()),
        ("retryable", pa.bool_()),
    ]
)
"""What one worker answers. ``dead``: JSON of [table, position, reason]; ``error``: a StoreError's line, NULL when all went well."""


@dataclass(slots=True)
class Prepared:
    """Which schema version of each table a sink has been prepared for."""

    tables: dict[str, Table] = field(default_factory=dict)

    def ensure(self, sink: Sink, table: Table) -> None:
        if self.tables.get(table.qualified) != table:
            sink.prepare(table)
            self.tables[table.qualified] = table


def apply_range(
    sink: Sink, reader: LogReader, topics: Sequence[str], after: Position, upto: Position, prepared: Prepared
) -> Outcome:
    """Applies everything in (after, upto] of these topics. Tables are independent of each other; each goes in position order.

    The log gives a TRUNCATE alone in its batch, so order makes it the barrier that sinks ask for. Does not commit.
    """
    outcome = NOTHING
    for topic in topics:
        for batch in reader.read(topic, after, upto):
            prepared.ensure(sink, table_of(batch.schema))
            crashpoint("follower.batch.read")
            outcome += sink.apply(batch)
            crashpoint("follower.batch.applied")
    return outcome


def survey(reader: LogReader, topics: Sequence[str], after: Position, upto: Position) -> tuple[list[Table], bool]:
    """(every schema version in the range, whether a TRUNCATE is among the changes, which workers must not apply side by side)."""
    tables: dict[Table, None] = {}
    for topic in topics:
        for batch in reader.read(topic, after, upto):
            tables[table_of(batch.schema)] = None
            if batch.num_rows == 1 and batch.column(OP)[0].as_py() == Op.TRUNCATE:
                return list(tables), True
    return list(tables), False


def on_workers(store: str, options: StoreOptions, log_dir: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over slices (``cdc.spark.source.SLICES``): reads them from the log, applies them, answers RESULT.

    It carries the store's options, secrets included, to the workers; Spark's configuration never sees them.
    """

    def work(slices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in slices:
            for piece in batch.to_pylist():
                yield _result(_worker(store, options, log_dir), piece)

    return work


def outcome_of(results: pa.Table) -> Outcome:
    """The workers' answers together. Raises StoreError when one of them could not write."""
    outcome = NOTHING
    for row in results.to_pylist():
        if row["error"] is not None:
            raise StoreError(row["error"], retryable=row["retryable"], hint=row["hint"])
        dead = tuple(DeadLetter(*letter) for letter in json.loads(row["dead"]))
        outcome += Outcome(row["written"], row["stale"], dead)
    return outcome


class _Worker:
    """A sink and a reader that one Python worker keeps from task to task."""

    def __init__(self, store: str, options: StoreOptions, log_dir: Path) -> None:
        self._sink = make_sink(store, options)
        self._reader = EmbeddedLogReader(log_dir)
        self._prepared = Prepared()
        self._opened = False

    def apply(self, piece: dict[str, Any]) -> Outcome:
        if not self._opened:
            self._sink.open()
            self._opened = True
        try:
            upto = Position(piece["upto"])
            return apply_range(self._sink, self._reader, [piece["topic"]], Position(piece["after"]), upto, self._prepared)
        except StoreError:
            self._sink.close()
            self._opened = False
            self._prepared = Prepared()
            raise


_WORKERS: Final[dict[tuple[str, str, Path], _Worker]] = {}


def _worker(store: str, options: StoreOptions, log_dir: Path) -> _Worker:
    key = (store, repr(options), log_dir)
    if key not in _WORKERS:
        _WORKERS[key] = _Worker(store, options, log_dir)
    return _WORKERS[key]


def _result(worker: _Worker, piece: dict[str, Any]) -> pa.RecordBatch:
    try:
        outcome = worker.apply(piece)
    except StoreError as error:
        return _row(0, 0, "[]", str(error), error.hint, error.retryable)
    dead = json.dumps([[letter.table, letter.position, letter.reason] for letter in outcome.dead])
    return _row(outcome.written, outcome.stale, dead, None, None, None)


def _row(*values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], kind.type) for value, kind in zip(values, RESULT, strict=True)], schema=RESULT
    )
